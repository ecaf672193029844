"""The bench: where candidates are loaded and networks of them are timed, in this process."""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from nni_latency.errors import LatencyError, MeasurementError
from nni_latency.measurement._chain import Stage, time_chain
from nni_latency.measurement._protocol import Protocol

if TYPE_CHECKING:
    from nni_latency.measurement.runtimes import Runtime

#: Makes a module.
Build = Callable[[], Any]


class CandidateError(MeasurementError):
    """Raised when a candidate cannot be loaded or run; the message is the reason. The others are not concerned."""


class WorkerDiedError(CandidateError):
    """Raised when the process died in which a candidate was to run; it may have been somebody else's doing."""


@dataclass(frozen=True)
class Visit:
    """What one visit of a network measured.

    Parameters
    ----------
    reference : float
        Time of the reference operator just before [s].
    parts : list of list of float
        Time of every layer [s], by timed run; empty where the network has one part only, unless the bench sees calls:
        then that of every call of a torch function.
    whole : list of float
        Time of the whole network [s], by timed run without a mark between the layers.
    """

    reference: float
    parts: list[list[float]]
    whole: list[float]


class Bench(ABC):
    """Candidates of layers, loaded one by one, and networks of them. A context manager; not thread-safe.

    `admit` and `step` raise `CandidateError` when a candidate fails, `visit` when something in the network does.
    """

    @abstractmethod
    def admit(self, layer: int, choice: int) -> None:
        """Load a candidate and run it once; those of earlier layers come first, and all before the first visit."""

    @abstractmethod
    def visit(self, network: Sequence[int]) -> Visit:
        """Warm a network up and time it."""

    @abstractmethod
    def begin(self) -> None:
        """Get ready for `step`: back to the network's input."""

    @abstractmethod
    def step(self, layer: int, choice: int) -> None:
        """Run one candidate on what the step before returned."""

    @abstractmethod
    def __enter__(self) -> Bench:
        """Open it."""

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it, whatever happened."""


class LocalBench(Bench):
    """A bench in this process. A candidate that crashes takes the process with it.

    Parameters
    ----------
    columns : sequence of sequence of callable
        By layer, what makes a module of each candidate.
    input_shape : sequence of int
        Of the network's input, batch first.
    runtime : Runtime
        What executes them.
    protocol : Protocol
        How they are timed.
    calls : bool, default=False
        Time the calls of torch functions inside networks of one part, with `Runtime.time_calls`.
    """

    def __init__(
        self,
        columns: Sequence[Sequence[Build]],
        input_shape: Sequence[int],
        runtime: Runtime,
        protocol: Protocol,
        *,
        calls: bool = False,
    ) -> None:
        self.calls = calls
        self.columns = columns
        self.input_shape = tuple(input_shape)
        self.runtime = runtime
        self.protocol = protocol
        self._stages: dict[tuple[int, int], Stage] = {}
        # What goes into each layer, kept while candidates are admitted.
        self._flow: dict[int, Any] = {}
        self._open = contextlib.ExitStack()

    def __enter__(self) -> LocalBench:
        """Enter a session of the runtime."""
        self._open.enter_context(self.runtime.session())
        self._reference, self._reference_input = self.runtime.reference()
        self._inputs = self.runtime.inputs(self.input_shape)
        self._value = self._inputs
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the session and let go of all candidates."""
        self._stages.clear()
        self._flow.clear()
        self._open.close()

    def admit(self, layer: int, choice: int) -> None:
        """Load a candidate and run it once; those of earlier layers come first."""
        with _blaming_the_candidate():
            stage = self.runtime.load(self.columns[layer][choice]())
            outputs = stage(self._inputs if layer == 0 else self._flow[layer])
        self._flow.setdefault(layer + 1, outputs)
        self._stages[layer, choice] = stage

    def visit(self, network: Sequence[int]) -> Visit:
        """Warm a network up and time it."""
        self._flow.clear()
        chain = [self._stages[place] for place in enumerate(network)]

        def through(value: Any) -> Any:
            for stage in chain:
                value = stage(value)
            return value

        self._time([self._reference], self._reference_input)
        reference = self._time([self._reference], self._reference_input)[0]
        with _blaming_the_candidate():
            for _ in range(self.protocol.n_warmup):
                self._time([through], self._inputs)
            return self._visit(reference, chain, through)

    def _visit(self, reference: float, chain: list[Stage], through: Stage) -> Visit:
        parts: list[list[float]] = []
        whole: list[float] = []
        while len(whole) < self.protocol.n_run and sum(whole) <= self.protocol.max_measure_execution_time:
            if len(chain) > 1:
                parts.append(self._time(chain, self._inputs))
            elif self.calls:
                parts.append(self.runtime.time_calls(chain[0], self._inputs))
            whole += self._time([through], self._inputs)
        return Visit(reference, parts, whole)

    def _time(self, chain: list[Stage], value: Any) -> list[float]:
        times = time_chain(chain, value, self.runtime.clock)
        if not math.isfinite(sum(times)):
            # Refused here, so that no journal holds it and every later run fails on it.
            raise MeasurementError(f"The clock gave {times}, which are no times.")
        return times

    def begin(self) -> None:
        """Get ready for `step`: back to the network's input."""
        self._value = self._inputs

    def step(self, layer: int, choice: int) -> None:
        """Run one candidate on what the step before returned."""
        with _blaming_the_candidate():
            self._value = self._stages[layer, choice](self._value)


@contextlib.contextmanager
def _blaming_the_candidate() -> Iterator[None]:
    """Turn whatever a candidate raises into a `CandidateError`; errors of the package itself pass."""
    try:
        yield
    except LatencyError:
        raise
    except Exception as error:  # a stranger's module may raise anything
        first = next(iter(str(error).splitlines()), "")
        raise CandidateError(f"{type(error).__name__}: {first}" if first else type(error).__name__) from error
