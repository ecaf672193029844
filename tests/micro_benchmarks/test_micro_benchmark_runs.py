# SPDX-License-Identifier: Apache-2.0
"""Runs of micro-benchmarks on an invented device, and small ones on the real one."""

from __future__ import annotations

import json

import pytest
from invented_device import SERIES, SMALL, Forgetful, invented, seconds_of

from nni_latency.errors import FileFormatError, InvalidValueError, MeasurementError, MismatchError, OutputError
from nni_latency.measurement import Failure, MemoryStore, Protocol, Record
from nni_latency.measurement.runtimes import TorchEager
from nni_latency.micro_benchmarks import BenchmarkPoints, Block, run_benchmarks
from nni_latency.micro_benchmarks._point_schedule import PointSchedule
from nni_latency.platforms import Platform
from nni_latency.testing import FakeRuntime

# The clock of the tests moves by invented times, the budget by real ones; it must not end anything here.
PROTOCOL = Protocol(n_warmup=0, rounds=4, time_budget=600.0, outlier=0.0)


def test_points_take_what_their_operators_take(tmp_path):
    points = run_benchmarks(invented(), PROTOCOL, tmp_path / "points.json", series=SERIES, store="memory")
    assert [point.name for point in points.points][:3] == [f"{SMALL[0].name}-b{batch}" for batch in (1, 2, 4)]
    for point in points.points:
        assert point.value == pytest.approx(sum(map(seconds_of, point.ops)))
        assert point.low <= point.value <= point.high
    assert points.rounds == 4
    assert not points.failures


def test_drift_is_taken_out(tmp_path):
    speeds = iter([1.0 + 0.5 * (count // 40 % 2) for count in range(10**5)])
    points = run_benchmarks(
        invented(drift=lambda: next(speeds)), PROTOCOL, tmp_path / "points.json", series=SERIES[:1], store="memory"
    )
    values = {point.input_shape[0]: point.value for point in points.points}
    expected = {point.input_shape[0]: sum(map(seconds_of, point.ops)) for point in points.points}
    assert values[4] / values[1] == pytest.approx(expected[4] / expected[1], rel=0.5)


def _record(round_, batch, seconds, reference=1e-3):
    keys = (f"feeder of {SMALL[0].name}-b{batch}", f"{SMALL[0].name}-b{batch}")
    return Record(reference, ((1.0, seconds),), {"latency": (1.0,)}, keys, round_, 0, 0.1)


def test_samples_are_brought_to_the_speed_at_which_most_were_taken():
    """Few points are left in late rounds; if those are slow, the points that were settled before must not follow."""
    schedule = PointSchedule(SERIES[:1], PROTOCOL, lambda: 0)
    for number, batch in enumerate((1, 2, 4)):
        schedule.observe([_record(number, batch, 1e-3)])
    for number in range(3, 6):
        schedule.observe([_record(number, batch, 1e-3 * batch) for batch in (1, 2, 4)])
    for number in range(6, 12):
        schedule.observe([_record(number, 4, 12e-3, reference=3e-3)])
    values = {point.batch: summary.value for point, summary in schedule.summaries()}
    assert values == pytest.approx({1: 1e-3, 2: 2e-3, 4: 4e-3})


def test_points_that_failed_after_some_rounds_are_left_out_after_an_interruption_too():
    schedule = PointSchedule(SERIES[:1], PROTOCOL, lambda: 0)
    records = [_record(number, batch, 1e-3) for number, batch in enumerate((1, 2, 1, 2))]
    schedule.replay(records, [Failure(f"{SMALL[0].name}-b2", "out of memory")])
    assert [point.batch for point, _ in schedule.summaries()] == [1]


def test_what_is_written_is_what_is_read(tmp_path):
    points = run_benchmarks(invented(), PROTOCOL, tmp_path / "points.json", series=SERIES, store="memory")
    assert BenchmarkPoints.load(tmp_path / "points.json") == points
    content = json.loads((tmp_path / "points.json").read_text())
    assert content["points"][0]["flops"] > 2 * content["points"][0]["macs"] > 0


def test_memory_ends_the_series_of_a_block(tmp_path):
    points = run_benchmarks(Forgetful(room=1000), PROTOCOL, tmp_path / "points.json", series=SERIES, store="memory")
    names = {point.name for point in points.points}
    assert f"{SMALL[0].name}-b1" in names
    assert f"{SMALL[0].name}-b2" not in names
    assert points.failures[SMALL[0].name] == "batch 2: OutOfMemoryError: out of memory"
    assert SMALL[2].name not in points.failures


def test_time_ends_the_series_of_a_block(tmp_path):
    slow = FakeRuntime(lambda op: 0.1 if op.kind == "conv2d" else 0.0)
    points = run_benchmarks(
        slow, PROTOCOL, tmp_path / "points.json", series=[(SMALL[0], (1, 2, 4, 8, 16, 32))], store="memory"
    )
    assert [point.input_shape[0] for point in points.points] == [1, 2]
    assert points.failures[SMALL[0].name] == ("batch 4: a run would take 400 ms, more than the 360 ms for one point")


def test_nothing_that_runs_is_an_error(tmp_path):
    with pytest.raises(MeasurementError, match=r"None of the blocks can be run: batch 1: OutOfMemoryError"):
        run_benchmarks(Forgetful(room=1), PROTOCOL, tmp_path / "points.json", series=SERIES, store="memory")


@pytest.mark.slow
def test_an_interrupted_run_is_resumed(tmp_path):
    def stop(state):
        if state.rounds == 11:
            raise KeyboardInterrupt

    store, out = MemoryStore(), tmp_path / "points.json"
    whole = run_benchmarks(invented(), PROTOCOL, tmp_path / "whole.json", series=SERIES, store="memory")
    with pytest.raises(KeyboardInterrupt):
        run_benchmarks(invented(), PROTOCOL, out, series=SERIES, store=store, on_progress=stop)
    assert not out.exists()
    resumed = []
    points = run_benchmarks(invented(), PROTOCOL, out, series=SERIES, store=store, on_start=resumed.append)
    assert resumed == [11]
    assert [(point.name, point.n_samples) for point in points.points] == [
        (point.name, point.n_samples) for point in whole.points
    ]
    assert list(points.latencies) == pytest.approx(list(whole.latencies))


def test_a_finished_file_is_not_replaced_by_accident(tmp_path):
    (tmp_path / "points.json").write_text("{}")
    with pytest.raises(InvalidValueError, match=r"exists. Choose another file"):
        run_benchmarks(invented(), PROTOCOL, tmp_path / "points.json", series=SERIES, store="memory")
    with pytest.raises(OutputError, match="it is a folder"):
        run_benchmarks(invented(), PROTOCOL, tmp_path, series=SERIES, store="memory")


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ([], "at least one"),
        ([SERIES[0], SERIES[0]], "all different"),
        ([(SMALL[0], (2, 1))], r"must be >= 1 and rise. Got \(2, 1\)"),
        ([(SMALL[0], ())], "must be >= 1 and rise"),
    ],
)
def test_series_that_make_no_sense_are_refused(tmp_path, series, message):
    with pytest.raises(InvalidValueError, match=message):
        run_benchmarks(invented(), PROTOCOL, tmp_path / "points.json", series=series, store="memory")


def test_a_runtime_without_an_inside_is_refused(tmp_path):
    runtime = invented()
    runtime.supports_layer_timing = False
    with pytest.raises(MeasurementError, match="Measure micro-benchmarks with 'torch'"):
        run_benchmarks(runtime, PROTOCOL, tmp_path / "points.json", series=SERIES, store="memory")


@pytest.mark.slow
def test_real_blocks_are_measured_in_a_worker(tmp_path):
    series = [(SMALL[0], (1, 2)), (Block.of("head", 4, channels=8, classes=10), (1,))]
    protocol = Protocol(n_warmup=0, rounds=3, time_budget=60.0)
    points = run_benchmarks(TorchEager("cpu"), protocol, tmp_path / "points.json", series=series, store="memory")
    assert len(points.points) == 3
    assert all(point.value > 0 and point.n_samples == 3 for point in points.points)
    assert BenchmarkPoints.load(tmp_path / "points.json") == points


def test_points_of_two_platforms_do_not_mix(tmp_path):
    here = run_benchmarks(invented(), PROTOCOL, tmp_path / "a.json", series=SERIES, store="memory")
    elsewhere = BenchmarkPoints(points=here.points, platform=Platform("other", "fake"))
    assert len(BenchmarkPoints.merge([here, here]).points) == 18
    with pytest.raises(MismatchError, match="would mix two platforms"):
        BenchmarkPoints.merge([here, elsewhere])
    with pytest.raises(InvalidValueError, match="no points"):
        BenchmarkPoints.merge([])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.update(format="x"), "is not a file of benchmark points"),
        (lambda content: content.update(version=2), "has version 2, this nni_latency reads up to 1"),
        (lambda content: content["points"][0].update(value=-1.0), "points.0.value must be at least 0"),
        (lambda content: content["points"][0].update(low=9.0), "must be positive and"),
        (lambda content: content["points"][0].update(ops=[]), "points.0.ops must have 1 or more items"),
        (lambda content: content["platform"].update(threads=0), "platform.threads must be greater than 0"),
        (lambda content: content["protocol"].update(surprise=1), "surprise"),
        (lambda content: content.pop("points"), "points is missing"),
    ],
)
def test_an_altered_file_of_points_is_refused(tmp_path, change, message):
    path = tmp_path / "points.json"
    run_benchmarks(invented(), PROTOCOL, path, series=SERIES[:1], store="memory")
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match=message):
        BenchmarkPoints.load(path)


def test_a_file_of_points_that_can_not_be_read_is_refused(tmp_path):
    with pytest.raises(FileFormatError, match="Cannot read the file of points"):
        BenchmarkPoints.load(tmp_path / "none.json")
    (tmp_path / "cut.json").write_text('{"format": ')
    with pytest.raises(FileFormatError, match="is not whole JSON"):
        BenchmarkPoints.load(tmp_path / "cut.json")
