"""Machines that measure for a query: this one, or others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from nni_latency.errors import LatencyError, RemoteError, UnknownNameError
from nni_latency.measurement import Benches, Limits, LocalBenches, Remote, WorkerState
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import Platform

_LOG = logging.getLogger(__name__)

#: How often other machines are asked for their platforms [s].
_INTERVAL = 2.0


class Machines(Protocol):
    """What measures for a query. Safe in several threads."""

    def platforms(self) -> Sequence[Platform]:
        """Return where it can measure at this moment."""

    def benches(self, platform: str) -> Benches:
        """Return what opens benches on a platform, by its id.

        Raises
        ------
        UnknownNameError
            If there is no such platform.
        """

    def workers(self) -> Sequence[WorkerState]:
        """Return how machines are doing that join and leave; none where all are this one."""

    def close(self) -> None:
        """End what waits for a machine."""


class LocalMachines:
    """The machine that this process is on, with some runtimes.

    Parameters
    ----------
    runtimes : sequence of Runtime
        What executes networks; of two with one platform, the first.
    limits : Limits, optional
        What a worker process may use, for networks of somebody else.
    """

    def __init__(self, runtimes: Sequence[Runtime], limits: Limits | None = None) -> None:
        self._runtimes = {runtime.platform.id: runtime for runtime in reversed(runtimes)}
        self._limits = limits

    def platforms(self) -> list[Platform]:
        """Return where it can measure."""
        return [runtime.platform for runtime in self._runtimes.values()]

    def benches(self, platform: str) -> Benches:
        """Return what opens benches on a platform; raises `UnknownNameError` if there is no such platform."""
        if platform not in self._runtimes:
            raise UnknownNameError.of("platform", platform, sorted(self._runtimes))
        return LocalBenches(self._runtimes[platform], limits=self._limits)

    def workers(self) -> list[WorkerState]:
        """Return nothing: this machine neither joins nor leaves."""
        return []

    def close(self) -> None:
        """Nothing waits here."""


class RemoteMachines:
    """Other machines. While they do not answer, nothing is measured there; they are asked again until they do.

    Parameters
    ----------
    connect : callable
        Reaches them.
    limits : Limits, optional
        What a process there may use that measures, for networks of somebody else.

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
        self._closed = threading.Event()
        self._looking = threading.Lock()
        self._look()
        threading.Thread(target=self._watch, name="nni-latency-remote", daemon=True).start()

    def platforms(self) -> Sequence[Platform]:
        """Return the platforms with a machine that is ready, as of a few seconds ago."""
        return self._platforms

    def benches(self, platform: str) -> Benches:
        """Return what opens benches on a platform.

        Raises
        ------
        UnknownNameError
            If none of them has it.
        RemoteError
            If they do not answer.
        """
        remote = self._remote
        if remote is None:
            raise RemoteError("The other machines do not answer. They are asked again until they do.")
        try:
            return remote.runtime(platform).benches(limits=self._limits)
        except UnknownNameError:
            # The last machine has gone since they were asked.
            self._look()
            raise

    def workers(self) -> Sequence[WorkerState]:
        """Return how the machines are doing, as of a few seconds ago."""
        return self._workers

    def close(self) -> None:
        """Leave them; what is measured there fails."""
        self._closed.set()
        self._leave()

    def _watch(self) -> None:
        while not self._closed.wait(_INTERVAL):
            self._look()

    def _look(self) -> None:
        """Ask for platforms; machines that do not answer are left, and reached again the next time."""
        with self._looking:
            self._ask()

    def _ask(self) -> None:
        try:
            if self._remote is None:
                self._remote = self._connect()
                _LOG.warning("The other machines answer again.")
            found, workers = self._remote.runtimes(), self._remote.workers()
        except LatencyError as error:
            if self._remote is not None and not self._closed.is_set():
                _LOG.warning("%s", error)
            self._leave()
            return
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
            remote.close()


class AllMachines:
    """Several machines together.

    Parameters
    ----------
    parts : sequence of Machines
        Of a platform that several have, the first measures.
    """

    def __init__(self, parts: Sequence[Machines]) -> None:
        self._parts = tuple(parts)

    def platforms(self) -> list[Platform]:
        """Return where one of them can measure."""
        found = {item.id: item for part in reversed(self._parts) for item in part.platforms()}
        return [found[name] for name in sorted(found)]

    def benches(self, platform: str) -> Benches:
        """Return what opens benches on a platform; raises `UnknownNameError` if none of them has it."""
        for part in self._parts:
            if any(item.id == platform for item in part.platforms()):
                return part.benches(platform)
        raise UnknownNameError.of("platform", platform, [item.id for item in self.platforms()])

    def workers(self) -> list[WorkerState]:
        """Return how the machines of all of them are doing."""
        return [worker for part in self._parts for worker in part.workers()]

    def close(self) -> None:
        """End what waits for a machine of any of them."""
        for part in self._parts:
            part.close()
