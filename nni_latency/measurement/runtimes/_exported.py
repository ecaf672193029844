"""What the runtimes share that take a network as ONNX and compile it whole, and those that tell what its nodes took."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement._chain import Clock, PerfClock, Stage, time_chain
from nni_latency.measurement._subject import Subject
from nni_latency.measurement.runtimes._affinity import choose_processors
from nni_latency.measurement.runtimes._base import Runtime
from nni_latency.measurement.runtimes._session import check_threads, computing
from nni_latency.measurement.runtimes._settling import Unpacking, with_values
from nni_latency.measurement.runtimes._torch_runtime import _is_plain
from nni_latency.operators import Inputs, OnnxNetwork, Trace, export_onnx, join_onnx, tensors_in, trace
from nni_latency.platforms import RUNTIME_FACT, Conditions, Platform, current_platform, read_conditions

Arrays = tuple[NDArray[Any], ...]

#: By run, the names and the time [s] of every node.
Profiles = list[list[tuple[Sequence[str], float]]]

#: How far results may be off from those of torch by precision: the length of the difference over that of the result.
_TOLERANCE = {"fp32": 1e-3, "fp16": 2e-2, "bf16": 5e-2, "int8": 0.3}

#: What profiling costs leaves this share of a node's time at least.
_LEAST_LEFT = 0.1

#: Layers of the networks by which the cost of a profile is found, and how often they run.
_FEW_LAYERS, _MANY_LAYERS, _PROBE_RUNS = 4, 36, 20

_PROBE_SHAPE = (1, 16, 6, 6)

#: Runs until what a runtime does once is done.
_SETTLING_RUNS = 2


def _each(value: Any) -> Arrays:
    """Return what a stage takes as the inputs of a network, one or several."""
    return value if isinstance(value, tuple) else (value,)


class CompiledNetwork(ABC):
    """A network as a runtime has compiled it."""

    @abstractmethod
    def run(self, inputs: Arrays) -> Sequence[NDArray[Any]]:
        """Run it once."""


class ProfiledNetwork(CompiledNetwork):
    """A compiled network that tells what its nodes take."""

    @abstractmethod
    def profile(self, make_inputs: Callable[[], Arrays], runs: int) -> Profiles:
        """Run it several times, each time on new inputs.

        Returns
        -------
        list of list of (names, seconds)
            By run, in the order in which they ran, what every node took [s]: its own name and those of the operators
            or tensors of the original network that it stands for.
        """


@dataclasses.dataclass(frozen=True)
class _Prepared:
    """A network that can be run and joined to others."""

    network: OnnxNetwork
    compiled: CompiledNetwork

    def __call__(self, value: Any) -> Any:
        found = self.compiled.run(_each(value))
        return found[0] if len(found) == 1 else tuple(found)


class _Native:
    """What runs in torch before a network."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __call__(self, value: Any) -> Any:
        made = list(tensors_in(self._module(*map(torch.from_numpy, _each(value)))))
        return made[0].numpy() if len(made) == 1 else tuple(tensor.numpy() for tensor in made)


@dataclasses.dataclass(frozen=True)
class _Behind:
    """A network behind what makes its inputs and empties the caches."""

    natives: Sequence[_Native]
    prepared: _Prepared

    def inputs(self, value: Any) -> Any:
        """Make the inputs of the network."""
        for native in self.natives:
            value = native(value)
        return value

    def __call__(self, value: Any) -> Any:
        return self.prepared(self.inputs(value))


class ExportedRuntime(Runtime):
    """Base of runtimes that compile a network from ONNX, and are timed from the outside.

    A subclass gives `name`, `version`, `precisions` and `_compile`.

    Parameters
    ----------
    device : str, default="cpu"
        Where it runs.
    threads : int, default=1
        Threads that compute one network.
    precision : str, default="fp32"
        One of `precisions`.

    Raises
    ------
    InvalidValueError
        If the precision is none of them, or the threads are not positive.
    """

    supports_layer_timing = False

    #: Precisions that it computes in.
    precisions: tuple[str, ...] = ("fp32",)

    #: Devices that it computes on.
    devices: tuple[str, ...] = ("cpu",)

    def __init__(self, device: str = "cpu", *, threads: int = 1, precision: str = "fp32") -> None:
        if precision not in self.precisions:
            raise InvalidValueError(
                f"The runtime {self.name!r} computes in {', '.join(self.precisions)}. Got the precision {precision!r}."
            )
        if device not in self.devices:
            raise InvalidValueError(f"The runtime {self.name!r} runs on {', '.join(self.devices)}. Got {device!r}.")
        self.device, self.threads, self.precision = device, check_threads(threads), precision
        self._candidates: dict[tuple[str, Any], Stage] = {}

    @property
    @abstractmethod
    def version(self) -> str:
        """Version of the runtime."""

    @property
    def identity(self) -> dict[str, Any]:
        """What else tells its platforms apart, by names without ``runtime.``."""
        return {}

    @abstractmethod
    def _compile(self, network: OnnxNetwork, inputs: Arrays) -> CompiledNetwork:
        """Compile a network for such inputs, which are also what it is calibrated on where it is quantised.

        Raises
        ------
        MeasurementError
            If it cannot be compiled, or would not run where and in the precision that was asked for.
        """

    @cached_property
    def platform(self) -> Platform:
        """Where its numbers are taken; read once."""
        found = current_platform(self.device, runtime=self.name, precision=self.precision, threads=self.threads)
        own = {f"{RUNTIME_FACT}{name}": value for name, value in {"version": self.version, **self.identity}.items()}
        facts = {**found.facts, **own}
        if self._processors:
            facts["cpu_affinity"] = ",".join(map(str, self._processors))
        return dataclasses.replace(found, facts=facts)

    @cached_property
    def clock(self) -> Clock:
        """The processor's clock: a run is over when the call returns."""
        return PerfClock()

    @cached_property
    def _processors(self) -> tuple[int, ...]:
        return choose_processors(self.threads)

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Hold what `computing` sets, as the runtimes of torch do; forget candidates afterwards."""
        # Read before the processors are taken away: it says how many there are.
        _ = self.platform
        with computing(self.threads, self._processors):
            try:
                yield
            finally:
                self._candidates.clear()

    def inputs(self, like: Sequence[int] | Inputs) -> Any:
        """Make normally distributed numbers, the same ones every time; or take tensors, whole numbers as they are."""
        if isinstance(like, Inputs):
            arrays = tuple(with_values(tensor).numpy() for tensor in like.tensors)
            return arrays[0] if _is_plain(like) else arrays
        return torch.randn(*like, generator=torch.Generator().manual_seed(0)).numpy()

    def prepare(self, subject: Subject, inputs: Any) -> Stage:
        """Build a module, compile it, and check what it computes against torch; or compile a network in ONNX.

        Candidates that compute the same are compiled once.
        """
        if subject.kind != "candidate" or not subject.digest:
            return self._prepared(subject, inputs)
        known = subject.digest, subject.inputs
        if known not in self._candidates:
            self._candidates[known] = self._prepared(subject, inputs)
        return self._candidates[known]

    def _prepared(self, subject: Subject, inputs: Any) -> Stage:
        built = subject.build()
        if isinstance(built, OnnxNetwork):
            # There is nothing of torch to hold its results against.
            return self._settled(built, _each(inputs))
        module = built.eval().requires_grad_(False)
        if getattr(module, "native", False):
            return _Native(module)
        if isinstance(inputs, tuple):
            module = Unpacking(module, subject.inputs).eval()
        arrays = _each(inputs)
        # Outside of inference mode, in which the exporter cannot fold constants.
        with torch.inference_mode(False), torch.no_grad():
            tensors = [torch.from_numpy(array.copy()) for array in arrays]
            expected = tensors_in(module(*(tensor.clone() for tensor in tensors)))
            network = export_onnx(module, tensors)
        prepared = self._settled(network, arrays)
        self._check(prepared.compiled.run(arrays), [item.float().numpy() for item in expected])
        return prepared

    def conditions(self) -> Conditions:
        """Say what the device is like at this moment."""
        return read_conditions(self.device)

    def _settled(self, network: OnnxNetwork, arrays: Arrays) -> _Prepared:
        compiled = self._compile(network, arrays)
        for _ in range(_SETTLING_RUNS):
            compiled.run(arrays)
        return _Prepared(network, compiled)

    def _check(self, found: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]]) -> None:
        """Raise `MeasurementError` if a network computes something else than in torch."""
        if len(found) != len(expected):
            raise MeasurementError(f"{self.name} returns {len(found)} results, and torch {len(expected)}.")
        for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
            if mine.shape != theirs.shape:
                raise MeasurementError(
                    f"{self.name} returns the shape {mine.shape} for result {number}, and torch {theirs.shape}."
                )
            off = float(np.linalg.norm(mine.astype(np.float64) - theirs) / max(1e-6, float(np.linalg.norm(theirs))))
            if not off <= _TOLERANCE[self.precision]:
                raise MeasurementError(
                    f"{self.name} computes something else than torch: result {number} is off by {off:.1%}, where "
                    f"{_TOLERANCE[self.precision]:.1%} would be the rounding of {self.precision}."
                )


class ProfiledRuntime(ExportedRuntime):
    """Base of exported runtimes with a profile of their own, by which they divide networks; see `ExportedRuntime`.

    Its `_compile` returns a `ProfiledNetwork`.
    """

    supports_layer_timing = True
    divides = True
    sees_calls = True
    least_runs = 5

    def join(self, stages: Sequence[Stage], value: Any) -> Stage:
        """Compile networks that run one after another as one; what prepares them runs before, in torch."""
        natives = [stage for stage in stages if isinstance(stage, _Native)]
        if natives:
            (prepared,) = stages[len(natives) :]
            assert isinstance(prepared, _Prepared), prepared
            return _Behind(natives, prepared)
        return self._settled(join_onnx([stage.network for stage in stages]), (value,))  # type: ignore[attr-defined]

    def divide(self, stage: Stage, value: Any, runs: int) -> list[list[float]]:
        """Run a network several times and put the time of its nodes down to its parts.

        The parts add up to what the network takes without a profile, in the median of as many runs. What profiling
        costs is taken off every node. What is outside of the nodes, such as taking the input, belongs to the first
        part. A node that the runtime made of its own accord belongs to the part of the node before.
        """
        if isinstance(stage, _Behind):
            return self._divided_behind(stage, value, runs)
        assert isinstance(stage, _Prepared), stage
        whole, profiles = self._profiled(stage, value, runs)
        usual = statistics.median(math.fsum(seconds for _, seconds in nodes) for nodes in profiles)
        labels = [stage.network.label_of(names) for names, _ in profiles[0]]
        main = stage.network.main_labels({label for label in labels if label is not None})
        return [self._divided(stage.network.n_labels, main, labels, nodes, whole - usual) for nodes in profiles]

    def _profiled(self, stage: _Prepared, value: Any, runs: int) -> tuple[float, Profiles]:
        """Return the median time of a network without a profile [s], and profiles less what profiling costs."""
        assert isinstance(stage.compiled, ProfiledNetwork), stage.compiled
        arrays, mark = _each(value), self.profile_cost
        whole = statistics.median(time_chain([stage], value, self.clock)[0] for _ in range(runs))
        profiles = stage.compiled.profile(lambda: arrays, runs)
        return whole, [[(names, _without(mark, seconds)) for names, seconds in nodes] for nodes in profiles]

    def fused_operators(self, subject: Subject, inputs: Any) -> list[tuple[str, tuple[str, ...]]]:
        """Say which operators of a network run as one kernel, by the names of the nodes that the runtime has made."""
        stage = self.prepare(subject, inputs)
        assert isinstance(stage, _Prepared), stage
        assert isinstance(stage.compiled, ProfiledNetwork), stage.compiled
        arrays = _each(inputs)
        nodes = stage.compiled.profile(lambda: arrays, 1)[0]
        like = subject.inputs
        example = (*like.args, dict(like.kwargs)) if isinstance(like, Inputs) else torch.from_numpy(inputs)
        traced = trace(subject.build().eval(), example, "graph")
        return _named_kernels(traced, nodes, stage.network)

    def time_calls(self, stage: Stage, value: Any) -> list[float]:
        """Run a prepared network once and say what its calls of torch functions took."""
        return self.divide(stage, value, 1)[0]

    def _divided_behind(self, stage: _Behind, value: Any, runs: int) -> list[list[float]]:
        """Say what the nodes of a network took; what was run before it has next to no time of its own."""
        compiled = stage.prepared.compiled
        assert isinstance(compiled, ProfiledNetwork), compiled

        mark, least = self.profile_cost, self.clock.resolution
        before = [least] * len(stage.natives)
        profiles = compiled.profile(lambda: _each(stage.inputs(value)), runs)
        return [[*before, max(math.fsum(_without(mark, taken) for _, taken in nodes), least)] for nodes in profiles]

    @cached_property
    def profile_cost(self) -> float:
        """What a profile adds to the time of every node [s], found in a session from networks of few nodes and of many.

        What lies outside of the nodes is the same for both, and falls out of their difference.
        """
        (few, less), (many, more) = (self._profiled_beyond(layers) for layers in (_FEW_LAYERS, _MANY_LAYERS))
        return max(0.0, (more - less) / (many - few))

    def _profiled_beyond(self, layers: int) -> tuple[int, float]:
        """Return how many nodes a small network has, and how much longer than it they take with a profile [s]."""
        subject = Subject(f"probe of {layers} layers", partial(_probe, layers), _PROBE_SHAPE, "network")
        inputs = self.inputs(subject.inputs)
        stage = self._prepared(subject, inputs)
        assert isinstance(stage, _Prepared), stage
        assert isinstance(stage.compiled, ProfiledNetwork), stage.compiled
        wholes = [time_chain([stage], inputs, self.clock)[0] for _ in range(_PROBE_RUNS)]
        profiles = stage.compiled.profile(lambda: _each(inputs), _PROBE_RUNS)
        sums = [math.fsum(seconds for _, seconds in nodes) for nodes in profiles]
        return len(profiles[0]), statistics.median(sums) - statistics.median(wholes)

    def _divided(
        self,
        count: int,
        main: Mapping[int, int],
        labels: Sequence[int | None],
        nodes: Sequence[tuple[Sequence[str], float]],
        outside: float,
    ) -> list[float]:
        """Add up the times of nodes by part; `outside` is what they lack of the network's time, or have too much."""
        over = max(0.0, -outside) / max(1, len(nodes))
        times, place = [0.0] * count, 0
        times[0] = max(0.0, outside)
        for label, (_, seconds) in zip(labels, nodes, strict=True):
            place = place if label is None else main[label]
            times[place] += max(seconds - over, _LEAST_LEFT * seconds)
        return [max(seconds, self.clock.resolution) for seconds in times]


def _without(mark: float, seconds: float) -> float:
    """Take what profiling costs off the time of a node."""
    return max(seconds - mark, _LEAST_LEFT * seconds)


def _probe(layers: int) -> torch.nn.Module:
    """Return a network of small layers that nothing fuses."""
    return torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.MaxPool2d(3, 1, 1), torch.nn.Softmax(1)) for _ in range(layers))
    )


def _named_kernels(
    traced: Trace, nodes: Sequence[tuple[Sequence[str], float]], network: OnnxNetwork
) -> list[tuple[str, tuple[str, ...]]]:
    """Name kernels by their longest node, and the operators in them; what has no node anywhere was folded away."""
    kernels = network.kernels([names for names, _ in nodes])
    longest = sorted(nodes, key=lambda node: -node[1])
    names = {
        main: next(item[0] for item, _ in longest if network.label_of(item) in calls) for main, calls in kernels.items()
    }
    by_call = {call: main for main, calls in kernels.items() for call in calls}
    found: dict[int, list[str]] = {main: [] for main in kernels}
    kernel_of: list[int | None] = []
    begin = 0
    for item in traced.operators:
        calls = range(begin, item.last_call + 1)
        begin = item.last_call + 1
        main = next((by_call[call] for call in calls if call in by_call), None)
        if main is None:  # in the weights of the operator before
            main = next((kernel_of[source] for source in item.sources if kernel_of[source] is not None), None)
        kernel_of.append(main)
        if main is not None:
            found[main].append(item.name)
    return [(names[main], tuple(operators)) for main, operators in found.items() if operators]
