"""A bench in a worker process, and candidates that take the process with them."""

from __future__ import annotations

import os
import signal
import sys
import types

import pytest
from torch import nn
from troublemakers import BrokenRuntime, PlainRuntime, crashing, fine, hanging, killed, leaving, raising, worn_out

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement import CandidateError, IsolatedBench, LocalBench, Protocol, open_bench
from nni_latency.measurement.runtimes import TorchEager

# No test waits for these two seconds but that of the candidate that hangs.
_PROTOCOL = Protocol(n_warmup=1, n_run=2, timeout=2.0)


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


def _torch_columns():
    channels = 3

    class Closure(nn.Module):
        """A class that no other process can import."""

        def forward(self, inputs):
            return inputs + channels

    return [
        [lambda: nn.Conv2d(channels, 4, 3, padding=1), lambda: nn.Conv2d(channels, 4, 1)],
        [_Doubled, Closure, _CrashingLater],
    ]


def _plain(*second):
    """Return a bench whose second layer holds what makes trouble besides what does not."""
    return IsolatedBench([[fine], [fine, *second]], (1,), PlainRuntime(), _PROTOCOL)


def _admit(bench, *places):
    for place in places:
        bench.admit(*place)


@pytest.fixture(scope="module")
def torch_bench():
    with IsolatedBench(_torch_columns(), (1, 3, 8, 8), TorchEager(), Protocol(n_run=3)) as bench:
        _admit(bench, (0, 0), (0, 1), (1, 0), (1, 1), (1, 2))
        yield bench


@pytest.mark.parametrize("network", [(0, 0), (1, 0), (1, 1)])
def test_visit_in_a_worker_is_of_the_kind_of_one_in_this_process(torch_bench, network):
    with LocalBench(_torch_columns(), (1, 3, 8, 8), TorchEager(), Protocol(n_run=3)) as local:
        _admit(local, (0, 0), (0, 1), (1, 0), (1, 1))
        here, there = local.visit(network), torch_bench.visit(network)
    assert [len(there.whole), *map(len, there.parts)] == [len(here.whole), *map(len, here.parts)] == [3, 2, 2, 2]
    times = [there.reference, *there.whole, *(seconds for part in there.parts for seconds in part)]
    assert all(0 < seconds < 1 for seconds in times)


def test_crash_of_a_torch_candidate_is_survived(torch_bench):
    with pytest.raises(CandidateError, match=r"^its process crashed \(SIGSEGV\)$"):
        torch_bench.visit((0, 2))
    assert len(torch_bench.visit((1, 1)).whole) == 3


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (raising, r"^ValueError: cannot take 2$"),
        (crashing, r"^its process crashed \(SIGSEGV\)$"),
        (killed, r"^its process was killed, most likely because the memory ran out$"),
        (leaving, r"^its process ended with code 3$"),
        (hanging, r"^it did not end within 2"),
    ],
)
def test_candidate_that_fails_is_blamed_and_the_others_go_on(trouble, reason):
    with _plain(trouble, fine) as bench:
        _admit(bench, (0, 0), (1, 0))
        with pytest.raises(CandidateError, match=reason):
            bench.admit(1, 1)
        bench.admit(1, 2)
        assert [len(bench.visit(network).whole) for network in ((0, 0), (0, 2))] == [2, 2]


def test_candidate_that_crashes_later_is_found_by_stepping():
    with _plain(worn_out(1)) as bench:
        _admit(bench, (0, 0), (1, 0), (1, 1))
        with pytest.raises(CandidateError, match=r"SIGSEGV"):
            bench.visit((0, 1))
        bench.begin()
        bench.step(0, 0)
        with pytest.raises(CandidateError, match=r"SIGSEGV"):
            bench.step(1, 1)
        assert len(bench.visit((0, 0)).whole) == 2


def test_error_of_the_package_comes_back_as_it_was():
    def refusing():
        raise InvalidValueError("not like this")

    with _plain(refusing) as bench:
        bench.admit(0, 0)
        with pytest.raises(InvalidValueError, match=r"^not like this$"):
            bench.admit(1, 1)


def test_candidates_that_the_worker_can_not_import_are_refused(monkeypatch):
    module = types.ModuleType("only_here")
    exec("def build():\n    return lambda value: value\n", vars(module))
    monkeypatch.setitem(sys.modules, "only_here", module)
    bench = IsolatedBench([[module.build]], (1,), PlainRuntime(), _PROTOCOL)
    with pytest.raises(MeasurementError, match=r"cannot be made in a worker process: ModuleNotFoundError: .*only_here"):
        bench.__enter__()


def test_candidates_that_can_not_be_sent_are_refused():
    stuck = iter(())
    locked = (value for value in stuck)
    with pytest.raises(MeasurementError, match=r"cannot be sent to a worker .*generator.*top level of a module"):
        IsolatedBench([[lambda: locked]], (1,), PlainRuntime(), _PROTOCOL)


def test_runtime_that_can_not_begin_says_why():
    bench = IsolatedBench([[fine]], (1,), BrokenRuntime(), _PROTOCOL)
    with pytest.raises(
        MeasurementError, match=r"did not start: its process ended with code 1\. RuntimeError: no such device"
    ):
        bench.__enter__()


def test_worker_ends_when_the_bench_is_closed():
    with _plain() as bench:
        process = bench._worker._process
    assert process.returncode is not None


def test_worker_ends_when_this_process_dies():
    """The line breaks then, whatever becomes of the one who held its other end."""
    with _plain() as bench:
        bench._worker._line.close()
        assert bench._worker._process.wait(60.0) == 0


def test_portable_runtime_gets_a_worker():
    assert isinstance(open_bench([[fine]], (1,), PlainRuntime(), _PROTOCOL), IsolatedBench)
