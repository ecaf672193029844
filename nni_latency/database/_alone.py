"""Which subjects were measured alone: an index of the records, kept in step with them.

A row says that there are records of a subject alone in a campaign. Its summary is derived from them when it is asked
for, kept if there are many, and forgotten with every record that is added, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, literal, null, select
from sqlalchemy.dialects import postgresql, sqlite

from nni_latency.database._schema import answers, campaigns, subjects


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
