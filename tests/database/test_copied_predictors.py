# SPDX-License-Identifier: Apache-2.0
"""Versions of predictors travel with the records of a database."""

from __future__ import annotations

from nni_latency.database import DatabaseStore, PredictorVersion, add_predictor, copy_database, predictor_versions
from nni_latency.database import predictor_content as content_of


def _add(store, at, name="evolving", current=True):
    version = PredictorVersion(name, 0, at, "1", 20, 5, 100, {"all": 0.1}, current)
    return add_predictor(store.database, version, f"{name} at {at}".encode())


def test_versions_are_copied_once_and_the_one_that_answers_goes_on(new_location):
    source, target = (DatabaseStore(new_location()) for _ in range(2))
    for at in (1.0, 2.0):
        _add(source, at)
    assert copy_database(source.database, target.database).predictors == 2
    assert copy_database(source.database, target.database).predictors == 0
    found = predictor_versions(target.database)
    assert [(item.at, item.is_current) for item in found] == [(1.0, False), (2.0, True)]
    assert [content_of(target.database, item.number) for item in found] == [b"evolving at 1.0", b"evolving at 2.0"]
    for store in (source, target):
        store.close()


def test_what_answers_in_the_target_goes_on_answering(new_location):
    source, target = (DatabaseStore(new_location()) for _ in range(2))
    mine = _add(target, 5.0)
    _add(source, 9.0)
    _add(source, 9.5, "other")
    copy_database(source.database, target.database)
    current = {item.name: item.at for item in predictor_versions(target.database) if item.is_current}
    assert current == {"evolving": mine.at, "other": 9.5}
    for store in (source, target):
        store.close()
