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

#: So many workers may die while they measure one network alone; then it is blamed. Those that die with a network among
#: others tell nothing about it, and a few die by chance.
_MOST_DEATHS = 5


#: Subjects that together are larger go to the worker in several jobs [byte].
_LARGEST_JOB = 64 << 20


class LostError(Exception):
    """Raised when the worker of a job died or left before the job was done."""

    def __init__(self, reason: str, *, died: bool) -> None:
        super().__init__(reason)
        self.died = died


class JobRunner(Interface):
    """What a bench needs of a farm; see `Farm`."""

    def place(self, bench: str, key: str) -> str:
        """Return the address of the worker that does the next job of a bench."""

    def run(self, job: Job, address: str, key: str) -> Answer:
        """Have a worker do a job."""

    def dismiss(self, place: BenchPlace, address: str, key: str) -> None:
        """Have a worker close a bench, without waiting for it."""

    def release(self, bench: str) -> None:
        """Say that a bench is not used any more."""


class FarmBenches(Benches):
    """Benches on the workers of a platform of a farm.

    Parameters
    ----------
    farm : JobRunner
        The farm.
    announcement : Announcement
        What its workers of the platform have announced.
    outer : Announcement, optional
        Where `announcement` stands in for another runtime: what the workers measure with.
    limits : Limits, optional
        What a process of a worker may use that measures.
    meters : sequence of Meter, default=()
        What is read there besides the clock.
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
        """Where the numbers are taken."""
        return self.announcement.platform

    def conditions(self) -> Conditions:
        """Say what the machine of one of the workers is like at this moment."""
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
    """A bench on a worker of a farm. It is opened again on another one when that is lost.

    What is asked for at once goes to the worker as one job, which ends after 60 s; what is left of it is the next one.
    A job whose worker is lost is done again from its beginning, network by network, so that one that takes its worker
    down with it is told from its neighbours.

    Parameters
    ----------
    farm : JobRunner
        The farm.
    place : BenchPlace
        Its name, and how networks are timed on it.
    key : str
        Of the platform, as `nni_latency_farm.platform_key` says.
    """

    def __init__(self, farm: JobRunner, place: BenchPlace, key: str) -> None:
        self._farm, self._place, self._key = farm, place, key
        self._packed: dict[str, bytes] = {}
        self._address = ""
        #: What the worker holds, as far as is known.
        self._held: set[str] = set()
        self._stepped: tuple[str, ...] = ()

    def __enter__(self) -> FarmBench:
        """Nothing is opened before the first job."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it on the worker."""
        if self._address:
            self._farm.dismiss(self._place, self._address, self._key)
        self._farm.release(self._place.bench)

    def admit(self, subject: Subject) -> None:
        """Load a subject and run it once on its own inputs."""
        (error,) = self.admit_all([subject])
        if error is not None:
            raise error

    def admit_all(self, subjects: Sequence[Subject]) -> Iterator[LatencyError | None]:
        """Load subjects one after another, in as few jobs as there can be."""
        left: list[Subject] = list(subjects)
        while left:
            try:
                asked = self._pack_some(left)
                answer = self.ask("admit", [((key,), False) for key in asked])
            except MeasurementError as error:
                # Of the first alone: others are packed, and their workers die, in jobs of their own.
                admitted: tuple[LatencyError | None, ...] = (error,)
            else:
                admitted = answer.admitted
                if not admitted:
                    raise answer.failure or _said_nothing(answer)
            for subject, reason in zip(left, admitted, strict=False):
                if reason is not None:
                    self._packed.pop(subject.key, None)
                    self._held.discard(subject.key)
                yield reason
            left = left[len(admitted) :]

    def _pack_some(self, subjects: Sequence[Subject]) -> list[str]:
        """Pack as many subjects as go into one job, and return their keys.

        Raises
        ------
        MeasurementError
            If the first cannot be packed.
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
        """Visit networks one after another, as few jobs as there can be."""
        left = [(tuple(keys), calls) for keys, calls in asked]
        while left:
            answer = self.ask("visit", left)
            yield from answer.visits
            left = left[len(answer.visits) :]
            if answer.failure is not None:
                raise answer.failure
            if not answer.visits:
                raise _said_nothing(answer)

    def begin(self, key: str) -> None:
        """Get ready for `step`: the input of the network whose first subject has this key."""
        self._stepped = ()

    def step(self, key: str) -> None:
        """Run one subject on what the steps before return; they are run again, since the worker may be another one."""
        self._stepped = (*self._stepped, key)
        answer = self.ask("steps", [(self._stepped, False)])
        if answer.failure is not None:
            raise answer.failure

    def ask(self, task: str, asked: Sequence[tuple[tuple[str, ...], bool]] = ()) -> Answer:
        """Have a worker do a job, or another one if it is lost.

        Raises
        ------
        WorkerDiedError
            If workers died whenever they did it.
        RemoteError
            If no worker is there.
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


def _said_nothing(answer: Answer) -> MeasurementError:
    return MeasurementError(f"The worker {answer.worker} of the farm did nothing and did not say why.")
