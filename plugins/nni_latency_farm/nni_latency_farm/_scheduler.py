"""The scheduler of a farm: Dask's, with a `Registry` that says who measures what."""

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
from nni_latency_farm._transport import SCHEDULER_SETTINGS, dask_security, distributed, quiet, settings, versions

#: How the keys of jobs begin.
JOB = "nni-latency-job"

#: How long a question for a worker waits for one; then the client hears why there is none, and asks again [s].
_WAIT = 2.0

#: Told a sentence for a person whenever something happens.
Tell = Callable[[str], None]


class FarmPlugin(distributed.SchedulerPlugin):  # type: ignore[name-defined]
    """What a scheduler of Dask needs to be that of a farm.

    Parameters
    ----------
    registry : Registry
        Says who measures what.
    tell : callable
        Told what happens.
    """

    name = "nni_latency"

    def __init__(self, registry: Registry, tell: Tell) -> None:
        self.registry, self._tell = registry, tell
        self._changed = asyncio.Event()
        self._told: dict[str, str] = {}
        self._fitters: dict[str, str] = {}

    async def start(self, scheduler: Any) -> None:
        """Take the questions of workers and clients."""
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
        """Take in a worker; return why it is in quarantine, empty if it is not."""
        announcement = Announcement.of(content)
        if address not in self._scheduler.workers:
            # It died while its announcement was under way, and nobody would take it out again.
            return "It is not there any more."
        self.registry.join(address, announcement, references)
        self._told[address] = announcement.name
        self._tell(f"{announcement.name} joined with {announcement.platform.id}.")
        return self.check(address, references)

    def join_fits(self, address: str, worker: str) -> None:
        """Take in a worker that fits predictors."""
        if address in self._scheduler.workers:
            self._fitters[address] = self._told[address] = worker
            self._tell(f"{worker} joined to fit predictors.")

    def fitters(self) -> list[str]:
        """Return the names of the workers that fit predictors, in the order in which they joined."""
        return list(self._fitters.values())

    def check(self, address: str, references: Mapping[str, float], error: str = "") -> str:
        """Take in what the reference networks of a worker took; return why it is in quarantine."""
        before = self.registry.reason(address)
        reason = self.registry.check(address, references, error)
        if bool(reason) != bool(before):
            name = self._told.get(address, address)
            self._tell(f"{name} is in quarantine: {reason}" if reason else f"{name} measures again.")
        self._wake()
        return reason

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def assign(self, bench: str, client: str, key: str) -> dict[str, str | None]:
        """Say on which worker the next job of a bench is done; wait a while where there is none."""
        address = self.registry.assign(bench, client, key)
        if address is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _WAIT)
            address = self.registry.assign(bench, client, key)
        return {"address": address, "why": "" if address else self.registry.why_none(key)}

    def release(self, bench: str) -> None:
        """Take a bench from its worker."""
        self.registry.release(bench)

    def status(self) -> list[dict[str, Any]]:
        """Return how all workers are doing, and what they announced."""
        return [
            {"state": asdict(state), "announcement": announcement.content()}
            for state, announcement in self.registry.states()
        ]

    def transition(self, key: Any, start: str, finish: str, *args: Any, **options: Any) -> None:
        """Count jobs that are done."""
        if start == "processing" and finish == "memory" and str(key).startswith(JOB):
            self.registry.count(options.get("worker", ""))

    def remove_worker(self, scheduler: Any, worker: str, **options: Any) -> None:
        """Forget a worker that left or died."""
        self.registry.leave(worker)
        self._fitters.pop(worker, None)
        name = self._told.pop(worker, None)
        if name is not None:
            self._tell(f"{name} left.")
        self._wake()

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Forget the benches of a client that left or died."""
        self.registry.release_client(client)


def serve(
    host: str = "127.0.0.1",
    port: int = PORT,
    security: FarmSecurity | None = None,
    *,
    tolerance: float = TOLERANCE,
    on_start: Callable[[str], None] = lambda _address: None,
    tell: Tell = lambda _sentence: None,
) -> None:
    """Run the scheduler of a farm until this process is interrupted or terminated.

    Parameters
    ----------
    host : str, default="127.0.0.1"
        Where it listens; other machines can reach it only where that is an address of the network.
    port : int, default=8786
        Its port; 0 for any that is free.
    security : FarmSecurity, optional
        Certificate and token.
    tolerance : float, default=0.25
        As for `Registry`.
    on_start : callable, optional
        Called with the address once it listens.
    tell : callable, optional
        Called with a sentence whenever something happens.

    Raises
    ------
    RemoteError
        If others could reach it without a certificate and a token, or the port is taken.
    """
    security = security or FarmSecurity()
    security.check_host(host)
    quiet()
    with settings(SCHEDULER_SETTINGS):
        asyncio.run(_serve(host, port, security, Registry(tolerance), on_start, tell))


async def _serve(
    host: str,
    port: int,
    security: FarmSecurity,
    registry: Registry,
    on_start: Callable[[str], None],
    tell: Tell,
) -> None:
    stop = stopping()
    # Its pages on the web are not wanted: they are open to everyone on this machine, and are stopped at once.
    scheduler = distributed.Scheduler(
        host=f"{security.scheme}://{host}",
        port=port,
        security=dask_security(security),
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
    """Return what is set when this process is interrupted or terminated."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Not in other threads than the first, and not on Windows.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, stop.set)
    return stop


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(getattr(error, "strerror", None) or error).rstrip(".")
