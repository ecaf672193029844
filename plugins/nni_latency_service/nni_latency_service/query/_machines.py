"""Machines that measure for a query: this one, or those of a farm."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from nni_latency.errors import FarmError, LatencyError, UnknownNameError
from nni_latency.farm import WorkerState
from nni_latency.measurement import Benches, Limits, LocalBenches
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import Platform

_LOG = logging.getLogger(__name__)

#: How often a farm is asked for its platforms [s].
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


class FarmMachines:
    """The machines of a farm. A farm that is lost measures nothing; it is looked for until it is back.

    Parameters
    ----------
    connect : callable
        Makes the client of the farm, a `nni_latency.farm.Farm`.
    limits : Limits, optional
        What a process of a worker may use that measures, for networks of somebody else.

    Raises
    ------
    LatencyError
        As `connect` does the first time.
    """

    def __init__(self, connect: Callable[[], Any], limits: Limits | None = None) -> None:
        self._connect, self._limits = connect, limits
        self._farm: Any = connect()
        self._platforms: tuple[Platform, ...] = ()
        self._workers: tuple[WorkerState, ...] = ()
        self._closed = threading.Event()
        self._looking = threading.Lock()
        self._look()
        threading.Thread(target=self._watch, name="nni-latency-farm", daemon=True).start()

    def platforms(self) -> Sequence[Platform]:
        """Return the platforms with a worker that is ready, as of a few seconds ago."""
        return self._platforms

    def benches(self, platform: str) -> Benches:
        """Return what opens benches on a platform.

        Raises
        ------
        UnknownNameError
            If no worker has announced it.
        FarmError
            If the farm does not answer.
        """
        farm = self._farm
        if farm is None:
            raise FarmError("The farm does not answer. It is looked for until it is back.")
        try:
            found: Benches = farm.benches(platform, self._limits)
        except UnknownNameError:
            # Its last worker has gone since the farm was asked.
            self._look()
            raise
        return found

    def workers(self) -> Sequence[WorkerState]:
        """Return how the workers are doing, as of a few seconds ago."""
        return self._workers

    def close(self) -> None:
        """Leave the farm; what is measured there fails."""
        self._closed.set()
        self._leave()

    def _watch(self) -> None:
        while not self._closed.wait(_INTERVAL):
            self._look()

    def _look(self) -> None:
        """Ask the farm for its platforms; one that does not answer is left, and joined again the next time."""
        with self._looking:
            self._ask_farm()

    def _ask_farm(self) -> None:
        try:
            if self._farm is None:
                self._farm = self._connect()
                _LOG.warning("The farm is back.")
            found = self._farm.platforms()
        except LatencyError as error:
            if self._farm is not None and not self._closed.is_set():
                _LOG.warning("%s", error)
            self._leave()
            return
        if self._closed.is_set():
            self._leave()
            return
        self._workers = tuple(worker for item in found for worker in item.workers)
        self._platforms = tuple(
            item.platform for item in found if any(worker.state == "ready" for worker in item.workers)
        )

    def _leave(self) -> None:
        farm, self._farm = self._farm, None
        self._platforms = self._workers = ()
        if farm is not None:
            farm.close()


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
