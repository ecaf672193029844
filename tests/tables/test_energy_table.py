# SPDX-License-Identifier: Apache-2.0
"""Tables of energy and power, by meters of the test's own."""

from __future__ import annotations

import dataclasses
import random

import pytest
from building import LATENCIES, PROTOCOL, make_plan

from nni_latency.errors import InvalidValueError, MeasurementError, MismatchError
from nni_latency.loading import load_estimator
from nni_latency.measurement import MemoryStore
from nni_latency.tables import LookupTable, build_table, measure_networks, weigh_tables
from nni_latency.testing import FakeClock, FakeMeter, FakeRuntime


def _build(path, metric, watts=20.0, store=None, rounds=6, **traits):
    plan, latencies = make_plan()
    clock = FakeClock()
    meter = FakeMeter(clock, watts, **traits)
    runtime = FakeRuntime(latencies, clock=clock)
    protocol = dataclasses.replace(PROTOCOL, rounds=rounds)
    how = {"metric": metric, "store": store or MemoryStore(), "meters": (meter,)}
    return build_table(plan, runtime, protocol, path, **how)


def _values(table):
    return {layer.name: {name: entry.value for name, entry in layer.entries.items()} for layer in table.layers}


def test_energy_at_a_constant_power_is_time_times_it(tmp_path):
    table = _build(tmp_path / "t.json", "energy")
    assert (table.metric, table.coverage) == ("energy", 1.0)
    for layer, entries in LATENCIES.items():
        for choice, seconds in entries.items():
            assert _values(table)[layer][choice] == pytest.approx(20 * seconds, rel=1e-3)


def test_power_at_a_constant_power_adds_up_to_it(tmp_path):
    table = _build(tmp_path / "t.json", "power")
    for choices in (("conv", "x", "x", "small"), ("conv", "z", "y", "large")):
        drawn = sum(layer.entries[choice].value for layer, choice in zip(table.layers, choices, strict=True))
        assert drawn == pytest.approx(20.0, rel=0.01)


def test_candidate_that_draws_more_costs_more_energy(tmp_path):
    """With 40 W where the last layer is large and 10 W elsewhere, that candidate costs more than its share of time."""
    plan, latencies = make_plan()
    clock = FakeClock()
    clock_at = [0.0]

    def watts():
        seconds = clock.now - clock_at[0]
        clock_at[0] = clock.now
        return 40.0 if seconds > 8.0 else 10.0

    meter = FakeMeter(clock, watts)
    start = meter.start
    meter.start = lambda: (clock_at.__setitem__(0, clock.now), start())[1]
    table = build_table(
        plan, FakeRuntime(latencies, clock=clock), dataclasses.replace(PROTOCOL, rounds=12), tmp_path / "t.json",
        metric="energy", store=MemoryStore(), meters=(meter,),
    )  # fmt: skip
    found = _values(table)
    assert found["c"]["large"] / 8.0 > 2 * found["b"]["y"] / 4.0


def test_energy_and_power_follow_from_one_campaign_and_latency_from_another(tmp_path):
    store = MemoryStore()
    energy = _build(tmp_path / "e.json", "energy", store=store)
    power = _build(tmp_path / "p.json", "power", store=store)
    latency = _build(tmp_path / "l.json", "latency", store=store)
    assert energy.campaign == power.campaign == latency.campaign
    plan, latencies = make_plan()
    plain = build_table(plan, FakeRuntime(latencies), PROTOCOL, tmp_path / "plain.json", store=store)
    assert plain.campaign != energy.campaign


def test_table_says_what_is_net_and_which_windows_were_disturbed(tmp_path):
    table = _build(tmp_path / "t.json", "energy", idle=5.0, observed={"gpu_clock": [1.4e9, 1.0e9]})
    assert (
        "gross, read by simulated. Without work the machine drew 5 W before and 5 W after: 75.0 % of it is net."
        in (table.remarks[-2])
    )
    assert table.remarks[-1].endswith("The GPU went from 1.40 to 1.00 GHz while it was measured.")


def test_a_meter_that_does_not_show_the_work_is_doubted(tmp_path):
    table = _build(tmp_path / "t.json", "energy", idle=20.0)
    assert table.remarks[-1].endswith("0.0 % of it is net. The meter hardly shows the work: it may be that of another "
                                      "machine, or device.")  # fmt: skip
    assert "hardly shows" not in _build(tmp_path / "u.json", "energy", idle=5.0).remarks[-1]


def test_metric_of_energy_needs_a_meter(tmp_path):
    plan, latencies = make_plan()
    with pytest.raises(InvalidValueError, match=r"The metric 'energy' needs a meter of energy"):
        build_table(plan, FakeRuntime(latencies), PROTOCOL, tmp_path / "t.json", metric="energy")
    assert list(tmp_path.iterdir()) == []


def test_meter_that_dies_ends_the_build_and_the_next_one_goes_on(tmp_path):
    store = MemoryStore()
    with pytest.raises(MeasurementError, match=r"simulated died while it was measured"):
        _build(tmp_path / "t.json", "energy", store=store, windows=30)
    (campaign,) = store.campaigns()
    assert 0 < len(campaign.records) < 40
    assert _build(tmp_path / "t.json", "energy", store=store).coverage == 1.0


@pytest.mark.parametrize(("metric", "value"), [("energy", 20 * 13.5), ("power", 20.0)])
def test_networks_are_measured_in_joules_and_watts(metric, value):
    plan, latencies = make_plan()
    clock, noise = FakeClock(), random.Random(0)
    meter = FakeMeter(clock, lambda: 20.0 + noise.uniform(-0.1, 0.1))
    selection = {"stem": "conv", "a": "y", "b": "y", "c": "large"}
    selections = {"one": selection, "two": {**selection, "a": "z"}}
    found = measure_networks(
        plan, selections, FakeRuntime(latencies, clock=clock), PROTOCOL, metric=metric, store=MemoryStore(),
        meters=(meter,),
    )  # fmt: skip
    network = found.networks["one"]
    expected = 20.0 * sum(LATENCIES[layer][choice] for layer, choice in selection.items())
    assert found.metric == metric
    assert network.summary.value == pytest.approx(expected if metric == "energy" else value, rel=0.01)
    assert network.summary.encloses(network.summary.value)
    assert network.halves[0] == pytest.approx(network.halves[1], rel=0.02)


def test_weighted_sum_of_latency_and_energy_trades_them_off(tmp_path):
    store = MemoryStore()
    latency, energy = (_build(tmp_path / f"{metric}.json", metric, store=store) for metric in ("latency", "energy"))
    both = weigh_tables([latency, energy], [3.0, 0.5])
    assert (both.metric, both.coverage) == ("weighted", 1.0)
    for layer, entries in LATENCIES.items():
        for choice, seconds in entries.items():
            assert both[layer][choice].value == pytest.approx((3 + 0.5 * 20) * seconds, rel=1e-3)
    names = f"3*{tmp_path / 'latency.json'},0.5*{tmp_path / 'energy.json'}"
    assert load_estimator(f"weighted:{names}").metric == "weighted"
    both.save(tmp_path / "both.json")
    assert LookupTable.load(tmp_path / "both.json") == both


def test_weighted_sum_that_makes_no_sense_is_refused(tmp_path):
    latency = LookupTable.from_latencies({"a": ["x"]}, {"a": {"x": 0.1}})
    other = LookupTable.from_latencies({"b": ["x"]}, {"b": {"x": 0.1}}, metric="energy")
    memory = LookupTable.from_latencies({"a": ["x"]}, {"a": {"x": 1.0}}, metric="peak_memory")
    with pytest.raises(InvalidValueError, match=r"two tables at least and a positive weight"):
        weigh_tables([latency, latency], [1, 0])
    with pytest.raises(InvalidValueError, match=r"The peak_memory of layers does not add up"):
        weigh_tables([latency, memory], [1, 1])
    with pytest.raises(MismatchError, match=r"the same layers and candidates"):
        weigh_tables([latency, other], [1, 1])
    with pytest.raises(InvalidValueError, match=r"as in 'weighted:100\*latency\.json,20\*energy\.json'\. Got 'x'"):
        load_estimator("weighted:x")
