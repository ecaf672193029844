# SPDX-License-Identifier: Apache-2.0
"""Base of the runtimes that compile whole networks and report the times of their nodes."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nni_latency.measurement._cold import near_flush_size
from nni_latency.measurement._subject import Subject
from nni_latency.measurement._timing import Stage, time_chain
from nni_latency.measurement.runtimes._base import Arrays, ProfileCost, ProfiledNetwork, ProfiledNode, ProfiledRun
from nni_latency.measurement.runtimes._exported import Chained, ExportedRuntime, Native, Parallel, Prepared, each_array
from nni_latency.operators import (
    Inputs,
    OnnxNetwork,
    Trace,
    add_consumers,
    add_producers,
    join_onnx,
    parallel_onnx,
    trace,
)
from nni_latency.units import number_of

Nodes = Sequence[ProfiledNode]

#: Factory of the inputs of a run.
Feed = Callable[[], Arrays]

#: Layers of the networks that determine the overhead of a profile, and the number of their runs.
_FEW_LAYERS, _MANY_LAYERS, _PROBE_RUNS = 4, 36, 20

#: Total time of the runs of kernels in one visit [s], and their largest number: profiles have a resolution of a
#: microsecond, and small kernels take few of them.
KERNEL_SECONDS, MOST_KERNEL_RUNS = 0.04, 60

_PROBE_SHAPE = (1, 16, 6, 6)


class ProfiledRuntime(ExportedRuntime):
    """Base of exported runtimes that divide networks by a profiler; see `ExportedRuntime`.

    Its `_compile` returns a `ProfiledNetwork`.
    """

    supports_layer_timing = True
    divides = True
    sees_calls = True
    least_runs = 5

    def join(self, stages: Sequence[Stage], value: Any) -> Stage:
        """Compile networks that run in sequence to one; native modules before them run in torch."""
        natives = [stage for stage in stages if isinstance(stage, Native)]
        if natives:
            (prepared,) = stages[len(natives) :]
            assert isinstance(prepared, Prepared), prepared
            return Chained(natives, prepared)
        return self._warmed_up(join_onnx([stage.network for stage in stages]), (value,))  # type: ignore[attr-defined]

    def join_parallel(self, stages: Sequence[Stage], values: Sequence[Any]) -> tuple[Stage, Any]:
        """Compile independent networks to one, with layers before their inputs and after their feature maps."""
        arrays = [each_array(value) for value in values]
        networks = [stage.network for stage in stages]  # type: ignore[attr-defined]
        network = add_producers(add_consumers(parallel_onnx(networks, list(map(len, arrays)))))
        together = tuple(itertools.chain.from_iterable(arrays))
        return Parallel(network, self._warmed_up(network, together).compiled), together

    def divide(self, stage: Stage, value: Any, runs: int) -> list[list[float]]:
        """Run a network several times and attribute the times of its nodes to its parts.

        A run reports the times of its nodes. The time outside of the nodes, such as that of copying the input, belongs
        to the first part. If a profile has an overhead, it is subtracted, and the runs are scaled to the median of as
        many runs without a profile. A node that the runtime added belongs to the part of the previous node.

        The times of independent networks, and of a network after native modules, are those of their nodes alone. Inside
        a network, a kernel finds its input in the layout that it needs; therefore, nodes that change the layout count
        only if there are no others.
        """
        _ = self.profile_cost  # determined before the runs, not between them
        if isinstance(stage, Chained):
            return self.attribute(stage, _profile(stage.prepared, lambda: each_array(stage.inputs(value)), runs))
        assert isinstance(stage, Prepared), stage
        if isinstance(stage, Parallel):
            (once,) = self._wholes(stage, value, 1)
            runs = max(runs, min(MOST_KERNEL_RUNS, math.ceil(KERNEL_SECONDS / once)))
            return self.attribute(stage, _profile(stage, lambda: _after_others(value), runs))
        return self.attribute(stage, *self._between_wholes(stage, value, runs))

    def attribute(
        self, stage: Stage, profiles: Sequence[ProfiledRun], wholes: Sequence[float] = ()
    ) -> list[list[float]]:
        """Return the times of the parts of a network in every run from its profiles, as `divide` does.

        Parameters
        ----------
        stage : Stage
            The network.
        profiles : sequence of ProfiledRun
            Its runs with a profile.
        wholes : sequence of float
            Times of runs without a profile, before and after those [s]; none for independent networks, for a network
            after native modules, and for a profile without overhead.
        """
        runs = self._without_profile(profiles, wholes)
        if isinstance(stage, Chained):
            return self._by_chain(stage, runs)
        assert isinstance(stage, Prepared), stage
        return self._by_network(stage, runs) if isinstance(stage, Parallel) else self._by_part(stage, runs)

    def _without_profile(self, profiles: Sequence[ProfiledRun], wholes: Sequence[float]) -> list[ProfiledRun]:
        """Return runs without the overhead of the profile."""
        cost = self.profile_cost
        if cost == ProfileCost():
            return list(profiles)
        runs = [cost.taken_off(run) for run in profiles]
        return cost.brought_to(statistics.median(wholes), runs) if wholes else runs

    def _by_part(self, stage: Prepared, runs: Sequence[ProfiledRun]) -> list[list[float]]:
        """Return the times of the parts of a network in every run [s]."""
        nodes = runs[0].nodes
        labels = [stage.network.label_of(node.names) for node in nodes]
        # A node that changes the layout of a tensor has the name of an operator that may be fused with others.
        main = stage.network.main_labels([node.names for node in nodes if not node.changes_layout])
        return [self._divided(stage.network.n_labels, main, labels, run) for run in runs]

    def _between_wholes(self, stage: Prepared, value: Any, runs: int) -> tuple[list[ProfiledRun], list[float]]:
        """Profile runs; if the profile has an overhead, also time as many runs without it before and after them [s]."""
        before, after = _halves(runs) if self.profile_cost != ProfileCost() else (0, 0)
        wholes = self._wholes(stage, value, before)
        profiles = _profile(stage, lambda: each_array(value), runs)
        return profiles, wholes + self._wholes(stage, value, after)

    def _wholes(self, stage: Prepared, value: Any, runs: int) -> list[float]:
        """Return the times of runs without a profile [s]."""
        there = stage.compiled.times(each_array(value), runs) if runs else []
        return [time_chain([stage], value, self.clock)[0] for _ in range(runs)] if there is None else there

    def fused_operators(self, subject: Subject, inputs: Any) -> list[tuple[str, tuple[str, ...]]]:
        """Return which operators of a network run as one kernel, by the names of the runtime's nodes.

        A further layer reads the output of the network, as in a larger network.
        """
        stage = self.prepare(subject, inputs)
        assert isinstance(stage, Prepared), stage
        stage = self._warmed_up(add_consumers(stage.network, all_maps=True), each_array(inputs))
        nodes = self._nodes(stage, inputs)
        like = subject.inputs
        example = (*like.args, dict(like.kwargs)) if isinstance(like, Inputs) else torch.from_numpy(inputs)
        traced = trace(subject.build().eval(), example, "graph")
        return _named_kernels(traced, nodes, stage.network)

    def layout_changes(self, subject: Subject, inputs: Any) -> int:
        """Count the nodes that change the memory layout of a tensor."""
        return sum(node.changes_layout for node in self._nodes(self.prepare(subject, inputs), inputs))

    def _nodes(self, stage: Stage, inputs: Any) -> Nodes:
        """Run a network once and return its nodes."""
        assert isinstance(stage, Prepared), stage
        return _profile(stage, lambda: each_array(inputs), 1)[0].nodes

    def time_calls(self, stage: Stage, value: Any) -> list[float]:
        """Run a prepared network once and return the times of its calls of torch functions, without time outside."""
        assert isinstance(stage, Prepared), stage
        runs = self._without_profile(*self._between_wholes(stage, value, 1))
        return self._by_part(stage, [ProfiledRun(run.nodes, run.inside) for run in runs])[0]

    def _by_chain(self, stage: Chained, runs: Sequence[ProfiledRun]) -> list[list[float]]:
        """Return the time of the nodes of a network; the native modules before it count as next to nothing."""
        least = self.clock.resolution
        before = [least] * len(stage.natives)
        return [[*before, max(_kernel_seconds(run.nodes), least)] for run in runs]

    def _by_network(self, stage: Parallel, runs: Sequence[ProfiledRun]) -> list[list[float]]:
        """Return the times of the nodes of every network, measured with weights outside of the private caches."""
        labels = [stage.network.label_of(node.names) for node in runs[0].nodes]
        of_part = [
            [place for place, label in enumerate(labels) if label == part] for part in range(stage.network.n_labels)
        ]
        return [
            [max(_kernel_seconds([run.nodes[place] for place in own]), self.clock.resolution) for own in of_part]
            for run in runs
        ]

    @cached_property
    def profile_cost(self) -> ProfileCost:
        """Overhead of a profile per node, determined in a session from networks of few and of many nodes.

        The time outside of the nodes is the same for both and cancels in their difference. A runtime may fuse each
        network into one node.
        """
        (few, less), (many, more) = (self._profiled_beyond(layers) for layers in (_FEW_LAYERS, _MANY_LAYERS))
        return ProfileCost(max(0.0, (more - less) / max(1, many - few)))

    def _profiled_beyond(self, layers: int) -> tuple[int, float]:
        """Profile a small network; return its number of nodes, and by how much their sum exceeds a run [s]."""
        subject = Subject(f"probe of {number_of(layers, 'layer')}", partial(_probe, layers), _PROBE_SHAPE, "network")
        inputs = self.inputs(subject.inputs)
        stage = self._prepared(subject, inputs)
        assert isinstance(stage, Prepared), stage
        whole = statistics.median(self._wholes(stage, inputs, _PROBE_RUNS))
        profiles = _profile(stage, lambda: each_array(inputs), _PROBE_RUNS)
        return len(profiles[0].nodes), statistics.median(run.inside for run in profiles) - whole

    def _divided(
        self, count: int, main: Mapping[int, int], labels: Sequence[int | None], run: ProfiledRun
    ) -> list[float]:
        """Add up the times of nodes by part."""
        times, place = [0.0] * count, 0
        times[0] = run.outside
        has_begun = False
        for label, node in zip(labels, run.nodes, strict=True):
            has_begun = has_begun or not node.changes_layout
            # A node that changes the layout of the input has the name of the operator that reads it.
            place = place if label is None or not has_begun else main.get(label, label)
            times[place] += node.seconds
        return [max(seconds, self.clock.resolution) for seconds in times]


def _profile(stage: Prepared, feed: Feed, runs: int) -> list[ProfiledRun]:
    """Run a network several times with its profile."""
    assert isinstance(stage.compiled, ProfiledNetwork), stage.compiled
    return stage.compiled.profile(feed, runs)


def _after_others(value: Any) -> Any:
    """Return the value after flushing the private caches."""
    _filler().fill(1.0)
    return value


@cache
def _filler() -> NDArray[np.float64]:
    return np.empty(near_flush_size() // 8)


def _halves(count: int) -> tuple[int, int]:
    """Divide a number into two that differ by one at most, the first being the larger."""
    return count - count // 2, count // 2


def _kernel_seconds(nodes: Nodes) -> float:
    """Return the time of the nodes of a kernel [s]; those that change the layout count only if there are no others."""
    return math.fsum(node.seconds for node in [node for node in nodes if not node.changes_layout] or nodes)


def _probe(layers: int) -> torch.nn.Module:
    """Return a network of small layers that are not fused."""
    return torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.MaxPool2d(3, 1, 1), torch.nn.Softmax(1)) for _ in range(layers))
    )


def _named_kernels(traced: Trace, nodes: Nodes, network: OnnxNetwork) -> list[tuple[str, tuple[str, ...]]]:
    """Return kernels, named by their longest node, with their operators; those without any node were folded away."""
    # A node that changes the layout of a tensor has the name of an operator that may be fused with others.
    nodes = [node for node in nodes if not node.changes_layout] or nodes
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
