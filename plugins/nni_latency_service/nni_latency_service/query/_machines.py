# SPDX-License-Identifier: Apache-2.0
"""Machines that measure for a query: local or remote."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from nni_latency.errors import LatencyError, RemoteError, UnknownNameError, reason_of
from nni_latency.measurement import Benches, Limits, Remote, WorkerState
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import Platform

_LOG = logging.getLogger(__name__)

#: Interval at which remote machines are polled for their platforms [s].
_INTERVAL = 2.0


class Machines(Protocol):
    """Interface of machines that measure for a query. Thread-safe."""

    def platforms(self) -> Sequence[Platform]:
        """Return the platforms that are available now."""

    def benches(self, platform: str) -> Benches:
        """Return the benches of a platform, by its id.

        Raises
        ------
        UnknownNameError
            If the platform is unknown.
        """

    def workers(self) -> Sequence[WorkerState]:
        """Return the states of machines that join and leave; empty for the local machine."""

    def close(self) -> None:
        """Abort all waits for a machine."""


class LocalMachines:
    """The local machine with some runtimes.

    Parameters
    ----------
    runtimes : sequence of Runtime
        Runtimes that execute networks; the first takes precedence if two share a platform.
    limits : Limits, optional
        Resource limits of a worker process, for untrusted networks.
    """

    def __init__(self, runtimes: Sequence[Runtime], limits: Limits | None = None) -> None:
        self._runtimes = {runtime.platform.id: runtime for runtime in reversed(runtimes)}
        self._limits = limits

    def platforms(self) -> list[Platform]:
        """Return the platforms of the runtimes."""
        return [runtime.platform for runtime in self._runtimes.values()]

    def benches(self, platform: str) -> Benches:
        """Return the benches of a platform; raises `UnknownNameError` if it is unknown."""
        if platform not in self._runtimes:
            raise UnknownNameError.of("platform", platform, sorted(self._runtimes))
        return self._runtimes[platform].benches(limits=self._limits)

    def workers(self) -> list[WorkerState]:
        """Return an empty list: the local machine neither joins nor leaves."""
        return []

    def close(self) -> None:
        """Do nothing: nothing waits for a local machine."""


class RemoteMachines:
    """Remote machines. While they do not answer, they offer no platforms, and the connection is retried.

    Parameters
    ----------
    connect : callable
        Opens the connection.
    limits : Limits, optional
        Resource limits of a measuring process, for untrusted networks.

    Raises
    ------
    LatencyError
        As `connect` does the first time.
    """

    def __init__(self, connect: Callable[[], Remote], limits: Limits | None = None) -> None:
        self._connect, self._limits = connect, limits
        self._remote: Remote | None = connect()
        self._platforms: tuple[Platform, ...] = ()
        self._workers: tuple[WorkerState, ...] = ()
        #: Why they did not answer when they were last asked; empty if they did.
        self._reason = ""
        self._closed = threading.Event()
        self._looking = threading.Lock()
        self._look()
        threading.Thread(target=self._watch, name="nni-latency-remote", daemon=True).start()

    def platforms(self) -> Sequence[Platform]:
        """Return the platforms with a ready machine, as of a few seconds ago."""
        return self._platforms

    def benches(self, platform: str) -> Benches:
        """Return the benches of a platform.

        Raises
        ------
        UnknownNameError
            If no machine has the platform.
        RemoteError
            If the machines do not answer.
        """
        while True:
            remote = self._remote
            if remote is None:
                raise RemoteError("The other machines do not answer. They are asked again until they do.")
            try:
                return remote.runtime(platform).benches(limits=self._limits)
            except UnknownNameError:
                # The last machine has left since the poll; another one may have joined by now.
                self._look()
                if all(known.id != platform for known in self._platforms):
                    raise

    def workers(self) -> Sequence[WorkerState]:
        """Return the states of the machines, as of a few seconds ago."""
        return self._workers

    def close(self) -> None:
        """Disconnect; running measurements fail."""
        self._closed.set()
        self._leave()

    def _watch(self) -> None:
        while not self._closed.wait(_INTERVAL):
            self._look()

    def _look(self) -> None:
        """Poll the platforms; disconnect from machines that do not answer, and reconnect at the next poll."""
        with self._looking:
            try:
                self._ask()
            except Exception as error:  # plugins raise anything, as do requests while the connection is closed
                reason = str(error) if isinstance(error, LatencyError) else reason_of(error)
                if reason != self._reason and not self._closed.is_set():
                    _LOG.warning("%s", reason)
                self._reason = reason
                self._leave()

    def _ask(self) -> None:
        # `close` may take it away at any moment.
        remote = self._remote
        if remote is None:
            remote = self._remote = self._connect()
        found, workers = remote.runtimes(), remote.workers()
        if self._reason:
            _LOG.warning("The other machines answer again.")
            self._reason = ""
        if self._closed.is_set():
            self._leave()
            return
        known = {worker.platform for worker in workers}
        ready = {worker.platform for worker in workers if worker.state == "ready"}
        self._workers = tuple(workers)
        self._platforms = tuple(
            item.platform for item in found if item.platform.id in ready or item.platform.id not in known
        )

    def _leave(self) -> None:
        remote, self._remote = self._remote, None
        self._platforms = self._workers = ()
        if remote is not None:
            try:
                remote.close()
            except Exception as error:  # as in `_look`
                _LOG.warning("The other machines could not be disconnected: %s", reason_of(error))


class AllMachines:
    """A union of several machines.

    Parameters
    ----------
    parts : sequence of Machines
        The machines; the first takes precedence if several share a platform.
    """

    def __init__(self, parts: Sequence[Machines]) -> None:
        self._parts = tuple(parts)

    def platforms(self) -> list[Platform]:
        """Return the platforms of all parts, sorted by id."""
        found = {item.id: item for part in reversed(self._parts) for item in part.platforms()}
        return [found[name] for name in sorted(found)]

    def benches(self, platform: str) -> Benches:
        """Return the benches of a platform; raises `UnknownNameError` if no part has it."""
        for part in self._parts:
            if any(item.id == platform for item in part.platforms()):
                return part.benches(platform)
        raise UnknownNameError.of("platform", platform, [item.id for item in self.platforms()])

    def workers(self) -> list[WorkerState]:
        """Return the states of the machines of all parts."""
        return [worker for part in self._parts for worker in part.workers()]

    def close(self) -> None:
        """Abort all waits for a machine of any part."""
        for part in self._parts:
            part.close()
