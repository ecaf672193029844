"""Bringing a database to the newest version of its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, inspect, text

from nni_latency.database._schema import VERSION, VERSION_TABLE, metadata
from nni_latency.errors import FileFormatError
from nni_latency.units import whole_number


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
    """Bring a database to the newest version, within the transaction of the connection."""
    from alembic.operations import Operations

    scripts, context = _scripts(), _context(connection)
    done = int(context.get_current_revision() or 0)
    for script in sorted(scripts.walk_revisions(), key=lambda script: int(script.revision)):
        if int(script.revision) > done:
            with Operations.context(context):
                script.module.upgrade()
            context.stamp(scripts, script.revision)


def _scripts() -> Any:
    from alembic.script import ScriptDirectory

    return ScriptDirectory(str(Path(__file__).with_name("migrations")))


def _context(connection: Connection) -> Any:
    from alembic.migration import MigrationContext

    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
