"""The latency of a subject on a platform, found without reading campaigns."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import asdict
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, bindparam, func, or_, select, tuple_, update

from nni_latency.database._database import Database
from nni_latency.database._reading import Complaints
from nni_latency.database._rows import dumped, platform_of
from nni_latency.database._schema import answers, campaigns, graphs, platforms, protocols, records, subjects
from nni_latency.errors import InvalidValueError, LatencyError, MeasurementError
from nni_latency.measurement import BEING_MEASURED, KnownLatency, NetworkSummary, Protocol, summarise_visits
from nni_latency.platforms import Platform

#: From so many visits on, a summary is kept: of fewer it is made in less time than it takes to write.
WORTH_KEEPING = 64

# Made once: making a statement takes longer than running it.
_STATES = select(platforms.c.id, platforms.c.content).where(platforms.c.name == bindparam("name"))
_FOUND = (
    select(
        *(answers.c[name] for name in ("campaign_id", "number", "digest", "at", "summary")),
        *(campaigns.c[name] for name in ("identifier", "changes", "package_version")),
        platforms.c.content.label("platform"),
        protocols.c.content.label("protocol"),
    )
    .join(campaigns, answers.c.campaign_id == campaigns.c.id)
    .join(platforms, campaigns.c.platform_id == platforms.c.id)
    .join(protocols, campaigns.c.protocol_id == protocols.c.id)
    .where(
        answers.c.digest == bindparam("digest"),
        answers.c.platform_id.in_(bindparam("states", expanding=True)),
        or_(campaigns.c.status != "running", campaigns.c.written < bindparam("latest_write")),
    )
    .order_by(answers.c.at.desc(), answers.c.campaign_id.desc())
)
_VISITS = (
    select(records.c.id, records.c.samples)
    .where(records.c.campaign_id == bindparam("campaign"), records.c.subjects == bindparam("alone"))
    .order_by(records.c.id)
)
_CHANGES = select(campaigns.c.changes).where(campaigns.c.id == answers.c.campaign_id).scalar_subquery()
_KEEP = (
    update(answers)
    .where(answers.c.campaign_id == bindparam("campaign"), answers.c.number == bindparam("place"))
    # Unless something was added meanwhile.
    .where(bindparam("changes") == _CHANGES)
    .values(summary=bindparam("derived"))
)


def find_known(database: Database, digest: str, platform: Platform | str, now: float) -> KnownLatency | None:
    """Return the latest latency of a subject; see `nni_latency.measurement.Store.known`."""
    name = platform if isinstance(platform, str) else platform.id
    with database.reading() as connection:
        states = [
            row.id
            for row in connection.execute(_STATES, {"name": name})
            if isinstance(platform, str) or not platform.differences(platform_of(row.content))
        ]
        asked = {"digest": digest, "states": states, "latest_write": now - BEING_MEASURED}
        found = connection.execute(_FOUND, asked).all() if states else []
        known = next((summary for row in found if (summary := _summary_of(connection, row, database.name)).text), None)
    if known is None:
        return None
    if known.is_worth_keeping:
        _keep(database, known.row, known.text)
    return _known(known.row, known.text)


class _Summary(NamedTuple):
    row: Any
    #: As JSON; empty if there is nothing to tell.
    text: str
    is_worth_keeping: bool = False


def _summary_of(connection: Connection, row: Any, name: str) -> _Summary:
    """Return the summary of the records of a subject alone: the one that is kept, or a new one."""
    if row.summary is not None:
        return _Summary(row, row.summary)
    complaints = Complaints(name, row.identifier)
    visits = []
    for item in connection.execute(_VISITS, {"campaign": row.campaign_id, "alone": f"[{row.number}]"}):
        try:
            visits.append(_latencies(item.samples))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            complaints.add(f"record {item.id}", error)
    complaints.warn()
    try:
        found = summarise_visits([runs for runs in visits if runs], Protocol(**json.loads(row.protocol)))
    except (MeasurementError, ValueError, TypeError):
        return _Summary(row, "")
    return _Summary(row, dumped(asdict(found)), len(visits) >= WORTH_KEEPING)


def _latencies(samples: str) -> list[float]:
    """Return the latencies of a record [s]; nothing else of it is read, because that takes most of the time."""
    found = [float(seconds) for seconds in json.loads(samples).get("latency", ())]
    if not all(math.isfinite(seconds) and seconds > 0 for seconds in found):
        raise InvalidValueError("'latency' must hold positive, finite numbers")
    return found


def _keep(database: Database, row: Any, summary: str) -> None:
    # What cannot be written is derived again the next time.
    with contextlib.suppress(LatencyError), database.writing() as connection:
        names = {"campaign": row.campaign_id, "place": row.number, "changes": row.changes, "derived": summary}
        connection.execute(_KEEP, names)


def _known(row: Any, summary: str) -> KnownLatency:
    fields = asdict(NetworkSummary(**json.loads(summary)))
    return KnownLatency(
        **fields,
        digest=row.digest,
        platform=platform_of(row.platform),
        campaign=row.identifier,
        at=row.at,
        package_version=row.package_version,
    )


def list_known(
    database: Database, *, platform: str | None = None, limit: int = 100, after: str | None = None
) -> tuple[list[dict[str, Any]], str | None]:
    """List what was measured alone, the latest campaigns first, page by page.

    Parameters
    ----------
    database : Database
        Where it is.
    platform : str, optional
        Id of the only platform.
    limit : int, default=100
        Most items of a page.
    after : str, optional
        Where the page before ended.

    Returns
    -------
    items : list of dict
        ``digest``, ``platform``, ``campaign``, ``kind``, ``at`` [s since 1970, UTC] and ``latency`` [s] of each.
    following : str or None
        The `after` of the next page; None if this is the last.

    Raises
    ------
    InvalidValueError
        If `after` is not what an earlier page gave.
    """
    names = ("campaign_id", "number", "digest", "at", "summary")
    others = (campaigns.c.identifier, campaigns.c.kind, platforms.c.name, protocols.c.content.label("protocol"))
    statement = (
        select(*(answers.c[name] for name in names), *others)
        .join(campaigns, answers.c.campaign_id == campaigns.c.id)
        .join(platforms, answers.c.platform_id == platforms.c.id)
        .join(protocols, campaigns.c.protocol_id == protocols.c.id)
        .order_by(answers.c.campaign_id.desc(), answers.c.number.desc())
        .limit(limit + 1)
    )
    if platform is not None:
        statement = statement.where(platforms.c.name == platform)
    if after is not None:
        statement = statement.where(tuple_(answers.c.campaign_id, answers.c.number) < _place(after))
    with database.reading() as connection:
        rows = connection.execute(statement).all()
        summaries = [_summary_of(connection, row, database.name).text for row in rows[:limit]]
    items = [
        {
            "digest": row.digest,
            "platform": row.name,
            "campaign": row.identifier,
            "kind": row.kind,
            "at": row.at,
            "latency": json.loads(summary)["value"] if summary else None,
        }
        for row, summary in zip(rows, summaries, strict=False)
    ]
    last = rows[limit - 1] if len(rows) > limit else None
    return items, None if last is None else f"{last.campaign_id}-{last.number}"


def measured_graphs(database: Database) -> list[tuple[str, str, str]]:
    """Return what was measured alone and whose graph is kept, each once on every platform.

    Returns
    -------
    list of (str, str, str)
        Digest, id of the platform, and the graph as JSON.
    """
    statement = (
        select(answers.c.digest, platforms.c.name, func.min(graphs.c.content).label("content"))
        .join(subjects, and_(subjects.c.campaign_id == answers.c.campaign_id, subjects.c.number == answers.c.number))
        .join(platforms, answers.c.platform_id == platforms.c.id)
        .join(graphs, subjects.c.graph == graphs.c.digest)
        .group_by(answers.c.digest, platforms.c.name)
        .order_by(answers.c.digest, platforms.c.name)
    )
    with database.reading() as connection:
        return [(row.digest, row.name, row.content) for row in connection.execute(statement)]


def count_stored(database: Database) -> dict[str, int]:
    """Return how many campaigns, records and samples there are."""
    counts = (
        func.count().label("campaigns"),
        func.sum(campaigns.c.n_records).label("records"),
        func.sum(campaigns.c.n_samples).label("samples"),
    )
    with database.reading() as connection:
        row = connection.execute(select(*counts).select_from(campaigns)).one()
    return {"campaigns": row.campaigns, "records": int(row.records or 0), "samples": int(row.samples or 0)}


def _place(after: str) -> Any:
    campaign, _, number = after.partition("-")
    if not (campaign.isdecimal() and number.isdecimal() and max(len(campaign), len(number)) < 19):
        raise InvalidValueError(f"'after' must be what the page before gave as 'next'. Got {after[:60]!r}.")
    return tuple_(int(campaign), int(number))
