# SPDX-License-Identifier: Apache-2.0
"""Benches, on which subjects are loaded and networks of them are timed; `LocalBench` is one in this process."""

from __future__ import annotations

import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from nni_latency.errors import LatencyError, MeasurementError, reason_of
from nni_latency.measurement._exports import Export
from nni_latency.measurement._meter import CoarseMeterError, Meter, WindowLostError
from nni_latency.measurement._record import Visit
from nni_latency.measurement._subject import Subject, unpack_subject
from nni_latency.measurement._timing import Clock, PerfClock, ProcessorClock, Protocol, Stage, time_chain

if TYPE_CHECKING:
    from nni_latency.measurement.runtimes import Runtime


#: A window shorter than this share of the meter's shortest window is measured again.
_LONG_ENOUGH = 0.8

#: Number of consecutive lost windows after which a meter is given up.
_LOST_WINDOWS = 5


class CandidateError(MeasurementError):
    """Raised when a subject cannot be loaded or run; the message is the reason. Other subjects are not affected."""


class WorkerDiedError(CandidateError):
    """Raised when the process in which a subject was to run died; another process may have killed it."""


class Visited(NamedTuple):
    """One of several visits, with what a campaign cannot observe itself if the visit took place on another machine.

    Attributes
    ----------
    visit : Visit
        What was measured.
    duration : float or None
        Its duration [s]; None if it took all the time since it was requested.
    at : float or None
        When it ended [s since 1970, UTC]; None for now.
    worker : str
        Name of the machine; empty for this one.
    """

    visit: Visit
    duration: float | None = None
    at: float | None = None
    worker: str = ""


class Bench(ABC):
    """Loads subjects and times networks of them. A context manager; not thread-safe.

    `admit` and `step` raise `CandidateError` if the subject fails, `visit` if a subject of the network does.
    """

    #: Called with a description of every step while `visit_all` prepares networks for a long time.
    on_step: Callable[[str], None] = staticmethod(lambda _what: None)

    @abstractmethod
    def admit(self, subject: Subject) -> None:
        """Load a subject and run it once on its own inputs."""

    def admit_all(self, subjects: Sequence[Subject]) -> Iterator[LatencyError | None]:
        """Load subjects in order, and yield for each the error that `admit` raised, or None.

        By default, the next subject is loaded when the iterator advances. A bench on another machine loads several at
        once.
        """
        for subject in subjects:
            try:
                self.admit(subject)
            except LatencyError as error:
                yield error
            else:
                yield None

    @abstractmethod
    def visit(self, keys: Sequence[str], *, calls: bool = True) -> Visit:
        """Warm up and time the network that consists of the admitted subjects with these keys.

        A bench that times calls does so in this visit only if `calls` is true.
        """

    def visit_all(self, asked: Sequence[tuple[Sequence[str], bool]]) -> Iterator[Visited]:
        """Visit networks in order, each given by the arguments of `visit`.

        By default, the next visit begins when the iterator advances. A bench on another machine takes several visits at
        once. The first network that fails ends the iteration with its `CandidateError`.
        """
        for keys, calls in asked:
            yield Visited(self.visit(keys, calls=calls))

    def cool_down(self) -> bool:
        """Wait while the device is throttled by heat; called before every round, and not part of its duration.

        Returns
        -------
        bool
            False if the device is still throttled after waiting; True, the default, if it is not or that is unknown.
        """
        return True

    @abstractmethod
    def begin(self, key: str) -> None:
        """Set the input of the next `step`: that of the network whose first subject has this key."""

    @abstractmethod
    def step(self, key: str) -> None:
        """Run one subject on the output of the previous step."""

    @abstractmethod
    def __enter__(self) -> Bench:
        """Open it."""

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""


class LocalBench(Bench):
    """A bench in this process. A subject that crashes takes the process with it.

    Parameters
    ----------
    runtime : Runtime
        Runtime that executes the subjects.
    protocol : Protocol
        Measuring protocol.
    calls : bool, default=False
        Whether to time the calls of torch functions inside networks of one part, with `Runtime.time_calls`.
    meters : sequence of Meter, default=()
        Meters to read in addition to the clock.
    exports : Path, optional
        Folder in which networks that were exported are kept for other processes.
    """

    def __init__(
        self,
        runtime: Runtime,
        protocol: Protocol,
        *,
        calls: bool = False,
        meters: Sequence[Meter] = (),
        exports: Path | None = None,
    ) -> None:
        self.calls = calls
        self.exports = exports
        self.runtime = runtime
        self.protocol = protocol
        self.meters = tuple(meters)
        self._stages: dict[str, Stage] = {}
        self._inputs: dict[str, Any] = {}
        self._kernels: set[str] = set()
        self._value: Any = None
        self._open = contextlib.ExitStack()

    def __enter__(self) -> LocalBench:
        """Enter a session of the runtime and of the meters."""
        with contextlib.ExitStack() as opening:
            opening.enter_context(self.runtime.session())
            for meter in self.meters:
                opening.enter_context(meter.session())
                meter.check_opened()
            self._reference, self._reference_input = self.runtime.reference()
            # Only now: if the runtime fails above, all sessions are closed.
            self._open = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release all subjects and leave the sessions."""
        self._stages.clear()
        self._inputs.clear()
        self._kernels.clear()
        self._value = None
        self._open.close()

    def admit(self, subject: Subject) -> None:
        """Load a subject and run it once on its own inputs."""
        self._load(subject)

    def admit_packed(self, packed: bytes) -> None:
        """Load a subject packed by `pack_subject`; if another process has exported its network, it is not built."""
        subject = unpack_subject(packed)
        export = Export.of(self.exports, packed) if self.exports else None
        network = export.find() if export else None
        if network is not None:
            subject = replace(subject, build=lambda: network)
        stage = self._load(subject)
        if export:
            export.keep(stage)

    def _load(self, subject: Subject) -> Stage:
        with as_subject_error():
            inputs = self.runtime.inputs(subject.inputs)
            stage = self.runtime.prepare(subject, inputs)
            self._try(stage, inputs)
        if type(subject.inputs) is tuple:
            # Subjects of one shape share their input, as those of one layer do in a network.
            inputs = self._inputs.setdefault(f"shape {subject.inputs}", inputs)
        self._inputs[subject.key], self._stages[subject.key] = inputs, stage
        if subject.kind == "kernel":
            self._kernels.add(subject.key)
        return stage

    def _try(self, stage: Stage, inputs: Any) -> None:
        """Run a subject once, unless it ran when it was prepared."""
        stage(inputs)

    def visit(self, keys: Sequence[str], *, calls: bool = True) -> Visit:
        """Warm up a network and time it."""
        calls = calls and self.calls
        divide = self.runtime.divides and (len(keys) > 1 or calls or self._are_kernels(keys))
        chain, inputs = self._network(keys, divide=divide)

        def through(value: Any) -> Any:
            for stage in chain:
                value = stage(value)
            return value

        self._time([self._reference], self._reference_input)
        reference = self._time([self._reference], self._reference_input)[0]
        with as_subject_error():
            usual = 0.0
            for _ in range(self.protocol.n_warmup):
                usual = self._time([through], inputs)[0]
            if divide:
                visit = self._divided(reference, chain[0], inputs, usual)
            else:
                visit = self._marked(reference, chain, through, inputs, calls=calls)
            fallbacks = dict.fromkeys(item for stage in chain for item in self.runtime.fallbacks(stage, inputs))
            return replace(visit, fallbacks=tuple(fallbacks))

    def _are_kernels(self, keys: Sequence[str]) -> bool:
        """Return whether the parts are independent kernels, several of which run in parallel in one network."""
        return self._kernels.issuperset(keys)

    def _network(self, keys: Sequence[str], *, divide: bool) -> tuple[list[Stage], Any]:
        """Return the stages in which a network runs, and its input."""
        stages, inputs = [self._stages[key] for key in keys], self._inputs[keys[0]]
        if not divide:
            return stages, inputs
        with as_subject_error():
            if self._are_kernels(keys):
                stage, inputs = self.runtime.join_parallel(stages, [self._inputs[key] for key in keys])
                return [stage], inputs
            return (stages if len(stages) == 1 else [self.runtime.join(stages, inputs)]), inputs

    def _divided(self, reference: float, stage: Stage, inputs: Any, usual: float) -> Visit:
        """Take the times of the parts from the runtime, then time the network; long networks run less often."""
        runs = max(1, min(self._runs, int(self._longest / usual))) if usual else self._runs
        parts = self.runtime.divide(stage, inputs, runs)
        whole, begin = list[float](), time.perf_counter()
        while len(whole) < runs and self._has_time(whole, begin):
            whole += self._time([stage], inputs)
        return self._metered(reference, parts, whole, stage, inputs)

    def _marked(self, reference: float, chain: list[Stage], through: Stage, inputs: Any, *, calls: bool) -> Visit:
        """Time the network alternately with marks between its parts or calls, and without."""
        parts: list[list[float]] = []
        whole, begin = list[float](), time.perf_counter()
        while len(whole) < self._runs and self._has_time(whole, begin):
            if len(chain) > 1:
                parts.append(self._time(chain, inputs))
            elif calls:
                parts.append(self.runtime.time_calls(chain[0], inputs))
            whole += self._time([through], inputs)
        return self._metered(reference, parts, whole, through, inputs)

    def _has_time(self, whole: Sequence[float], begin: float) -> bool:
        """Return whether there is time for another run: by the clock and, as it may exclude waiting, by wall time."""
        return sum(whole) <= self._longest and time.perf_counter() - begin <= 2 * self._longest

    def _metered(
        self, reference: float, parts: list[list[float]], whole: list[float], stage: Stage, inputs: Any
    ) -> Visit:
        """Read the meters, and return all measurements of a visit."""
        samples: dict[str, list[float]] = {"latency": whole}
        for meter in self.meters:
            samples |= self._read(meter, stage, inputs, whole[-1])
        return Visit(reference, parts, samples)

    def _read(self, meter: Meter, through: Stage, inputs: Any, seconds: float) -> dict[str, list[float]]:
        """Return the cost of one run, from a window that the meter can resolve, and its other readings."""
        runs, longest = meter.runs(seconds), self._longest
        if meter.shortest > longest:
            raise CoarseMeterError.of(meter, meter.shortest, longest)
        while True:
            cost, took = self._whole_window(meter, through, inputs, runs)
            least = meter.least_steps * meter.resolution
            is_long = took >= _LONG_ENOUGH * meter.shortest
            if cost >= least and is_long:
                samples = {name: list(values) for name, values in meter.observations().items()}
                rate = {"power": [cost / took]} if meter.metric == "energy" else {}
                return {meter.metric: [cost / runs], **rate, "window": [took], **samples}
            needed = took * least / cost if cost > 0 else 2 * took
            if not is_long:
                # The window was planned from the time of a first run, which is slow.
                needed = max(needed, meter.shortest)
            if needed > longest:
                raise CoarseMeterError.of(meter, needed, longest)
            runs = max(2 * runs, math.ceil(runs * min(needed, longest) / took))

    def _whole_window(self, meter: Meter, through: Stage, inputs: Any, runs: int) -> tuple[float, float]:
        """Return the cost of the runs and their time [s], from the first window that is not lost."""
        lost = 0
        while True:
            try:
                return self._window(meter, through, inputs, runs)
            except WindowLostError as error:
                lost += 1
                if lost == _LOST_WINDOWS:
                    raise MeasurementError(f"{error} So were the {lost - 1} before it.") from error

    def _window(self, meter: Meter, through: Stage, inputs: Any, runs: int) -> tuple[float, float]:
        """Return the cost of the runs and their time [s], from one window."""

        def window(value: Any) -> Any:
            return [through(value) for _ in range(runs)][-1]

        meter.start()
        try:
            # A meter keeps counting while the run waits for a processor.
            clock = self.runtime.clock
            (took,) = self._time([window], inputs, PerfClock() if isinstance(clock, ProcessorClock) else clock)
        except BaseException:
            with contextlib.suppress(LatencyError):
                meter.stop()
            raise
        return meter.stop(), took

    @property
    def _runs(self) -> int:
        return max(self.protocol.n_run, self.runtime.least_runs)

    @property
    def _longest(self) -> float:
        return self.protocol.max_measure_execution_time

    def _time(self, chain: list[Stage], value: Any, clock: Clock | None = None) -> list[float]:
        times = time_chain(chain, value, clock or self.runtime.clock)
        if not math.isfinite(sum(times)):
            # Raise here: from a store, it would make every later run fail.
            raise MeasurementError(f"The clock returned {times}, which are not valid times.")
        return times

    def begin(self, key: str) -> None:
        """Set the input of the next `step`: that of the network whose first subject has this key."""
        self._value = self._inputs[key]

    def step(self, key: str) -> None:
        """Run one subject on the output of the previous step, or a kernel on its own input."""
        with as_subject_error():
            if key in self._kernels and self.runtime.divides:
                self._value = self._inputs[key]
            self._value = self._stages[key](self._value)


@contextlib.contextmanager
def as_subject_error() -> Iterator[None]:
    """Convert any exception of user code to a `CandidateError`; errors of the package pass."""
    try:
        yield
    except LatencyError:
        raise
    except Exception as error:  # user code may raise anything
        raise CandidateError(reason_of(error)) from error
