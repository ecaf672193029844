# SPDX-License-Identifier: Apache-2.0
"""Tables of the energy of operators: latency times the power of a group, which whole networks tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.estimators import TableEstimator
from nni_latency.measurement import MemoryStore, Protocol
from nni_latency.operators import OpSpec, group_of
from nni_latency.platforms import Platform
from nni_latency.spaces import make_space, operator_plan
from nni_latency.tables import (
    Entry,
    LookupTable,
    MeasuredNetwork,
    SpaceReference,
    build_table,
    energy_of_operators,
    rebuild_table,
)
from nni_latency.testing import FakeMeter, FakeRuntime

OWN = f"{Path(__file__).parent.parent / 'spaces' / 'own_space.py'}:OwnSpace"
PROTOCOL = Protocol(n_warmup=0, rounds=4, time_budget=1e9)

#: Power of groups of operators on an invented device [W].
WATTS = {"dense convolution": 40.0, "elementwise": 10.0, "matrix product": 20.0}

OPS = [
    OpSpec.of("conv2d", [(1, 8, 8, 8)], out_channels=8, kernel_size=3, stride=1, groups=1, bias=True),
    OpSpec.of("relu", [(1, 8, 8, 8)]),
    OpSpec.of("linear", [(1, 512)], out_features=10, bias=True),
]


@pytest.fixture(scope="module")
def plan():
    return operator_plan(make_space(OWN), n_networks=4)


def _build(plan, out, *, store=None, watts=15.0, **options):
    runtime = FakeRuntime(lambda op: 1e-4 + 1e-6 * len(op.kind))
    meter = FakeMeter(runtime.clock, watts)
    return build_table(plan, runtime, PROTOCOL, out, store=store or MemoryStore(), meters=(meter,), **options)


def test_with_a_constant_power_energy_is_latency_times_power(plan, tmp_path):
    store = MemoryStore()
    latency = _build(plan, tmp_path / "latency.json", store=store)
    energy = _build(plan, tmp_path / "energy.json", store=store, metric="energy")
    assert (energy.metric, energy.campaign) == ("energy", latency.campaign)
    for entry in energy.entries:
        assert entry.value == pytest.approx(15.0 * latency.by_op[entry.op.op_key].value)
        assert entry.low <= entry.value <= entry.high
    assert energy.calibration == pytest.approx(1.0)
    assert energy.reference == pytest.approx(15.0 * latency.reference)
    assert any("read by simulated" in remark for remark in energy.remarks)
    assert LookupTable.load(tmp_path / "energy.json").entries == energy.entries
    again = rebuild_table(energy, lambda: None, store)
    assert again.entries == energy.entries


def _networks(mixes):
    """Make a table of latencies and the powers of networks that run the operators so often."""
    seconds = (0.004, 0.001, 0.002)
    entries = tuple(Entry(value, value, value, op=op) for op, value in zip(OPS, seconds, strict=True))
    keys, powers, networks = [], [], []
    for mix in mixes:
        times = [count * value for count, value in zip(mix, seconds, strict=True)]
        total = sum(times)
        powers.append(sum(WATTS[group_of(op)] * time for op, time in zip(OPS, times, strict=True)) / total)
        keys.append([op.op_key for op, count in zip(OPS, mix, strict=True) for _ in range(count)])
        networks.append(MeasuredNetwork(value=total, low=total, high=total, sample={}, entries=total))
    header = {"space": SpaceReference("mine"), "platform": Platform("mine"), "input_shape": (1, 8)}
    return LookupTable(**header, operators=entries, networks=tuple(networks)), keys, powers


def test_powers_of_groups_are_solved_for():
    table, keys, powers = _networks([(8, 1, 1), (1, 9, 1), (1, 2, 8), (2, 6, 1), (5, 0, 5), (0, 8, 4)])
    energy = energy_of_operators(table, keys, powers)
    for entry, before in zip(energy.entries, table.entries, strict=True):
        assert entry.value == pytest.approx(before.value * WATTS[group_of(entry.op)], rel=0.1)
    estimator = TableEstimator(energy)
    for network, power, before in zip(energy.networks, powers, table.networks, strict=True):
        assert network.value == pytest.approx(power * before.value)
        assert estimator.of_sum(network.entries) == pytest.approx(network.value, rel=0.03)


def test_networks_that_are_alike_leave_the_mean_power():
    table, keys, powers = _networks([(2, 2, 2)] * 3)
    energy = energy_of_operators(table, keys, powers)
    usual = powers[0]
    for entry, before in zip(energy.entries, table.entries, strict=True):
        assert entry.value == pytest.approx(before.value * usual, rel=0.01)
        # Nothing tells the groups apart, and the interval says so.
        assert entry.high > 1.2 * entry.value


def test_metrics_that_do_not_add_up_are_refused(plan, tmp_path):
    with pytest.raises(InvalidValueError, match=r"holds latency or energy, which add up.*Got 'power'"):
        _build(plan, tmp_path / "t.json", metric="power")
    with pytest.raises(InvalidValueError, match="needs a meter of energy"):
        build_table(plan, FakeRuntime({}), PROTOCOL, tmp_path / "t.json", metric="energy", store="memory")
    table, keys, _ = _networks([(1, 1, 1)])
    with pytest.raises(MeasurementError, match="No meter was read"):
        energy_of_operators(table, keys, [])
    assert not (tmp_path / "t.json").exists()
