"""Putting campaigns of elsewhere into a database: of another database or a file, each record once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, select

from nni_latency.database._database import Database
from nni_latency.database._predictors import copy_predictors
from nni_latency.database._reading import (
    BATCH,
    Complaints,
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

#: What tells a record from the others of its identity: round, process, time, subjects.
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


@dataclass(frozen=True)
class Incoming:
    """One campaign of elsewhere.

    Parameters
    ----------
    header : CampaignHeader
        What was measured.
    origin : Origin
        Who measured it and when.
    records : iterable of Record
        In order; taken once, and never held all at once.
    subjects : mapping of str to mapping
        By key, what `Subject.record` gives; it may grow while the records are taken.
    failures : sequence of Failure
        What could not be measured.
    conditions : sequence of (str, float, object)
        Moment, time and content of what the machine was like.
    """

    header: CampaignHeader
    origin: Origin
    records: Iterable[Record]
    subjects: Mapping[str, Mapping[str, Any]]
    failures: Sequence[Failure] = ()
    conditions: Sequence[tuple[str, float, Any]] = ()


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
    with source.reading() as connection:
        rows = connection.execute(select_campaigns()).all()
    copied = Copied()
    for row in rows:
        complaints = Complaints(source.name, row.identifier)
        with source.reading() as connection:
            try:
                incoming = _incoming(connection, row, complaints)
            except InvalidValueError as error:
                complaints.add("the campaign itself", error)
            else:
                copied += add_incoming(incoming, target)
        complaints.warn()
    return copied + Copied(predictors=copy_predictors(source, target))


def add_incoming(incoming: Incoming, target: Database) -> Copied:
    """Put one campaign into a database, each record once."""
    with target.held(incoming.header.identity):
        receiver = _Receiver(target, incoming)
        taken = iter(incoming.records)
        while batch := list(itertools.islice(taken, BATCH)):
            receiver.add(batch)
        return receiver.finish()


@dataclass
class _Receiver:
    """The campaign in the target that takes what comes in; it is made when something new comes."""

    database: Database
    incoming: Incoming
    number: int | None = None
    numbers: dict[str, int] = field(default_factory=dict)
    n_added: int = 0
    n_doubles: int = 0

    def __post_init__(self) -> None:
        of_same = select(campaigns.c.id, campaigns.c.identifier).where(
            campaigns.c.identity == self.incoming.header.identity
        )
        with self.database.reading() as connection:
            found = connection.execute(of_same).all()
            self._keys = {row.id: read_keys(connection, row.id) for row in found}
        for row in found:
            if row.identifier == self.incoming.origin.identifier:
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

    def finish(self) -> Copied:
        """Add what is no record, and return how much there was."""
        is_new = self.number is None and not self.n_doubles and (self.incoming.failures or self.incoming.conditions)
        if self.number is not None or is_new:
            with self.database.writing() as connection:
                self._write_rest(connection, self._campaign(connection))
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
            self.number = add_campaign(connection, self.incoming.header, self.incoming.origin)
            self._keys[self.number] = {}
        return self.number

    def _write(self, connection: Connection, new: Sequence[Record]) -> None:
        campaign, at = self._campaign(connection), self.incoming.origin.written
        self._admit(connection, campaign)
        rows = [record_row(record, self.numbers) for record in new]
        add_records(connection, campaign, rows, sum(map(n_samples, new)), at)

    def _admit(self, connection: Connection, campaign: int) -> None:
        new = [key for key in self.incoming.subjects if key not in self.numbers]
        begin = max(self.numbers.values(), default=-1) + 1
        added = dict(zip(itertools.count(begin), new, strict=False))
        described = {number: self.incoming.subjects[key] for number, key in added.items()}
        add_subjects(connection, campaign, described, self.incoming.origin.written)
        self.numbers.update({key: number for number, key in added.items()})
        self._keys[campaign].update(added)

    def _write_rest(self, connection: Connection, campaign: int) -> None:
        self._admit(connection, campaign)
        at = self.incoming.origin.written
        there = {(failure.subject, failure.reason) for failure in read_failures(connection, campaign)}
        rows = [failure_row(failure) for failure in self.incoming.failures]
        new = [row for row in rows if (row["subject"], row["reason"]) not in there]
        if new:
            add_failures(connection, campaign, new, at)
        complaints = Complaints(self.database.name, self.incoming.origin.identifier)
        moments = {(moment, when) for moment, when, _ in read_moments(connection, campaign, complaints)}
        for moment, when, content in self.incoming.conditions:
            if (moment, when) not in moments:
                add_conditions(connection, campaign, moment, content, when)


def _incoming(connection: Connection, row: Any, complaints: Complaints) -> Incoming:
    found = read_subjects(connection, row.id, complaints)
    keys = {number: subject["key"] for number, subject in found.items()}
    names = ("identifier", "user", "host", "package_version", "begun", "written", "status")
    if not all(isinstance(moment, (int, float)) and math.isfinite(moment) for moment in (row.begun, row.written)):
        raise InvalidValueError("its dates are no numbers")
    return Incoming(
        header_of(row),
        Origin(**{name: getattr(row, name) for name in names}),
        read_records(connection, row.id, keys, complaints),
        {subject["key"]: subject for subject in found.values()},
        read_failures(connection, row.id),
        read_moments(connection, row.id, complaints),
    )
