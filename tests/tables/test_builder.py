# SPDX-License-Identifier: Apache-2.0
"""The builder, on invented operators and a clock of its own."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest
from building import LATENCIES, PROTOCOL, Noise, Stopped, build, choice_runtime, make_plan, rounds_of, values

from nni_latency.errors import BusyError, InvalidValueError, MeasurementError, MismatchError, OutputError
from nni_latency.measurement import Protocol, quantile
from nni_latency.platforms import Platform
from nni_latency.tables import LookupTable, build_table
from nni_latency.testing import FakeClock, FakeRuntime, fake_plan


def test_table_holds_exactly_the_injected_latencies(tmp_path):
    assert values(build(tmp_path / "t.json")) == LATENCIES


def test_table_without_noise_needs_no_calibration(tmp_path):
    assert build(tmp_path / "t.json").calibration == pytest.approx(1.0)


def test_table_tells_how_it_was_made(tmp_path):
    platform = Platform("pi", "fake", facts={"torch": "2.0.0"})
    table = build(tmp_path / "t.json", platform=platform)
    assert (table.platform, dict(table.platform.facts)) == (platform, {"torch": "2.0.0"})
    assert (table.protocol, table.rounds, table.coverage) == (PROTOCOL, 6, 1.0)
    assert str(table.space) == "fake()"


def test_threads_of_runtime_and_protocol_must_agree(tmp_path):
    with pytest.raises(MismatchError, match=r"the runtime has 2, the protocol says 1"):
        build(tmp_path / "t.json", platform=Platform("pi", "fake", threads=2))


def test_table_is_written_as_it_is_returned(tmp_path):
    table = build(tmp_path / "t.json", noise=Noise())
    assert LookupTable.load(tmp_path / "t.json") == table


def test_table_keeps_fixed_layers_apart(tmp_path):
    table = build(tmp_path / "t.json")
    assert [layer.name for layer in table.searched] == ["a", "b", "c"]
    assert table["stem"].default == "conv"


def test_entries_count_their_samples(tmp_path):
    protocol = dataclasses.replace(PROTOCOL, n_run=2, half_width=0.0)
    table = build(tmp_path / "t.json", protocol=protocol)
    networks = [network for networks in rounds_of(tmp_path / "t.json") for network in networks]
    for index, layer in enumerate(table.layers):
        met = Counter(layer.choices[network[index]] for network in networks)
        # Every visit is timed twice.
        assert {choice: entry.n_samples for choice, entry in layer.entries.items()} == {
            choice: 2 * count for choice, count in met.items()
        }


def test_entries_have_a_sample_of_every_run_of_every_round(tmp_path):
    """Six rounds, each timed twice: every choice is met twelve times at least, and the stem by all networks."""
    table = build(tmp_path / "t.json", protocol=dataclasses.replace(PROTOCOL, n_run=2, half_width=0.0))
    counts = [entry.n_samples for layer in table.searched for entry in layer.entries.values()]
    assert min(counts) >= 12
    assert table["stem"]["conv"].n_samples >= 36


def test_warmups_are_not_counted(tmp_path):
    """Each network runs once untimed first; a device that is slow the first time leaves no trace."""
    plan, latencies = make_plan()
    runtime = FakeRuntime(latencies)
    # Every candidate runs once as it is loaded; a visit is a warm-up, a run with marks and one without.
    loading, n_layers = sum(plan.sizes), len(plan.layers)
    runs = {"count": -loading}

    def slow_first():
        run = runs["count"]
        runs["count"] += 1
        return 100.0 if run >= 0 and run // n_layers % 3 == 0 else 0.0

    runtime.noise = slow_first
    assert values(build_table(plan, runtime, PROTOCOL, tmp_path / "t.json", store="memory")) == LATENCIES


def test_first_round_does_not_count(tmp_path):
    plan, latencies = make_plan()
    cold = iter([50.0] * (sum(plan.sizes) + 3 * 3 * len(plan.layers)))
    runtime = FakeRuntime(latencies, noise=lambda: next(cold, 0.0))
    protocol = dataclasses.replace(PROTOCOL, rounds=1)
    assert values(build_table(plan, runtime, protocol, tmp_path / "t.json", store="memory")) == LATENCIES


def test_build_ends_with_the_time_budget(tmp_path):
    clock = FakeClock()
    plan, latencies = fake_plan({"a": {"x": 1.0}})
    protocol = Protocol(n_warmup=0, time_budget=2.5)
    runtime = FakeRuntime(latencies, clock=clock)
    table = build_table(plan, runtime, protocol, tmp_path / "t.json", store="memory", timer=clock.mark)
    # A round is one run, and two of the reference operator.
    assert (table.rounds, table.duration) == (3, round(3 * (1.0 + 2 * FakeRuntime.reference_time), 3))


def test_progress_tells_rounds_share_and_time_left(tmp_path):
    clock, seen = FakeClock(), []
    plan, latencies = fake_plan({"a": {"x": 1.0 - 2 * FakeRuntime.reference_time}})
    protocol = Protocol(n_warmup=0, time_budget=4)
    runtime = FakeRuntime(latencies, clock=clock)
    how = {"store": "memory", "timer": clock.mark, "on_progress": seen.append}
    build_table(plan, runtime, protocol, tmp_path / "t.json", **how)
    assert [progress.rounds for progress in seen] == [1, 2, 3, 4]
    assert [progress.share for progress in seen] == [0.25, 0.5, 0.75, 1.0]
    assert [progress.remaining for progress in seen] == [3.0, 2.0, 1.0, 0.0]


def test_finished_build_leaves_nothing_beside_the_table(tmp_path):
    build(tmp_path / "t.json")
    assert {path.name for path in tmp_path.iterdir()} == {"t.json"}


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
    with pytest.raises(InvalidValueError, match=r"exists\. Choose another file, or replace it: overwrite=True"):
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
        build_table(plan, runtime, PROTOCOL, tmp_path, store="memory")
    assert runtime.clock.now == 0


def test_output_below_a_file_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"Cannot write"):
        build(tmp_path / "file" / "t.json")


def test_network_that_does_not_run_is_named(tmp_path):
    """Every second run of a candidate fails: it runs while it is looked for, and no network with it does."""
    plan, latencies = make_plan()
    runs = {"count": 0}

    def every_second_time():
        runs["count"] += 1
        if runs["count"] % 2 == 0:
            raise RuntimeError("it depends")

    runtime = choice_runtime(plan, latencies, {"c:large": every_second_time})
    message = r"failed 3 times, though each of their candidates ran; .*a/\w,b/\w,c/large: RuntimeError: it depends\."
    with pytest.raises(MeasurementError, match=message):
        build_table(plan, runtime, PROTOCOL, tmp_path / "t.json", store="memory")


def test_runtime_that_refuses_is_not_blamed_on_a_candidate(tmp_path):
    plan, latencies = make_plan()
    del latencies[next(key for key in latencies if "choice=large" in key)]
    with pytest.raises(MeasurementError, match=r"was given no latency for the operator identity\(choice=large"):
        build_table(plan, FakeRuntime(latencies), PROTOCOL, tmp_path / "t.json", store="memory")


@pytest.mark.slow
def test_calibrated_sum_is_the_location_of_whole_runs(tmp_path):
    """With positive, independent noise the lower quartiles of parts add up to too little; calibration mends it."""
    layers = {f"layer{index}": {"x": 0.5, "y": 0.75, "z": 1.0} for index in range(12)}
    plan, latencies = fake_plan(layers)
    generator = random.Random(1)
    runtime = FakeRuntime(latencies, noise=lambda: generator.expovariate(4.0))
    table = build_table(plan, runtime, Protocol(rounds=300, time_budget=1e9), tmp_path / "t.json", store="memory")
    noise = tuple(sum(generator.expovariate(4.0) for _ in layers) for _ in range(5000))
    excess = quantile(noise, 0.5)
    ratios = []
    for _ in range(300):
        network = {layer: generator.choice("xyz") for layer in layers}
        plain = sum(table[layer][choice].value for layer, choice in network.items())
        ratios.append(plain / (sum(layers[layer][choice] for layer, choice in network.items()) + excess))
    assert max(ratios) < 0.95
    assert table.calibration * sum(ratios) / len(ratios) == pytest.approx(1.0, rel=0.02)


def test_calibration_does_not_depend_on_the_unit(tmp_path):
    """The same noise on a device twice as slow gives the same factor."""
    factors = []
    for scale in (1.0, 2.0):
        plan, latencies = fake_plan({"a": {"x": scale, "y": 3 * scale}, "b": {"x": scale, "y": scale}})
        noise = Noise()
        runtime = FakeRuntime(latencies, noise=lambda scale=scale, noise=noise: scale * noise())
        factors.append(build_table(plan, runtime, PROTOCOL, tmp_path / f"{scale}.json", store="memory").calibration)
    assert factors[0] == pytest.approx(factors[1], rel=1e-6)
    assert factors[0] != 1


def test_drift_of_the_device_leaves_no_trace(tmp_path):
    """A device that slows down by half during the build costs equal candidates exactly alike."""
    plan, latencies = fake_plan({name: {"x": 1.0, "y": 1.0, "z": 1.0} for name in "ab"})
    seen = []
    runtime = FakeRuntime(latencies, drift=lambda: 1.0 + len(seen) / 200)
    protocol = Protocol(rounds=100, time_budget=1e9, half_width=0.0)
    table = build_table(plan, runtime, protocol, tmp_path / "t.json", store="memory", on_progress=seen.append)
    values = [entry.value for layer in table.layers for entry in layer.entries.values()]
    assert values == pytest.approx([values[0]] * len(values), rel=1e-9)
    assert table.drift[-1] / table.drift[0] == pytest.approx(1.495, rel=1e-5)


def test_drift_that_the_reference_operator_does_not_see_meets_all_candidates_alike(tmp_path):
    """What slows down the candidates alone cannot be taken out, but costs equal candidates alike."""
    plan, latencies = fake_plan({name: {"x": 1.0, "y": 1.0, "z": 1.0} for name in "ab"})
    clock = FakeClock()
    runtime = FakeRuntime(latencies, clock=clock, noise=lambda: clock.now / 7000)
    table = build_table(
        plan, runtime, Protocol(rounds=100, time_budget=1e9, half_width=0.0), tmp_path / "t.json", store="memory"
    )
    values = [entry.value for layer in table.layers for entry in layer.entries.values()]
    assert clock.now / 7000 > 0.4
    assert min(values) > 1.1
    assert max(values) / min(values) < 1.015
