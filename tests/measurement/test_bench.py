# SPDX-License-Identifier: Apache-2.0
"""A bench in this process."""

from __future__ import annotations

import contextlib
import math

import pytest
import torch
from torch import nn
from troublemakers import PlainRuntime, fine, raising

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement import (
    CandidateError,
    LocalBench,
    LocalBenches,
    Meter,
    Protocol,
    Subject,
    cold_chain,
    flush_size,
    near_flush_size,
)
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.tables import candidate_subjects
from nni_latency.testing import FakeRuntime, fake_plan

_LATENCIES = {"a": {"x": 0.5, "y": 1.0}, "b": {"x": 2.0, "y": 4.0}}


@pytest.fixture
def open_bench():
    """Return a function that opens a bench and admits the candidates of an invented plan, or the given subjects."""
    with contextlib.ExitStack() as stack:

        def make(runtime=None, protocol=None, latencies=_LATENCIES, subjects=None, **options):
            plan, by_op_key = fake_plan(latencies)
            runtime = runtime or FakeRuntime(by_op_key)
            bench = stack.enter_context(LocalBench(runtime, protocol or Protocol(n_warmup=0), **options))
            for subject in (
                [one for layer in candidate_subjects(plan) for one in layer] if subjects is None else subjects
            ):
                bench.admit(subject)
            return bench

        yield make


def test_visit_times_parts_whole_and_reference(open_bench):
    visit = open_bench().visit(["a/y", "b/x"])
    assert (visit.reference, visit.parts, visit.samples) == (2.0**-10, [[1.0, 2.0]], {"latency": [3.0]})


def test_visit_takes_as_many_runs_as_the_protocol_says(open_bench):
    visit = open_bench(protocol=Protocol(n_run=3)).visit(["a/x", "b/x"])
    assert (visit.parts, visit.whole) == ([[0.5, 2.0]] * 3, [2.5] * 3)


def test_visit_ends_when_its_time_is_spent(open_bench):
    bench = open_bench(protocol=Protocol(n_run=100, max_measure_execution_time=6.0))
    assert len(bench.visit(["a/x", "b/x"]).whole) == 3


def test_visit_of_a_single_subject_has_no_parts(open_bench):
    visit = open_bench(latencies={"a": {"x": 0.5}}).visit(["a/x"])
    assert (visit.parts, visit.whole) == ([], [0.5])


def test_visit_warms_up_before_it_times(open_bench):
    runs = iter([0.0] * 4 + [100.0] * 4)
    runtime = FakeRuntime(fake_plan(_LATENCIES)[1], noise=lambda: next(runs, 0.0))
    assert open_bench(runtime, Protocol(n_warmup=2)).visit(["a/x", "b/y"]).whole == [4.5]


def test_later_subjects_get_what_the_one_before_returned(open_bench):
    subjects = [
        Subject("first", lambda: nn.Conv2d(3, 5, 1), (1, 3, 4, 4)),
        Subject("second", lambda: nn.Conv2d(5, 2, 1), (1, 5, 4, 4)),
    ]
    assert open_bench(FakeRuntime(lambda _op: 1.0), subjects=subjects).visit(["first", "second"]).whole == [2.0]


def test_subject_is_admitted_between_visits(open_bench):
    bench = open_bench()
    bench.visit(["a/x", "b/x"])
    plan, _ = fake_plan({"c": {"late": 0.5}})
    bench.runtime.latencies = lambda _op: 8.0
    bench.admit(candidate_subjects(plan)[0][0])
    assert bench.visit(["c/late"]).whole == [8.0]


def test_steps_run_a_network_part_by_part(open_bench):
    bench = open_bench()
    before = bench.runtime.clock.now
    bench.begin("a/y")
    bench.step("a/y")
    bench.step("b/y")
    assert bench.runtime.clock.now - before == 5.0


def test_subject_that_raises_is_blamed_with_type_and_first_line(open_bench):
    bench = open_bench(PlainRuntime(), subjects=[Subject("fine", fine, (1,))])
    with pytest.raises(CandidateError, match=r"^ValueError: cannot take 1$"):
        bench.admit(Subject("raising", raising, (1,)))


def test_subject_that_raises_without_a_word_is_blamed_with_its_type(open_bench):
    def speechless():
        raise AssertionError

    with pytest.raises(CandidateError, match=r"^AssertionError$"):
        open_bench(PlainRuntime(), subjects=[Subject("speechless", speechless, (1,))])


def test_subject_that_raises_later_is_found_by_stepping(open_bench):
    def fragile():
        runs = []

        def run(value):
            runs.append(value)
            if len(runs) > 1:
                raise torch.OutOfMemoryError("no memory left")
            return value

        return run

    bench = open_bench(PlainRuntime(), subjects=[Subject("fine", fine, (1,)), Subject("fragile", fragile, (1,))])
    with pytest.raises(CandidateError, match=r"^OutOfMemoryError: no memory left$"):
        bench.visit(["fine", "fragile"])
    bench.begin("fine")
    bench.step("fine")
    with pytest.raises(CandidateError, match=r"^OutOfMemoryError: no memory left$"):
        bench.step("fragile")


def test_error_of_the_package_is_not_blamed_on_the_subject(open_bench):
    def refusing():
        raise InvalidValueError("not like this")

    with pytest.raises(InvalidValueError, match=r"^not like this$") as info:
        open_bench(subjects=[Subject("refusing", refusing, (1,))])
    assert not isinstance(info.value, CandidateError)


@pytest.mark.parametrize("seconds", [math.nan, math.inf])
def test_clock_that_gives_no_times_is_refused(open_bench, seconds):
    bench = open_bench()
    bench.runtime.clock.intervals = lambda marks: [seconds] * (len(marks) - 1)
    with pytest.raises(MeasurementError, match=rf"The clock returned \[{seconds}\], which are not valid times") as info:
        bench.visit(["a/x", "b/x"])
    assert not isinstance(info.value, CandidateError)


def test_bench_measures_within_one_session(open_bench):
    bench = open_bench()
    bench.visit(["a/x", "b/x"])
    assert bench.runtime.sessions == 1


class _ClockMeter(Meter):
    """Reads an energy that grows with the runtime's clock: two joules a second, in steps of half a joule."""

    metric, resolution, period = "energy", 0.5, 0.25

    def __init__(self, clock):
        self.clock = clock

    def start(self):
        self.begin = self.clock.now

    def stop(self):
        return 2 * (self.clock.now - self.begin) // 0.5 * 0.5


def test_meter_is_read_over_a_window_that_it_can_resolve(open_bench):
    runtime = FakeRuntime(fake_plan(_LATENCIES)[1])
    bench = open_bench(
        runtime, Protocol(n_warmup=0, max_measure_execution_time=1e9), meters=[_ClockMeter(runtime.clock)]
    )
    before = runtime.clock.now
    visit = bench.visit(["a/y", "b/x"])
    assert visit.samples == {"latency": [3.0], "energy": [pytest.approx(6.0)], "power": [2.0], "window": [6.0]}
    # Twenty steps of the meter take 5 s, which is two runs.
    assert runtime.clock.now - before >= 3.0 + 3.0 + 2 * 3.0


def test_operator_alone_runs_on_inputs_that_were_just_made(open_bench):
    class Matrices(nn.Module):
        def forward(self, first, second):
            return first @ second

    chain = cold_chain("product", Matrices, [(2, 3), (3, 4)])
    bench = open_bench(TorchEager(), Protocol(), subjects=chain)
    runs = bench.visit([subject.key for subject in chain]).parts
    flush, _, product = map(min, zip(*runs, strict=True))
    assert 0 < product < flush


def _write_caches(root, caches):
    for index, (level, text) in caches.items():
        folder = root / f"sys/devices/system/cpu/cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        (folder / "level").write_text(f"{level}\n")
        (folder / "size").write_text(f"{text}\n")


def test_flush_is_larger_than_the_caches(tmp_path):
    assert 64 * 2**20 <= flush_size() <= 512 * 2**20
    assert flush_size(tmp_path) == 64 * 2**20
    _write_caches(tmp_path, {"0": ("1", "48K"), "3": ("3", "65536K"), "4": ("3", "unknown")})
    assert flush_size(tmp_path) == 128 * 2**20


@pytest.mark.parametrize(
    ("caches", "size"),
    [({"0": ("1", "48K"), "2": ("2", "2048K"), "3": ("3", "480M")}, 4), ({"2": ("2", "64M")}, 16), ({}, 4)],
)
def test_near_caches_are_those_up_to_the_second_level(caches, size, tmp_path):
    """What is behind them is left alone, however large it is; where nothing is known, a usual size counts."""
    _write_caches(tmp_path, caches)
    assert near_flush_size(tmp_path) == size * 2**20


class _Mixed(nn.Module):
    def forward(self, first, pair, *, number):
        return first + pair[0] * pair[1] + number


def _run(subject, runtime):
    with runtime.session():
        inputs = runtime.inputs(subject.inputs)
        return runtime.prepare(subject, inputs)(inputs), inputs


def test_subject_of_several_inputs_computes_what_the_network_does():
    given = (torch.ones(2), [torch.full((2,), 2.0), torch.full((2,), 3.0)], {"number": torch.tensor(4)})
    outputs, _ = _run(Subject.of_module(_Mixed(), given), TorchEager())
    assert torch.equal(outputs, torch.full((2,), 11.0))


def test_subject_takes_the_precision_and_leaves_whole_numbers():
    subject = Subject.of_module(nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 2)), torch.tensor([0, 2]))
    outputs, inputs = _run(subject, TorchEager(precision="bf16"))
    assert (outputs.dtype, inputs.dtype) == (torch.bfloat16, torch.int64)


def test_inputs_without_values_get_some():
    outputs, inputs = _run(Subject.of_module(nn.Embedding(3, 2), torch.tensor([9, 9], device="meta")), TorchEager())
    assert inputs.tolist() == [0, 0]
    assert outputs.shape == (2, 2)


def test_subject_runs_on_copies():
    network, inputs = nn.ReLU(inplace=True), torch.full((2,), -1.0)
    _run(Subject.of_module(network, inputs), TorchEager())
    assert inputs.tolist() == [-1.0, -1.0]


def test_subject_needs_weights():
    with pytest.raises(InvalidValueError, match=r"BatchNorm1d cannot be measured: 'weight' has no values"):
        Subject.of_module(nn.BatchNorm1d(2, device="meta"), torch.ones(2, 2))


def test_runtime_that_is_not_portable_gets_a_bench_in_this_process():
    benches = LocalBenches(FakeRuntime({}))
    assert not benches.isolated
    assert isinstance(benches.open(Protocol()), LocalBench)
