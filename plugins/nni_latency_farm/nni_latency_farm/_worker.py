# SPDX-License-Identifier: Apache-2.0
"""A worker of a farm: a process that owns a device and measures on it, or that fits predictors."""

from __future__ import annotations

import asyncio
import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import nni_latency.devices as devices
from nni_latency.errors import InvalidValueError, LatencyError, RemoteError
from nni_latency.files import cache_folder, locked
from nni_latency.measurement import Meter, Subject
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import affinity
from nni_latency.units import number_of
from nni_latency_farm._announcement import Announcement
from nni_latency_farm._device import Device
from nni_latency_farm._fitting import FITS
from nni_latency_farm._job import Answer, Job
from nni_latency_farm._references import reference_subjects
from nni_latency_farm._registry import platform_key
from nni_latency_farm._scheduler import Tell, stopping
from nni_latency_farm._security import FarmAddress, FarmSecurity
from nni_latency_farm._transport import check_versions, dask_security, distributed, quiet, settings

#: Interval at which the reference networks are timed [s], normally and in quarantine.
CHECK_EVERY = 300.0
_CHECK_AGAIN = 60.0

#: Interval of attempts to reconnect to a lost farm [s].
_RETRY = 5.0

_TIMEOUT = "10s"


def run_job(job: Job) -> Answer:
    """Run a job on the device of the current worker."""
    joined: _Measuring = distributed.get_worker().nni_latency_joined
    return joined.run_job(job)


def join(
    address: str,
    runtime: Runtime,
    *,
    name: str,
    device: str = "cpu",
    security: FarmSecurity | None = None,
    host: str | None = None,
    references: Sequence[Subject] | None = None,
    check_every: float = CHECK_EVERY,
    meters: Mapping[str, Meter] | None = None,
    tell: Tell = lambda _sentence: None,
) -> None:
    """Join a farm with a device, until this process is interrupted or terminated.

    After a lost connection to the farm, the worker reconnects as soon as the farm is back. A worker whose device is
    lost is in quarantine until the device is back.

    Parameters
    ----------
    address : str
        Address of the scheduler.
    runtime : Runtime
        Runtime that executes networks on the device. The device of a `nni_latency.devices.DeviceRuntime` is held for as
        long as the worker runs, so that no other process measures there.
    name : str
        Name of the worker.
    device : str, default="cpu"
        Device to own exclusively among the workers of this user. ``cpu`` means all processors that this process may
        use. For a `nni_latency.devices.DeviceRuntime` it follows from the connection.
    security : FarmSecurity, optional
        Certificate and token.
    host : str, optional
        Address on which the worker listens; by default only locally if the scheduler does, otherwise all addresses.
    references : sequence of Subject, optional
        Networks that measure the speed of the device, identical on all workers of the platform.
    check_every : float, default=300.0
        Interval at which they are timed [s].
    meters : mapping of str to Meter, optional
        Available meters, by the name that clients use.
    tell : callable, optional
        Called with a message for every event.

    Raises
    ------
    BusyError
        If another worker owns the device.
    InvalidValueError
        If the runtime uses more threads than the device has processors.
    MeasurementError
        If a meter would read this machine instead of the device.
    RemoteError
        If the address does not answer, or the token or the certificate is rejected.
    LatencyError
        If the reference networks cannot be run.
    """
    security = security or FarmSecurity()
    where = FarmAddress.parse(address).secured(security)
    if host is not None:
        security.check_host(host)
    elsewhere = runtime if isinstance(runtime, devices.DeviceRuntime) else None
    if elsewhere is not None:
        connection = elsewhere.connection
        # A meter that would read this machine is refused.
        elsewhere.benches(tuple((meters or {}).values()))
        _check_threads(
            runtime.platform.threads, int(runtime.platform.facts.get("cpu_count", 0)), connection.description
        )
        is_here = isinstance(connection, devices.PythonConnection)
        device = "cpu" if is_here else connection.reached_as or connection.description
    elif device == "cpu":
        _check_threads(runtime.platform.threads, len(affinity()), "this process")
    owned = Device(runtime, name, reference_subjects() if references is None else references, meters or {})
    quiet()
    with owning(device), _holding(elsewhere), settings():
        asyncio.run(_Measuring(owned, check_every, where, name, security, host, tell).run())


def _check_threads(threads: int, usable: int, where: str) -> None:
    """Reject more threads than processors, which would distort the measurements of the platform."""
    if 0 < usable < threads:
        raise InvalidValueError(
            f"A worker with {number_of(threads, 'thread')} needs as many processors, and {where} may use {usable}. "
            "Give it fewer threads, or more processors."
        )


@contextlib.contextmanager
def _holding(runtime: devices.DeviceRuntime | None) -> Iterator[None]:
    """Hold another device, so that no other process measures there."""
    if runtime is None:
        yield
        return
    runtime.take()
    try:
        yield
    finally:
        # A job may still run in another thread: the line is closed, which gives the device back.
        runtime.close()


def join_fits(
    address: str,
    *,
    name: str,
    security: FarmSecurity | None = None,
    host: str | None = None,
    tell: Tell = lambda _sentence: None,
) -> None:
    """Join a farm as a fitting worker, until this process is interrupted or terminated.

    The processors that this process may use are reserved for fitting while it runs; nothing is measured on them.

    Parameters
    ----------
    address, name, security, host, tell
        As for `join`.

    Raises
    ------
    BusyError
        If another worker owns one of the processors.
    RemoteError
        If the address does not answer, or the token or the certificate is rejected.
    """
    security = security or FarmSecurity()
    where = FarmAddress.parse(address).secured(security)
    if host is not None:
        security.check_host(host)
    quiet()
    with owning("cpu"), settings():
        asyncio.run(_Fitting(where, name, security, host, tell).run())


@contextlib.contextmanager
def owning(device: str) -> Iterator[None]:
    """Lock a device of this machine, so that no other worker measures or fits on it at the same time.

    Raises
    ------
    BusyError
        If another worker owns the device, or one of its processors.
    """
    folder = cache_folder() / "devices"
    folder.mkdir(parents=True, exist_ok=True)
    parts = {f"processor {number}": f"cpu-{number}" for number in affinity()}
    if device != "cpu":
        parts = {device: re.sub(r"\W+", "-", device)}
    with contextlib.ExitStack() as held:
        for part, file in parts.items():
            remedy = "keep to other processors with taskset" if device == "cpu" else "choose another device"
            held.enter_context(locked(folder / f"{file}.lock", f"using {part} for a farm", remedy=remedy))
        yield


class _StoppedError(Exception):
    """Raised when the process is interrupted while waiting for its device."""


class _Joined(ABC):
    """Base class of workers."""

    #: Dask resources of the worker, required by jobs.
    resource: str

    def __init__(self, address: FarmAddress, name: str, security: FarmSecurity, host: str | None, tell: Tell) -> None:
        self._address, self._name, self._tell = address, name, tell
        self._security = dask_security(security)
        # A worker listens as well: without a certificate, it must not be reachable from other machines.
        self._host = f"{security.scheme}://{host or ('0.0.0.0' if security.protects else '127.0.0.1')}"
        #: Whether a farm of the same versions was at the address: it is looked for again when it is gone.
        self._was_there = False

    async def run(self) -> None:
        stop = stopping()
        self._stopped = asyncio.ensure_future(stop.wait())
        told = ""
        while not stop.is_set():
            failed = ""
            try:
                await self._join()
            except _StoppedError:
                return
            except RemoteError as error:
                if not self._was_there:
                    raise
                failed = str(error)
            finally:
                self._leave()
            if not stop.is_set():
                if not failed or failed != told:
                    reason = failed or f"{self._address} is gone."
                    self._tell(f"{reason} It is looked for again every {_RETRY:g} s; Ctrl-C ends that.")
                told = failed
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), _RETRY)

    async def _join(self) -> None:
        """Work until the process is stopped or the connection is lost."""
        await asyncio.to_thread(self._address.reach)
        worker = distributed.Worker(
            str(self._address),
            nthreads=1,
            resources={self.resource: 1},
            host=self._host,
            security=self._security,
            memory_limit=0,
            # The same for all workers of a user: Dask removes there what a worker that was killed has left.
            local_directory=str(cache_folder() / "farm"),
            dashboard_address="127.0.0.1:0",
            dashboard=False,
            death_timeout=_TIMEOUT,
        )
        try:
            await worker
        except Exception as error:  # the other side may send arbitrary data
            raise no_answer(self._address) from error
        try:
            worker.http_server.stop()
            with self._reaching():
                versions = await worker.scheduler.farm_versions()
            check_versions(versions or {}, self._address)
            self._was_there = True
            await self._work(worker)
        finally:
            await worker.close(timeout=1, executor_wait=False)

    @contextlib.contextmanager
    def _reaching(self) -> Iterator[None]:
        """Raise `RemoteError` if the scheduler goes while it is asked, even if Dask has closed this worker by then."""
        try:
            yield
        except (OSError, RuntimeError) as error:
            raise self._gone() from error

    def _gone(self) -> RemoteError:
        return RemoteError(f"The farm at {self._address} does not answer any more.")

    @abstractmethod
    async def _work(self, worker: Any) -> None:
        """Announce this worker, and stay until it is stopped or the connection is lost."""

    @abstractmethod
    def _leave(self) -> None:
        """Release the resources held during the connection."""

    async def _stay(self, worker: Any, pause: Callable[[], float | None], check: Callable[[], Awaitable[None]]) -> None:
        """Stay until this worker is stopped or the connection is lost; call `check` after every pause [s]."""
        gone = asyncio.ensure_future(worker.finished())
        while not (self._stopped.done() or gone.done()):
            await asyncio.wait([self._stopped, gone], timeout=pause(), return_when=asyncio.FIRST_COMPLETED)
            if not (self._stopped.done() or gone.done()):
                try:
                    await check()
                except OSError:
                    continue
                except RuntimeError:
                    # A worker that is being closed, because its scheduler is gone, takes no more work.
                    if worker.status == distributed.Status.running:
                        raise
        gone.cancel()


class _Measuring(_Joined):
    """A worker that owns a device and measures on it."""

    def __init__(self, device: Device, check_every: float, *options: Any) -> None:
        super().__init__(*options)
        self._device, self._check_every = device, check_every
        self.resource = platform_key(device.runtime.platform)
        self._reason = ""

    def _leave(self) -> None:
        self._device.close()

    async def _work(self, worker: Any) -> None:
        worker.nni_latency_joined = self
        self._worker, self._loop = worker, asyncio.get_running_loop()
        self._tell(f"{self._name} has found {self._address} and times its reference networks.")
        references, content = await self._in_turn(worker, self._introduction)
        with self._reaching():
            reason = await worker.scheduler.farm_join(
                address=worker.address, content=content.content(), references=references
            )
        self._tell_reason(reason)
        if not self._reason:
            self._tell(f"{self._name} measures for {self._address} on {content.platform.id}.")
        await self._stay(worker, self._pause, partial(self._check, worker))

    def _introduction(self) -> tuple[dict[str, float], Announcement]:
        """Return what a worker tells of itself when it joins."""
        return self._device.check(), self._device.announcement()

    def run_job(self, job: Job) -> Answer:
        """Run a job, in the thread of the jobs; a device that is lost is reported before the client asks again."""
        answer = self._device.run(job)
        if isinstance(answer.failure, devices.DeviceError):
            self._device.close()
            report = self._report(self._worker, {}, str(answer.failure))
            asyncio.run_coroutine_threadsafe(report, self._loop).result()
            return replace(answer, failure=None, is_lost=True)
        return answer

    def _pause(self) -> float:
        return min(self._check_every, _CHECK_AGAIN) if self._reason else self._check_every

    async def _check(self, worker: Any) -> None:
        error, references = "", {}
        try:
            references = await self._in_turn(worker, self._device.check)
        except LatencyError as failed:
            error = str(failed)
        await self._report(worker, references, error)

    async def _report(self, worker: Any, references: Mapping[str, float], error: str) -> None:
        self._tell_reason(await worker.scheduler.farm_check(address=worker.address, references=references, error=error))

    async def _in_turn(self, worker: Any, work: Callable[[], Any]) -> Any:
        """Call `work` in the thread of the jobs, so that nothing else uses the device at the same time.

        Raises
        ------
        _StoppedError
            If this process is interrupted before the call ends.
        RemoteError
            If the connection is lost before the call begins.
        """
        with self._reaching():
            begun = worker.executor.submit(work)

        async def drop() -> None:
            # Dask forgets what has not begun when it closes this worker, and nothing would end it.
            await worker.finished()
            begun.cancel()

        doing, dropping = asyncio.wrap_future(begun), asyncio.ensure_future(drop())
        await asyncio.wait([doing, self._stopped], return_when=asyncio.FIRST_COMPLETED)
        dropping.cancel()
        if doing.cancelled():
            raise self._gone()
        if not doing.done():
            # Its bench is closed while in use; the resulting exception is irrelevant.
            doing.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            raise _StoppedError
        return doing.result()

    def _tell_reason(self, reason: str) -> None:
        if reason and not self._reason:
            self._tell(f"{self._name} is in quarantine and gets no work: {reason}")
        elif self._reason and not reason:
            self._tell(f"{self._name} measures again.")
        self._reason = reason


class _Fitting(_Joined):
    """A worker without a device that fits predictors."""

    resource = FITS

    def _leave(self) -> None:
        """Do nothing: no resources are held."""

    async def _work(self, worker: Any) -> None:
        with self._reaching():
            await worker.scheduler.farm_join_fits(address=worker.address, worker=self._name)
        self._tell(f"{self._name} fits predictors for {self._address}.")
        await self._stay(worker, lambda: None, _nothing)


async def _nothing() -> None:
    """Check nothing."""


def no_answer(address: FarmAddress) -> RemoteError:
    """Return the error of a farm that cannot be reached."""
    return RemoteError(
        f"What listens at {address} is no farm, or it does not trust this side. Check that 'nni-latency farm start' "
        "runs there, and that certificate and token are the same on both sides."
    )
