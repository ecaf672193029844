# SPDX-License-Identifier: Apache-2.0
"""How fast a platform was over time, by the reference operator of its campaigns."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import text

from nni_latency.database import platform_drift
from nni_latency.measurement import CampaignHeader, Protocol, Record, Subject
from nni_latency.platforms import Platform

BOARD = Platform("board", facts={"runtime.version": "1"})


def _measure(store, *references, platform=BOARD, number=0, at=None, kind="query"):
    """Put a campaign of one network into the database, whose reference operator took so long in every round [s]."""
    header = CampaignHeader(kind, {"subject": f"net {number}"}, platform, Protocol())
    with store.campaign(header) as log:
        log.admit(Subject("net", dict, (1,), "network", f"net {number}"))
        for place, reference in enumerate(references):
            log.append(Record(reference, (), {"latency": (1e-3,)}, ("net",), place, 0, 0.1, 1.7e9))
    with store.database.writing() as connection:
        if at is not None:
            connection.execute(
                text("UPDATE campaigns SET written = :at WHERE identifier = :name"), {"at": at, "name": log.identifier}
            )


def test_the_latest_campaign_is_held_to_the_best(store):
    for number, reference in enumerate((1.1e-3, 1e-3, 1.3e-3)):
        _measure(store, reference, reference, 5e-3, number=number, at=100.0 + number)
    found = platform_drift(store.database, BOARD.id)
    assert [point.reference for point in found.points] == pytest.approx([1.1e-3, 1e-3, 1.3e-3])
    assert [point.at for point in found.points] == [100.0, 101.0, 102.0]
    assert found.campaigns == 3
    assert found.slower == pytest.approx(1.3)
    assert [point.slower for point in found.points] == pytest.approx([1.1, 1.0, 1.3])


def test_campaigns_are_held_to_others_of_their_kind(store):
    for number, (kind, reference) in enumerate((("query", 1e-3), ("kernels", 2e-3), ("query", 1.2e-3))):
        _measure(store, reference, kind=kind, number=number, at=float(number))
    found = platform_drift(store.database, BOARD.id)
    assert [point.kind for point in found.points] == ["query", "kernels", "query"]
    assert [point.slower for point in found.points] == pytest.approx([1.0, 1.0, 1.2])


def test_of_many_campaigns_a_few_are_told_and_the_latest_is_among_them(store):
    for number in range(23):
        _measure(store, 1e-3 + 1e-5 * number, number=number, at=float(number))
    found = platform_drift(store.database, BOARD.id, most=5)
    assert found.campaigns == 23
    assert [point.at for point in found.points] == [2.0, 7.0, 12.0, 17.0, 22.0]


def test_another_state_of_the_platform_begins_anew(store):
    _measure(store, 1e-3, at=1.0)
    updated = replace(BOARD, facts={"runtime.version": "2"})
    _measure(store, 2e-3, platform=updated, at=2.0)
    found = platform_drift(store.database, BOARD.id)
    assert [point.reference for point in found.points] == [2e-3]
    assert found.slower == 1


def test_a_platform_of_which_nothing_is_known_has_no_points(store):
    assert platform_drift(store.database, "nowhere").points == ()
    _measure(store)
    assert platform_drift(store.database, BOARD.id).slower == 1
