# SPDX-License-Identifier: Apache-2.0
"""The index of what was measured alone says what the records say, whatever was done to them."""

from __future__ import annotations

import time

import pytest
from campaigns import HERE, make_header, make_record
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from nni_latency.database import DatabaseStore, DatabaseWarning, copy_database, remove_campaigns, stale_campaigns
from nni_latency.measurement import BEING_MEASURED, Failure, MemoryStore, Store, Subject


def _measure(store, content, visits, *, failed=(), status=None):
    """Append visits of subjects alone, or of both; `visits` are tuples of keys."""
    with store.campaign(make_header(content={"n": content})) as log:
        for key in ("a", "b"):
            log.admit(Subject(key, dict, (1,), "network", f"digest-{key}"))
        for keys in visits:
            number = len(log.records)
            log.append(make_record(number, subjects=keys, at=1.7e9 + 1000 * content + number))
        for key in failed:
            log.fail(Failure(key, "it raised"))
        return log.identifier


def _by_records(store, digest):
    """Say what is known, from the records alone."""
    return Store.known(store, digest, HERE)


@pytest.mark.slow
@settings(max_examples=25)
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.lists(st.sampled_from([("a",), ("b",), ("a", "b")]), max_size=3),
            st.sets(st.sampled_from(["a", "b"]), max_size=1),
        ),
        max_size=4,
    ),
    asks=st.booleans(),
)
def test_answers_are_what_the_records_say(tmp_path_factory, steps, asks):
    store = DatabaseStore(str(tmp_path_factory.mktemp("answers") / "m.sqlite"))
    for content, visits, failed in steps:
        _measure(store, content, visits, failed=failed)
        for key in ("a", "b"):
            if asks:
                store.known(f"digest-{key}", HERE)
    for key in ("a", "b"):
        found, expected = store.known(f"digest-{key}", HERE), _by_records(store, f"digest-{key}")
        assert (found and (found.campaign, found.at, found.value, found.n_visits)) == (
            expected and (expected.campaign, expected.at, expected.value, expected.n_visits)
        )
        assert store.known(f"digest-{key}", HERE) == found
    store.close()


def test_copies_know_the_same_and_pruning_leaves_the_older(new_location):
    store, copy = DatabaseStore(new_location()), DatabaseStore(new_location())
    older, newer = (_measure(store, number, [("a",)] * 2) for number in range(2))
    copy_database(store.database, copy.database)
    for found in (store, copy):
        assert found.known("digest-a", HERE).campaign == newer
        stale = [item for item in stale_campaigns(found.database) if item.identifier == newer]
        assert remove_campaigns(found.database, stale)[0] == 1
        assert found.known("digest-a", HERE).campaign == older
        found.close()


def test_campaign_that_is_being_measured_tells_nothing_yet(store):
    header = make_header(content={"n": 0})
    with store.campaign(header) as log:
        log.admit(Subject("a", dict, (1,), "network", "digest-a"))
        log.append(make_record(0, subjects=("a",)))
        assert store.known("digest-a", HERE) is None
        long_ago = time.time() - BEING_MEASURED - 1
        with store.database.writing() as connection:
            connection.execute(text("UPDATE campaigns SET written = :at"), {"at": long_ago})
        assert store.known("digest-a", HERE).n_visits == 1
    memory = MemoryStore()
    with memory.campaign(header) as log:
        log.admit(Subject("a", dict, (1,), "network", "digest-a"))
        log.append(make_record(0, subjects=("a",)))
        assert memory.known("digest-a", HERE) is None
    assert memory.known("digest-a", HERE).n_visits == 1


def test_summary_of_many_visits_is_kept_until_a_record_is_added(store, monkeypatch):
    monkeypatch.setattr("nni_latency.database._answers.WORTH_KEEPING", 1)
    _measure(store, 0, [("a",)])
    query = "SELECT summary FROM answers"

    def kept():
        with store.database.reading() as connection:
            return connection.execute(text(query)).scalar()

    assert kept() is None
    store.known("digest-a", HERE)
    assert '"n_visits":1' in kept()
    _measure(store, 0, [("a",)])
    assert kept() is None


def test_record_edited_by_hand_is_left_out_and_named(store):
    _measure(store, 0, [("a",)] * 3)
    with store.database.writing() as connection:
        connection.execute(text("UPDATE records SET samples = '{broken' WHERE round = 1"))
    with pytest.warns(DatabaseWarning, match=r"are left out: record \d+"):
        assert store.known("digest-a", HERE).n_visits == 2
