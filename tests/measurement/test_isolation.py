# SPDX-License-Identifier: Apache-2.0
"""A bench in a worker process, and candidates that take the process with them."""

from __future__ import annotations

import os
import signal
import sys
import types
from dataclasses import replace

import pytest
from torch import nn
from troublemakers import BrokenRuntime, PlainRuntime, crashing, fine, hanging, killed, leaving, raising, worn_out

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement import CandidateError, IsolatedBench, LocalBench, LocalBenches, Protocol, Subject
from nni_latency.measurement.runtimes import TorchEager

_PROTOCOL = Protocol(n_warmup=1, n_run=2, timeout=120.0)


class _Doubled(nn.Module):
    def forward(self, inputs):
        return 2 * inputs


class _CrashingLater(nn.Module):
    """It runs once, as it is loaded."""

    def forward(self, inputs):
        if hasattr(self, "worn_out"):
            os.kill(os.getpid(), signal.SIGSEGV)
        self.worn_out = True
        return inputs


def _torch_subjects():
    channels = 3

    class Closure(nn.Module):
        """A class that no other process can import."""

        def forward(self, inputs):
            return inputs + channels

    first = {"k3": lambda: nn.Conv2d(channels, 4, 3, padding=1), "k1": lambda: nn.Conv2d(channels, 4, 1)}
    second = {"doubled": _Doubled, "closure": Closure, "crashing": _CrashingLater}
    return [
        *(Subject(name, build, (1, 3, 8, 8)) for name, build in first.items()),
        *(Subject(name, build, (1, 4, 8, 8)) for name, build in second.items()),
    ]


def _plain(timeout=_PROTOCOL.timeout, **builds):
    """Return a bench, and subjects for it besides one that works."""
    subjects = {name: Subject(name, build, (1,)) for name, build in {"fine": fine, **builds}.items()}
    return IsolatedBench(PlainRuntime(), replace(_PROTOCOL, timeout=timeout)), subjects


def _admit(bench, subjects):
    for subject in subjects:
        bench.admit(subject)


@pytest.fixture(scope="module")
def torch_bench():
    with IsolatedBench(TorchEager(), Protocol(n_run=3)) as bench:
        _admit(bench, _torch_subjects())
        yield bench


@pytest.mark.parametrize("network", [("k3", "doubled"), ("k1", "doubled"), ("k1", "closure")])
def test_visit_in_a_worker_is_of_the_kind_of_one_in_this_process(torch_bench, network):
    with LocalBench(TorchEager(), Protocol(n_run=3)) as local:
        _admit(local, _torch_subjects()[:4])
        here, there = local.visit(network), torch_bench.visit(network)
    assert [len(there.whole), *map(len, there.parts)] == [len(here.whole), *map(len, here.parts)] == [3, 2, 2, 2]
    times = [there.reference, *there.whole, *(seconds for part in there.parts for seconds in part)]
    assert all(0 < seconds < 1 for seconds in times)


def test_crash_of_a_torch_candidate_is_survived(torch_bench):
    with pytest.raises(CandidateError, match=r"^its process crashed \(SIGSEGV\)$"):
        torch_bench.visit(("k3", "crashing"))
    assert len(torch_bench.visit(("k1", "closure")).whole) == 3


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (raising, r"^ValueError: cannot take 1$"),
        (crashing, r"^its process crashed \(SIGSEGV\)$"),
        (killed, r"^its process was killed, most likely because the memory ran out$"),
        (leaving, r"^its process ended with code 3$"),
        (hanging, r"^it did not end within 2"),
    ],
)
def test_candidate_that_fails_is_blamed_and_the_others_go_on(trouble, reason):
    # Only the one that hangs is waited for.
    opened, subjects = _plain(timeout=2.0 if trouble is hanging else 120.0, trouble=trouble, other=fine)
    with opened as bench:
        bench.admit(subjects["fine"])
        with pytest.raises(CandidateError, match=reason):
            bench.admit(subjects["trouble"])
        bench.admit(subjects["other"])
        assert [len(bench.visit(network).whole) for network in (["fine"], ["fine", "other"])] == [2, 2]


def test_candidate_that_crashes_later_is_found_by_stepping():
    opened, subjects = _plain(worn=worn_out(1))
    with opened as bench:
        _admit(bench, subjects.values())
        with pytest.raises(CandidateError, match=r"SIGSEGV"):
            bench.visit(["fine", "worn"])
        bench.begin("fine")
        bench.step("fine")
        with pytest.raises(CandidateError, match=r"SIGSEGV"):
            # It is loaded again, which takes its one run.
            bench.step("worn")
        assert len(bench.visit(["fine"]).whole) == 2


def test_candidate_that_cannot_be_loaded_again_is_blamed_when_it_is_needed(tmp_path):
    """The worker died of another one; what was loaded before is not to blame for anything else."""
    once = tmp_path / "once"

    def loads_once():
        if once.exists():
            raise ValueError("already loaded")
        once.touch()
        return lambda value: value

    opened, subjects = _plain(once=loads_once, worn=worn_out(1))
    with opened as bench:
        _admit(bench, subjects.values())
        with pytest.raises(CandidateError, match=r"SIGSEGV"):
            bench.visit(["fine", "worn"])
        assert len(bench.visit(["fine"]).whole) == 2
        with pytest.raises(CandidateError, match=r"already loaded"):
            bench.begin("once")


def test_error_of_the_package_comes_back_as_it_was():
    def refusing():
        raise InvalidValueError("not like this")

    opened, subjects = _plain(refusing=refusing)
    with opened as bench, pytest.raises(InvalidValueError, match=r"^not like this$"):
        bench.admit(subjects["refusing"])


def test_candidates_that_the_worker_can_not_import_are_refused(monkeypatch):
    module = types.ModuleType("only_here")
    exec("def build():\n    return lambda value: value\n", vars(module))
    monkeypatch.setitem(sys.modules, "only_here", module)
    with (
        IsolatedBench(PlainRuntime(), _PROTOCOL) as bench,
        pytest.raises(MeasurementError, match=r"cannot be made in a worker process: ModuleNotFoundError: .*only_here"),
    ):
        bench.admit(Subject("only here", module.build))


def test_candidates_that_can_not_be_sent_are_refused():
    stuck = iter(())
    locked = (value for value in stuck)
    with (
        IsolatedBench(PlainRuntime(), _PROTOCOL) as bench,
        pytest.raises(MeasurementError, match=r"'stuck' cannot be sent to a worker .*generator.*top level of a module"),
    ):
        bench.admit(Subject("stuck", lambda: locked))


def test_runtime_that_can_not_begin_says_why():
    bench = IsolatedBench(BrokenRuntime(), _PROTOCOL)
    with pytest.raises(
        MeasurementError, match=r"did not start: its process ended with code 1\. RuntimeError: no such device"
    ):
        bench.__enter__()


def test_worker_ends_when_the_bench_is_closed():
    with IsolatedBench(PlainRuntime(), _PROTOCOL) as bench:
        process = bench._worker._process
    assert process.returncode is not None


def test_worker_ends_when_this_process_dies():
    """The line breaks then, whatever becomes of the one who held its other end."""
    with IsolatedBench(PlainRuntime(), _PROTOCOL) as bench:
        bench._worker._line.close()
        assert bench._worker._process.wait(60.0) == 0


def test_portable_runtime_gets_a_worker():
    assert isinstance(LocalBenches(PlainRuntime()).open(_PROTOCOL), IsolatedBench)
