# SPDX-License-Identifier: Apache-2.0
"""What the tests of the database share: a PostgreSQL server of a wheel, and databases of both kinds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from postgresql_server import make_database, running_server

from nni_latency.database import DatabaseStore


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Start a PostgreSQL server on a new socket; return the folder of the socket."""
    with running_server() as folder:
        yield folder


@pytest.fixture
def postgresql(server: str) -> Callable[[], str]:
    """Return what makes an empty database on the server and gives its URL."""
    made = 0

    def make() -> str:
        nonlocal made
        made += 1
        name = f"db{time.monotonic_ns()}_{made}"
        return make_database(server, name)

    return make


@pytest.fixture(params=["sqlite", "postgresql"])
def new_location(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Return what gives the location of a new database, of either kind."""
    if request.param == "postgresql":
        make: Callable[[], str] = request.getfixturevalue("postgresql")
        return make
    numbers = iter(range(100))
    return lambda: str(tmp_path / f"{next(numbers)}.sqlite")


@pytest.fixture
def location(new_location: Callable[[], str]) -> str:
    """Return the location of a database that is not made yet."""
    return new_location()


@pytest.fixture
def store(location: str) -> Iterator[DatabaseStore]:
    """Open an empty store of either kind."""
    opened = DatabaseStore(location)
    yield opened
    opened.close()
