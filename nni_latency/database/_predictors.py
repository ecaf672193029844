# SPDX-License-Identifier: Apache-2.0
"""Versions of predictors in a database: which there were, how good each was, and which one answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Row, insert, select, update

from nni_latency.database._database import Database
from nni_latency.database._rows import dumped
from nni_latency.database._schema import predictors
from nni_latency.errors import UnknownNameError


@dataclass(frozen=True)
class PredictorVersion:
    """One version of a predictor. Immutable.

    Parameters
    ----------
    name : str
        Of the predictor.
    number : int
        Tells it from the other versions in this database.
    at : float
        When it was fitted [s since 1970, UTC].
    package_version : str
        With which nni_latency.
    n_networks, n_held_out : int
        Latencies that it has learned from, and that it was held to.
    n_records : int
        Records in the database at that time.
    errors : mapping of str to float
        Mean absolute percentage error, as a ratio, on what was held out: networks by platform or kernels by group, and
        ``all``. What is held out becomes more; ``before`` is the error of the version before on the same.
    is_current : bool
        Whether it answers.
    remark : str
        Why it does not.
    """

    name: str
    number: int
    at: float
    package_version: str
    n_networks: int
    n_held_out: int
    n_records: int
    errors: Mapping[str, float] = field(default_factory=dict)
    is_current: bool = False
    remark: str = ""


_COLUMNS = [column for column in predictors.c if column.name != "content"]


def add_predictor(database: Database, version: PredictorVersion, content: bytes) -> PredictorVersion:
    """Keep a version of a predictor and its file; if it is current, it answers from now on.

    Returns
    -------
    PredictorVersion
        With its number.
    """
    row = {**vars(version), "errors": dumped(dict(version.errors)), "content": content}
    del row["number"]
    with database.writing() as connection:
        if version.is_current:
            connection.execute(update(predictors).where(predictors.c.name == version.name).values(is_current=False))
        number = connection.execute(insert(predictors).values(row).returning(predictors.c.id)).scalar_one()
    return replace(version, number=int(number))


def predictor_versions(database: Database, name: str | None = None) -> list[PredictorVersion]:
    """Return the versions of predictors, the oldest first."""
    statement = select(*_COLUMNS).order_by(predictors.c.id)
    if name is not None:
        statement = statement.where(predictors.c.name == name)
    with database.reading() as connection:
        return [_version_of(row) for row in connection.execute(statement)]


def predictor_content(database: Database, number: int) -> bytes:
    """Return the file of a version.

    Raises
    ------
    UnknownNameError
        If there is no such version.
    """
    with database.reading() as connection:
        found = connection.execute(select(predictors.c.content).where(predictors.c.id == number)).scalar()
    if found is None:
        raise UnknownNameError(f"The database has no version {number} of a predictor.")
    return bytes(found)


def take_predictor(database: Database, name: str, number: int) -> PredictorVersion:
    """Let a version answer, an older one for instance.

    Raises
    ------
    UnknownNameError
        If the predictor has no such version.
    """
    known = [str(item.number) for item in predictor_versions(database, name)]
    if str(number) not in known:
        raise UnknownNameError.of(f"version of {name!r}", str(number), known)
    with database.writing() as connection:
        connection.execute(update(predictors).where(predictors.c.name == name).values(is_current=False))
        connection.execute(update(predictors).where(predictors.c.id == number).values(is_current=True))
    return next(item for item in predictor_versions(database, name) if item.number == number)


def copy_predictors(source: Database, target: Database) -> int:
    """Put the versions of one database into another that does not have them; return how many."""
    there = predictor_versions(target)
    known = {(item.name, item.at) for item in there}
    answering = {item.name for item in there if item.is_current}
    new = [item for item in predictor_versions(source) if (item.name, item.at) not in known]
    for version in new:
        answers = version.is_current and version.name not in answering
        add_predictor(target, replace(version, is_current=answers), predictor_content(source, version.number))
    return len(new)


def _version_of(row: Row[Any]) -> PredictorVersion:
    fields = {**row._mapping, "number": row.id}
    del fields["id"]
    return PredictorVersion(**{**fields, "errors": json.loads(row.errors)})
