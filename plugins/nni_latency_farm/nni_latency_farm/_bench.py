# SPDX-License-Identifier: Apache-2.0
"""`FarmBench`: a bench on a worker of a farm."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Protocol as Interface

from nni_latency.errors import LatencyError, MeasurementError
from nni_latency.measurement import (
    Bench,
    Benches,
    Limits,
    Meter,
    Protocol,
    Subject,
    Visit,
    Visited,
    WorkerDiedError,
    pack_subject,
)
from nni_latency.operators import OnnxBuild
from nni_latency.platforms import Conditions, Platform
from nni_latency.units import number_of
from nni_latency_farm._announcement import Announcement
from nni_latency_farm._job import Answer, BenchPlace, Job
from nni_latency_farm._meter import FarmMeter
from nni_latency_farm._registry import platform_key

#: Number of workers that may die while measuring a single network before the network is considered the cause. Deaths
#: during jobs with several networks do not count, and a few workers die by chance.
_MOST_DEATHS = 5


#: Largest total size of subjects in a job [byte].
_LARGEST_JOB = 64 << 20


class LostError(Exception):
    """Raised when the worker of a job died or left before the job was done."""

    def __init__(self, reason: str, *, died: bool) -> None:
        super().__init__(reason)
        self.died = died


class JobRunner(Interface):
    """Interface between a bench and a farm; see `Farm`."""

    def place(self, bench: str, key: str) -> str:
        """Return the address of the worker for the next job of a bench."""

    def run(self, job: Job, address: str, key: str) -> Answer:
        """Run a job on a worker."""

    def dismiss(self, place: BenchPlace, address: str, key: str) -> None:
        """Close a bench on a worker without waiting."""

    def release(self, bench: str) -> None:
        """Release a bench that is no longer used."""


class FarmBenches(Benches):
    """Benches on the workers of a platform of a farm.

    Parameters
    ----------
    farm : JobRunner
        The farm.
    announcement : Announcement
        Announcement of the workers of the platform.
    outer : Announcement, optional
        Announcement of the workers' own runtime, if `announcement` describes its stand-in.
    limits : Limits, optional
        Resource limits of a measuring process.
    meters : sequence of Meter, default=()
        Meters to read besides the clock.
    """

    def __init__(
        self,
        farm: JobRunner,
        announcement: Announcement,
        outer: Announcement | None = None,
        limits: Limits | None = None,
        meters: Sequence[Meter] = (),
    ) -> None:
        self.farm, self.announcement, self.outer = farm, announcement, outer or announcement
        self.limits, self.meters = limits, tuple(meters)
        self.isolated = announcement.traits.isolated

    @property
    def platform(self) -> Platform:
        """Platform of the measurements."""
        return self.announcement.platform

    def conditions(self) -> Conditions:
        """Return the current conditions of one of the workers' machines."""
        with self.open(Protocol(threads=self.platform.threads)) as bench:
            assert isinstance(bench, FarmBench)
            answer = bench.ask("conditions")
            if answer.failure is not None:
                raise answer.failure
            return Conditions.from_dict(answer.conditions)

    def open(self, protocol: Protocol, *, calls: bool = False) -> Bench:
        """Return a new bench on one of the workers."""
        inside = self.outer is not self.announcement
        meters = tuple(meter.name if isinstance(meter, FarmMeter) else meter for meter in self.meters)
        place = BenchPlace(uuid.uuid4().hex, protocol, calls, inside, self.limits, meters)
        return FarmBench(self.farm, place, platform_key(self.outer.platform))


class FarmBench(Bench):
    """A bench on a worker of a farm. If the worker is lost, the bench is reopened on another one.

    Visits requested together are sent to the worker as one job, which ends after 60 s; the rest forms the next job. A
    job whose worker is lost is repeated from its beginning, network by network, to identify a network that kills its
    worker.

    Parameters
    ----------
    farm : JobRunner
        The farm.
    place : BenchPlace
        Name of the bench, and how it times networks.
    key : str
        Key of the platform, as returned by `nni_latency_farm.platform_key`.
    """

    def __init__(self, farm: JobRunner, place: BenchPlace, key: str) -> None:
        self._farm, self._place, self._key = farm, place, key
        self._packed: dict[str, bytes] = {}
        self._address = ""
        #: Subjects that the worker is known to hold.
        self._held: set[str] = set()
        self._stepped: tuple[str, ...] = ()

    def __enter__(self) -> FarmBench:
        """Return the bench; it is opened by the first job."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the bench on the worker."""
        if self._address:
            self._farm.dismiss(self._place, self._address, self._key)
        self._farm.release(self._place.bench)

    def admit(self, subject: Subject) -> None:
        """Load a subject and run it once on its own inputs."""
        (error,) = self.admit_all([subject])
        if error is not None:
            raise error

    def admit_all(self, subjects: Sequence[Subject]) -> Iterator[LatencyError | None]:
        """Load subjects one at a time, in as few jobs as possible."""
        left: list[Subject] = list(subjects)
        while left:
            try:
                asked = self._pack_some(left)
                answer = self.ask("admit", [((key,), False) for key in asked])
            except MeasurementError as error:
                # Only for the first subject: the others are packed, and may kill workers, in later jobs.
                admitted: tuple[LatencyError | None, ...] = (error,)
            else:
                admitted = answer.admitted
                if not admitted:
                    raise answer.failure or _no_reason_error(answer)
            for subject, reason in zip(left, admitted, strict=False):
                if reason is not None:
                    self._packed.pop(subject.key, None)
                    self._held.discard(subject.key)
                yield reason
            left = left[len(admitted) :]

    def _pack_some(self, subjects: Sequence[Subject]) -> list[str]:
        """Pack as many subjects as fit into one job, and return their keys.

        Raises
        ------
        MeasurementError
            If the first subject cannot be packed.
        """
        keys: list[str] = []
        size = 0
        for subject in subjects:
            try:
                packed = _packed(subject)
            except LatencyError:
                if keys:
                    return keys
                raise
            size += len(packed)
            if keys and size > _LARGEST_JOB:
                return keys
            self._packed[subject.key] = packed
            keys.append(subject.key)
        return keys

    def visit(self, keys: Sequence[str], *, calls: bool = True) -> Visit:
        """Warm up a network and time it."""
        return next(self.visit_all([(keys, calls)])).visit

    def visit_all(self, asked: Sequence[tuple[Sequence[str], bool]]) -> Iterator[Visited]:
        """Visit networks one at a time, in as few jobs as possible."""
        left = [(tuple(keys), calls) for keys, calls in asked]
        while left:
            answer = self.ask("visit", left)
            yield from answer.visits
            left = left[len(answer.visits) :]
            if answer.failure is not None:
                raise answer.failure
            if not answer.visits:
                raise _no_reason_error(answer)

    def begin(self, key: str) -> None:
        """Prepare `step`: load the input of the network whose first subject has this key."""
        self._stepped = ()

    def step(self, key: str) -> None:
        """Run one subject on the output of the previous steps; they are repeated, as the worker may have changed."""
        self._stepped = (*self._stepped, key)
        answer = self.ask("steps", [(self._stepped, False)])
        if answer.failure is not None:
            raise answer.failure

    def ask(self, task: str, asked: Sequence[tuple[tuple[str, ...], bool]] = ()) -> Answer:
        """Run a job on a worker, or on another one if the worker is lost.

        Raises
        ------
        WorkerDiedError
            If all workers died during the job.
        RemoteError
            If no worker is available.
        """
        job = Job(self._place, task, tuple(asked))  # type: ignore[arg-type]
        deaths = 0
        while True:
            self._find_place()
            carried = {key: self._packed[key] for key in job.keys if key not in self._held}
            try:
                answer = self._farm.run(replace(job, subjects=carried), self._address, self._key)
            except LostError as lost:
                self._held.clear()
                deaths += lost.died and len(job.asked) <= 1
                if deaths >= _MOST_DEATHS:
                    raise WorkerDiedError(f"{number_of(deaths, 'worker')} died while they measured it") from lost
                if lost.died:
                    job = replace(job, asked=job.asked[:1])
                continue
            if answer.is_lost:
                self._held.clear()
                if answer.visits:
                    return answer
                continue
            if not answer.lacking:
                done = carried if task != "admit" else list(job.keys)[: len(answer.admitted)]
                self._held.update(done)
                return answer
            self._held.difference_update(answer.lacking)

    def _find_place(self) -> None:
        address = self._farm.place(self._place.bench, self._key)
        if address != self._address:
            self._address = address
            self._held.clear()


def _packed(subject: Subject) -> bytes:
    if isinstance(subject.build, OnnxBuild):
        subject = replace(subject, build=subject.build.carried())
    return pack_subject(subject)


def _no_reason_error(answer: Answer) -> MeasurementError:
    return MeasurementError(f"The worker {answer.worker} of the farm did nothing and did not say why.")
