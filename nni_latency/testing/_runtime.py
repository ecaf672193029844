# SPDX-License-Identifier: Apache-2.0
"""`FakeRuntime`: a runtime with invented times, and the clock that they advance."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement import Stage, Subject
from nni_latency.measurement.runtimes import Runtime, Unpacking
from nni_latency.operators import By, FusionRules, Inputs, OpSpec, Trace, freeze_inputs, freeze_shapes, fuse, trace
from nni_latency.platforms import Platform
from nni_latency.tables import MeasurePlan, PlanCandidate, PlanLayer, SpaceReference


class FakeClock:
    """A clock for tests; it satisfies `nni_latency.measurement.Clock`. Not thread-safe.

    Parameters
    ----------
    now : float, default=0.0
        What it shows at first [s].
    resolution : float, default=1e-9
        The shortest time that it can resolve [s].

    Examples
    --------
    >>> clock = FakeClock()
    >>> begin = clock.mark()
    >>> clock.advance(0.25)
    >>> clock.intervals([begin, clock.mark()])
    [0.25]
    """

    def __init__(self, now: float = 0.0, *, resolution: float = 1e-9) -> None:
        self.now = now
        self.resolution = resolution

    def advance(self, seconds: float) -> None:
        """Let time pass.

        Raises
        ------
        InvalidValueError
            If the time is negative or not a number.
        """
        if not seconds >= 0:
            raise InvalidValueError(f"The 'seconds' that a FakeClock advances must be >= 0. Got {seconds!r}.")
        self.now += seconds

    def mark(self) -> float:
        """Note this moment."""
        return self.now

    def intervals(self, marks: Sequence[float]) -> list[float]:
        """Return the times between neighbouring marks [s]."""
        return [after - before for before, after in itertools.pairwise(marks)]


#: Time of every operator [s]: by `OpSpec.op_key`, or computed of the `OpSpec`.
Latencies = Mapping[str, float] | Callable[[OpSpec], float]

_SHAPE = (1, 4)


class FakeModule(nn.Module):
    """A block that computes nothing and says that it is a given operator.

    Parameters
    ----------
    op : OpSpec
        What it claims to be, whatever its input.
    """

    def __init__(self, op: OpSpec) -> None:
        super().__init__()
        self.op = op

    def op_spec(self, *input_shapes: Sequence[int]) -> OpSpec:
        """Return the operator."""
        return self.op

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the input."""
        return inputs


class FakeRuntime(Runtime):
    """A runtime for tests: it computes shapes alone, and its clock moves by injected times.

    It runs any module on meta tensors; a module takes the sum of the times of its operators. It sees calls: the time of
    an operator is that of its last one.

    Parameters
    ----------
    latencies : mapping of str to float, or callable
        Time of every operator [s], by its ``op_key`` or as a function of its `OpSpec`.
    clock : FakeClock, optional
        The clock that it moves.
    noise : callable, optional
        Called for every run of a module; what it returns is added to the time [s].
    drift : callable, optional
        Called for every run of a module and of the reference operator; what it returns is a factor on the time.
    platform : Platform, optional
        What it claims to be.
    by : {"module", "graph"}, default="module"
        What counts as an operator, see `nni_latency.operators.trace`.
    mark : float, default=0.0
        What the mark after every call costs [s].
    rules : FusionRules, optional
        What it runs as one kernel, which takes what its slowest operator does; nothing by default.

    Examples
    --------
    >>> runtime = FakeRuntime(lambda op: 0.5)
    >>> inputs = runtime.inputs((1, 3))
    >>> _ = runtime.prepare(Subject("relu", nn.ReLU), inputs)(inputs)
    >>> runtime.clock.now
    0.5
    """

    name = "fake"
    # Its clock belongs to the test.
    portable = False
    sees_calls = True

    #: Time of the reference operator [s]: a power of two, so that dividing by it and multiplying again changes no time.
    reference_time = 2.0**-10

    def __init__(
        self,
        latencies: Latencies,
        *,
        clock: FakeClock | None = None,
        noise: Callable[[], float] = lambda: 0.0,
        drift: Callable[[], float] = lambda: 1.0,
        platform: Platform | None = None,
        by: By = "module",
        mark: float = 0.0,
        rules: FusionRules | None = None,
    ) -> None:
        self.latencies = latencies
        self.by = by
        self.mark = mark
        self.noise = noise
        self.drift = drift
        self.sessions = 0
        self._clock = clock or FakeClock()
        self._platform = platform or Platform("fake-device", self.name)
        self._rules = rules or FusionRules(self._platform)

    @property
    def platform(self) -> Platform:
        """What it claims to be."""
        return self._platform

    @property
    def clock(self) -> FakeClock:
        """The clock that it moves."""
        return self._clock

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Count the sessions in `sessions`; nothing needs to be set."""
        self.sessions += 1
        yield

    def prepare(self, subject: Subject, inputs: Any) -> Stage:
        """Return what moves the clock by the module's time and gives its output, without computing it."""
        module = subject.build()
        return _FakeStage(self, Unpacking(module, subject.inputs) if isinstance(inputs, tuple) else module)

    def time_calls(self, stage: Stage, value: Any) -> list[float]:
        """Move the clock call by call, marks included."""
        assert isinstance(stage, _FakeStage)
        factor = self.drift()
        times = [seconds * factor + self.mark for seconds in stage.call_times(value)]
        for seconds in times:
            self._clock.advance(seconds)
        return [max(seconds, self._clock.resolution) for seconds in times]

    def inputs(self, like: Sequence[int] | Inputs) -> Any:
        """Make inputs of those shapes, without numbers."""
        if not isinstance(like, Inputs):
            return torch.empty(*like, device="meta")
        tensors = freeze_inputs(like.tensors).tensors
        return tensors[0] if len(tensors) == 1 and not like.kwargs else tensors

    def reference(self) -> tuple[Stage, Any]:
        """Return what moves the clock by the reference operator's time, whatever its input."""

        def run(inputs: Any) -> Any:
            self._clock.advance(self.reference_time * self.drift())
            return inputs

        return run, None

    def latency_of(self, op: OpSpec) -> float:
        """Return the time of an operator [s]."""
        if callable(self.latencies):
            return self.latencies(op)
        if op.op_key not in self.latencies:
            raise MeasurementError(f"The fake runtime was given no latency for the operator {op.op_key}.")
        return self.latencies[op.op_key]

    def network_latency(self, network: Trace) -> float:
        """Return the time of a network [s]: the sum of its kernels, each as long as its slowest operator."""
        return sum(max(self.latency_of(item.op) for item in kernel) for kernel in fuse(network, self._rules))


class _FakeStage:
    """A prepared module: moves the clock by its time and gives its output, without computing it."""

    def __init__(self, runtime: FakeRuntime, module: Any) -> None:
        self._runtime, self._module = runtime, module
        self._known: dict[Any, tuple[float, Any]] = {}

    def __call__(self, inputs: Any) -> Any:
        shapes = tuple(tuple(tensor.shape) for tensor in freeze_shapes(inputs))
        if shapes not in self._known:
            seconds = self._runtime.network_latency(trace(self._module, inputs, self._runtime.by))
            outputs = self._module.to("meta").eval()(*inputs if isinstance(inputs, tuple) else (inputs,))
            self._known[shapes] = seconds, outputs
        seconds, outputs = self._known[shapes]
        self._runtime.clock.advance((seconds + self._runtime.noise()) * self._runtime.drift())
        return outputs

    def call_times(self, inputs: Any) -> list[float]:
        """Return the time of every call [s], that of each operator at its last one."""
        traced = trace(self._module, inputs, self._runtime.by)
        times = [0.0] * traced.n_calls
        for item in traced.operators:
            times[item.last_call] += self._runtime.latency_of(item.op)
        return times


def fake_plan(
    latencies: Mapping[str, Mapping[str, float]], *, fixed: Sequence[str] = (), **arguments: Any
) -> tuple[MeasurePlan, dict[str, float]]:
    """Make a plan of invented blocks, and the times that a `FakeRuntime` needs to run it.

    Parameters
    ----------
    latencies : mapping
        ``{layer: {choice: seconds}}``.
    fixed : sequence of str, default=()
        Layers that the space does not choose; their first choice stands there.
    **arguments
        Arguments of the invented space.

    Returns
    -------
    plan : MeasurePlan
    by_op_key : dict of str to float
        For `FakeRuntime`.

    Examples
    --------
    >>> plan, latencies = fake_plan({"a": {"x": 0.001, "y": 0.002}})
    >>> plan.sizes, sorted(latencies.values())
    ((2,), [0.001, 0.002])
    """
    ops = {
        (layer, choice): OpSpec.of("identity", [_SHAPE], choice=choice, layer=layer)
        for layer, choices in latencies.items()
        for choice in choices
    }
    layers = tuple(
        PlanLayer(
            layer,
            {choice: _candidate(ops[layer, choice]) for choice in choices},
            layer not in fixed,
            next(iter(choices)) if layer in fixed else None,
        )
        for layer, choices in latencies.items()
    )
    by_op_key = {op.op_key: latencies[layer][choice] for (layer, choice), op in ops.items()}
    return MeasurePlan(SpaceReference("fake", arguments), _SHAPE, layers), by_op_key


def _candidate(op: OpSpec) -> PlanCandidate:
    return PlanCandidate(op, lambda: FakeModule(op))
