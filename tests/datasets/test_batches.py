# SPDX-License-Identifier: Apache-2.0
"""Batches of networks: each visited in several rounds, the anchors in all, and what fails is left out."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
from torch import nn

from nni_latency.datasets import BatchedNetworks
from nni_latency.errors import MeasurementError
from nni_latency.measurement import (
    Campaign,
    CampaignHeader,
    Failure,
    LocalBenches,
    MemoryStore,
    Protocol,
    Subject,
)
from nni_latency.testing import FakeRuntime, fake_plan

_PLAN, _BY_KEY = fake_plan({"a": {"x": 0.25, "y": 1.0}, "b": {"x": 2.0, "y": 4.0, "z": 0.125}})
_PROTOCOL = Protocol(n_warmup=1, n_run=2, time_budget=1e9, max_measure_execution_time=1e9, half_width=0.0)


def _broken():
    raise ValueError("has no such layer")


_NETWORKS = [
    Subject(f"network {number}", _PLAN.network_of({"a": first, "b": second}), _PLAN.input_shape)
    for number, (first, second) in enumerate(itertools.product("xy", "xyz"))
]


def _measure(networks, *, weights=2**24, protocol=_PROTOCOL, store=None):
    sizes = {item.key: weights for item in (*networks, *_NETWORKS)}
    schedule = BatchedNetworks(networks, protocol, anchors=_NETWORKS[:2], weights=sizes)
    benches = LocalBenches(FakeRuntime(_BY_KEY))
    with (store or MemoryStore()).campaign(CampaignHeader("data-set", {}, benches.platform, protocol)) as log:
        campaign = Campaign(schedule, benches, log, clock=lambda: benches.runtime.clock.now)
        campaign.run()
        return schedule, list(log.records)


def test_every_network_is_visited_in_rounds_of_its_own():
    _, records = _measure(_NETWORKS)
    visits = Counter(record.subjects[0] for record in records)
    assert set(visits) == {item.key for item in _NETWORKS}
    assert all(3 <= count <= 12 for count in visits.values())
    assert len({(record.subjects[0], record.round) for record in records}) == len(records)


def test_anchors_are_in_every_round_of_every_batch():
    _, records = _measure(_NETWORKS, weights=2**26)
    batches = {record.process for record in records}
    assert len(batches) > 1
    by_round = {}
    for record in records:
        by_round.setdefault(record.round, set()).add(record.subjects[0])
    assert all({"network 0", "network 1"} <= keys for keys in by_round.values())


def test_parts_are_asked_for_in_some_visits_and_not_in_the_first():
    networks = [Subject(f"network {size}", lambda size=size: nn.Linear(4, size), (1, 4)) for size in (2, 3, 4)]
    weights = {item.key: 9 for item in networks}
    schedule = BatchedNetworks(networks, _PROTOCOL, anchors=networks[:1], weights=weights, calls=True)
    benches, store = LocalBenches(FakeRuntime(lambda _op: 0.5)), MemoryStore()
    with store.campaign(CampaignHeader("data-set", {}, benches.platform, _PROTOCOL)) as log:
        Campaign(schedule, benches, log, clock=lambda: benches.runtime.clock.now).run()
    divided = Counter(record.subjects[0] for record in log.records if record.parts)
    visits = Counter(record.subjects[0] for record in log.records)
    assert divided == {key: min(3, count - 1) for key, count in visits.items()}
    assert not any(record.parts for record in log.records if record.round == 0)


def test_what_cannot_be_built_is_left_out():
    broken = Subject("broken", _broken, _PLAN.input_shape)
    schedule, records = _measure([*_NETWORKS[2:4], broken])
    assert schedule.failures == {"broken": "ValueError: has no such layer"}
    assert {record.subjects[0] for record in records} == {"network 0", "network 1", "network 2", "network 3"}


def test_what_the_runtime_refuses_is_left_out():
    def refused():
        raise MeasurementError("The runtime takes none of these.")

    schedule, records = _measure([*_NETWORKS[2:4], Subject("refused", refused, _PLAN.input_shape)])
    assert schedule.failures == {"refused": "The runtime takes none of these"}
    assert len({record.subjects[0] for record in records}) == 4


def test_what_failed_after_some_visits_is_left_out_after_an_interruption_too():
    _, records = _measure(_NETWORKS[:3])
    schedule = BatchedNetworks(_NETWORKS[:3], _PROTOCOL, anchors=[], weights={item.key: 1 for item in _NETWORKS})
    schedule.replay(records, [Failure("network 1", "out of memory")])
    assert sorted(schedule.visits) == ["network 0", "network 2"]


def test_nothing_that_runs_is_an_error():
    broken = Subject("broken", _broken, _PLAN.input_shape)
    schedule = BatchedNetworks([broken], _PROTOCOL, anchors=[], weights={"broken": 1})
    benches, store = LocalBenches(FakeRuntime(_BY_KEY)), MemoryStore()
    with (
        store.campaign(CampaignHeader("data-set", {}, benches.platform, _PROTOCOL)) as log,
        pytest.raises(MeasurementError, match="None of the networks can be run: ValueError: has no such layer"),
    ):
        Campaign(schedule, benches, log).run()


def test_more_networks_are_measured_beside_those_that_are_known():
    store = MemoryStore()
    _measure(_NETWORKS[:3], store=store)
    _, before = _measure(_NETWORKS[:3], store=store)
    count = len(before)
    _, after = _measure(_NETWORKS, store=store)
    new = Counter(record.subjects[0] for record in after[count:])
    # The anchors run again, because they tell how fast the machine is now.
    assert set(new) - {"network 0", "network 1"} == {"network 3", "network 4", "network 5"}


def test_budget_ends_it():
    short = Protocol(n_warmup=1, n_run=2, time_budget=30.0, max_measure_execution_time=1e9, half_width=0.0)
    schedule, records = _measure(_NETWORKS, protocol=short)
    assert schedule.is_spent
    assert len(records) < 3 * len(_NETWORKS)


def test_other_networks_of_a_campaign_spend_nothing_of_the_budget():
    store, short = MemoryStore(), replace(_PROTOCOL, time_budget=30.0)
    others, _ = _measure(_NETWORKS[2:4], protocol=short, store=store)
    assert others.is_spent
    _, records = _measure(_NETWORKS[4:], protocol=short, store=store)
    assert {item.key for item in _NETWORKS[4:]} & {record.subjects[0] for record in records}
    again, _ = _measure(_NETWORKS[2:4], protocol=short, store=store)
    assert again.is_spent
    assert again.rounds == others.rounds
    assert again.spent == others.spent
