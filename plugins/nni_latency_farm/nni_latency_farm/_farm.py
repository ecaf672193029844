# SPDX-License-Identifier: Apache-2.0
"""`Farm`: client of a farm."""

from __future__ import annotations

import contextlib
import itertools
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from typing import Any

from joblib import parallel_config

from nni_latency.errors import MismatchError, RemoteError, UnknownNameError
from nni_latency.measurement import Benches, Limits, Meter, Remote, WorkerState
from nni_latency.platforms import Platform
from nni_latency_farm._announcement import Announcement, Traits
from nni_latency_farm._bench import FarmBenches, LostError
from nni_latency_farm._fitting import FitBackend
from nni_latency_farm._job import Answer, BenchPlace, Job
from nni_latency_farm._registry import platform_key
from nni_latency_farm._runtime import FarmRuntime
from nni_latency_farm._scheduler import JOB
from nni_latency_farm._security import FarmAddress, FarmSecurity
from nni_latency_farm._transport import check_versions, dask_security, distributed, quiet, settings
from nni_latency_farm._worker import no_answer, run_job

#: Timeout for an answer of a farm [s].
TIMEOUT = 15.0


@dataclass(frozen=True)
class FarmPlatform:
    """A platform of a farm. Immutable.

    Parameters
    ----------
    platform : Platform
        Platform with all facts.
    traits : Traits
        Properties of its runtime.
    workers : tuple of WorkerState
        Workers of the platform, in the order in which they joined.
    announcement : Announcement
        Announcement of the first worker, restricted to the meters that all workers have.
    """

    platform: Platform
    traits: Traits
    workers: tuple[WorkerState, ...]
    announcement: Announcement


def _platform_of(workers: Sequence[tuple[WorkerState, Announcement]]) -> FarmPlatform:
    first = workers[0][1]
    # A campaign may move between workers, so only meters common to all are available.
    shared = {
        name: metric for name, metric in first.meters.items() if all(name in other.meters for _, other in workers)
    }
    states = tuple(state for state, _ in workers)
    return FarmPlatform(first.platform, first.traits, states, replace(first, meters=shared))


class Farm(Remote):
    """Client of a running farm. A context manager; thread-safe.

    Parameters
    ----------
    address : str
        Address of the scheduler, such as ``tcp://127.0.0.1:8786`` or ``tls://farm.example.org:8786``.
    security : FarmSecurity, optional
        Certificate and token; not needed for a farm on the local machine.
    patience : float, default=600.0
        How long to wait for a worker if a platform has none or all are in quarantine [s].
    timeout : float, default=15.0
        Timeout of the first connection [s].
    on_wait : callable, optional
        Called with a message while waiting for a worker.

    Raises
    ------
    RemoteError
        If the address does not answer, or the token or the certificate is rejected.

    Examples
    --------
    >>> with Farm("tcp://127.0.0.1:8786") as farm:  # doctest: +SKIP
    ...     runtime = farm.runtime("epyc-7763.openvino.fp32.t1")
    ...     table = build_table(plan, runtime, Protocol(), "table.json")
    """

    def __init__(
        self,
        address: str,
        security: FarmSecurity | None = None,
        *,
        patience: float = 600.0,
        timeout: float = TIMEOUT,
        on_wait: Callable[[str], None] = lambda _sentence: None,
    ) -> None:
        security = security or FarmSecurity()
        self.address = FarmAddress.parse(address).secured(security)
        self.description = f"farm {self.address}"
        self.advice = f"Start a worker on each machine: nni-latency farm join {self.address}"
        self.patience, self._on_wait = patience, on_wait
        quiet()
        trusted = dask_security(security)
        self.address.reach(timeout)
        with contextlib.ExitStack() as opening:
            opening.enter_context(settings())
            try:
                self._client = distributed.Client(
                    str(self.address), security=trusted, timeout=timeout, set_as_default=False
                )
            except Exception as error:  # the other side may send arbitrary data
                raise no_answer(self.address) from error
            opening.callback(self._client.close, timeout=2)
            versions = self._call("farm_versions")
            if versions is None:
                raise RemoteError(f"{self.address} is a scheduler of Dask, and not that of a farm.")
            check_versions(versions, self.address)
            self._open = opening.pop_all()

    def platforms(self) -> list[FarmPlatform]:
        """Return the announced platforms with the states of their workers.

        Raises
        ------
        RemoteError
            If the farm does not answer.
        """
        groups: dict[str, list[tuple[WorkerState, Announcement]]] = {}
        for state, announcement in self._states():
            groups.setdefault(platform_key(announcement.platform), []).append((state, announcement))
        return [_platform_of(found) for found in groups.values()]

    def workers(self) -> list[WorkerState]:
        """Return the states of all workers, in the order in which they joined; raises as `platforms`."""
        return [state for state, _ in self._states()]

    def _states(self) -> list[tuple[WorkerState, Announcement]]:
        return [
            (WorkerState(**item["state"]), Announcement.of(item["announcement"])) for item in self._call("farm_status")
        ]

    def find(self, platform: Platform | str) -> FarmPlatform:
        """Return the platform with an id, or the one compatible with `platform`.

        Raises
        ------
        UnknownNameError
            If no worker has announced it.
        MismatchError
            If workers with this id differ in facts that make measurements incomparable.
        """
        wanted = platform.id if isinstance(platform, Platform) else platform
        known = self.platforms()
        found = [item for item in known if item.platform.id == wanted]
        if not found:
            raise UnknownNameError.of("platform of the farm", wanted, sorted({item.platform.id for item in known}))
        if isinstance(platform, Platform):
            differences = found[0].platform.differences(platform)
            found = [item for item in found if not item.platform.differences(platform)]
            if not found:
                raise MismatchError(f"The workers of {wanted} measure on another platform: {'; '.join(differences)}.")
        for first, second in itertools.pairwise(found):
            names = f"{first.workers[0].name} and {second.workers[0].name}"
            raise MismatchError(
                f"The farm has several platforms of the id {wanted}, such as those of {names}: "
                f"{'; '.join(first.platform.differences(second.platform))}. Give the platform with its facts, or make "
                "the machines identical."
            )
        return found[0]

    def benches(self, platform: Platform | str, limits: Limits | None = None) -> Benches:
        """Return the benches of a platform's workers; campaigns use them like local benches.

        Parameters
        ----------
        platform : Platform or str
            The platform, or its id.
        limits : Limits, optional
            Resource limits of a measuring process, for untrusted networks.

        Raises
        ------
        UnknownNameError, MismatchError
            As for `find`.
        """
        return FarmBenches(self, self.find(platform).announcement, limits=limits)

    def runtimes(self) -> list[FarmRuntime]:
        """Return the runtimes of all platforms of the farm, as `runtime` does; raises as `platforms`."""
        return [FarmRuntime(self, item.announcement) for item in self.platforms()]

    def runtime(self, platform: Platform | str) -> FarmRuntime:
        """Return the runtime of a platform of the farm, for builders and estimators.

        Its benches are those of `benches`; it runs nothing in this process. Raises as `find` does.
        """
        return FarmRuntime(self, self.find(platform).announcement)

    def meter(self, platform: Platform | str, name: str = "") -> Meter:
        """Return a proxy of a meter of the workers of a platform; raises as `find` and `FarmRuntime.meter`."""
        return self.runtime(platform).meter(name)

    def fitters(self) -> list[str]:
        """Return the names of the workers that fit predictors.

        Raises
        ------
        RemoteError
            If the farm does not answer.
        """
        return list(self._call("farm_fitters"))

    @contextlib.contextmanager
    def fitting(self) -> Iterator[None]:
        """Run joblib's parallel fits on the fitting workers of the farm.

        Raises
        ------
        RemoteError
            If no worker fits predictors, or one dies or leaves during a fit.

        Examples
        --------
        >>> with Farm("tcp://127.0.0.1:8786") as farm, farm.fitting():  # doctest: +SKIP
        ...     GraphPredictor().fit(networks)
        """
        workers = self.fitters()
        if not workers:
            raise RemoteError(
                f"The farm has no worker that fits. Start one on a machine that measures nothing: nni-latency farm fit "
                f"{self.address}"
            )
        try:
            with parallel_config(backend=FitBackend(self._client, len(workers)), n_jobs=len(workers)):
                yield
        except (distributed.KilledWorker, CancelledError, distributed.scheduler.NoValidWorkerError) as error:
            raise RemoteError(
                "A worker of the farm died or left while it fitted. Run the same command again."
            ) from error

    def place(self, bench: str, key: str) -> str:
        """Return the address of the worker for the next job of a bench; wait for one if necessary.

        Raises
        ------
        RemoteError
            If no worker is available within `patience`.
        """
        end = time.monotonic() + self.patience
        has_reported = False
        while True:
            found = self._call("farm_assign", bench=bench, client=self._client.id, key=key)
            if found["address"] is not None:
                return str(found["address"])
            if time.monotonic() >= end:
                raise RemoteError(f"No worker measures for {key.rpartition('-')[0]}. {found['why']}")
            if not has_reported:
                self._on_wait(f"Waiting for a worker of {key.rpartition('-')[0]}. {found['why']}")
                has_reported = True

    def run(self, job: Job, address: str, key: str) -> Answer:
        """Run a job on a worker.

        Raises
        ------
        LostError
            If the worker died or left during the job.
        RemoteError
            If the farm no longer answers.
        """
        future = self._submit(job, address, key)
        try:
            answer: Answer = future.result()
        except distributed.KilledWorker as error:
            raise LostError("the worker died", died=True) from error
        except (CancelledError, distributed.scheduler.NoValidWorkerError) as error:
            if self._client.status != "running":
                raise self._gone() from error
            raise LostError("the worker left", died=False) from error
        except OSError as error:
            raise self._gone() from error
        finally:
            future.release()
        return answer

    def dismiss(self, place: BenchPlace, address: str, key: str) -> None:
        """Queue the closing of a bench on a worker without waiting."""
        with contextlib.suppress(OSError, RuntimeError):
            distributed.fire_and_forget(self._submit(Job(place, "close"), address, key))

    def _submit(self, job: Job, address: str, key: str) -> Any:
        name = f"{JOB}-{uuid.uuid4().hex}"
        return self._client.submit(run_job, job, key=name, pure=False, workers=[address], resources={key: 1})

    def release(self, bench: str) -> None:
        """Release a bench that is no longer used."""
        with contextlib.suppress(RemoteError):
            self._call("farm_release", bench=bench)

    def _call(self, what: str, **arguments: Any) -> Any:
        try:
            return self._client.sync(getattr(self._client.scheduler, what), **arguments)
        except (OSError, RuntimeError, TimeoutError) as error:
            raise self._gone() from error

    def _gone(self) -> RemoteError:
        return RemoteError(
            f"The farm at {self.address} does not answer any more. What was measured is kept: run the same command "
            "again when it is back."
        )

    def close(self) -> None:
        """Disconnect from the farm."""
        self._open.close()
