# SPDX-License-Identifier: Apache-2.0
"""The tables of the database in the newest version, and bringing a database to it."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    inspect,
    text,
)

from nni_latency.errors import FileFormatError
from nni_latency.units import whole_number

#: Version of the tables that this package reads and writes.
VERSION = 1

#: Holds the version of a database.
VERSION_TABLE = "nni_latency_version"

metadata = MetaData()

# SQLite numbers rows only in a column of this very type.
_NUMBER = BigInteger().with_variant(Integer, "sqlite")

#: One row for each state of a device and its software. Platforms of equal ``identity`` may be mixed.
platforms = Table(
    "platforms",
    metadata,
    Column("id", _NUMBER, primary_key=True),
    Column("digest", Text, nullable=False, unique=True),
    Column("identity", Text, nullable=False, index=True),
    Column("name", Text, nullable=False, index=True),
    Column("content", Text, nullable=False),
)

protocols = Table(
    "protocols",
    metadata,
    Column("id", _NUMBER, primary_key=True),
    Column("digest", Text, nullable=False, unique=True),
    Column("content", Text, nullable=False),
)

campaigns = Table(
    "campaigns",
    metadata,
    Column("id", _NUMBER, primary_key=True),
    Column("identifier", Text, nullable=False, unique=True),
    Column("identity", Text, nullable=False, index=True),
    Column("kind", Text, nullable=False),
    Column("content", Text, nullable=False),
    Column("platform_id", _NUMBER, ForeignKey("platforms.id"), nullable=False),
    Column("protocol_id", _NUMBER, ForeignKey("protocols.id"), nullable=False),
    Column("user", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("package_version", Text, nullable=False),
    Column("begun", Double, nullable=False),
    Column("written", Double, nullable=False),
    Column("status", Text, nullable=False),
    # How often something was added, and how much there is, so that nobody has to count.
    Column("changes", _NUMBER, nullable=False),
    Column("n_records", _NUMBER, nullable=False),
    Column("n_samples", _NUMBER, nullable=False),
)

graphs = Table("graphs", metadata, Column("digest", Text, primary_key=True), Column("content", Text, nullable=False))


def _campaign(*, primary_key: bool = False) -> Column[int]:
    reference = ForeignKey("campaigns.id", ondelete="CASCADE")
    return Column("campaign_id", _NUMBER, reference, primary_key=primary_key, nullable=False)


subjects = Table(
    "subjects",
    metadata,
    _campaign(primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("key", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("digest", Text, nullable=False, index=True),
    Column("specification", Text, nullable=False),
    Column("graph", Text, ForeignKey("graphs.digest")),
    UniqueConstraint("campaign_id", "key"),
)


records = Table(
    "records",
    metadata,
    Column("id", _NUMBER, primary_key=True),
    _campaign(),
    Column("round", Integer, nullable=False),
    Column("process", Integer, nullable=False),
    Column("at", Double, nullable=False),
    Column("duration", Double, nullable=False),
    Column("reference", Double, nullable=False),
    Column("subjects", Text, nullable=False),
    Column("samples", Text, nullable=False),
    Column("parts", Text, nullable=False),
    # What did not run as it was asked for; null in most records.
    Column("fallbacks", Text),
    Index("ix_records_campaign_id_round", "campaign_id", "round"),
    # The records of one subject alone.
    Index("ix_records_campaign_id_subjects", "campaign_id", "subjects"),
)


#: Of which subjects of campaigns there are records alone, so that a latency is found without reading campaigns.
answers = Table(
    "answers",
    metadata,
    _campaign(primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("platform_id", _NUMBER, ForeignKey("platforms.id"), nullable=False),
    # When the last of them was taken.
    Column("at", Double, nullable=False),
    # What they say, as JSON, where there are many; null where it is not kept.
    Column("summary", Text),
    Index("ix_answers_digest_platform_id_at", "digest", "platform_id", "at"),
)


conditions = Table(
    "conditions",
    metadata,
    Column("id", _NUMBER, primary_key=True),
    _campaign(),
    Column("moment", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("content", Text, nullable=False),
    Index("ix_conditions_campaign_id", "campaign_id"),
)


failures = Table(
    "failures",
    metadata,
    Column("id", _NUMBER, primary_key=True),
    _campaign(),
    Column("subject", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("at", Double, nullable=False),
    Index("ix_failures_campaign_id", "campaign_id"),
)


#: Versions of predictors, each with its file. One of each name is current.
predictors = Table(
    "predictors",
    metadata,
    Column("id", _NUMBER, primary_key=True),
    Column("name", Text, nullable=False),
    Column("at", Double, nullable=False),
    Column("package_version", Text, nullable=False),
    Column("n_networks", Integer, nullable=False),
    Column("n_held_out", Integer, nullable=False),
    Column("n_records", _NUMBER, nullable=False),
    Column("errors", Text, nullable=False),
    Column("is_current", Boolean, nullable=False),
    Column("remark", Text, nullable=False),
    Column("content", LargeBinary, nullable=False),
    Index("ix_predictors_name", "name"),
)


#: Numbers of the store itself, such as the changes of campaigns that are gone.
counters = Table("counters", metadata, Column("name", Text, primary_key=True), Column("value", _NUMBER, nullable=False))


#: The counter of changes that went with their campaigns.
RETIRED = "retired"


def version_of(connection: Connection, name: str) -> int:
    """Return the version of a database, 0 for one without our tables.

    Raises
    ------
    FileFormatError
        If it has none, or one that this version of the package does not know.
    """
    if not inspect(connection).has_table(VERSION_TABLE):
        return 0
    found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    if found is None:
        raise FileFormatError(f"The database {name!r} is damaged: it does not say which version it has.")
    version = whole_number(str(found))
    if version is None or not 0 < version <= VERSION:
        raise FileFormatError(
            f"The database {name!r} was written by another version of nni_latency: its tables have version {found}, "
            f"this one reads version {VERSION}. Move the database away, or use the version that wrote it."
        )
    return version


def check_ours(connection: Connection, name: str) -> None:
    """Raise `FileFormatError` if the tables of another program are where ours would go."""
    tables = set(inspect(connection).get_table_names())
    # A file belongs to one program; several may share a server.
    foreign = sorted(tables if connection.dialect.name == "sqlite" else tables & set(metadata.tables))
    if foreign:
        raise FileFormatError(
            f"{name!r} is a database of another program: it holds the table {foreign[0]!r}. Name another one."
        )


def upgrade(connection: Connection) -> None:
    """Make the tables of a new database, or change those of an older one, in the transaction of the connection."""
    from alembic.migration import MigrationContext
    from alembic.operations import Operations
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(Path(__file__).with_name("migrations")))
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    done = int(context.get_current_revision() or 0)
    if not done:
        metadata.create_all(connection)
        context.stamp(scripts, str(VERSION))
        return
    for script in sorted(scripts.walk_revisions(), key=lambda script: int(script.revision)):
        if int(script.revision) > done:
            with Operations.context(context):
                script.module.upgrade()
            context.stamp(scripts, script.revision)
