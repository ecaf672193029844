# SPDX-License-Identifier: Apache-2.0
"""Where the database is: by name, by URL, by an environment variable, or in the user's data folder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nni_latency.errors import InvalidValueError
from nni_latency.files import user_folder
from nni_latency.imports import require

if TYPE_CHECKING:
    from sqlalchemy import URL

#: Names the database, where it is not the one in the user's data folder.
DATABASE_VARIABLE = "NNI_LATENCY_DATABASE"

#: The name of a store that is gone with its process.
MEMORY = "memory"

_POSTGRESQL = "postgresql+psycopg"


def default_location() -> str:
    """Return what ``NNI_LATENCY_DATABASE`` says, or the file in the user's data folder.

    That is ``$XDG_DATA_HOME/nni_latency/measurements.sqlite`` or ``~/.local/share/nni_latency/measurements.sqlite``.
    """
    named = os.environ.get(DATABASE_VARIABLE)
    if named:
        return named
    return str(user_folder("XDG_DATA_HOME", ".local/share") / "measurements.sqlite")


def parse_location(location: str | os.PathLike[str]) -> URL:
    """Return the URL of a database; a path without a scheme is a SQLite file.

    Raises
    ------
    InvalidValueError
        If it is a URL of another kind of database, or of none.
    MissingDependencyError
        If it is that of a PostgreSQL server and there is no driver.

    Examples
    --------
    >>> parse_location("measurements.sqlite").database
    'measurements.sqlite'
    """
    from sqlalchemy import URL, make_url
    from sqlalchemy.exc import ArgumentError

    location = os.fspath(location)
    if "://" not in location:
        return URL.create("sqlite", database=location)
    try:
        url = make_url(location)
    except (ArgumentError, ValueError) as error:
        raise _unknown(location) from error
    backend = url.drivername.partition("+")[0]
    if backend == "sqlite" and url.database not in (None, "", ":memory:"):
        return url.set(drivername="sqlite")
    if backend in ("postgresql", "postgres"):
        require("psycopg", "A database on a PostgreSQL server", "nni_latency[postgresql]")
        return url.set(drivername=_POSTGRESQL)
    raise _unknown(url.render_as_string(hide_password=True))


def _unknown(location: str) -> InvalidValueError:
    return InvalidValueError(
        f"A database must be a file, {MEMORY!r}, or a URL that begins with 'sqlite:///' or 'postgresql://'. "
        f"Got {location!r}."
    )
