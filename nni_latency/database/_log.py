"""`DatabaseLog`: one campaign that is being measured, in a database."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import update

from nni_latency.database._database import Database
from nni_latency.database._reading import Complaints, read_failures, read_keys, read_records
from nni_latency.database._rows import failure_row, n_samples, record_row
from nni_latency.database._schema import campaigns
from nni_latency.database._writing import add_conditions, add_failures, add_records, add_subjects
from nni_latency.measurement import CampaignLog, Failure, Record, Subject


class DatabaseLog(CampaignLog):
    """A campaign in a database. What is appended is committed when the call returns; not thread-safe.

    Parameters
    ----------
    database : Database
        Where it is.
    number : int
        Number of the campaign in the database.
    identifier : str
        Name of the campaign in every database.
    """

    def __init__(self, database: Database, number: int, identifier: str) -> None:
        self.identifier = identifier
        self._database, self._number = database, number
        complaints = Complaints(database.name, identifier)
        with database.reading() as connection:
            keys = read_keys(connection, number)
            self.records = list(read_records(connection, number, keys, complaints))
            self.failures = read_failures(connection, number)
        self._numbers = {key: number for number, key in keys.items()}
        complaints.warn()

    def admit(self, subject: Subject) -> None:
        """Note what a subject is; again is harmless."""
        if subject.key in self._numbers:
            return
        number = max(self._numbers.values(), default=-1) + 1
        with self._database.writing() as connection:
            add_subjects(connection, self._number, {number: subject.record}, time.time())
        self._numbers[subject.key] = number

    def append(self, record: Record) -> None:
        """Keep a record.

        Raises
        ------
        InvalidValueError
            If it names a subject that was not admitted, or holds what no measurement gives.
        OutputError
            If it cannot be kept. The records before stay.
        """
        record = record.rounded()
        row = record_row(record, self._numbers)
        with self._database.writing() as connection:
            add_records(connection, self._number, [row], n_samples(record), time.time())
        self.records.append(record)

    def fail(self, failure: Failure) -> None:
        """Keep a failure; raises as `append` does."""
        row = failure_row(failure)
        with self._database.writing() as connection:
            add_failures(connection, self._number, [row], time.time())
        self.failures.append(Failure(**row))

    def note(self, moment: str, conditions: Mapping[str, Any]) -> None:
        """Keep what the machine was like at a moment."""
        with self._database.writing() as connection:
            add_conditions(connection, self._number, moment, conditions, time.time())

    def mark(self, status: str) -> None:
        """Keep whether it is ``running``, ``ended`` or ``interrupted``."""
        with self._database.writing() as connection:
            connection.execute(update(campaigns).where(campaigns.c.id == self._number).values(status=status))
