# SPDX-License-Identifier: Apache-2.0
"""What is in a database: by platform and kind, subject by subject, and how fast platforms were over time."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import ColumnElement, Connection, Join, Select, and_, func, or_, select

from nni_latency.database._database import Database
from nni_latency.database._reading import Complaints, read_each, read_keys, read_records, select_campaigns
from nni_latency.database._rows import platform_of
from nni_latency.database._schema import campaigns, failures, platforms, records, subjects
from nni_latency.measurement import Record, quantile
from nni_latency.platforms import Platform

#: Visits of a campaign that show how fast the platform was.
_VISITS = 200


@dataclass(frozen=True)
class KindOverview:
    """What there is of one kind on one platform.

    Parameters
    ----------
    platform, kind : str
        The platform's id, and by which schedule.
    campaigns, subjects, records, samples, failures : int
        How many.
    first, last : float
        When the first campaign began, and the last was written to [s since 1970, UTC].
    """

    platform: str
    kind: str
    campaigns: int
    subjects: int
    records: int
    samples: int
    failures: int
    first: float
    last: float


@dataclass(frozen=True)
class SubjectOverview:
    """What there is of one subject in one campaign.

    Parameters
    ----------
    platform, kind, campaign : str
        Where, by which schedule, and the campaign's identifier.
    subject, subject_kind, digest : str
        What it is.
    records : int
        Records that it has a part in.
    last : float
        When the last of them ended [s since 1970, UTC].
    latency : float or None
        Median over its runs alone [s]; None if it never ran alone.
    """

    platform: str
    kind: str
    campaign: str
    subject: str
    subject_kind: str
    digest: str
    records: int
    last: float
    latency: float | None


def summarise(database: Database) -> list[KindOverview]:
    """Say what a database holds, by platform and kind."""
    group = (platforms.c.name, campaigns.c.kind)
    n_subjects, n_failures = (
        select(func.count()).where(table.c.campaign_id == campaigns.c.id).scalar_subquery()
        for table in (subjects, failures)
    )
    counts = (func.count(), *map(func.sum, (n_subjects, campaigns.c.n_records, campaigns.c.n_samples, n_failures)))
    span = (func.min(campaigns.c.begun), func.max(campaigns.c.written))
    statement = select(*group, *counts, *span).select_from(_joined()).group_by(*group).order_by(*group)
    with database.reading() as connection:
        rows = connection.execute(statement).all()
    return [KindOverview(*row[:2], *map(int, row[2:-2]), *row[-2:]) for row in rows]


def latest_platforms(database: Database, kind: str | None = None) -> list[Platform]:
    """Return the platforms of campaigns, or of those of a kind, sorted by id: of each id the latest state."""
    statement = (
        select(platforms.c.name, platforms.c.content)
        .join(campaigns, campaigns.c.platform_id == platforms.c.id)
        .order_by(campaigns.c.written, campaigns.c.id)
    )
    if kind is not None:
        statement = statement.where(campaigns.c.kind == kind)
    with database.reading() as connection:
        latest = {row.name: row.content for row in connection.execute(statement)}
    return [platform_of(latest[name]) for name in sorted(latest)]


def find_subjects(
    database: Database,
    *,
    platform: str | None = None,
    kind: str | None = None,
    text: str | None = None,
    since: float | None = None,
) -> Iterator[SubjectOverview]:
    """Find subjects, campaign by campaign, the oldest first.

    Parameters
    ----------
    database : Database
        Where they are.
    platform, kind : str, optional
        Those of a platform's id, or of campaigns of a kind.
    text : str, optional
        Those whose key or digest has it.
    since : float, optional
        Only records that ended later [s since 1970, UTC].

    Warns
    -----
    DatabaseWarning
        If rows make no sense; they are left out.
    """
    statement = select_campaigns(platform=platform, kind=kind)
    if since is not None:
        statement = statement.where(campaigns.c.written >= since)
    for reading in read_each(database, statement):
        with reading as (connection, row, complaints):
            found = _subjects(connection, row.id, text)
            counted = _count(connection, row.id, complaints, since or 0.0) if found else {}
        for key, subject_kind, digest in found:
            tally = counted.get(key)
            if tally is not None:
                names = (row.platform_name, row.kind, row.identifier, key, subject_kind, digest)
                latency = quantile(tally.latencies, 0.5) if tally.latencies else None
                yield SubjectOverview(*names, tally.records, tally.last, latency)


class _Tally:
    def __init__(self) -> None:
        self.records, self.last = 0, 0.0
        self.latencies = array("d")

    def add(self, record: Record) -> None:
        self.records += 1
        self.last = max(self.last, record.at)
        if len(record.subjects) == 1:
            self.latencies.extend(record.whole)


def _subjects(connection: Connection, campaign: int, text: str | None) -> list[tuple[str, str, str]]:
    columns = subjects.c
    statement = select(columns.key, columns.kind, columns.digest).where(columns.campaign_id == campaign)
    if text is not None:
        has_it = or_(columns.key.contains(text, autoescape=True), columns.digest.contains(text, autoescape=True))
        statement = statement.where(has_it)
    return [(row.key, row.kind, row.digest) for row in connection.execute(statement.order_by(columns.number))]


def _count(connection: Connection, campaign: int, complaints: Complaints, since: float) -> dict[str, _Tally]:
    tallies: dict[str, _Tally] = {}
    for record in read_records(connection, campaign, read_keys(connection, campaign), complaints):
        if record.at >= since:
            for key in set(record.subjects):
                tallies.setdefault(key, _Tally()).add(record)
    return tallies


@dataclass(frozen=True)
class DriftPoint:
    """How fast a platform was during one campaign. Immutable.

    Parameters
    ----------
    campaign : str
        Its identifier.
    kind : str
        By which schedule it was measured.
    at : float
        When it was last written to [s since 1970, UTC].
    reference : float
        Lower quartile of the time of the reference operator [s].
    slower : float
        By what factor that is longer than in the best of the campaigns of its kind. What runs before the reference
        operator differs by kind, and leaves other data in the caches.
    """

    campaign: str
    kind: str
    at: float
    reference: float
    slower: float = 1.0


@dataclass(frozen=True)
class PlatformDrift:
    """How fast a platform was over time, in the state that it is in. Immutable.

    Parameters
    ----------
    platform : str
        Its id.
    campaigns : int
        Campaigns that were measured in this state.
    points : tuple of DriftPoint
        Some of them, the oldest first, the latest included.
    """

    platform: str
    campaigns: int = 0
    points: tuple[DriftPoint, ...] = ()

    @property
    def slower(self) -> float:
        """By what factor the reference operator took longer in the latest campaign than at best; 1 without any."""
        return self.points[-1].slower if self.points else 1.0


def platform_drift(database: Database, platform: str, most: int = 50) -> PlatformDrift:
    """Return how fast a platform was over time.

    Parameters
    ----------
    database : Database
        Where its records are.
    platform : str
        Its id; of states that differ in facts that make numbers incomparable, only the latest counts.
    most : int, default=50
        Points at most, evenly spread over the campaigns.
    """
    with database.reading() as connection:
        identity = connection.execute(_latest_identity(platform)).scalar()
        if identity is None:
            return PlatformDrift(platform)
        condition = and_(platforms.c.name == platform, platforms.c.identity == identity, campaigns.c.n_records > 0)
        count = connection.execute(select(func.count()).select_from(_joined()).where(condition)).scalar_one()
        rows = connection.execute(_spread(condition, max(1, -(-count // most)))).all()
        found = [(row, _references(connection, row.id)) for row in rows]
    points = [DriftPoint(row.identifier, row.kind, row.written, quantile(taken, 0.25)) for row, taken in found if taken]
    return PlatformDrift(platform, count, tuple(sorted(_compared(points), key=lambda point: point.at)))


def _compared(points: Sequence[DriftPoint]) -> Iterator[DriftPoint]:
    best: dict[str, float] = {}
    for point in points:
        best[point.kind] = min(point.reference, best.get(point.kind, point.reference))
    for point in points:
        yield replace(point, slower=point.reference / best[point.kind])


def _joined() -> Join:
    return campaigns.join(platforms, campaigns.c.platform_id == platforms.c.id)


def _latest_identity(platform: str) -> Select[tuple[str]]:
    return (
        select(platforms.c.identity)
        .join(campaigns, campaigns.c.platform_id == platforms.c.id)
        .where(platforms.c.name == platform, campaigns.c.n_records > 0)
        .order_by(campaigns.c.written.desc())
        .limit(1)
    )


def _spread(condition: ColumnElement[bool], step: int) -> Select[tuple[int, str, str, float]]:
    """Select one campaign in so many, the latest one first."""
    place = func.row_number().over(order_by=campaigns.c.written.desc()).label("place")
    columns = (campaigns.c.id, campaigns.c.identifier, campaigns.c.kind, campaigns.c.written)
    numbered = select(*columns, place).select_from(_joined()).where(condition).subquery()
    wanted = (numbered.c.id, numbered.c.identifier, numbered.c.kind, numbered.c.written)
    return select(*wanted).where(numbered.c.place % step == 1 % step)


def _references(connection: Connection, campaign: int) -> list[float]:
    statement = (
        select(records.c.reference)
        .where(records.c.campaign_id == campaign, records.c.reference > 0)
        .order_by(records.c.round)
        .limit(_VISITS)
    )
    return list(connection.execute(statement).scalars())
