# SPDX-License-Identifier: Apache-2.0
"""`Device`: the device of a worker. It runs jobs and times the reference networks."""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from nni_latency.devices import DeviceError
from nni_latency.errors import LatencyError, MeasurementError
from nni_latency.measurement import (
    Bench,
    Benches,
    IsolatedBench,
    Meter,
    Protocol,
    Subject,
    Visited,
    quantile,
    unpack_subject,
)
from nni_latency.measurement.runtimes import Runtime
from nni_latency_farm._announcement import Announcement
from nni_latency_farm._job import Answer, BenchPlace, Job

#: Largest number of open benches; the least recently used one is closed first.
_MOST_BENCHES = 4

#: Idle time after which a bench is closed, because its client has probably died [s].
_IDLE = 900.0

#: Protocol of reference networks: visits, of which the lower quartile is used.
_CHECK = Protocol(n_warmup=2, n_run=5, max_measure_execution_time=0.5, timeout=120.0)
_VISITS = 8


class Device:
    """A device, its runtime, and the benches that are open on it. Not thread-safe.

    Parameters
    ----------
    runtime : Runtime
        Runtime that executes networks on the device.
    name : str
        Name of the worker.
    references : sequence of Subject
        Networks that measure the speed of the device.
    meters : mapping of str to Meter
        Available meters by name.
    """

    def __init__(
        self, runtime: Runtime, name: str, references: Sequence[Subject], meters: Mapping[str, Meter] | None = None
    ) -> None:
        self.runtime, self.name, self.references = runtime, name, tuple(references)
        self.meters = dict(meters or {})
        self._open: OrderedDict[str, _OpenBench] = OrderedDict()
        self._checking: Bench | None = None

    def announcement(self) -> Announcement:
        """Return the announcement of the device."""
        return Announcement.of_runtime(self.name, self.runtime, self.meters)

    def check(self) -> dict[str, float]:
        """Time the reference operator and the reference networks.

        Returns
        -------
        dict of str to float
            Lower quartile of the time of each [s].

        Raises
        ------
        LatencyError
            If one of them cannot be run.
        """
        for place, bench in list(self._open.items()):
            if time.monotonic() - bench.used > _IDLE:
                self._close(place)
        times: dict[str, list[float]] = {}
        with self.runtime.benches().open(replace(_CHECK, threads=self.runtime.platform.threads)) as checking:
            self._checking = checking
            for subject in self.references:
                checking.admit(subject)
            for _ in range(_VISITS):
                for subject in self.references:
                    visit = checking.visit([subject.key])
                    times.setdefault("reference operator", []).append(visit.reference)
                    times.setdefault(subject.key, []).extend(visit.whole)
        return {name: quantile(sorted(seconds), 0.25) for name, seconds in times.items()}

    def run(self, job: Job) -> Answer:
        """Run a job; failures of its subjects are part of the answer."""
        if job.task == "close":
            self._close(job.place.bench)
            return Answer(self.name)
        try:
            if job.task == "conditions":
                return Answer(self.name, conditions=self._benches(job.place).conditions().as_dict())
            bench = self._find(job.place)
            try:
                return bench.run(job, self.name)
            finally:
                bench.used = time.monotonic()
        except LatencyError as error:
            self._close(job.place.bench)
            return Answer(self.name, failure=error)

    def close(self) -> None:
        """Close all benches, even during a job or a check in another thread, which then fails."""
        if isinstance(self._checking, IsolatedBench):
            self._checking.__exit__(None, None, None)
        for bench in list(self._open):
            self._close(bench)

    def _runtime(self, place: BenchPlace) -> Runtime:
        inner = self.runtime.stand_in() if place.inside else self.runtime
        if inner is None:
            raise MeasurementError(f"Nothing stands in for the runtime {self.runtime.name!r}.")
        return inner

    def _benches(self, place: BenchPlace) -> Benches:
        return self._runtime(place).benches(tuple(map(self._meter, place.meters)), place.limits)

    def _meter(self, meter: str | Meter) -> Meter:
        if isinstance(meter, Meter):
            return meter
        if meter not in self.meters:
            raise MeasurementError(f"The worker {self.name} of the farm cannot read {meter!r}.")
        return self.meters[meter]

    def _find(self, place: BenchPlace) -> _OpenBench:
        """Return an open bench, or open it and close others if there are too many."""
        if place.bench not in self._open:
            while len(self._open) >= _MOST_BENCHES:
                self._close(next(iter(self._open)))
            self._open[place.bench] = _OpenBench(self._benches(place).open(place.protocol, calls=place.calls))
        self._open.move_to_end(place.bench)
        return self._open[place.bench]

    def _close(self, bench: str) -> None:
        if bench in self._open:
            self._open.pop(bench).close()


class _OpenBench:
    """A bench and its loaded subjects."""

    def __init__(self, bench: Bench) -> None:
        self._open = contextlib.ExitStack()
        self._bench = self._open.enter_context(bench)
        self._held: set[str] = set()
        #: Time of the last job [s].
        self.used = time.monotonic()

    def close(self) -> None:
        self._open.close()

    def run(self, job: Job, worker: str) -> Answer:
        lacking = tuple(key for key in job.keys if key not in self._held and key not in job.subjects)
        if lacking:
            return Answer(worker, lacking=lacking)
        if job.task == "admit":
            return Answer(worker, admitted=tuple(self._admit_all(job)))
        visits: list[Visited] = []
        try:
            for key in job.keys:
                self._admit(key, job)
            if job.task == "steps":
                self._step_through(job)
            else:
                for visited in self._visit(job):
                    visits.append(visited._replace(worker=worker))
        except LatencyError as error:
            return Answer(worker, tuple(visits), failure=error)
        return Answer(worker, tuple(visits))

    def _admit_all(self, job: Job) -> Iterator[LatencyError | None]:
        begin = time.monotonic()
        for key in job.keys:
            try:
                self._admit(key, job)
            except DeviceError:
                # The device is lost, and the subject is not the cause.
                raise
            except LatencyError as error:
                yield error
            else:
                yield None
            if time.monotonic() - begin >= job.limit:
                return

    def _admit(self, key: str, job: Job) -> None:
        if key in self._held:
            return
        packed = job.subjects[key]
        if isinstance(self._bench, IsolatedBench):
            # User code never runs in this process, not even for unpacking.
            self._bench.admit_packed(key, packed)
        else:
            self._bench.admit(unpack_subject(packed))
        self._held.add(key)

    def _visit(self, job: Job) -> Iterator[Visited]:
        self._bench.cool_down()
        begin = time.monotonic()
        for keys, calls in job.asked:
            since = time.perf_counter()
            visit = self._bench.visit(keys, calls=calls)
            yield Visited(visit, time.perf_counter() - since, time.time())
            if time.monotonic() - begin >= job.limit:
                return

    def _step_through(self, job: Job) -> None:
        ((keys, _),) = job.asked
        self._bench.begin(keys[0])
        for key in keys:
            self._bench.step(key)
