"""A bench in a worker process: a candidate that crashes, hangs or eats all memory takes nothing else with it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from nni_latency.measurement._bench import Bench, CandidateError, LocalBench, WorkerDiedError
from nni_latency.measurement._meter import Meter
from nni_latency.measurement._packing import pack, pack_subject
from nni_latency.measurement._protocol import Protocol
from nni_latency.measurement._record import Visit
from nni_latency.measurement._subject import Subject
from nni_latency.measurement._worker_process import Limits, WorkerProcess
from nni_latency.platforms import Conditions, Platform

if TYPE_CHECKING:
    from nni_latency.measurement.runtimes import Runtime


class Benches(ABC):
    """Opens benches on one machine, and says what they measure on. Safe to use again and again."""

    #: Whether every bench lies in a process of its own.
    isolated: bool

    @property
    @abstractmethod
    def platform(self) -> Platform:
        """Where the numbers are taken."""

    @abstractmethod
    def conditions(self) -> Conditions:
        """Say what the machine is like at this moment."""

    @abstractmethod
    def open(self, protocol: Protocol, *, calls: bool = False) -> Bench:
        """Return a new bench, to be entered; see `LocalBench`."""


class LocalBenches(Benches):
    """Benches of this machine, in worker processes where runtime and system allow it.

    Parameters
    ----------
    runtime : Runtime
        What executes the subjects.
    meters : sequence of Meter, default=()
        What is read besides the clock.
    limits : Limits, optional
        What the worker processes may use.
    """

    def __init__(self, runtime: Runtime, meters: Sequence[Meter] = (), limits: Limits | None = None) -> None:
        self.runtime = runtime
        self.meters = tuple(meters)
        self.limits = limits
        self.isolated = runtime.portable and os.name == "posix"

    @property
    def platform(self) -> Platform:
        """Where the numbers are taken."""
        return self.runtime.platform

    def conditions(self) -> Conditions:
        """Say what the machine is like at this moment."""
        found = self.runtime.conditions()
        return replace(found, **_metered(self.meters)) if self.meters else found

    def open(self, protocol: Protocol, *, calls: bool = False) -> Bench:
        """Return a new bench in a worker process, or in this one."""
        if self.isolated:
            return IsolatedBench(self.runtime, protocol, calls=calls, meters=self.meters, limits=self.limits)
        return LocalBench(self.runtime, protocol, calls=calls, meters=self.meters)


class IsolatedBench(Bench):
    """A bench in a worker process, which is started again when it dies.

    Subjects and the runtime reach it by cloudpickle, so they may be defined in a script or a notebook.
    The worker does not see Ctrl-C, ends with this process, and is the first that Linux kills when memory runs out.

    Parameters
    ----------
    runtime, protocol, calls, meters
        As for `LocalBench`. The protocol's `timeout` is how long one command may take.
    limits : Limits, optional
        What the worker process may use.
    """

    def __init__(
        self,
        runtime: Runtime,
        protocol: Protocol,
        *,
        calls: bool = False,
        meters: Sequence[Meter] = (),
        limits: Limits | None = None,
    ) -> None:
        made = partial(LocalBench, runtime, protocol, calls=calls, meters=tuple(meters))
        self._payload = pack((made, limits), "The runtime")
        self._private = limits is not None
        self._timeout = protocol.timeout
        self._admitted: dict[str, bytes] = {}
        self._loaded: set[str] = set()
        self._worker: WorkerProcess | None = None

    def __enter__(self) -> IsolatedBench:
        """Start the worker."""
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the worker."""
        self._stop()

    def admit(self, subject: Subject) -> None:
        """Load a subject and run it once on its own inputs."""
        self.admit_packed(subject.key, pack_subject(subject))

    def admit_packed(self, key: str, packed: bytes) -> None:
        """Load a subject of which `pack_subject` made bytes; in this process they are not unpacked."""
        self._admitted[key] = packed
        try:
            self._load([key])
        except CandidateError:
            del self._admitted[key]
            raise

    def visit(self, keys: Sequence[str], *, calls: bool = True) -> Visit:
        """Warm up a network and time it."""
        self._load(keys)
        measured: Visit = self._ask("visit", tuple(keys), calls=calls)
        return measured

    def begin(self, key: str) -> None:
        """Get ready for `step`: the input of the network whose first subject has this key."""
        self._load([key])
        self._ask("begin", key)

    def step(self, key: str) -> None:
        """Run one subject on what the step before returned."""
        self._load([key])
        self._ask("step", key)

    def _load(self, keys: Sequence[str]) -> None:
        """Load what the worker does not hold; it holds nothing after it has died and was started again."""
        if self._worker is None:
            self._start()
        for key in keys:
            if key not in self._loaded:
                self._ask("admit", self._admitted[key])
                self._loaded.add(key)

    def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        if self._worker is None:
            raise WorkerDiedError("its process died before")
        try:
            kind, answer = self._worker.ask((method, arguments, options), self._timeout)
        except CandidateError:
            self._stop()
            raise
        if kind == "candidate":
            if "CUDA error" in answer:
                # Nothing works any more on a GPU's context after such an error.
                self._stop()
            raise CandidateError(answer)
        if kind == "error":
            raise answer
        return answer

    def _start(self) -> None:
        self._worker, self._loaded = WorkerProcess(self._payload, private=self._private), set[str]()

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.stop()
            self._worker = None


def _metered(meters: Sequence[Meter]) -> dict[str, Any]:
    """Say what reads the energy, what it assumes, and what the machine draws without work [W]."""
    idle = 0.0
    for meter in meters:
        if meter.metric == "energy":
            with meter.session():
                idle = meter.idle()
    return {
        "meter": "; ".join(meter.description for meter in meters),
        "meter_assumption": "; ".join(meter.assumption for meter in meters if meter.assumption) or None,
        "idle_power": idle or None,
    }
