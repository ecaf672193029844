# SPDX-License-Identifier: Apache-2.0
"""Scheduler of a farm: Dask's, with a `Registry` that assigns benches to workers."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from nni_latency.errors import RemoteError
from nni_latency_farm._announcement import Announcement
from nni_latency_farm._registry import TOLERANCE, Registry
from nni_latency_farm._security import PORT, FarmSecurity
from nni_latency_farm._transport import (
    SCHEDULER_SETTINGS,
    SILENCE,
    dask_security,
    distributed,
    quiet,
    settings,
    versions,
)

#: Prefix of the keys of jobs.
JOB = "nni-latency-job"

#: How long a request waits for a worker [s]; then the client receives the reason and retries.
_WAIT = 2.0

#: Callback that receives a message for every event.
Tell = Callable[[str], None]


class FarmPlugin(distributed.SchedulerPlugin):  # type: ignore[name-defined]
    """Plugin that makes a Dask scheduler the scheduler of a farm."""

    name = "nni_latency"

    def __init__(self, registry: Registry, tell: Tell) -> None:
        self.registry, self._tell = registry, tell
        self._changed = asyncio.Event()
        self._names: dict[str, str] = {}
        self._fitters: dict[str, str] = {}

    async def start(self, scheduler: Any) -> None:
        """Register the handlers for workers and clients."""
        self._scheduler = scheduler
        scheduler.handlers.update(
            farm_join=self.join,
            farm_join_fits=self.join_fits,
            farm_fitters=self.fitters,
            farm_check=self.check,
            farm_assign=self.assign,
            farm_release=self.release,
            farm_status=self.status,
            farm_versions=versions,
        )

    def join(self, address: str, content: Mapping[str, Any], references: Mapping[str, float]) -> str:
        """Add a worker; return the reason for its quarantine, empty without quarantine."""
        announcement = Announcement.of(content)
        if address not in self._scheduler.workers:
            # The worker died during its announcement; no later event would remove it.
            return "It is not there any more."
        self.registry.join(address, announcement, references)
        self._names[address] = announcement.name
        self._tell(f"{announcement.name} joined with {announcement.platform.id}.")
        return self.check(address, references)

    def join_fits(self, address: str, worker: str) -> None:
        """Add a worker that fits predictors."""
        if address in self._scheduler.workers:
            self._fitters[address] = self._names[address] = worker
            self._tell(f"{worker} joined to fit predictors.")

    def fitters(self) -> list[str]:
        """Return the names of the workers that fit predictors, in the order in which they joined."""
        return list(self._fitters.values())

    def check(self, address: str, references: Mapping[str, float], error: str = "") -> str:
        """Update the reference times of a worker; return the reason for its quarantine."""
        before = self.registry.reason(address)
        reason = self.registry.check(address, references, error)
        if bool(reason) != bool(before):
            name = self._names.get(address, address)
            self._tell(f"{name} is in quarantine: {reason}" if reason else f"{name} measures again.")
        self._wake()
        return reason

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def assign(self, bench: str, client: str, key: str) -> dict[str, str | None]:
        """Return the worker for the next job of a bench; wait a while if there is none."""
        address = self.registry.assign(bench, client, key)
        if address is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _WAIT)
            address = self.registry.assign(bench, client, key)
        return {"address": address, "why": "" if address else self.registry.why_none(key)}

    def release(self, bench: str) -> None:
        """Release a bench from its worker."""
        self.registry.release(bench)

    def status(self) -> list[dict[str, Any]]:
        """Return the states and announcements of all workers."""
        return [
            {"state": asdict(state), "announcement": announcement.content()}
            for state, announcement in self.registry.states()
        ]

    def transition(self, key: Any, start: str, finish: str, *args: Any, **options: Any) -> None:
        """Count completed jobs."""
        if start == "processing" and finish == "memory" and str(key).startswith(JOB):
            self.registry.count(options.get("worker", ""))

    def remove_worker(self, scheduler: Any, worker: str, **options: Any) -> None:
        """Remove a worker that left or died."""
        self.registry.leave(worker)
        self._fitters.pop(worker, None)
        name = self._names.pop(worker, None)
        if name is not None:
            self._tell(f"{name} left.")
        self._wake()

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Release the benches of a client that left or died."""
        self.registry.release_client(client)


def serve(
    host: str = "127.0.0.1",
    port: int = PORT,
    security: FarmSecurity | None = None,
    *,
    tolerance: float = TOLERANCE,
    silence: float = SILENCE,
    on_start: Callable[[str], None] = lambda _address: None,
    tell: Tell = lambda _sentence: None,
) -> None:
    """Run the scheduler of a farm until this process is interrupted or terminated.

    Parameters
    ----------
    host : str, default="127.0.0.1"
        Address to listen on; other machines can only reach a network address.
    port : int, default=8786
        Port; 0 selects a free one.
    security : FarmSecurity, optional
        Certificate and token.
    tolerance : float, default=0.25
        As for `Registry`.
    silence : float, default=30.0
        Time without a heartbeat after which a worker is considered lost and its slice reassigned [s].
    on_start : callable, optional
        Called with the address once the scheduler listens.
    tell : callable, optional
        Called with a message for every event.

    Raises
    ------
    RemoteError
        If other machines could reach it without a certificate and a token, or the port is in use.
    """
    security = security or FarmSecurity()
    security.check_host(host)
    quiet()
    with settings(SCHEDULER_SETTINGS):
        asyncio.run(_serve(host, port, security, Registry(tolerance), silence, on_start, tell))


async def _serve(
    host: str,
    port: int,
    security: FarmSecurity,
    registry: Registry,
    silence: float,
    on_start: Callable[[str], None],
    tell: Tell,
) -> None:
    stop = stopping()
    # Stop Dask's dashboard immediately: every user of this machine could read it.
    scheduler = distributed.Scheduler(
        host=f"{security.scheme}://{host}",
        port=port,
        security=dask_security(security),
        worker_ttl=f"{silence:g}s",
        dashboard_address="127.0.0.1:0",
        dashboard=False,
    )
    scheduler.http_server.stop()
    try:
        await scheduler
    except (OSError, RuntimeError, TimeoutError) as error:
        raise RemoteError(f"A farm cannot listen on port {port} of {host}: {_innermost(error)}.") from error
    try:
        plugin = FarmPlugin(registry, tell)
        scheduler.add_plugin(plugin)
        await plugin.start(scheduler)
        on_start(scheduler.address)
        await stop.wait()
    finally:
        await scheduler.close()


def stopping() -> asyncio.Event:
    """Return an event that is set when this process is interrupted or terminated."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Not supported outside the main thread or on Windows.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, stop.set)
    return stop


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(getattr(error, "strerror", None) or error).rstrip(".")
