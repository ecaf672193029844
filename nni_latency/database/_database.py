# SPDX-License-Identifier: Apache-2.0
"""`Database`: connections to one database, by process and thread, and what is said when they fail."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, func, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from nni_latency.database._schema import VERSION, check_ours, upgrade, version_of
from nni_latency.errors import BusyError, FileFormatError, LatencyError, OutputError, first_line
from nni_latency.files import locked, readable

#: How long a write waits for the writes of other processes [s].
_PATIENCE = 30.0

#: How often a lock on a server is tried again while it is waited for [s].
_INTERVAL = 0.05

#: Key of the lock under which the tables on a server are brought to the newest version.
_UPGRADE_KEY = 0x6E6E695F6C6174

#: Option of a connection to SQLite: how its transaction begins; None for what has to be done outside of any.
_BEGIN = "nni_latency_begin"

#: Held while connections are made, so that threads share them.
_making = threading.Lock()


def _forget_the_lock() -> None:
    """Begin with a free lock in a forked process, whose parent's other threads do not go on there."""
    global _making
    _making = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_the_lock)

#: By the beginning of SQLite's own names, what is wrong.
_REASONS = {
    "SQLITE_FULL": "the disk is full",
    "SQLITE_READONLY": "the file or its folder is read-only",
    "SQLITE_CANTOPEN": "the file or its folder cannot be opened",
    "SQLITE_PERM": "there is no permission",
    "SQLITE_BUSY": f"another process has kept it locked for {_PATIENCE:g} s",
    "SQLITE_LOCKED": "it is locked",
    "SQLITE_IOERR": "the disk failed, or is full",
}


class Database:
    """One database whose tables are of the newest version. Safe in several threads, and after a fork.

    Parameters
    ----------
    url : URL
        Where it is.
    create : bool, default=True
        Make a file that does not exist.

    Attributes
    ----------
    name : str
        What it is called in messages: a file, or a URL without its password.
    path : Path or None
        The file of SQLite.

    Raises
    ------
    FileFormatError
        If it is not a database of this package, of another version, or absent and not to be made.
    OutputError
        If it cannot be opened.
    """

    def __init__(self, url: URL, *, create: bool = True) -> None:
        self._url = url
        self.path = Path(url.database or "") if url.get_backend_name() == "sqlite" else None
        self.name = _shown(url) if self.path is None else str(self.path)
        self._engines: dict[int, Engine] = {}
        weakref.finalize(self, _close, self._engines)
        try:
            self._prepare(create)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"Database({self.name!r})"

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Read one state of the database, whatever others write meanwhile."""
        with self._explained("read"), self._engine.connect() as connection:
            if self.path is None:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """Write in one transaction, which is committed when this ends, or leaves no trace."""
        with self._explained("write"), self._engine.connect() as connection:
            connection.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})
            with connection.begin():
                yield connection

    @contextlib.contextmanager
    def held(self, identity: str, *, wait: float = 0.0) -> Iterator[None]:
        """Be the only process that writes to the campaigns of an identity.

        Raises
        ------
        BusyError
            If another process does.
        """
        what = f"measuring the same for the database {self.name!r}"
        remedy = "choose another database"
        if self.path is not None:
            lock = self.path.with_name(f".{self.path.name}.{identity}.lock")
            with locked(lock, what, wait=wait, remedy=remedy):
                yield
            return
        key = int(identity[:15], 16)
        with self._explained("write"), self._engine.connect() as connection:
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            end = time.monotonic() + wait
            while not connection.execute(select(func.pg_try_advisory_lock(key))).scalar():
                if time.monotonic() >= end:
                    raise BusyError(f"Another process is {what}. Wait for it to end, stop it, or {remedy}.")
                time.sleep(_INTERVAL)
            try:
                yield
            finally:
                # A server that is gone has let go of its locks.
                with contextlib.suppress(DBAPIError):
                    connection.execute(select(func.pg_advisory_unlock(key)))

    @property
    def size(self) -> int:
        """Size of the database [byte]."""
        if self.path is not None:
            files = (self.path, self.path.with_name(f"{self.path.name}-wal"))
            return sum(file.stat().st_size for file in files if file.exists())
        with self.reading() as connection:
            return int(connection.execute(select(func.pg_database_size(func.current_database()))).scalar() or 0)

    def compact(self) -> None:
        """Give the room of what was removed back to the disk; a server does so anyway."""
        if self.path is not None:
            with self._explained("write"), self._engine.connect() as connection:
                connection.execution_options(**{_BEGIN: None}).exec_driver_sql("VACUUM")

    def close(self) -> None:
        """Close the connections, as the garbage collector does; they are made again when they are needed."""
        _close(self._engines)

    @property
    def _engine(self) -> Engine:
        """The connections of this process. Those that were inherited in a fork belong to the parent and stay alone."""
        engine = self._engines.get(os.getpid())
        if engine is None:
            with _making:
                # Another thread may have been quicker.
                engine = self._engines.get(os.getpid())
                if engine is None:
                    engine = self._engines[os.getpid()] = _make_engine(self._url)
        return engine

    def _prepare(self, create: bool) -> None:
        if self.path is not None and not self.path.exists():
            self._make_file(self.path, create)
        with self.reading() as connection:
            found = self._version(connection)
        if found != VERSION:
            with contextlib.ExitStack() as stack:
                if self.path is not None:
                    lock = self.path.with_name(f".{self.path.name}.lock")
                    stack.enter_context(locked(lock, f"making the database {self.name!r}", wait=_PATIENCE))
                    self._use_write_ahead_log()
                connection = stack.enter_context(self.writing())
                if self.path is None:
                    connection.execute(select(func.pg_advisory_xact_lock(_UPGRADE_KEY)))
                # Another process may have been quicker.
                if self._version(connection) != VERSION:
                    upgrade(connection)

    def _make_file(self, path: Path, create: bool) -> None:
        if not create:
            raise FileFormatError(f"Cannot read the database {self.name!r}: there is no such file.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        except OSError as error:
            raise OutputError(f"Cannot write the database {self.name!r}: {error.strerror or error}.") from error

    def _version(self, connection: Connection) -> int:
        found = version_of(connection, self.name)
        if not found:
            check_ours(connection, self.name)
        return found

    def _use_write_ahead_log(self) -> None:
        with self._explained("write"), self._engine.connect() as connection:
            connection.execution_options(**{_BEGIN: None}).exec_driver_sql("PRAGMA journal_mode=WAL")

    @contextlib.contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """Turn the errors of a database into one sentence."""
        with readable(self.name, "a database") if doing == "read" else contextlib.nullcontext():
            try:
                yield
            except DBAPIError as error:
                raise self._explain(error.orig, doing) from error
            except SQLAlchemyError as error:
                raise OutputError(f"Cannot {doing} the database {self.name!r}: {first_line(error)}.") from error

    def _explain(self, error: BaseException | None, doing: str) -> LatencyError:
        reason = (str(error).strip().splitlines() or ["unknown"])[0].rstrip(".")
        if not isinstance(error, sqlite3.Error):
            return OutputError(f"Cannot {doing} the database {self.name!r}: {reason}.")
        code = getattr(error, "sqlite_errorname", "")
        if code.startswith("SQLITE_NOTADB"):
            return FileFormatError(f"{self.name!r} is not a database. Name another file.")
        for begin, known in _REASONS.items():
            if code.startswith(begin):
                return OutputError(f"Cannot {doing} the database {self.name!r}: {known}.")
        return FileFormatError(f"The database {self.name!r} is damaged: {reason}. Take it from a backup.")


def _close(engines: dict[int, Engine]) -> None:
    """Close the connections of this process. Those of a parent process stay open for it."""
    engine = engines.get(os.getpid())
    if engine is not None:
        engine.dispose()


def _make_engine(url: URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        return create_engine(url, pool_pre_ping=True, max_overflow=-1, connect_args={"connect_timeout": 10})
    engine = create_engine(url, max_overflow=-1, connect_args={"timeout": _PATIENCE})
    event.listen(engine, "connect", _set_up)
    event.listen(engine, "begin", _begin)
    return engine


def _set_up(connection: Any, _record: object) -> None:
    # Transactions begin where this module says so, see below.
    connection.isolation_level = None
    try:
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")
    except BaseException:
        # SQLAlchemy does not close a connection that could not be set up.
        connection.close()
        raise


def _begin(connection: Connection) -> None:
    """Begin a transaction: one that writes takes its turn at once, one that reads never waits."""
    statement = connection.get_execution_options().get(_BEGIN, "BEGIN")
    if statement:
        connection.exec_driver_sql(statement)


def _shown(url: URL) -> str:
    """Return a URL as it was typed, less the password and the driver."""
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)
