# SPDX-License-Identifier: Apache-2.0
"""`DatabaseStore`: the store behind everything that is measured, in a database, and the campaigns written to it."""

from __future__ import annotations

import contextlib
import getpass
import os
import platform as machine
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import func, select, update

from nni_latency.database._answers import find_known
from nni_latency.database._database import Database
from nni_latency.database._location import MEMORY, default_location, parse_location
from nni_latency.database._reading import (
    Complaints,
    read_campaign,
    read_each,
    read_failures,
    read_keys,
    read_moments,
    read_records,
    select_campaigns,
)
from nni_latency.database._rows import failure_row, n_samples, platform_of, record_row
from nni_latency.database._schema import campaigns, counters, platforms
from nni_latency.database._writing import Origin, add_campaign, add_conditions, add_failures, add_records, add_subjects
from nni_latency.errors import LatencyError
from nni_latency.measurement import (
    CampaignHeader,
    CampaignLog,
    Failure,
    KnownLatency,
    MemoryStore,
    Record,
    Store,
    StoredCampaign,
    Subject,
)
from nni_latency.platforms import Platform
from nni_latency.version import __version__


class DatabaseStore(Store):
    """A store in a SQLite file or on a PostgreSQL server. Safe in several threads and processes, and after a fork.

    Parameters
    ----------
    location : str or Path
        A file, or a URL that begins with ``sqlite:///`` or ``postgresql://``.
    create : bool, default=True
        Make a file that does not exist.

    Attributes
    ----------
    database : Database
        The connections.

    Raises
    ------
    InvalidValueError
        If the location is of another kind.
    FileFormatError
        If it is not a database of this package, or of another version.
    OutputError
        If it cannot be opened.
    MissingDependencyError
        If the driver of PostgreSQL is absent.
    """

    def __init__(self, location: str | os.PathLike[str], *, create: bool = True) -> None:
        self.database = Database(parse_location(location), create=create)

    def __repr__(self) -> str:
        return f"DatabaseStore({self.database.name!r})"

    @contextlib.contextmanager
    def campaign(self, header: CampaignHeader, *, fresh: bool = False, wait: float = 0.0) -> Iterator[CampaignLog]:
        """Hold the campaign of a header: the latest one of its identity, or a new one.

        Raises
        ------
        BusyError
            If another process holds it.
        OutputError
            If nothing can be written.
        """
        with self.database.held(header.identity, wait=wait):
            log = self._open(header, fresh)
            try:
                yield log
            except BaseException:
                with contextlib.suppress(LatencyError):
                    log.mark("interrupted")
                raise
            log.mark("ended")

    def campaigns(
        self, *, kind: str | None = None, platform: Platform | None = None, identifier: str | None = None
    ) -> Iterator[StoredCampaign]:
        """Read campaigns, the oldest first, each as it stands at one moment.

        Warns
        -----
        DatabaseWarning
            If rows make no sense; they are left out.
        """
        name = None if platform is None else platform.id
        statement = select_campaigns(platform=name, kind=kind, identifier=identifier)
        for reading in read_each(self.database, statement):
            with reading as (connection, row, complaints):
                campaign = read_campaign(connection, row, complaints)
            if campaign is not None and (platform is None or not platform.differences(campaign.header.platform)):
                yield campaign

    def version(self) -> int:
        """Return a number that grows whenever something is added, whatever is removed."""
        with self.database.reading() as connection:
            there = connection.execute(select(func.sum(campaigns.c.changes))).scalar()
            gone = connection.execute(select(func.sum(counters.c.value))).scalar()
        return int(there or 0) + int(gone or 0)

    def known(self, digest: str, platform: Platform | str) -> KnownLatency | None:
        """Return the latest latency of a subject that was measured alone, without reading campaigns.

        Warns
        -----
        DatabaseWarning
            If rows make no sense; they are left out.
        """
        return self.known_all([(digest, platform)])[0]

    def known_all(self, asked: Sequence[tuple[str, Platform | str]]) -> list[KnownLatency | None]:
        """Return what `known` returns for each of many questions, in a few statements for all of them."""
        return find_known(self.database, asked, time.time())

    def platforms(self) -> list[Platform]:
        """Return the platforms of all campaigns, each state of them once."""
        with self.database.reading() as connection:
            rows = connection.execute(select(platforms.c.content).order_by(platforms.c.id)).all()
        return [platform_of(row.content) for row in rows]

    def close(self) -> None:
        """Close the connections; they are made again when they are needed."""
        self.database.close()

    def _open(self, header: CampaignHeader, fresh: bool) -> DatabaseLog:
        statement = (
            select(campaigns.c.id, campaigns.c.identifier)
            .where(campaigns.c.identity == header.identity)
            .order_by(campaigns.c.begun.desc(), campaigns.c.id.desc())
            .limit(1)
        )
        with self.database.reading() as connection:
            found = None if fresh else connection.execute(statement).first()
        if found is not None:
            log = DatabaseLog(self.database, found.id, found.identifier)
            log.mark("running")
            return log
        origin = _origin_here(header)
        with self.database.writing() as connection:
            number = add_campaign(connection, header, origin)
        return DatabaseLog(self.database, number, origin.identifier)


def open_store(location: str | os.PathLike[str] | None = None) -> Store:
    """Open the store that a user asks for.

    Parameters
    ----------
    location : str or Path, optional
        A SQLite file, a URL of a database, or ``memory`` for a store that is gone with its process. Without it, what
        the environment variable ``NNI_LATENCY_DATABASE`` says, or else ``nni_latency/measurements.sqlite`` in the
        user's data folder.

    Raises
    ------
    LatencyError
        As `DatabaseStore` does.

    Examples
    --------
    >>> open_store("memory").version()
    0
    """
    location = location or default_location()
    return MemoryStore() if location == MEMORY else DatabaseStore(location)


def _origin_here(header: CampaignHeader) -> Origin:
    now = time.time()
    identifier = f"{header.identity[:8]}-{secrets.token_hex(6)}"
    return Origin(identifier, _user(), machine.node(), __version__, now, now)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container may run under a number without a name.
        return "unknown"


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
            self.conditions = {name: content for name, _, content in read_moments(connection, number, complaints)}
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
        self.conditions[moment] = dict(conditions)

    def mark(self, status: str) -> None:
        """Keep whether it is ``running``, ``ended`` or ``interrupted``."""
        with self._database.writing() as connection:
            connection.execute(update(campaigns).where(campaigns.c.id == self._number).values(status=status))
