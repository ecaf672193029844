# SPDX-License-Identifier: Apache-2.0
"""What is written of a campaign, within the transaction of a connection.

Which subjects were measured alone is an index of the records, kept in step with them. A row says that there are records
of a subject alone in a campaign. Its summary is derived from them when it is asked for, kept if there are many, and
forgotten with every record that is added, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Table, bindparam, case, delete, insert, literal, null, select, update
from sqlalchemy.dialects import postgresql, sqlite

from nni_latency.database._rows import digest_of, dumped
from nni_latency.database._schema import (
    answers,
    campaigns,
    conditions,
    failures,
    graphs,
    platforms,
    protocols,
    records,
    subjects,
)
from nni_latency.measurement import CampaignHeader

#: Field of a subject's specification that is kept once for all campaigns.
GRAPH = "graph"

# Made once: making a statement takes longer than running it.
_INSERT_RECORD = insert(records)

_COUNT = (
    update(campaigns)
    .where(campaigns.c.id == bindparam("campaign"))
    .values(
        # What is copied from elsewhere may be older.
        written=case((campaigns.c.written > bindparam("now"), campaigns.c.written), else_=bindparam("now")),
        changes=campaigns.c.changes + bindparam("more_changes"),
        n_records=campaigns.c.n_records + bindparam("more_records"),
        n_samples=campaigns.c.n_samples + bindparam("more_samples"),
    )
)


@dataclass(frozen=True)
class Origin:
    """Who measured a campaign and when.

    Parameters
    ----------
    identifier : str
        Names the campaign in every database.
    user, host : str
        Who, and on which machine.
    package_version : str
        With which version of nni_latency.
    begun, written : float
        When it was begun, and last written to [s since 1970, UTC].
    status : str
        ``running``, ``ended`` or ``interrupted``; a process that was killed leaves it ``running``.
    """

    identifier: str
    user: str
    host: str
    package_version: str
    begun: float
    written: float
    status: str = "running"


def add_campaign(connection: Connection, header: CampaignHeader, origin: Origin) -> int:
    """Begin a campaign; return its number in this database."""
    platform = header.platform
    row = {
        **vars(origin),
        "identity": header.identity,
        "kind": header.kind,
        "content": dumped(header.content),
        "platform_id": _number_of(
            connection,
            platforms,
            platform.as_dict(),
            {"identity": digest_of(platform.identity), "name": platform.id},
        ),
        "protocol_id": _number_of(connection, protocols, header.protocol.as_dict(), {}),
        "changes": 1,
        "n_records": 0,
        "n_samples": 0,
    }
    return int(connection.execute(insert(campaigns).values(row).returning(campaigns.c.id)).scalar_one())


def add_subjects(connection: Connection, campaign: int, added: Mapping[int, Mapping[str, Any]], at: float) -> None:
    """Add subjects as `Subject.record` gives them, by their numbers."""
    rows = []
    for number, subject in added.items():
        specification = dict(subject["specification"])
        graph = None
        if GRAPH in specification:
            content = specification.pop(GRAPH)
            graph = digest_of(content)
            insert_new(connection, graphs, {"digest": graph, "content": dumped(content)})
        row = {name: subject[name] for name in ("key", "kind", "digest")}
        rows.append(
            {"campaign_id": campaign, "number": number, **row, "specification": dumped(specification), "graph": graph}
        )
    if rows:
        connection.execute(insert(subjects), rows)
        _count(connection, campaign, at, changes=len(rows))


def add_records(
    connection: Connection, campaign: int, rows: Sequence[Mapping[str, Any]], n_samples: int, at: float
) -> None:
    """Add records as `record_row` gives them, and count them."""
    connection.execute(_INSERT_RECORD, [{"campaign_id": campaign, **row} for row in rows])
    note_measured(connection, campaign, rows)
    _count(connection, campaign, at, changes=len(rows), n_records=len(rows), n_samples=n_samples)


def add_failures(connection: Connection, campaign: int, rows: Sequence[Mapping[str, Any]], at: float) -> None:
    """Add failures as `failure_row` gives them."""
    connection.execute(insert(failures), [{"campaign_id": campaign, "at": at, **row} for row in rows])
    forget_failed(connection, campaign, [row["subject"] for row in rows])
    _count(connection, campaign, at, changes=len(rows))


def add_conditions(connection: Connection, campaign: int, moment: str, content: Any, at: float) -> None:
    """Add what the machine was like."""
    row = {"campaign_id": campaign, "moment": moment, "at": at, "content": dumped(content)}
    connection.execute(insert(conditions).values(row))
    _count(connection, campaign, at, changes=1)


def insert_new(connection: Connection, table: Table, row: Mapping[str, Any]) -> None:
    """Insert a row unless one of its key is there, also where another process inserts it meanwhile."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    connection.execute(dialect.insert(table).values(row).on_conflict_do_nothing())


def _count(
    connection: Connection, campaign: int, at: float, *, changes: int, n_records: int = 0, n_samples: int = 0
) -> None:
    more = {"more_changes": changes, "more_records": n_records, "more_samples": n_samples}
    connection.execute(_COUNT, {"campaign": campaign, "now": at, **more})


def _number_of(connection: Connection, table: Table, content: Mapping[str, Any], others: Mapping[str, Any]) -> int:
    """Return the number of a platform or a protocol, which is added if need be."""
    digest = digest_of(content)
    insert_new(connection, table, {"digest": digest, "content": dumped(content), **others})
    return int(connection.execute(select(table.c.id).where(table.c.digest == digest)).scalar_one())


def note_measured(connection: Connection, campaign: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """Note of which subjects there are records alone; what was derived of them before is forgotten."""
    latest: dict[int, float] = {}
    for row in rows:
        alone = str(row["subjects"])[1:-1]
        if alone.isdecimal():
            latest[int(alone)] = max(row["at"], latest.get(int(alone), 0.0))
    for number, at in latest.items():
        _note(connection, campaign, number, at)


def forget_failed(connection: Connection, campaign: int, keys: Sequence[str]) -> None:
    """Take out subjects that failed after they were measured."""
    failed = select(subjects.c.number).where(subjects.c.campaign_id == campaign, subjects.c.key.in_(keys))
    connection.execute(delete(answers).where(answers.c.campaign_id == campaign, answers.c.number.in_(failed)))


def _note(connection: Connection, campaign: int, number: int, at: float) -> None:
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    row = (
        select(
            subjects.c.campaign_id, subjects.c.number, subjects.c.digest, campaigns.c.platform_id, literal(at), null()
        )
        .join(campaigns, subjects.c.campaign_id == campaigns.c.id)
        .where(subjects.c.campaign_id == campaign, subjects.c.number == number, subjects.c.digest != "")
    )
    names = ["campaign_id", "number", "digest", "platform_id", "at", "summary"]
    noted = dialect.insert(answers).from_select(names, row)
    connection.execute(
        noted.on_conflict_do_update(
            index_elements=["campaign_id", "number"], set_={"at": noted.excluded.at, "summary": None}
        )
    )
