# SPDX-License-Identifier: Apache-2.0
"""`DeviceRuntime`: a runtime whose networks are made here, and compiled, run and profiled on a device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from nni_latency.devices._agent import written
from nni_latency.devices._connection import Connection
from nni_latency.devices._device_bench import DeviceBenches
from nni_latency.devices._forecast import Size, size_without_weights
from nni_latency.devices._place import DevicePlace
from nni_latency.devices._waiting import Cooling
from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement import Benches, Clock, Fallback, Limits, Meter, PerfClock, Stage, Subject
from nni_latency.measurement.runtimes import ExportedRuntime, MakePlace, ProfiledRun, ProfiledRuntime, Runtime
from nni_latency.operators import Inputs
from nni_latency.platforms import FACTS, RUNTIME_FACT, Conditions, Platform, device_slug


class DeviceRuntime(Runtime):
    """A runtime of a device. Networks are exported, joined and attributed here, as its plugin does that.

    Large weights and inputs are replaced by random numbers of the same standard deviation, which the device draws by a
    seed; the latency does not depend on the values. Where that happens, the shapes of results are checked and not
    their values.

    Parameters
    ----------
    make : callable
        Makes the runtime of the plugin, given what makes its `Place`.
    connection : Connection
        How the device is reached.
    on_wait : callable
        Called with a sentence when the device is waited for.

    Raises
    ------
    InvalidValueError
        If the runtime has no adapter, and so runs on this machine alone.
    DeviceError
        If the device cannot be reached, or lacks what is needed there.
    """

    portable = runs_here = False

    #: Called with a sentence before the networks of a campaign are sent to the device, and after they were.
    on_send: Callable[[str], None] | None = None

    #: What becomes of weights when networks are sent, and what it takes to ask for one [byte].
    weights_note, request = "weights are drawn there", 1000.0

    #: Whether candidates are kept from one session to the next.
    _keeps_candidates = False

    #: How often the device is held.
    _holders = 0

    def __init__(
        self,
        make: Callable[[MakePlace], Runtime],
        connection: Connection,
        on_wait: Callable[[str], None] = lambda _sentence: None,
    ) -> None:
        places: list[DevicePlace] = []

        def make_place(module: str, settings: Any) -> DevicePlace:
            places.append(DevicePlace(connection, module, {**settings, "cores": list(connection.cores)}, on_wait))
            return places[-1]

        inner = make(make_place)
        if not isinstance(inner, ExportedRuntime) or not inner.adapter:
            raise InvalidValueError(
                f"The runtime {inner.name!r} runs on this machine alone: it has no adapter for a device. Take another "
                "one, such as onnxruntime."
            )
        self.inner, self.connection = inner, connection
        _ = inner.place
        (self.place,) = places
        self.name = inner.name
        self.supports_layer_timing, self.divides = inner.supports_layer_timing, inner.divides
        self.sees_calls, self.takes_onnx, self.least_runs = inner.sees_calls, inner.takes_onnx, inner.least_runs
        self.cooling = Cooling(connection, self.place.session.heat, on_wait)
        # Now, so that what is wrong there is the first thing that is said.
        self.place.session.open()

    @cached_property
    def platform(self) -> Platform:
        """The platform of the device."""
        facts = platform_facts(self.place.device_facts)
        # The cores of a phone differ, so those that were chosen are part of the platform.
        chosen = {"cores": written(list(self.connection.cores))} if self.connection.cores else {}
        own = {"version": self.inner.version, **chosen, **self.inner.identity}
        facts |= {f"{RUNTIME_FACT}{name}": value for name, value in own.items()}
        return Platform(device_slug(facts), self.name, self.inner.precision, self.inner.threads, facts)

    @property
    def sent(self) -> int:
        """Bytes sent to the device."""
        return self.place.session.sent

    def size_of(self, subject: Subject, built: Any) -> Size:
        """Estimate what a subject takes when it is sent, given what it builds."""
        return size_without_weights(subject, built)

    @cached_property
    def clock(self) -> Clock:
        """A clock of this machine; what is measured is timed by the device's own."""
        return PerfClock()

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Keep torch from recording gradients; the device is asked when there is something to run."""
        with torch.inference_mode():
            try:
                yield
            finally:
                if not self._keeps_candidates:
                    self.inner.forget_candidates()

    @contextlib.contextmanager
    def keeping_candidates(self) -> Iterator[None]:
        """Keep candidates, here and on the device, until the end: other sessions need not make and send them again."""
        self._keeps_candidates = True
        try:
            yield
        finally:
            self._keeps_candidates = False
            self.inner.forget_candidates()

    def inputs(self, like: Sequence[int] | Inputs) -> Any:
        """Make what a stage takes."""
        return self.inner.inputs(like)

    def prepare(self, subject: Subject, inputs: Any) -> Stage:
        """Build a module here, compile and run it there, and check the shapes of what it returns."""
        return self.inner.prepare(subject, inputs)

    def time_calls(self, stage: Stage, value: Any) -> list[float]:
        """Run a prepared network once there, and time its calls of torch functions."""
        return self.inner.time_calls(stage, value)

    def join(self, stages: Sequence[Stage], value: Any) -> Stage:
        """Join networks here."""
        return self.inner.join(stages, value)

    def join_parallel(self, stages: Sequence[Stage], values: Sequence[Any]) -> tuple[Stage, Any]:
        """Join networks here that run side by side."""
        return self.inner.join_parallel(stages, values)

    def divide(self, stage: Stage, value: Any, runs: int) -> list[list[float]]:
        """Run a network several times there, and attribute the times of its nodes to its parts."""
        return self.inner.divide(stage, value, runs)

    def fused_operators(self, subject: Subject, inputs: Any) -> list[tuple[str, tuple[str, ...]]] | None:
        """Say which operators of a network run there as one kernel."""
        return self.inner.fused_operators(subject, inputs)

    def layout_changes(self, subject: Subject, inputs: Any) -> int | None:
        """Say how often a network brings a tensor into another memory layout there."""
        return self.inner.layout_changes(subject, inputs)

    def fallbacks(self, stage: Stage, value: Any) -> tuple[Fallback, ...]:
        """Say which nodes do not run there as they were asked to."""
        return self.inner.fallbacks(stage, value)

    def benches(self, meters: Sequence[Meter] = (), limits: Limits | None = None) -> Benches:
        """Return the benches of the device.

        Raises
        ------
        MeasurementError
            If there is a meter: it would read this machine.
        """
        if meters:
            raise MeasurementError(
                f"{meters[0].description} reads this machine, and {self.connection.description} is another one. Omit "
                "the meter."
            )
        return DeviceBenches(self)

    def take(self) -> None:
        """Hold the device until `give_back` is called as often, so that no other process measures there meanwhile.

        Raises
        ------
        DeviceError
            If another process holds it for long, or it is lost.
        """
        if not self._holders:
            self._lock()
        self._holders += 1

    def give_back(self) -> None:
        """End what `take` began."""
        self._holders -= 1
        if not self._holders:
            self._unlock()

    def _lock(self) -> None:
        self.place.session.lock()

    def _unlock(self) -> None:
        self.place.session.unlock()

    def conditions(self) -> Conditions:
        """Say what the device is like at this moment."""
        return Conditions.from_dict(self.place.session.conditions())

    def speeds(self) -> dict[str, float]:
        """Measure how many operations the device computes per second, and how many bytes it moves, as numpy does it.

        The names are those of `nni_latency.platforms.measure_speeds`.
        """
        found = self.place.session.ask("speeds").values
        return {name: float(found[name]) for name in ("peak_flops", "memory_bandwidth")}

    @property
    def costs_around(self) -> bool:
        """Whether a profile costs something there, so that runs without one are timed around it."""
        return isinstance(self.inner, ProfiledRuntime) and self.inner.profile_cost.inside > 0

    def attribute(self, stage: Stage, profiles: Sequence[ProfiledRun], wholes: Sequence[float]) -> list[list[float]]:
        """Attribute the times of nodes to parts, as the plugin does that."""
        assert isinstance(self.inner, ProfiledRuntime), self.inner
        return self.inner.attribute(stage, profiles, wholes)

    def close(self) -> None:
        """End the agent on the device; it is started again when it is needed."""
        self.place.session.close()


def platform_facts(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a platform from those of its device; what a processor computes needs no memory of a GPU."""
    unused = "gpu_memory" if known["device_kind"] == "cpu" else "gpu_name"
    return {fact.name: known[fact.name] for fact in FACTS if fact.name in known and fact.name != unused}
