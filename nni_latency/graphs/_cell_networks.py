"""NAS-Bench-201: stacks of one cell, whose edges are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from nni_latency.graphs._blocks import convolution, head
from nni_latency.graphs._variation import Variation

#: What an edge can be; None where nothing passes.
_EDGES = ("none", "skip", "conv1x1", "conv3x3", "pool")

#: The edges of the published network with the best accuracy on CIFAR-10.
_BEST = ("conv3x3", "conv3x3", "conv3x3", "skip", "conv3x3", "conv1x1")


def _before(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.ReLU(), convolution(inputs, outputs, kernel, stride, activation=None))


def _edge(kind: str, channels: int, kernel: int) -> nn.Module | None:
    if kind == "none":
        return None
    if kind == "skip":
        return nn.Identity()
    if kind == "pool":
        return nn.AvgPool2d(3, 1, 1, count_include_pad=False)
    return _before(channels, channels, 1 if kind == "conv1x1" else kernel)


class _Cell(nn.Module):
    """Three nodes behind the input, each the sum of what comes from all nodes before it."""

    def __init__(self, channels: int, edges: Sequence[str], kernel: int) -> None:
        super().__init__()
        self.edges = nn.ModuleDict()
        kinds = iter(edges)
        for node in range(1, 4):
            for source in range(node):
                edge = _edge(next(kinds), channels, kernel)
                if edge is not None:
                    self.edges[f"{source}to{node}"] = edge

    def forward(self, inputs: Tensor) -> Tensor:
        nodes = [inputs]
        for node in range(1, 4):
            ways = [(f"{source}to{node}", source) for source in range(node)]
            taken = [self.edges[name](nodes[source]) for name, source in ways if name in self.edges]
            nodes.append(sum(taken[1:], taken[0]) if taken else torch.zeros_like(inputs))
        return nodes[-1]


class _Reduction(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(_before(inputs, outputs, 3, 2), _before(outputs, outputs, 3))
        self.shortcut = nn.Sequential(nn.AvgPool2d(2, 2), nn.Conv2d(inputs, outputs, 1, bias=False))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs) + self.shortcut(inputs)  # type: ignore[no-any-return]


def nasbench201(vary: Variation) -> nn.Module:
    """NAS-Bench-201's best network on CIFAR-10 (arXiv:2001.00326)."""
    # A cell that passes nothing on is drawn again.
    edges = [vary.choose(edge, _EDGES) for edge in _BEST]
    while not _reaches_end(edges):
        edges = [vary.choose(edge, _EDGES) for edge in _BEST]
    width, depth, kernel = vary.channels(16, low=0.5, high=3.0), vary.depth(5, spread=2), vary.kernel(3, (3, 5))
    sizes = [width, 2 * width, 4 * width]
    layers: list[nn.Module] = [convolution(3, width, 3, activation=None)]
    layers += [_Cell(width, edges, kernel) for _ in range(depth)]
    for before, channels in pairwise(sizes):
        layers.append(_Reduction(before, channels))
        layers += [_Cell(channels, edges, kernel) for _ in range(depth)]
    return nn.Sequential(*layers, nn.BatchNorm2d(sizes[-1]), nn.ReLU(), head(sizes[-1], 10))


def _reaches_end(edges: Sequence[str]) -> bool:
    """Whether every node that something comes to is fed from the input, and the last is."""
    open_edges = iter(edges)
    reached = {0}
    for node in range(1, 4):
        sources = [source for source in range(node) if next(open_edges) != "none"]
        if not sources or not set(sources) <= reached:
            return False
        reached.add(node)
    return True
