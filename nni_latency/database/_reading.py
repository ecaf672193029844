# SPDX-License-Identifier: Apache-2.0
"""What is read of campaigns, row by row; rows that make no sense are left out and named."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, Select, select

from nni_latency.database._database import Database
from nni_latency.database._rows import DatabaseWarning, header_of, record_of
from nni_latency.database._schema import (
    campaigns,
    conditions,
    failures,
    graphs,
    platforms,
    protocols,
    records,
    subjects,
)
from nni_latency.database._writing import GRAPH
from nni_latency.errors import InvalidValueError, listed
from nni_latency.measurement import Failure, Record, StoredCampaign

#: Rows that are fetched at once, so that a campaign of any size needs little memory.
BATCH = 500


@dataclass
class Complaints:
    """Rows of one campaign that make no sense, by where they are.

    Parameters
    ----------
    database : str
        What the database is called.
    campaign : str
        Identifier of the campaign.
    """

    database: str
    campaign: str
    found: dict[str, str] = field(default_factory=dict)

    def add(self, place: str, reason: object) -> None:
        """Note a row."""
        self.found[place] = str(reason).rstrip(".")

    def warn(self) -> None:
        """Warn once of everything that was noted."""
        if self.found:
            warnings.warn(
                f"The database {self.database!r} has rows in campaign {self.campaign!r} that make no sense and are "
                f"left out: {listed(self.found)}. The first one: {next(iter(self.found.values()))}.",
                DatabaseWarning,
                stacklevel=5,
            )


def select_campaigns(
    *, platform: str | None = None, kind: str | None = None, identifier: str | None = None
) -> Select[Any]:
    """Select campaigns with their platforms and protocols, the oldest first: all, or those that are named."""
    wanted = ((platforms.c.name, platform), (campaigns.c.kind, kind), (campaigns.c.identifier, identifier))
    return (
        select(
            *campaigns.c,
            platforms.c.content.label("platform"),
            platforms.c.name.label("platform_name"),
            protocols.c.content.label("protocol"),
        )
        .join(platforms, campaigns.c.platform_id == platforms.c.id)
        .join(protocols, campaigns.c.protocol_id == protocols.c.id)
        .where(*(column == value for column, value in wanted if value is not None))
        .order_by(campaigns.c.begun, campaigns.c.id)
    )


#: A campaign that can be read: the connection, its row, and what is added to as rows make no sense.
Readable = tuple[Connection, Row[Any], Complaints]


def read_each(database: Database, statement: Select[Any]) -> Iterator[contextlib.AbstractContextManager[Readable]]:
    """Yield campaigns that were selected, each as a context in which it is read as it stands at one moment.

    At the end of the context a warning says what was added to the complaints.
    """
    with database.reading() as connection:
        rows = connection.execute(statement).all()
    for row in rows:
        yield _readable(database, row)


@contextlib.contextmanager
def _readable(database: Database, row: Row[Any]) -> Iterator[Readable]:
    complaints = Complaints(database.name, row.identifier)
    with database.reading() as connection:
        yield connection, row, complaints
    complaints.warn()


def read_subjects(connection: Connection, campaign: int, complaints: Complaints) -> dict[int, dict[str, Any]]:
    """Read the subjects of a campaign as `Subject.record` gives them, by their numbers."""
    statement = (
        select(*subjects.c, graphs.c.content.label("graph_content"))
        .outerjoin(graphs, subjects.c.graph == graphs.c.digest)
        .where(subjects.c.campaign_id == campaign)
        .order_by(subjects.c.number)
    )
    found = {}
    for row in connection.execute(statement):
        specification = {}
        try:
            specification = dict(json.loads(row.specification))
            if row.graph is not None:
                specification[GRAPH] = json.loads(row.graph_content)
        except (ValueError, TypeError, RecursionError) as error:
            complaints.add(f"specification of subject {row.number}", error)
        found[row.number] = {
            "key": row.key,
            "kind": row.kind,
            "digest": row.digest,
            "specification": specification,
        }
    return found


def read_keys(connection: Connection, campaign: int) -> dict[int, str]:
    """Read the keys of the subjects of a campaign, by their numbers."""
    statement = select(subjects.c.number, subjects.c.key).where(subjects.c.campaign_id == campaign)
    return {row.number: row.key for row in connection.execute(statement)}


def read_records(
    connection: Connection, campaign: int, keys: Mapping[int, str], complaints: Complaints
) -> Iterator[Record]:
    """Read the records of a campaign one by one, in the order in which they were written."""
    statement = select(records).where(records.c.campaign_id == campaign).order_by(records.c.id)
    for row in connection.execution_options(yield_per=BATCH).execute(statement):
        try:
            yield record_of(row, keys)
        except InvalidValueError as error:
            complaints.add(f"record {row.id}", error)


def read_failures(connection: Connection, campaign: int) -> list[Failure]:
    """Read the failures of a campaign."""
    statement = select(failures).where(failures.c.campaign_id == campaign).order_by(failures.c.id)
    return [Failure(row.subject, row.reason) for row in connection.execute(statement)]


def read_moments(connection: Connection, campaign: int, complaints: Complaints) -> list[tuple[str, float, Any]]:
    """Read what the machine was like: moment, time and content, in the order in which they were written."""
    statement = select(conditions).where(conditions.c.campaign_id == campaign).order_by(conditions.c.id)
    found = []
    for row in connection.execute(statement):
        try:
            found.append((row.moment, row.at, json.loads(row.content)))
        except (ValueError, RecursionError) as error:
            complaints.add(f"conditions {row.id}", error)
    return found


def read_campaign(connection: Connection, row: Row[Any], complaints: Complaints) -> StoredCampaign | None:
    """Read a whole campaign, or None if its header makes no sense."""
    try:
        header = header_of(row)
    except InvalidValueError as error:
        complaints.add("the campaign itself", error)
        return None
    found = read_subjects(connection, row.id, complaints)
    keys = {number: subject["key"] for number, subject in found.items()}
    return StoredCampaign(
        row.identifier,
        header,
        {subject["key"]: subject for subject in found.values()},
        tuple(read_records(connection, row.id, keys, complaints)),
        tuple(read_failures(connection, row.id)),
        {moment: content for moment, _, content in read_moments(connection, row.id, complaints)},
    )
