"""How fast a platform was over time, as the reference operator tells that runs before every visit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import ColumnElement, Connection, Join, Select, and_, func, select

from nni_latency.database._database import Database
from nni_latency.database._schema import campaigns, platforms, records
from nni_latency.measurement import quantile

#: Visits of a campaign that tell how fast the platform was.
_VISITS = 200


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
