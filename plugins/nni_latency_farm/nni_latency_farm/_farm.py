"""`Farm`: a farm as a client sees it."""

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

#: How long a farm may take to answer [s].
TIMEOUT = 15.0


@dataclass(frozen=True)
class FarmPlatform:
    """A platform of a farm. Immutable.

    Parameters
    ----------
    platform : Platform
        The platform, with all its facts.
    traits : Traits
        What its runtime can do.
    workers : tuple of WorkerState
        The workers that have it, in the order in which they joined.
    announcement : Announcement
        What the first of them has announced, with the meters that all of them have.
    """

    platform: Platform
    traits: Traits
    workers: tuple[WorkerState, ...]
    announcement: Announcement


def _platform_of(workers: Sequence[tuple[WorkerState, Announcement]]) -> FarmPlatform:
    first = workers[0][1]
    # A campaign may move to any of them, so what only some can read cannot be asked for.
    shared = {
        name: metric for name, metric in first.meters.items() if all(name in other.meters for _, other in workers)
    }
    states = tuple(state for state, _ in workers)
    return FarmPlatform(first.platform, first.traits, states, replace(first, meters=shared))


class Farm(Remote):
    """The client of a running farm. A context manager; safe in several threads.

    Parameters
    ----------
    address : str
        Where its scheduler listens, such as ``tcp://127.0.0.1:8786`` or ``tls://farm.example.org:8786``.
    security : FarmSecurity, optional
        Certificate and token; a farm on this machine alone needs none.
    patience : float, default=600.0
        How long to wait for a worker, if none of a platform is there or all are in quarantine [s].
    timeout : float, default=15.0
        How long the farm may take to answer at first [s].
    on_wait : callable, optional
        Called with a sentence when a worker is waited for.

    Raises
    ------
    RemoteError
        If nobody answers at the address, or refuses the token or the certificate.

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
            except Exception as error:  # what the other side says may be anything, and make no sense
                raise no_answer(self.address) from error
            opening.callback(self._client.close, timeout=2)
            versions = self._call("farm_versions")
            if versions is None:
                raise RemoteError(f"{self.address} is a scheduler of Dask, and not that of a farm.")
            check_versions(versions, self.address)
            self._open = opening.pop_all()

    def platforms(self) -> list[FarmPlatform]:
        """Return the platforms that workers have announced, with the states of their workers.

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
        """Return the platform of an id, or the one whose numbers mix with those of `platform`.

        Raises
        ------
        UnknownNameError
            If no worker has announced it.
        MismatchError
            If workers of this id differ in facts that make numbers incomparable.
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
                "the machines alike."
            )
        return found[0]

    def benches(self, platform: Platform | str, limits: Limits | None = None) -> Benches:
        """Return what opens benches on the workers of a platform; a campaign runs on them as on those of this machine.

        Parameters
        ----------
        platform : Platform or str
            The platform, or its id.
        limits : Limits, optional
            What a process of a worker may use that measures, for networks of somebody else.

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
        """Return the runtime of a platform of the farm, for everything that takes one: builders, estimators.

        Its benches are those of `benches`; nothing of it runs in this process. Raises as `find` does.
        """
        return FarmRuntime(self, self.find(platform).announcement)

    def meter(self, platform: Platform | str, name: str = "") -> Meter:
        """Return what stands for a meter of the workers of a platform; raises as `find` and `FarmRuntime.meter`."""
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
        """Have everything fitted on the workers that fit, as far as it is done side by side by joblib.

        Raises
        ------
        RemoteError
            If there is no such worker, or one dies or leaves while it fits.

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
        """Return the address of the worker that does the next job of a bench, and wait for one if need be.

        Raises
        ------
        RemoteError
            If there is none for as long as `patience`.
        """
        end = time.monotonic() + self.patience
        has_told = False
        while True:
            found = self._call("farm_assign", bench=bench, client=self._client.id, key=key)
            if found["address"] is not None:
                return str(found["address"])
            if time.monotonic() >= end:
                raise RemoteError(f"No worker measures for {key.rpartition('-')[0]}. {found['why']}")
            if not has_told:
                self._on_wait(f"Waiting for a worker of {key.rpartition('-')[0]}. {found['why']}")
                has_told = True

    def run(self, job: Job, address: str, key: str) -> Answer:
        """Have a worker do a job.

        Raises
        ------
        LostError
            If the worker died or left meanwhile.
        RemoteError
            If the farm does not answer any more.
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
        """Have a worker close a bench when its turn comes, and do not wait for that."""
        with contextlib.suppress(OSError, RuntimeError):
            distributed.fire_and_forget(self._submit(Job(place, "close"), address, key))

    def _submit(self, job: Job, address: str, key: str) -> Any:
        name = f"{JOB}-{uuid.uuid4().hex}"
        return self._client.submit(run_job, job, key=name, pure=False, workers=[address], resources={key: 1})

    def release(self, bench: str) -> None:
        """Say that a bench is not used any more."""
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
        """Leave the farm."""
        self._open.close()
