# SPDX-License-Identifier: Apache-2.0
"""Three ways to tell the latency of a network, side by side: by module, by graph, and the network as a whole.

A space like MobileNetV2 is made of NNI's value choices, for the kernel and the expansion of every stage. Four networks
that together hold every operator of the space are measured by both layer-based estimators, each for itself. Then
networks are drawn that nobody has measured: the layer-based ones answer from what they know, and the network-based one
measures the truth. Beside them stands what the operators take that are timed alone, one after another.

    python examples/three_estimators.py --networks 6 --budget 60
"""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from nni_latency import Estimate, Protocol
from nni_latency.estimators import GraphEstimator, MeasuredNetworkEstimator, ModuleEstimator, score
from nni_latency.imports import quiet_nni
from nni_latency.measurement import MemoryStore, Subject, quantile, time_chain
from nni_latency.measurement.runtimes import Runtime, TorchEager
from nni_latency.operators import OpSpec, build_operator, capture_operators, given_shapes
from nni_latency.spaces import draw_samples

with quiet_nni():
    import nni
    from nni.nas.nn.pytorch import ModelSpace, MutableBatchNorm2d, MutableConv2d

#: Channels, blocks and stride of every stage.
STAGES = ((24, 2, 2), (32, 3, 2), (64, 3, 2), (96, 2, 1), (160, 2, 2))
CHOICES = [(kernel, expansion) for kernel in (3, 5) for expansion in (3, 6)]


def conv(channels: Any, out: Any, kernel: Any = 1, stride: int = 1, groups: Any = 1) -> list[nn.Module]:
    """Make a convolution, its normalisation and its activation."""
    made = MutableConv2d(channels, out, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False)
    return [made, MutableBatchNorm2d(out), nn.ReLU6(inplace=True)]


class Block(nn.Module):
    """An inverted residual."""

    def __init__(self, channels: int, out: int, stride: int, kernel: Any, expansion: Any) -> None:
        super().__init__()
        hidden = expansion * channels
        linear = conv(hidden, out)[:-1]
        self.layers = nn.Sequential(*conv(channels, hidden), *conv(hidden, hidden, kernel, stride, hidden), *linear)
        self.residual = stride == 1 and channels == out

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Add the input where it fits."""
        outputs = self.layers(inputs)
        return inputs + outputs if self.residual else outputs


class MobileNet(ModelSpace):
    """MobileNetV2 with a choice of kernel and expansion in every stage."""

    def __init__(self) -> None:
        super().__init__()
        layers, channels = [*conv(3, 16, 3, 2)], 16
        for index, (out, blocks, stride) in enumerate(STAGES):
            kernel = nni.choice(f"kernel{index}", [3, 5])
            expansion = nni.choice(f"expansion{index}", [3, 6])
            for number in range(blocks):
                layers.append(Block(channels, out, 1 if number else stride, kernel, expansion))
                channels = out
        layers += [*conv(channels, 640), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(640, 1000)]
        self.network = nn.Sequential(*layers)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Classify pictures."""
        return self.network(inputs)


def covering_samples() -> list[dict[str, int]]:
    """Return four samples that together hold every choice of every stage."""
    samples = []
    for turn in range(len(CHOICES)):
        taken = [CHOICES[(turn + index) % len(CHOICES)] for index in range(len(STAGES))]
        samples.append(
            {f"kernel{index}": kernel for index, (kernel, _) in enumerate(taken)}
            | {f"expansion{index}": expansion for index, (_, expansion) in enumerate(taken)}
        )
    return samples


def main() -> None:
    """Measure, compare, explain."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=6, help="networks that are drawn (default: 6)")
    parser.add_argument("--size", type=int, default=160, help="side of the input picture (default: 160)")
    parser.add_argument(
        "--budget", type=float, default=60.0, help="seconds of timed runs for each of the three (default: 60)"
    )
    options = parser.parse_args()
    space, inputs = MobileNet(), torch.randn(1, 3, options.size, options.size)
    known = [space.freeze(sample) for sample in covering_samples()]
    drawn = [space.freeze(sample) for sample in draw_samples(space, options.networks, random_state=1)]
    runtime = TorchEager()
    protocol = Protocol(n_run=3, rounds=1000, time_budget=options.budget)
    # Each with a store of its own: with one store the second would find everything measured.
    stores = [MemoryStore() for _ in range(3)]
    by_module = ModuleEstimator(runtime=runtime, protocol=protocol, store=stores[0])
    by_graph = GraphEstimator(runtime=runtime, protocol=protocol, store=stores[1])
    whole = MeasuredNetworkEstimator(runtime=runtime, protocol=protocol, store=stores[2])
    print(f"{options.size} px, {runtime.platform.id}, {options.budget:g} s of timed runs for each\n")
    for estimator, networks in ((by_module, known), (by_graph, known), (whole, known + drawn)):
        begin = time.monotonic()
        estimator.measure([(network, inputs) for network in networks])
        kind = type(estimator).__name__
        print(f"{kind} measured {len(networks)} networks in {time.monotonic() - begin:.0f} s")
    # The machine was not equally fast all the time. The first four networks tell by how much: every one of the three
    # has timed them as a whole.
    totals = [
        sum(
            MeasuredNetworkEstimator(runtime=runtime, protocol=protocol, store=store).estimate(n, inputs).value
            for n in known
        )
        for store in stores
    ]
    rows = []
    alone = Alone(runtime, known, totals[2], inputs).sums(drawn)
    for number, network in enumerate(drawn):
        estimates = [
            estimator.estimate(network, inputs).scaled(totals[2] / total)
            for estimator, total in zip((by_module, by_graph, whole), totals, strict=True)
        ]
        rows.append((*estimates, alone[number]))
    report(rows)


class Alone:
    """Operators timed alone, again and again, for half as long as a network takes: lower quartile of five such samples.

    Parameters
    ----------
    runtime : Runtime
        What executes them.
    known : list of nn.Module
        Networks that are timed along, to tell how fast the machine is meanwhile.
    total : float
        What they took when the others were measured [s].
    inputs : Tensor
        What networks take.
    """

    def __init__(self, runtime: Runtime, known: list[nn.Module], total: float, inputs: torch.Tensor) -> None:
        self.runtime, self.known, self.total, self.inputs = runtime, known, total, inputs
        self.length = total / len(known)
        self.times: dict[OpSpec, float] = {}

    def sums(self, networks: list[nn.Module]) -> list[float]:
        """Add up the operators of every network [s]."""
        ops = [[op for _, op in capture_operators(network, self.inputs, by="graph")] for network in networks]
        with self.runtime.session():
            before = self._known()
            for op in dict.fromkeys(op for each in ops for op in each):
                self.times[op] = self._time(op)
            slow = (before + self._known()) / 2 / self.total
        return [sum(self.times[op] for op in each) / slow for each in ops]

    def _known(self) -> float:
        stages = [self.runtime.prepare(Subject.of_module(network, self.inputs), self.inputs) for network in self.known]
        return sum(self._quartile(lambda stage=stage: stage(self.inputs)) for stage in stages)

    def _time(self, op: OpSpec) -> float:
        given = [self.runtime.inputs(shape) for shape in given_shapes(op)]
        module = self.runtime.prepare(Subject(op.op_key, partial(build_operator, op)), given[0])
        once = self._quartile(lambda: module(*given))
        loops = max(1, round(self.length / once / 2))
        return self._quartile(lambda: [module(*given) for _ in range(loops)]) / loops

    def _quartile(self, run: Callable[[], Any]) -> float:
        times = [time_chain([lambda _: run()], None, self.runtime.clock)[0] for _ in range(6)]
        return quantile(times[1:], 0.25)


def report(rows: list[tuple[Estimate, Estimate, Estimate, float]]) -> None:
    """Print the table, and say what it shows."""
    print(f"\n{'network':>7}  {'by module':>22}  {'by graph':>22}  {'the whole network':>22}  {'alone':>8}   [ms]")
    for number, (module, graph, whole, alone) in enumerate(rows):
        cells = "  ".join(f"{cell(estimate):>22}" for estimate in (module, graph, whole))
        print(f"{number:>7}  {cells}  {alone * 1e3:8.2f}")
    modules, graphs, wholes = ([row[place].value for row in rows] for place in range(3))
    apart = quantile([abs(graph / module - 1) for module, graph in zip(modules, graphs, strict=True)], 1.0)
    spread = quantile([(row[0].high - row[0].low) / (2 * row[0].value) for row in rows], 0.5)
    layered, alone = score(modules, wholes), score([row[3] for row in rows], wholes)
    inside = sum(row[0].low <= row[2].value <= row[0].high for row in rows)
    meet = "less than" if apart < spread else "more than"
    print()
    for text in (
        f"By module and by graph: at most {apart:.1%} apart, {meet} their own spread of {spread:.1%}. In this space "
        "every leaf module is one call, so both add up the same operators; they differ by chance alone, because each "
        "has measured for itself.",
        f"Layers against the whole: {layered.mape:.1%} off on average, {layered.bias:+.1%} all in all, on networks "
        f"that were never measured; {inside} of {len(rows)} truths lie in the interval. The sum takes an operator to "
        "cost the same wherever it stands. In truth that depends on what the operator before has left in the cache, "
        "and on where a process has placed weights and activations.",
        f"Alone: {alone.mape:.1%} off on average, {alone.bias:+.1%} all in all. {verdict(alone.bias)}",
    ):
        print(textwrap.fill(text, 110), end="\n\n")


def verdict(bias: float) -> str:
    """Say why operators that were timed alone are off."""
    if bias < 0:
        return (
            "An operator that runs again and again finds its weights and inputs in the cache; in a network it does not."
        )
    return "The cache makes operators faster that run again and again; here something else outweighs it."


def cell(estimate: Estimate) -> str:
    """Write an estimate with its interval."""
    return f"{estimate.value * 1e3:.2f} ({estimate.low * 1e3:.2f} - {estimate.high * 1e3:.2f})"


if __name__ == "__main__":
    main()
