# SPDX-License-Identifier: Apache-2.0
"""Putting campaigns of elsewhere into a database: of another database or a file, each record once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, select

from nni_latency.database._database import Database
from nni_latency.database._predictors import copy_predictors
from nni_latency.database._reading import (
    BATCH,
    Complaints,
    read_each,
    read_failures,
    read_keys,
    read_moments,
    read_records,
    read_subjects,
    select_campaigns,
)
from nni_latency.database._rows import failure_row, header_of, n_samples, record_numbers, record_row
from nni_latency.database._schema import campaigns, records
from nni_latency.database._writing import (
    Origin,
    add_campaign,
    add_conditions,
    add_failures,
    add_records,
    add_subjects,
)
from nni_latency.errors import InvalidValueError
from nni_latency.measurement import CampaignHeader, Failure, Record

#: What identifies a record among those of its identity: round, process, time, subjects.
_Key = tuple[int, int, float, tuple[str, ...]]


@dataclass(frozen=True)
class Copied:
    """What was put into a database.

    Parameters
    ----------
    campaigns : int
        Campaigns that brought something new.
    records : int
        Records that were added.
    doubles : int
        Records that were there already.
    predictors : int
        Versions of predictors that were added.
    """

    campaigns: int = 0
    records: int = 0
    doubles: int = 0
    predictors: int = 0

    def __add__(self, other: Copied) -> Copied:
        return Copied(
            self.campaigns + other.campaigns,
            self.records + other.records,
            self.doubles + other.doubles,
            self.predictors + other.predictors,
        )


def copy_database(source: Database, target: Database) -> Copied:
    """Put all campaigns of a database, and versions of predictors, into another one.

    A record is there already if one of the same campaign identity, round, process, time and subjects is. What was
    copied stays if this is interrupted, and the next time goes on with the rest. A version that answers does so in the
    target as well, unless another one of its name does.

    Raises
    ------
    BusyError
        If a campaign is being measured for the target.
    OutputError
        If the target cannot be written.

    Warns
    -----
    DatabaseWarning
        If rows of the source make no sense; they are left out.
    """
    copied = Copied()
    for reading in read_each(source, select_campaigns()):
        with reading as (connection, row, complaints):
            try:
                header, origin = header_of(row), _origin_of(row)
            except InvalidValueError as error:
                complaints.add("the campaign itself", error)
                continue
            subjects = read_subjects(connection, row.id, complaints)
            keys = {number: subject["key"] for number, subject in subjects.items()}
            with target.held(header.identity):
                receiver = _Receiver(target, header, origin, {subject["key"]: subject for subject in subjects.values()})
                incoming = read_records(connection, row.id, keys, complaints)
                while batch := list(itertools.islice(incoming, BATCH)):
                    receiver.add(batch)
                failures = read_failures(connection, row.id)
                copied += receiver.finish(failures, read_moments(connection, row.id, complaints))
    return copied + Copied(predictors=copy_predictors(source, target))


class _Receiver:
    """The campaign in the target that takes what comes in; it is made when something new comes."""

    def __init__(
        self, database: Database, header: CampaignHeader, origin: Origin, subjects: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self.database, self.header, self.origin, self.subjects = database, header, origin, subjects
        self.number: int | None = None
        self.numbers: dict[str, int] = {}
        self.n_added = self.n_doubles = 0
        of_same = select(campaigns.c.id, campaigns.c.identifier).where(campaigns.c.identity == header.identity)
        with database.reading() as connection:
            found = connection.execute(of_same).all()
            self._keys = {row.id: read_keys(connection, row.id) for row in found}
        for row in found:
            if row.identifier == origin.identifier:
                self.number = row.id
                self.numbers = {key: number for number, key in self._keys[row.id].items()}

    def add(self, batch: Sequence[Record]) -> None:
        """Add those records that are not there."""
        with self.database.reading() as connection:
            known = self._known(connection, {record.round for record in batch})
        new = []
        for record in batch:
            key = (record.round, record.process, record.at, record.subjects)
            if key not in known:
                known.add(key)
                new.append(record)
        self.n_doubles += len(batch) - len(new)
        if new:
            with self.database.writing() as connection:
                self._write(connection, new)
            self.n_added += len(new)

    def finish(self, failures: Sequence[Failure], conditions: Sequence[tuple[str, float, Any]]) -> Copied:
        """Add failures and what the machine was like, and return how much there was."""
        is_new = self.number is None and not self.n_doubles and (failures or conditions)
        if self.number is not None or is_new:
            with self.database.writing() as connection:
                self._write_rest(connection, self._campaign(connection), failures, conditions)
        return Copied(int(bool(self.n_added) or bool(is_new)), self.n_added, self.n_doubles)

    def _known(self, connection: Connection, rounds: set[int]) -> set[_Key]:
        columns = records.c
        statement = select(columns.campaign_id, columns.round, columns.process, columns.at, columns.subjects).where(
            columns.campaign_id.in_(list(self._keys)), columns.round.in_(list(rounds))
        )
        known: set[_Key] = set()
        for row in connection.execute(statement) if self._keys else ():
            keys = self._keys[row.campaign_id]
            subjects = tuple(keys.get(number, "") for number in record_numbers(row))
            known.add((row.round, row.process, row.at, subjects))
        return known

    def _campaign(self, connection: Connection) -> int:
        if self.number is None:
            self.number = add_campaign(connection, self.header, self.origin)
            self._keys[self.number] = {}
        return self.number

    def _write(self, connection: Connection, new: Sequence[Record]) -> None:
        campaign, at = self._campaign(connection), self.origin.written
        self._admit(connection, campaign)
        rows = [record_row(record, self.numbers) for record in new]
        add_records(connection, campaign, rows, sum(map(n_samples, new)), at)

    def _admit(self, connection: Connection, campaign: int) -> None:
        new = [key for key in self.subjects if key not in self.numbers]
        begin = max(self.numbers.values(), default=-1) + 1
        added = dict(zip(itertools.count(begin), new, strict=False))
        described = {number: self.subjects[key] for number, key in added.items()}
        add_subjects(connection, campaign, described, self.origin.written)
        self.numbers.update({key: number for number, key in added.items()})
        self._keys[campaign].update(added)

    def _write_rest(
        self,
        connection: Connection,
        campaign: int,
        failures: Sequence[Failure],
        conditions: Sequence[tuple[str, float, Any]],
    ) -> None:
        self._admit(connection, campaign)
        at = self.origin.written
        there = {(failure.subject, failure.reason) for failure in read_failures(connection, campaign)}
        rows = [failure_row(failure) for failure in failures]
        new = [row for row in rows if (row["subject"], row["reason"]) not in there]
        if new:
            add_failures(connection, campaign, new, at)
        complaints = Complaints(self.database.name, self.origin.identifier)
        moments = {(moment, when) for moment, when, _ in read_moments(connection, campaign, complaints)}
        for moment, when, content in conditions:
            if (moment, when) not in moments:
                add_conditions(connection, campaign, moment, content, when)


def _origin_of(row: Any) -> Origin:
    if not all(isinstance(moment, (int, float)) and math.isfinite(moment) for moment in (row.begun, row.written)):
        raise InvalidValueError("its dates are no numbers")
    return Origin(**{item.name: getattr(row, item.name) for item in fields(Origin)})
