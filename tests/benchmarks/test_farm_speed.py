# SPDX-License-Identifier: Apache-2.0
"""What a job of a farm costs. Run by hand: ``make benchmarks``; medians go to docs/scaling.rst.

Visits of a fake device take no time, so that everything that is measured is the farm's own: the question for a worker,
the way there through the scheduler, and the way back.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from farms import FarmOfDevices
from nni_latency_farm.testing import FarmOfProcesses
from torch import nn

from nni_latency.measurement import Bench, Protocol, Subject
from nni_latency.testing import FakeDevice

_ROUND = [Subject(f"linear {size}", partial(nn.Linear, size, 4), (1, size)) for size in range(1, 33)]
_ASKED = [((subject.key,), False) for subject in _ROUND]
_PROTOCOL = Protocol(n_warmup=0)


def _loaded(bench: Bench) -> Bench:
    for subject in _ROUND:
        bench.admit(subject)
    return bench


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with FarmOfProcesses(tmp_path_factory.mktemp("farm")) as processes:
        processes.join("worker")
        with processes.client() as client:
            processes.wait_for(1, client)
            (found,) = client.platforms()
            with client.benches(found.platform).open(_PROTOCOL) as bench:
                yield _loaded(bench)


@pytest.fixture(scope="module")
def local() -> Iterator[Bench]:
    with FakeDevice().benches().open(_PROTOCOL) as bench:
        yield _loaded(bench)


@pytest.fixture(scope="module")
def without_network() -> Iterator[Bench]:
    made = FarmOfDevices()
    made.join("worker", FakeDevice())
    with made.benches().open(_PROTOCOL) as bench:
        yield _loaded(bench)


@pytest.mark.benchmark(group="a job of one visit")
@pytest.mark.parametrize("where", ["local", "without_network", "remote"])
def test_job_of_one_visit(benchmark: Any, where: str, request: pytest.FixtureRequest) -> None:
    bench = request.getfixturevalue(where)
    assert benchmark(lambda: len(list(bench.visit_all(_ASKED[:1])))) == 1


@pytest.mark.benchmark(group="a job of a round of 32 visits")
@pytest.mark.parametrize("where", ["local", "without_network", "remote"])
def test_job_of_a_round(benchmark: Any, where: str, request: pytest.FixtureRequest) -> None:
    bench = request.getfixturevalue(where)
    assert benchmark(lambda: len(list(bench.visit_all(_ASKED)))) == 32


@pytest.mark.benchmark(group="loading a subject")
def test_admitting(benchmark: Any, remote: Bench) -> None:
    numbers = iter(range(1_000_000))
    benchmark(lambda: remote.admit(Subject(f"again {next(numbers)}", nn.Identity, (1, 4))))
