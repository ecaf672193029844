# SPDX-License-Identifier: Apache-2.0
"""Small networks with made-up latencies, for tests of graph predictors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from nni_latency.datasets import NetworkFile, PlatformLatencies, save_networks
from nni_latency.graphs import GraphPredictor, MeasuredNetwork, NetworkLatency, write_nnlqp
from nni_latency.learning import _this_machine
from nni_latency.measurement import NetworkSummary, Protocol
from nni_latency.operators import Graph, OpSpec, TracedOperator, export_onnx, read_onnx, work_of
from nni_latency.platforms import Platform

FAST, SLOW, WIDE = (Platform(f"device-{name}", "onnxruntime") for name in ("fast", "slow", "wide"))


def network(widths: Sequence[int], side: int = 16, activation: str = "relu", shortcut: bool = False) -> Graph:
    """Make a network of convolutions, each with an activation, and additions of what they take."""
    operators: list[TracedOperator] = []
    taken, source = 3, ()
    for width in widths:
        first = len(operators)
        shape, given = (1, taken, side, side), (1, width, side, side)
        conv = OpSpec.of("conv2d", [shape], out_channels=width, kernel_size=3, stride=1, groups=1, bias=True)
        operators.append(TracedOperator(f"conv{first}", conv, source))
        operators.append(TracedOperator(f"act{first}", OpSpec.of(activation, [given]), (first,)))
        if shortcut and taken == width:
            operators.append(TracedOperator(f"add{first}", OpSpec.of("add", [given, given]), (first + 1, *source)))
        taken, source = width, (len(operators) - 1,)
    operators.append(TracedOperator("mean", OpSpec.of("mean", [(1, taken, side, side)], out=(1, taken)), source))
    return Graph(tuple(operators), len(operators), ((1, taken),))


def latency(graph: Graph, slower: float = 1.0) -> float:
    """Return what a network takes where activations are fused: what the others compute and move, and a microsecond."""
    seconds = 5e-6
    for item in graph.operators:
        work = work_of(item.op)[0]
        if item.op.kind not in ("relu", "sigmoid"):
            seconds += work.flops / 3e10 + 4 * (work.inputs + work.outputs + work.params) / 8e9 + 1e-6
    return slower * seconds


def measured(
    count: int = 6, platforms: Sequence[tuple[Platform, float]] = ((FAST, 1.0), (SLOW, 3.0))
) -> list[MeasuredNetwork]:
    """Return networks of four families, measured on platforms."""
    random = np.random.default_rng(0)
    found = []
    for family, (activation, shortcut) in {
        "plain": ("relu", False), "residual": ("relu", True), "smooth": ("sigmoid", False), "both": ("sigmoid", True)
    }.items():  # fmt: skip
        for number in range(count):
            width = int(random.integers(8, 64))
            graph = network([width] * int(random.integers(2, 6)), int(random.integers(8, 32)), activation, shortcut)
            found += [
                MeasuredNetwork(f"{family}-{number}", graph, latency(graph, slower), platform, family)
                for platform, slower in platforms
            ]
    return found


def fitted(
    epochs: int = 30, platforms: Sequence[tuple[Platform, float]] = ((FAST, 1.0), (SLOW, 3.0))
) -> GraphPredictor:
    """Return a small predictor that has learned `measured`."""
    predictor = GraphPredictor(hidden=16, epochs=epochs, n_folds=2, n_members=2, learning_rate=5e-3)
    return predictor.fit(measured(platforms=platforms))


def write_measured(folder: Path, platforms: Sequence[tuple[Platform, float]] = ((FAST, 1.0), (SLOW, 3.0))) -> Path:
    """Write twelve networks of three families as ONNX files, and their made-up latencies, as NNLQP does."""
    (folder / "onnx").mkdir(parents=True)
    lines = []
    for number in range(12):
        width, depth = 8 + 4 * number, 1 + number % 3
        layers: list[nn.Module] = []
        for place in range(depth):
            layers += [nn.Conv2d(width if place else 3, width, 3, padding=1), nn.ReLU()]
        path = f"onnx/n{number}.onnx"
        export = export_onnx(nn.Sequential(*layers).eval(), [torch.zeros(1, 3, 16, 16)])
        (folder / path).write_bytes(export.model.SerializeToString())
        seconds = latency(read_onnx(folder / path))
        lines += [
            NetworkLatency(str(number), path, 1, slower * seconds, f"depth{depth}", platform.id)
            for platform, slower in platforms
        ]
    write_nnlqp(lines, folder)
    return folder


def use_few_networks(patch: pytest.MonkeyPatch, count: int) -> None:
    """Have a machine learned from the first networks that are chosen, and from as few visits as there can be."""
    every = _this_machine.choose_networks
    patch.setattr(_this_machine, "choose_networks", lambda **how: every(count, **how))
    patch.setattr(_this_machine, "MACHINE_PROTOCOL", replace(_this_machine.MACHINE_PROTOCOL, half_width=0.5))


def save_nodes(path: Path, platforms: Mapping[Platform, bool], count: int = 8) -> Path:
    """Save small networks of two families as a data set, on platforms that tell what nodes take, or do not."""
    files, nodes = [], {}
    for seed in range(count):
        widths = [3, 8 + 3 * seed, 12 + 5 * seed]
        layers = [layer for pair in pairwise(widths) for layer in (nn.Conv2d(*pair, 3), nn.ReLU())]
        onnx = path.parent / f"toy-{seed}.onnx"
        model = export_onnx(nn.Sequential(*layers).eval(), [torch.zeros(1, 3, 16, 16)]).model
        onnx.write_bytes(model.SerializeToString())
        files.append(NetworkFile(onnx.stem, onnx, "toy" if seed % 2 else "other", seed))
        graph = read_onnx(onnx)
        times = [0.0] * graph.n_calls
        for item in graph.operators:
            if item.op.kind == "conv2d":
                times[item.last_call] = 1e-5 + work_of(item.op)[0].flops / 1e10
        nodes[files[-1].key] = tuple(times)
    measured = [
        PlatformLatencies(
            platform,
            1,
            Protocol(),
            str(sees_nodes),
            {key: NetworkSummary(sum(times), sum(times), sum(times), 20, 4, 0.01) for key, times in nodes.items()},
            nodes if sees_nodes else {},
            {},
            1.0,
            {"before": {"load": 0.25}},
            sees_nodes,
        )
        for platform, sees_nodes in platforms.items()
    ]
    save_networks(path, files, measured)
    return path
