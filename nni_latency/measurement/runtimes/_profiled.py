"""Runtimes that compile a network whole, and tell what its nodes took."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch

from nni_latency.measurement._chain import Stage, time_chain
from nni_latency.measurement._subject import Subject
from nni_latency.measurement.runtimes._exported import Behind, ExportedRuntime, Native, Prepared, each_array
from nni_latency.measurement.runtimes._networks import ProfiledNetwork, ProfiledNode
from nni_latency.operators import Inputs, OnnxNetwork, Trace, join_onnx, trace

Profile = list[ProfiledNode]

#: What profiling costs leaves this share of a node's time at least.
_LEAST_LEFT = 0.1

#: Layers of the networks by which the cost of a profile is found, and how often they run.
_FEW_LAYERS, _MANY_LAYERS, _PROBE_RUNS = 4, 36, 20

_PROBE_SHAPE = (1, 16, 6, 6)


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
        natives = [stage for stage in stages if isinstance(stage, Native)]
        if natives:
            (prepared,) = stages[len(natives) :]
            assert isinstance(prepared, Prepared), prepared
            return Behind(natives, prepared)
        return self._settled(join_onnx([stage.network for stage in stages]), (value,))  # type: ignore[attr-defined]

    def divide(self, stage: Stage, value: Any, runs: int) -> list[list[float]]:
        """Run a network several times and put the time of its nodes down to its parts.

        The parts add up to what the network takes without a profile, in the median of as many runs. What profiling
        costs is taken off every node. What is outside of the nodes, such as taking the input, belongs to the first
        part. A node that the runtime made of its own accord belongs to the part of the node before.
        """
        if isinstance(stage, Behind):
            return self._divided_behind(stage, value, runs)
        assert isinstance(stage, Prepared), stage
        whole, profiles = self._profiled(stage, value, runs)
        usual = statistics.median(map(_sum, profiles))
        labels = [stage.network.label_of(node.names) for node in profiles[0]]
        main = stage.network.main_labels({label for label in labels if label is not None})
        return [self._divided(stage.network.n_labels, main, labels, nodes, whole - usual) for nodes in profiles]

    def _profiled(self, stage: Prepared, value: Any, runs: int) -> tuple[float, list[Profile]]:
        """Return the median time of a network without a profile [s], and profiles less what profiling costs."""
        assert isinstance(stage.compiled, ProfiledNetwork), stage.compiled
        arrays, cost = each_array(value), self.profile_cost
        whole = statistics.median(time_chain([stage], value, self.clock)[0] for _ in range(runs))
        return whole, [_without(cost, nodes) for nodes in stage.compiled.profile(lambda: arrays, runs)]

    def fused_operators(self, subject: Subject, inputs: Any) -> list[tuple[str, tuple[str, ...]]]:
        """Say which operators of a network run as one kernel, by the names of the nodes that the runtime has made."""
        stage = self.prepare(subject, inputs)
        nodes = self._nodes(stage, inputs)
        like = subject.inputs
        example = (*like.args, dict(like.kwargs)) if isinstance(like, Inputs) else torch.from_numpy(inputs)
        traced = trace(subject.build().eval(), example, "graph")
        return _named_kernels(traced, nodes, stage.network)  # type: ignore[attr-defined]

    def layout_changes(self, subject: Subject, inputs: Any) -> int:
        """Count the nodes that bring a tensor into another memory layout."""
        return sum(node.changes_layout for node in self._nodes(self.prepare(subject, inputs), inputs))

    def _nodes(self, stage: Stage, inputs: Any) -> Profile:
        """Run a network once and return its nodes."""
        assert isinstance(stage, Prepared), stage
        assert isinstance(stage.compiled, ProfiledNetwork), stage.compiled
        return stage.compiled.profile(lambda: each_array(inputs), 1)[0]

    def time_calls(self, stage: Stage, value: Any) -> list[float]:
        """Run a prepared network once and say what its calls of torch functions took."""
        return self.divide(stage, value, 1)[0]

    def _divided_behind(self, stage: Behind, value: Any, runs: int) -> list[list[float]]:
        """Say what the nodes of a network took; what was run before it has next to no time of its own.

        Between its neighbours in a network, a kernel finds its input in the layout that it wants. So nodes count that
        change the layout only if there are no others.
        """
        compiled = stage.prepared.compiled
        assert isinstance(compiled, ProfiledNetwork), compiled
        cost, least = self.profile_cost, self.clock.resolution
        before = [least] * len(stage.natives)
        profiles = compiled.profile(lambda: each_array(stage.inputs(value)), runs)
        own = [[node for node in nodes if not node.changes_layout] or nodes for nodes in profiles]
        return [[*before, max(_sum(_without(cost, nodes)), least)] for nodes in own]

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
        assert isinstance(stage, Prepared), stage
        assert isinstance(stage.compiled, ProfiledNetwork), stage.compiled
        wholes = [time_chain([stage], inputs, self.clock)[0] for _ in range(_PROBE_RUNS)]
        profiles = stage.compiled.profile(lambda: each_array(inputs), _PROBE_RUNS)
        return len(profiles[0]), statistics.median(map(_sum, profiles)) - statistics.median(wholes)

    def _divided(
        self,
        count: int,
        main: Mapping[int, int],
        labels: Sequence[int | None],
        nodes: Profile,
        outside: float,
    ) -> list[float]:
        """Add up the times of nodes by part; `outside` is what they lack of the network's time, or have too much."""
        over = max(0.0, -outside) / max(1, len(nodes))
        times, place = [0.0] * count, 0
        times[0] = max(0.0, outside)
        has_begun = False
        for label, node in zip(labels, _without(over, nodes), strict=True):
            has_begun = has_begun or not node.changes_layout
            # What brings the input into another layout is named by the operator that takes it.
            place = place if label is None or not has_begun else main[label]
            times[place] += node.seconds
        return [max(seconds, self.clock.resolution) for seconds in times]


def _sum(nodes: Profile) -> float:
    return math.fsum(node.seconds for node in nodes)


def _without(cost: float, nodes: Profile) -> Profile:
    """Take what profiling costs off the time of every node."""
    return [dataclasses.replace(node, seconds=max(node.seconds - cost, _LEAST_LEFT * node.seconds)) for node in nodes]


def _probe(layers: int) -> torch.nn.Module:
    """Return a network of small layers that nothing fuses."""
    return torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.MaxPool2d(3, 1, 1), torch.nn.Softmax(1)) for _ in range(layers))
    )


def _named_kernels(traced: Trace, nodes: Profile, network: OnnxNetwork) -> list[tuple[str, tuple[str, ...]]]:
    """Name kernels by their longest node, and the operators in them; what has no node anywhere was folded away."""
    kernels = network.kernels([node.names for node in nodes])
    longest = sorted(nodes, key=lambda node: -node.seconds)
    names = {
        main: next(node.names[0] for node in longest if network.label_of(node.names) in calls)
        for main, calls in kernels.items()
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
