"""A bench in this process."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from troublemakers import PlainRuntime, fine, raising

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement import CandidateError, LocalBench, Protocol, open_bench
from nni_latency.testing import FakeRuntime, fake_plan
from nni_latency.testing._runtime import REFERENCE

_LATENCIES = {"a": {"x": 0.5, "y": 1.0}, "b": {"x": 2.0, "y": 4.0}}


def _bench(runtime=None, protocol=None, columns=None, latencies=_LATENCIES):
    plan, by_op_key = fake_plan(latencies)
    builds = [[candidate.build for candidate in layer.candidates.values()] for layer in plan.layers]
    return LocalBench(
        columns or builds, plan.input_shape, runtime or FakeRuntime(by_op_key), protocol or Protocol(n_warmup=0)
    )


def _admit_all(bench):
    for layer, column in enumerate(bench.columns):
        for choice in range(len(column)):
            bench.admit(layer, choice)


def test_visit_times_parts_whole_and_reference():
    with _bench() as bench:
        _admit_all(bench)
        visit = bench.visit((1, 0))
    assert (visit.reference, visit.parts, visit.whole) == (REFERENCE, [[1.0, 2.0]], [3.0])


def test_visit_takes_as_many_runs_as_the_protocol_says():
    with _bench(protocol=Protocol(n_run=3)) as bench:
        _admit_all(bench)
        visit = bench.visit((0, 0))
    assert (visit.parts, visit.whole) == ([[0.5, 2.0]] * 3, [2.5] * 3)


def test_visit_ends_when_its_time_is_spent():
    with _bench(protocol=Protocol(n_run=100, max_measure_execution_time=6.0)) as bench:
        _admit_all(bench)
        assert len(bench.visit((0, 0)).whole) == 3


def test_visit_of_a_single_layer_has_no_parts():
    with _bench(latencies={"a": {"x": 0.5}}) as bench:
        _admit_all(bench)
        visit = bench.visit((0,))
    assert (visit.parts, visit.whole) == ([], [0.5])


def test_visit_warms_up_before_it_times():
    runs = iter([0.0] * 4 + [100.0] * 4)
    runtime = FakeRuntime(fake_plan(_LATENCIES)[1], noise=lambda: next(runs, 0.0))
    with _bench(runtime, Protocol(n_warmup=2)) as bench:
        _admit_all(bench)
        assert bench.visit((0, 1)).whole == [4.5]


def test_layers_after_the_first_get_what_the_one_before_returned():
    columns = [[lambda: nn.Conv2d(3, 5, 1)], [lambda: nn.Conv2d(5, 2, 1)]]
    with LocalBench(columns, (1, 3, 4, 4), FakeRuntime(lambda _op: 1.0), Protocol()) as bench:
        _admit_all(bench)
        assert bench.visit((0, 0)).whole == [2.0]


def test_steps_run_a_network_layer_by_layer():
    runtime = FakeRuntime(fake_plan(_LATENCIES)[1])
    with _bench(runtime) as bench:
        _admit_all(bench)
        before = runtime.clock.now
        bench.begin()
        bench.step(0, 1)
        bench.step(1, 1)
    assert runtime.clock.now - before == 5.0


def test_candidate_that_raises_is_blamed_with_type_and_first_line():
    with _bench(PlainRuntime(), columns=[[fine, raising]]) as bench:
        bench.admit(0, 0)
        with pytest.raises(CandidateError, match=r"^ValueError: cannot take 1$"):
            bench.admit(0, 1)


def test_candidate_that_raises_without_a_word_is_blamed_with_its_type():
    def speechless():
        raise AssertionError

    with (
        _bench(PlainRuntime(), columns=[[speechless]]) as bench,
        pytest.raises(CandidateError, match=r"^AssertionError$"),
    ):
        bench.admit(0, 0)


def test_candidate_that_raises_later_is_found_by_stepping():
    def fragile():
        runs = []

        def run(value):
            runs.append(value)
            if len(runs) > 1:
                raise torch.OutOfMemoryError("no memory left")
            return value

        return run

    with _bench(PlainRuntime(), columns=[[fine], [fragile]]) as bench:
        _admit_all(bench)
        with pytest.raises(CandidateError, match=r"^OutOfMemoryError: no memory left$"):
            bench.visit((0, 0))
        bench.begin()
        bench.step(0, 0)
        with pytest.raises(CandidateError, match=r"^OutOfMemoryError: no memory left$"):
            bench.step(1, 0)


def test_candidate_that_raised_leaves_the_others_as_they_were():
    with _bench(PlainRuntime(), columns=[[raising, fine], [fine]]) as bench:
        with pytest.raises(CandidateError, match=r"cannot take 1"):
            bench.admit(0, 0)
        bench.admit(0, 1)
        bench.admit(1, 0)
        assert len(bench.visit((1, 0)).whole) == 1


def test_error_of_the_package_is_not_blamed_on_the_candidate():
    def refusing():
        raise InvalidValueError("not like this")

    with _bench(columns=[[refusing]]) as bench, pytest.raises(InvalidValueError, match=r"^not like this$") as info:
        bench.admit(0, 0)
    assert not isinstance(info.value, CandidateError)


@pytest.mark.parametrize("seconds", [math.nan, math.inf])
def test_clock_that_gives_no_times_is_refused(seconds):
    runtime = FakeRuntime(fake_plan(_LATENCIES)[1])
    with _bench(runtime) as bench:
        _admit_all(bench)
        runtime.clock.intervals = lambda marks: [seconds] * (len(marks) - 1)
        with pytest.raises(MeasurementError, match=rf"The clock gave \[{seconds}\], which are no times") as info:
            bench.visit((0, 0))
    assert not isinstance(info.value, CandidateError)


def test_bench_measures_within_one_session():
    runtime = FakeRuntime(fake_plan(_LATENCIES)[1])
    with _bench(runtime) as bench:
        _admit_all(bench)
        bench.visit((0, 0))
    assert runtime.sessions == 1


def test_runtime_that_is_not_portable_gets_a_bench_in_this_process():
    runtime = FakeRuntime({})
    assert isinstance(open_bench([[fine]], (1,), runtime, Protocol()), LocalBench)
