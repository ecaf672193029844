# SPDX-License-Identifier: Apache-2.0
"""Fits on a farm: on workers that own no device, with the same results as here."""

from __future__ import annotations

import os
import time
from functools import partial

import numpy as np
import pytest
from farms import wait_until
from joblib import Parallel, delayed
from measured_graphs import FAST, measured
from nni_latency_farm import join, join_fits, owning

from nni_latency.errors import BusyError, InvalidValueError, RemoteError
from nni_latency.graphs import GraphPredictor
from nni_latency.platforms import affinity
from nni_latency.testing import FakeDevice

PROCESSOR = affinity()[:1]


@pytest.fixture
def fitters(processes):
    """Start a farm with a worker that measures and one that fits; return its client."""
    processes.join("measures", partial(FakeDevice, "device"))
    processes.join_fits("fits", PROCESSOR)
    with processes.client() as client:
        processes.wait_for(1, client)
        wait_until(lambda: client.fitters() == ["fits"])
        yield client


def _pids(count):
    return set(Parallel()(delayed(os.getpid)() for _ in range(count)))


@pytest.mark.slow
def test_what_joblib_does_side_by_side_is_done_by_workers_that_fit(processes, fitters):
    with fitters.fitting():
        assert _pids(5) == {processes.workers["fits"].pid}
    assert _pids(2) == {os.getpid()}
    assert [worker.name for worker in fitters.workers()] == ["measures"]
    assert fitters.workers()[0].jobs == 0


@pytest.mark.slow
def test_nothing_in_a_job_spreads_any_further(processes, fitters):
    with fitters.fitting():
        (inner,) = Parallel()([delayed(_pids)(3)])
    assert inner == {processes.workers["fits"].pid}


@pytest.mark.slow
def test_a_predictor_is_fitted_there_as_it_is_here(fitters):
    networks = [item for item in measured(4) if item.platform == FAST]
    make = partial(GraphPredictor, hidden=8, epochs=2, n_folds=2, n_members=2)
    here = make().fit(networks)
    with fitters.fitting():
        there = make().fit(networks)
    graphs = [item.graph for item in networks]
    assert np.array_equal(here.predict(graphs), there.predict(graphs))


@pytest.mark.slow
def test_an_error_of_a_job_is_raised_here(fitters):
    with fitters.fitting(), pytest.raises(InvalidValueError, match="too little"):
        Parallel()([delayed(_fail)()])


def _fail():
    raise InvalidValueError("It is too little.")


@pytest.mark.slow
def test_a_worker_that_dies_while_it_fits_is_said(processes, fitters):
    with pytest.raises(RemoteError, match="A worker of the farm died or left while it fitted"), fitters.fitting():
        jobs = Parallel(return_as="generator")(delayed(time.sleep)(30) for _ in range(2))
        time.sleep(1.0)
        processes.kill("fits")
        list(jobs)


@pytest.mark.slow
def test_a_worker_that_fits_ends_with_ctrl_c(processes, fitters):
    with pytest.raises(RemoteError, match="died or left"), fitters.fitting():
        jobs = Parallel(return_as="generator")(delayed(time.sleep)(3600) for _ in range(1))
        time.sleep(1.0)
        assert processes.interrupt("fits") == 0
        list(jobs)
    assert fitters.fitters() == []


@pytest.mark.slow
def test_a_farm_without_such_a_worker_says_so(processes):
    processes.join("measures", partial(FakeDevice, "device"))
    with processes.client() as client:
        processes.wait_for(1, client)
        with pytest.raises(RemoteError, match=r"The farm has no worker that fits\. Start one"), client.fitting():
            pass


def test_nothing_is_measured_on_the_processors_of_a_worker_that_fits():
    with owning("cpu"):
        for begin in (partial(join, runtime=FakeDevice("cpu")), join_fits):
            with pytest.raises(BusyError, match="Another process is using processor"):
                begin("127.0.0.1:1", name="late")


def test_more_threads_than_processors_are_refused():
    runtime = FakeDevice(threads=len(affinity()) + 1)
    with pytest.raises(InvalidValueError, match=r"threads needs as many processors, and this process may use \d+\."):
        join("127.0.0.1:1", runtime, name="wide")
