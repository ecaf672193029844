# SPDX-License-Identifier: Apache-2.0
"""The latency of a subject on a platform, found without reading campaigns."""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from sqlalchemy import Connection, Text, and_, bindparam, cast, func, or_, select, tuple_, update

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
_STATES = select(platforms.c.id, platforms.c.name, platforms.c.content).where(
    platforms.c.name.in_(bindparam("names", expanding=True))
)
_FOUND = (
    select(
        *(answers.c[name] for name in ("campaign_id", "number", "digest", "platform_id", "at", "summary")),
        *(campaigns.c[name] for name in ("identifier", "changes", "package_version")),
        platforms.c.content.label("platform"),
        protocols.c.content.label("protocol"),
    )
    .join(campaigns, answers.c.campaign_id == campaigns.c.id)
    .join(platforms, campaigns.c.platform_id == platforms.c.id)
    .join(protocols, campaigns.c.protocol_id == protocols.c.id)
    .where(
        answers.c.digest.in_(bindparam("digests", expanding=True)),
        answers.c.platform_id.in_(bindparam("states", expanding=True)),
        or_(campaigns.c.status != "running", campaigns.c.written < bindparam("latest_write")),
    )
    .order_by(answers.c.at.desc(), answers.c.campaign_id.desc())
)
_VISITS = (
    select(records.c.campaign_id, records.c.subjects, records.c.id, records.c.samples)
    # From the answers to the records: SQLite searches no index for pairs of numbers and texts.
    .join(
        answers,
        and_(
            records.c.campaign_id == answers.c.campaign_id,
            records.c.subjects == "[" + cast(answers.c.number, Text) + "]",
        ),
    )
    .where(
        answers.c.digest.in_(bindparam("digests", expanding=True)),
        # By the index of digests, which are few, and not by that of campaigns, which are large.
        (answers.c.campaign_id + 0).in_(bindparam("campaigns", expanding=True)),
    )
)
_CHANGES = select(campaigns.c.changes).where(campaigns.c.id == answers.c.campaign_id).scalar_subquery()
_KEEP = (
    update(answers)
    .where(answers.c.campaign_id == bindparam("campaign"), answers.c.number == bindparam("place"))
    # Unless something was added meanwhile.
    .where(bindparam("changes") == _CHANGES)
    .values(summary=bindparam("derived"))
)


#: Questions of one statement; more are asked in several.
_AT_ONCE = 200


def find_known(
    database: Database, asked: Sequence[tuple[str, Platform | str]], now: float
) -> list[KnownLatency | None]:
    """Return the latest latency of each of many subjects; see `nni_latency.measurement.Store.known`."""
    found: list[KnownLatency | None] = []
    for begin in range(0, len(asked), _AT_ONCE):
        part = asked[begin : begin + _AT_ONCE]
        with database.reading() as connection:
            summaries = _find(connection, part, database.name, now)
        for summary in summaries:
            if summary is not None and summary.is_worth_keeping:
                _keep(database, summary)
        found += [None if summary is None or summary.found is None else _known(summary) for summary in summaries]
    return found


class _Summary(NamedTuple):
    row: Any
    #: None where the records say nothing.
    found: NetworkSummary | None
    is_worth_keeping: bool = False


def _find(
    connection: Connection, asked: Sequence[tuple[str, Platform | str]], name: str, now: float
) -> list[_Summary | None]:
    """Return what answers each question, None where nothing does: in three statements, however many there are."""
    states = _states_of(connection, [platform for _, platform in asked])
    wanted = sorted({state for found in states for state in found})
    if not wanted:
        return [None] * len(asked)
    digests = list({digest for digest, _ in asked})
    names = {"digests": digests, "states": wanted, "latest_write": now - BEING_MEASURED}
    rows: dict[str, list[Any]] = {}
    for row in connection.execute(_FOUND, names):
        rows.setdefault(row.digest, []).append(row)
    choices = [
        [row for row in rows.get(digest, ()) if row.platform_id in found]
        for (digest, _), found in zip(asked, states, strict=True)
    ]
    summaries = _summaries_of(connection, [found[0] for found in choices if found], name)
    return [_first(connection, found, summaries, name) for found in choices]


def _first(connection: Connection, rows: list[Any], summaries: Mapping[Any, _Summary], name: str) -> _Summary | None:
    """Return the first summary that has a latency."""
    for row in rows:
        place = _place_of(row)
        summary = summaries[place] if place in summaries else _summaries_of(connection, [row], name)[place]
        if summary.found is not None:
            return summary
    return None


def _states_of(connection: Connection, wanted: Sequence[Platform | str]) -> list[set[int]]:
    """Return by platform the numbers of its states that may answer."""
    ids = {platform if isinstance(platform, str) else platform.id for platform in wanted}
    rows = connection.execute(_STATES, {"names": sorted(ids)}).all()
    return [
        {row.id for row in rows if row.name == platform}
        if isinstance(platform, str)
        else {row.id for row in rows if row.name == platform.id and not platform.differences(_platform_of(row.content))}
        for platform in wanted
    ]


def _place_of(row: Any) -> tuple[int, str]:
    """Return where the records of a subject alone are."""
    return row.campaign_id, f"[{row.number}]"


def _summaries_of(connection: Connection, rows: Sequence[Any], name: str) -> dict[tuple[int, str], _Summary]:
    """Return the summaries of the records of subjects alone, by their places: those that are kept, or new ones."""
    lacking = [row for row in rows if row.summary is None]
    visits: dict[tuple[int, str], list[Any]] = {_place_of(row): [] for row in lacking}
    if lacking:
        names = {"digests": list({row.digest for row in lacking}), "campaigns": list({place for place, _ in visits})}
        for item in connection.execute(_VISITS, names):
            if (item.campaign_id, item.subjects) in visits:
                visits[item.campaign_id, item.subjects].append(item)
    return {
        _place_of(row): _summary_of(row, visits[_place_of(row)], name)
        if row.summary is None
        else _Summary(row, NetworkSummary(**json.loads(row.summary)))
        for row in rows
    }


def _summary_of(row: Any, items: Sequence[Any], name: str) -> _Summary:
    complaints = Complaints(name, row.identifier)
    visits = []
    for item in sorted(items, key=lambda item: item.id):
        try:
            visits.append(_latencies(item.samples))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            complaints.add(f"record {item.id}", error)
    complaints.warn()
    try:
        found = summarise_visits([runs for runs in visits if runs], _protocol_of(row.protocol))
    except (MeasurementError, ValueError, TypeError):
        return _Summary(row, None)
    return _Summary(row, found, len(visits) >= WORTH_KEEPING)


# There are few of them, and answers to many questions hold the same ones.
@functools.lru_cache(maxsize=64)
def _protocol_of(content: str) -> Protocol:
    return Protocol(**json.loads(content))


@functools.lru_cache(maxsize=64)
def _platform_of(content: str) -> Platform:
    return platform_of(content)


def _latencies(samples: str) -> list[float]:
    """Return the latencies of a record [s]; nothing else of it is read, because that takes most of the time."""
    found = [float(seconds) for seconds in json.loads(samples).get("latency", ())]
    if not all(math.isfinite(seconds) and seconds > 0 for seconds in found):
        raise InvalidValueError("'latency' must hold positive, finite numbers")
    return found


def _keep(database: Database, summary: _Summary) -> None:
    row = summary.row
    text = dumped(asdict(summary.found))  # type: ignore[arg-type]
    # What cannot be written is derived again the next time.
    with contextlib.suppress(LatencyError), database.writing() as connection:
        names = {"campaign": row.campaign_id, "place": row.number, "changes": row.changes, "derived": text}
        connection.execute(_KEEP, names)


def _known(summary: _Summary) -> KnownLatency:
    row = summary.row
    return KnownLatency(
        **vars(summary.found),
        digest=row.digest,
        platform=_platform_of(row.platform),
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
        summaries = _summaries_of(connection, rows[:limit], database.name)
    items = [
        {
            "digest": row.digest,
            "platform": row.name,
            "campaign": row.identifier,
            "kind": row.kind,
            "at": row.at,
            "latency": found.value if (found := summaries[_place_of(row)].found) is not None else None,
        }
        for row in rows[:limit]
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
