"""The builder, on invented operators and a clock of its own."""

from __future__ import annotations

import dataclasses
import os
import random
from types import SimpleNamespace

import pytest
from building import LATENCIES, PROTOCOL, Noise, Stopped, build, make_plan, values

from nni_latency.errors import BusyError, InvalidValueError, MeasurementError, MismatchError, OutputError
from nni_latency.measurement import Protocol, quantile
from nni_latency.platforms import Platform
from nni_latency.tables import LookupTable, build_table, journal_path
from nni_latency.testing import FakeClock, FakeRuntime, fake_plan


def test_table_holds_exactly_the_injected_latencies(tmp_path):
    assert values(build(tmp_path / "t.json")) == LATENCIES


def test_table_without_noise_needs_no_calibration(tmp_path):
    assert build(tmp_path / "t.json").calibration == 1.0


def test_table_tells_how_it_was_made(tmp_path):
    platform = Platform("pi", "fake", facts={"torch": "2.0.0"})
    table = build(tmp_path / "t.json", platform=platform)
    assert (table.platform, dict(table.platform.facts)) == (platform, {"torch": "2.0.0"})
    assert (table.protocol, table.rounds, table.coverage) == (PROTOCOL, 6, 1.0)
    assert str(table.space) == "fake()"


def test_threads_of_runtime_and_protocol_must_agree(tmp_path):
    with pytest.raises(MismatchError, match=r"computes with 2 threads, the protocol says 1"):
        build(tmp_path / "t.json", platform=Platform("pi", "fake", threads=2))


def test_journal_left_behind_a_finished_table_is_not_gone_on_with(tmp_path):
    out = tmp_path / "t.json"
    build(out)
    old = out.stat().st_mtime - 1
    journal_path(out).write_text("left behind by a build that was killed at its very end\n")
    os.utime(journal_path(out), (old, old))
    table = build(out, overwrite=True)
    assert table.rounds == 6
    assert not journal_path(out).exists()


def test_table_is_written_as_it_is_returned(tmp_path):
    table = build(tmp_path / "t.json", noise=Noise())
    assert LookupTable.load(tmp_path / "t.json") == table


def test_table_keeps_fixed_layers_apart(tmp_path):
    table = build(tmp_path / "t.json")
    assert [layer.name for layer in table.searched] == ["a", "b", "c"]
    assert table.layer("stem").default == "conv"


def test_entries_count_their_samples(tmp_path):
    table = build(tmp_path / "t.json", protocol=dataclasses.replace(PROTOCOL, n_run=2))
    # Six rounds of three networks, timed twice: every choice of three is met 12 times, the stem 36 times.
    assert table.entry("a", "x").n_samples == 12
    assert table.entry("stem", "conv").n_samples == 36
    counts = [table.entry("c", choice).n_samples for choice in ("small", "large")]
    assert sum(counts) == 36
    assert min(counts) >= 12


def test_warmups_are_not_counted(tmp_path):
    """Each network runs once untimed first; a device that is slow the first time leaves no trace."""
    clock = FakeClock()
    plan, latencies = make_plan()
    runtime = FakeRuntime(latencies, clock=clock)
    runs = {"count": 0}
    n_layers = len(plan.layers)

    def slow_first():
        runs["count"] += 1
        # Runs come in pairs of networks, the first of each pair a warm-up.
        return 100.0 if ((runs["count"] - 1) // n_layers) % 2 == 0 else 0.0

    runtime.noise = slow_first
    assert values(build_table(plan, runtime, PROTOCOL, tmp_path / "t.json")) == LATENCIES


def test_first_round_does_not_count(tmp_path):
    plan, latencies = make_plan()
    runs = 3 * len(plan.layers) * 2
    cold = iter([50.0] * runs)
    runtime = FakeRuntime(latencies, noise=lambda: next(cold, 0.0))
    protocol = dataclasses.replace(PROTOCOL, rounds=1)
    assert values(build_table(plan, runtime, protocol, tmp_path / "t.json")) == LATENCIES


def test_build_ends_with_the_time_budget(tmp_path, monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr("nni_latency.tables._builder.time", SimpleNamespace(perf_counter=clock.mark))
    plan, latencies = fake_plan({"a": {"x": 1.0}})
    protocol = Protocol(n_warmup=0, time_budget=2.5)
    table = build_table(plan, FakeRuntime(latencies, clock=clock), protocol, tmp_path / "t.json")
    assert (table.rounds, table.duration) == (3, 3.0)


def test_progress_tells_rounds_share_and_time_left(tmp_path, monkeypatch):
    clock, seen = FakeClock(), []
    monkeypatch.setattr("nni_latency.tables._builder.time", SimpleNamespace(perf_counter=clock.mark))
    plan, latencies = fake_plan({"a": {"x": 1.0}})
    protocol = Protocol(n_warmup=0, time_budget=4)
    build_table(plan, FakeRuntime(latencies, clock=clock), protocol, tmp_path / "t.json", on_progress=seen.append)
    assert [progress.rounds for progress in seen] == [1, 2, 3, 4]
    assert [progress.share for progress in seen] == [0.25, 0.5, 0.75, 1.0]
    assert [progress.remaining for progress in seen] == [3.0, 2.0, 1.0, 0.0]


def test_finished_build_leaves_no_journal(tmp_path):
    build(tmp_path / "t.json")
    assert {path.name for path in tmp_path.iterdir()} == {"t.json", ".t.json.lock"}


def test_two_builders_on_one_file(tmp_path):
    path = tmp_path / "t.json"
    refused = []

    def build_again(progress):
        with pytest.raises(
            BusyError, match=r"Another process is building .*t\.json.*choose another output file"
        ) as info:
            build(path)
        refused.append(info.value)

    table = build(path, on_progress=build_again)
    assert len(refused) == 6
    assert values(table) == LATENCIES


def test_existing_table_is_not_replaced(tmp_path):
    path = tmp_path / "t.json"
    path.write_text("mine")
    with pytest.raises(InvalidValueError, match=r"exists\. Choose another file, or replace it with --overwrite"):
        build(path)
    assert path.read_text() == "mine"


def test_overwrite_replaces_a_table(tmp_path):
    path = tmp_path / "t.json"
    path.write_text("mine")
    build(path, overwrite=True)
    assert values(LookupTable.load(path)) == LATENCIES


def test_overwrite_keeps_the_old_table_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "t.json"
    path.write_text("mine")
    with pytest.raises(Stopped, match=r"stopped"):
        build(path, overwrite=True, noise=Noise(stop_after=60))
    assert path.read_text() == "mine"


def test_output_that_is_a_folder_is_refused_before_any_work(tmp_path):
    plan, latencies = make_plan()
    runtime = FakeRuntime(latencies)
    with pytest.raises(OutputError, match=r"it is a folder; name a file in it"):
        build_table(plan, runtime, PROTOCOL, tmp_path)
    assert runtime.clock.now == 0


def test_output_below_a_file_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"Can not write"):
        build(tmp_path / "file" / "t.json")


def test_network_that_does_not_run_is_named(tmp_path):
    plan, latencies = make_plan()
    broken = next(key for key in latencies if "choice=large" in key)
    del latencies[broken]
    with pytest.raises(MeasurementError, match=r"The network conv,\w,\w,large can not be run: .*no latency"):
        build_table(plan, FakeRuntime(latencies), PROTOCOL, tmp_path / "t.json")


def test_calibrated_sum_is_the_quantile_of_whole_runs(tmp_path):
    """With positive, independent noise the lower quartiles of parts add up to too little; calibration mends it."""
    layers = {f"layer{index}": {"x": 0.5, "y": 0.75, "z": 1.0} for index in range(12)}
    plan, latencies = fake_plan(layers)
    generator = random.Random(1)
    runtime = FakeRuntime(latencies, noise=lambda: generator.expovariate(4.0))
    table = build_table(plan, runtime, Protocol(rounds=300, time_budget=1e9), tmp_path / "t.json")
    plain = sum(table.entry(layer, "y").value for layer in layers)
    whole = quantile([sum(0.75 + generator.expovariate(4.0) for _ in layers) for _ in range(5000)], 0.25)
    assert plain < 0.95 * whole
    assert table.calibration * plain == pytest.approx(whole, rel=0.02)


def test_calibration_does_not_depend_on_the_unit(tmp_path):
    """The same noise on a device twice as slow gives the same factor."""
    factors = []
    for scale in (1.0, 2.0):
        plan, latencies = fake_plan({"a": {"x": scale, "y": 3 * scale}, "b": {"x": scale, "y": scale}})
        noise = Noise()
        runtime = FakeRuntime(latencies, noise=lambda scale=scale, noise=noise: scale * noise())
        factors.append(build_table(plan, runtime, PROTOCOL, tmp_path / f"{scale}.json").calibration)
    assert factors[0] == pytest.approx(factors[1], rel=1e-9)
    assert factors[0] != 1


def test_drift_of_the_device_meets_all_candidates_alike(tmp_path):
    """A device that slows down by half during the build still costs equal candidates alike."""
    plan, latencies = fake_plan({name: {"x": 1.0, "y": 1.0, "z": 1.0} for name in "ab"})
    clock = FakeClock()
    runtime = FakeRuntime(latencies, clock=clock, noise=lambda: clock.now / 2400)
    table = build_table(plan, runtime, Protocol(rounds=100, time_budget=1e9), tmp_path / "t.json")
    values = [entry.value for layer in table.layers for entry in layer.entries.values()]
    assert min(values) > 1.1
    assert max(values) / min(values) < 1.01
