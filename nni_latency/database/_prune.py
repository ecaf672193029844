# SPDX-License-Identifier: Apache-2.0
"""Taking old campaigns out of a database. Whole campaigns go, never single records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, select, update

from nni_latency.database._database import Database
from nni_latency.database._reading import select_campaigns
from nni_latency.database._schema import RETIRED, campaigns, counters, graphs, platforms, protocols, subjects
from nni_latency.database._writing import insert_new
from nni_latency.errors import BusyError


@dataclass(frozen=True)
class StaleCampaign:
    """A campaign that may go.

    Parameters
    ----------
    identifier : str
        Its name.
    identity : str
        Shared by all campaigns that measure the same in the same way.
    platform, kind : str
        Where, and by which schedule.
    n_records, n_samples : int
        How much it holds.
    written : float
        When it was last written to [s since 1970, UTC].
    """

    identifier: str
    identity: str
    platform: str
    kind: str
    n_records: int
    n_samples: int
    written: float


def stale_campaigns(
    database: Database,
    *,
    written_before: float | None = None,
    platform: str | None = None,
    kind: str | None = None,
    keep_latest: int = 0,
) -> list[StaleCampaign]:
    """List campaigns that meet every criterion given, the oldest first.

    Parameters
    ----------
    database : Database
        Where they are.
    written_before : float, optional
        Those that were last written to before [s since 1970, UTC].
    platform, kind : str, optional
        Those of a platform's id, or of a kind.
    keep_latest : int, default=0
        So many of the latest campaigns of every identity stay, whatever else is asked for.
    """
    place = func.row_number().over(
        partition_by=campaigns.c.identity, order_by=(campaigns.c.begun.desc(), campaigns.c.id.desc())
    )
    # An identity is of one platform and kind, so these leave the places as they are.
    statement = select_campaigns(platform=platform, kind=kind).add_columns(place.label("place"))
    with database.reading() as connection:
        rows = connection.execute(statement).all()
    return [
        StaleCampaign(
            row.identifier, row.identity, row.platform_name, row.kind, row.n_records, row.n_samples, row.written
        )
        for row in rows
        if row.place > keep_latest and (written_before is None or row.written < written_before)
    ]


def remove_campaigns(database: Database, stale: Iterable[StaleCampaign]) -> tuple[int, list[StaleCampaign]]:
    """Remove campaigns, and the platforms, protocols and graphs that only they had.

    Returns
    -------
    n_removed : int
        How many went.
    kept : list of StaleCampaign
        Those that stay, because somebody is measuring or has gone on with them.
    """
    kept, n_removed = [], 0
    for campaign in stale:
        try:
            with database.held(campaign.identity), database.writing() as connection:
                gone = _remove(connection, campaign)
        except BusyError:
            gone = False
        n_removed += gone
        kept += [] if gone else [campaign]
    if n_removed:
        with database.writing() as connection:
            _remove_orphans(connection)
        database.compact()
    return n_removed, kept


def _remove(connection: Connection, campaign: StaleCampaign) -> bool:
    """Remove a campaign unless it was written to since it was listed."""
    this = (campaigns.c.identifier == campaign.identifier, campaigns.c.written == campaign.written)
    changes = connection.execute(select(campaigns.c.changes).where(*this)).scalar()
    if changes is None:
        return False
    # The version of the store goes on growing.
    insert_new(connection, counters, {"name": RETIRED, "value": 0})
    more = counters.c.value + changes + 1
    connection.execute(update(counters).where(counters.c.name == RETIRED).values(value=more))
    connection.execute(delete(campaigns).where(*this))
    return True


def _remove_orphans(connection: Connection) -> None:
    connection.execute(delete(platforms).where(platforms.c.id.not_in(select(campaigns.c.platform_id))))
    connection.execute(delete(protocols).where(protocols.c.id.not_in(select(campaigns.c.protocol_id))))
    used = select(subjects.c.graph).where(subjects.c.graph.is_not(None))
    connection.execute(delete(graphs).where(graphs.c.digest.not_in(used)))
