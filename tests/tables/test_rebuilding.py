# SPDX-License-Identifier: Apache-2.0
"""A table is derived again from the raw samples of its campaign, and nothing is measured."""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path

import pytest
from building import make_plan

from nni_latency.documents import load
from nni_latency.errors import MissingEntryError
from nni_latency.measurement import MemoryStore, Protocol
from nni_latency.spaces import make_space, operator_plan
from nni_latency.tables import LookupTable, build_table, rebuild_table
from nni_latency.testing import FakeMeter, FakeRuntime

_PROTOCOL = Protocol(rounds=8, time_budget=1e9, max_measure_execution_time=1e9)
OWN = f"{Path(__file__).parent.parent / 'spaces' / 'own_space.py'}:OwnSpace"


class _Outside(FakeRuntime):
    """A runtime that compiles whole networks; another one stands in for the prior."""

    supports_layer_timing = False

    def __init__(self, latencies, inner):
        super().__init__(latencies)
        self.inner = inner

    def stand_in(self):
        """Return the runtime that was given."""
        return self.inner


def _noise():
    return random.Random(0).random


@pytest.mark.parametrize("metric", ["latency", "throughput", "energy", "power"])
def test_rebuilt_table_is_the_one_that_was_built(tmp_path, metric):
    plan, latencies = make_plan()
    store, runtime = MemoryStore(), FakeRuntime(latencies, noise=_noise())
    meters = (FakeMeter(runtime.clock, 20.0),)
    table = build_table(plan, runtime, _PROTOCOL, tmp_path / "t.json", metric=metric, store=store, meters=meters)
    before = store.version(), runtime.clock.now
    rebuilt = rebuild_table(load(tmp_path / "t.json"), lambda: plan, store)
    assert rebuilt == table
    assert (store.version(), runtime.clock.now) == before


def test_rebuilt_table_follows_the_statistics_of_today(tmp_path, monkeypatch):
    plan, latencies = make_plan()
    store = MemoryStore()
    table = build_table(plan, FakeRuntime(latencies), _PROTOCOL, tmp_path / "t.json", store=store)
    monkeypatch.setattr(
        "nni_latency.tables._builder.table_of",
        lambda schedule, platform, metric: dataclasses.replace(
            table, rounds=len(schedule.samples.drift), calibration=2.0
        ),
    )
    assert rebuild_table(table, lambda: plan, store).calibration == 2.0


@pytest.mark.parametrize("metric", ["latency", "energy", "power"])
def test_solved_table_is_rebuilt_with_its_prior(tmp_path, metric):
    plan, latencies = make_plan()
    store, inner = MemoryStore(), FakeRuntime(latencies)
    runtime = _Outside(latencies, inner)
    meters = (FakeMeter(runtime.clock, 20.0),)
    table = build_table(plan, runtime, _PROTOCOL, tmp_path / "t.json", metric=metric, store=store, meters=meters)
    moved = inner.clock.now
    rebuilt = rebuild_table(table, lambda: plan, store)
    assert rebuilt == table
    assert inner.clock.now == moved


def test_table_of_operators_is_rebuilt_without_its_space(tmp_path):
    plan, store = operator_plan(make_space(OWN), n_networks=4), MemoryStore()
    runtime = FakeRuntime(lambda op: 1e-4 + 1e-6 * math.prod(op.input_shapes[0]), mark=1e-6, noise=_noise())
    table = build_table(plan, runtime, _PROTOCOL, tmp_path / "t.json", store=store)
    rebuilt = rebuild_table(table, lambda: pytest.fail("no plan is needed"), store)
    assert {entry.op.op_key for entry in rebuilt.entries} == {entry.op.op_key for entry in table.entries}
    for key, entry in table.by_op.items():
        assert rebuilt.by_op[key].value == pytest.approx(entry.value, rel=1e-9)
    assert rebuilt.calibration == pytest.approx(table.calibration, rel=1e-9)
    assert [network.value for network in rebuilt.networks] == pytest.approx(
        [network.value for network in table.networks], rel=1e-9
    )


def test_table_without_a_campaign_is_refused():
    table = LookupTable.from_latencies({"a": ["x"]}, {"a": {"x": 1e-3}})
    with pytest.raises(MissingEntryError, match=r"names no campaign.*Only tables that were measured"):
        rebuild_table(table, dict, MemoryStore())


def test_table_of_another_database_is_refused(tmp_path):
    plan, latencies = make_plan()
    table = build_table(plan, FakeRuntime(latencies), _PROTOCOL, tmp_path / "t.json", store="memory")
    with pytest.raises(MissingEntryError, match=r"does not have the campaign '1'"):
        rebuild_table(table, lambda: plan, MemoryStore())
