# SPDX-License-Identifier: Apache-2.0
"""Families of large vision networks: without shortcuts, with residual or dense blocks, and of searched cells."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from nni_latency.graphs._blocks import Branches, Variation, convolution, head

#: Channels of the branches: 1x1; 1x1 and 3x3; 1x1 and 5x5; pooling and 1x1. None is a pooling layer between stages.
_INCEPTION = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    None,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    None,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)

#: Operations of an edge; "none" removes it.
_EDGES = ("none", "skip", "conv1x1", "conv3x3", "pool")

#: Edges of the published network with the best accuracy on CIFAR-10.
_BEST = ("conv3x3", "conv3x3", "conv3x3", "skip", "conv3x3", "conv1x1")


def plain(inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int | None = None) -> nn.Sequential:
    """Return a convolution with bias and ReLU, by default with 'same' padding."""
    padding = kernel // 2 if padding is None else padding
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, padding), nn.ReLU())


def alexnet(vary: Variation) -> nn.Module:
    """AlexNet in one column (arXiv:1404.5997)."""
    width = vary.scale(0.5, 1.3)
    sizes = [vary.channels(round(usual * width / 8) * 8) for usual in (64, 192, 384, 256, 256)]
    first, second, third, fourth, fifth = sizes
    linear = vary.channels(round(4096 * width / 64) * 64, multiple=64)
    return nn.Sequential(
        plain(3, first, vary.kernel(11, (7, 9, 11)), 4, 2),
        nn.MaxPool2d(3, 2),
        plain(first, second, vary.kernel(5, (3, 5, 7))),
        nn.MaxPool2d(3, 2),
        plain(second, third, vary.kernel(3, (3, 5))),
        plain(third, fourth, vary.kernel(3, (3, 5))),
        plain(fourth, fifth, vary.kernel(3, (3, 5))),
        nn.MaxPool2d(3, 2),
        nn.AdaptiveAvgPool2d(6),
        nn.Flatten(),
        nn.Linear(fifth * 36, linear),
        nn.ReLU(),
        nn.Linear(linear, linear),
        nn.ReLU(),
        nn.Linear(linear, 1000),
    )


def vgg(vary: Variation) -> nn.Module:
    """VGG-16 (arXiv:1409.1556)."""
    width = vary.scale(0.35, 1.0)
    layers: list[nn.Module] = []
    channels = 3
    for usual, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(vary.depth(depth)):
            outputs = vary.channels(max(8, round(usual * width / 8) * 8), low=0.8, high=1.2)
            layers.append(plain(channels, outputs, vary.kernel(3, (1, 3, 3, 5))))
            channels = outputs
        layers.append(nn.MaxPool2d(2, 2))
    linear = vary.channels(round(4096 * width / 64) * 64, multiple=64)
    ends = [nn.Flatten(), nn.Linear(channels * 49, linear), nn.ReLU(), nn.Linear(linear, linear), nn.ReLU()]
    return nn.Sequential(*layers, *ends, nn.Linear(linear, 1000))


def squeezenet(vary: Variation) -> nn.Module:
    """SqueezeNet 1.1 (arXiv:1602.07360)."""
    width = vary.scale(0.6, 1.5)
    channels = vary.channels(64)
    layers: list[nn.Module] = [plain(3, channels, vary.kernel(3, (3, 5, 7)), 2), nn.MaxPool2d(3, 2, ceil_mode=True)]
    for squeezed, expanded, depth in ((16, 64, 2), (32, 128, 2), (48, 192, 2), (64, 256, 2)):
        for _ in range(vary.depth(depth)):
            narrow = vary.channels(max(8, round(squeezed * width / 8) * 8))
            point, window = (vary.channels(max(8, round(expanded * width / 8) * 8)) for _ in range(2))
            layers.append(plain(channels, narrow, 1))
            layers.append(Branches([plain(narrow, point, 1), plain(narrow, window, vary.kernel(3, (3, 5)))]))
            channels = point + window
        if expanded < 192:
            layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
    return nn.Sequential(*layers, plain(channels, 1000, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def googlenet(vary: Variation) -> nn.Module:
    """GoogLeNet, without the classifiers on the way (arXiv:1409.4842)."""
    width = vary.scale(0.6, 1.3)

    def scaled(usual: int) -> int:
        return vary.channels(max(8, round(usual * width / 8) * 8))

    first, second, channels = scaled(64), scaled(64), scaled(192)
    layers: list[nn.Module] = [
        plain(3, first, vary.kernel(7, (5, 7)), 2),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        plain(first, second, 1),
        plain(second, channels, 3),
        nn.MaxPool2d(3, 2, ceil_mode=True),
    ]
    for sizes in _INCEPTION:
        if sizes is None:
            layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
            continue
        point, before_three, three, before_five, five, pooled = map(scaled, sizes)
        large = vary.kernel(5, (3, 5))
        ways = [
            plain(channels, point, 1),
            nn.Sequential(plain(channels, before_three, 1), plain(before_three, three, 3)),
            nn.Sequential(plain(channels, before_five, 1), plain(before_five, five, large)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), plain(channels, pooled, 1)),
        ]
        layers.append(Branches(ways))
        channels = point + three + five + pooled
    return nn.Sequential(*layers, head(channels))


class Residual(nn.Module):
    """Layers with a residual connection, optionally through a shortcut module, and ReLU."""

    def __init__(self, layers: nn.Module, shortcut: nn.Module | None) -> None:
        super().__init__()
        self.layers, self.shortcut, self.activation = layers, shortcut, nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        beside = inputs if self.shortcut is None else self.shortcut(inputs)
        return self.activation(self.layers(inputs) + beside)  # type: ignore[no-any-return]


def resnet(vary: Variation) -> nn.Module:
    """ResNet-18, or with bottlenecks as ResNet-50 (arXiv:1512.03385)."""
    width, bottleneck = vary.scale(0.5, 1.3), vary.choose(False, (False, False, True))
    channels = vary.channels(round(64 * width / 8) * 8)
    layers: list[nn.Module] = [convolution(3, channels, vary.kernel(7, (3, 5, 7)), 2), nn.MaxPool2d(3, 2, 1)]
    for stage, usual in enumerate((64, 128, 256, 512)):
        middle = vary.channels(max(8, round(usual * width * (0.6 if bottleneck else 1.0) / 8) * 8))
        outputs, kernel = (4 * middle if bottleneck else middle), vary.kernel(3, (3, 5))
        for block in range(vary.depth(2)):
            stride = 2 if stage and not block else 1
            inner = (
                [
                    convolution(channels, middle, 1),
                    convolution(middle, middle, kernel, stride),
                    convolution(middle, outputs, 1, activation=None),
                ]
                if bottleneck
                else [
                    convolution(channels, middle, kernel, stride),
                    convolution(middle, outputs, kernel, activation=None),
                ]
            )
            changes = stride > 1 or channels != outputs
            shortcut = convolution(channels, outputs, 1, stride, activation=None) if changes else None
            layers.append(Residual(nn.Sequential(*inner), shortcut))
            channels = outputs
    return nn.Sequential(*layers, head(channels))


def preceded(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    """Return a pre-activation convolution: normalisation, ReLU, convolution."""
    return nn.Sequential(
        nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
    )


class Dense(nn.Module):
    """Layers whose output is concatenated to their input."""

    def __init__(self, channels: int, middle: int, growth: int, kernel: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(preceded(channels, middle, 1), preceded(middle, growth, kernel))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([inputs, self.layers(inputs)], dim=1)


def densenet(vary: Variation) -> nn.Module:
    """DenseNet-121 (arXiv:1608.06993); half as deep where it varies."""
    growth = vary.channels(32, low=0.5, high=1.3)
    channels = 2 * growth
    depths = (6, 12, 24, 16) if vary.published else tuple(vary.depth(usual, spread=2) for usual in (4, 8, 12, 8))
    layers: list[nn.Module] = [convolution(3, channels, vary.kernel(7, (5, 7)), 2), nn.MaxPool2d(3, 2, 1)]
    for stage, depth in enumerate(depths):
        middle, kernel = vary.channels(4 * growth, low=0.7, high=1.1), vary.kernel(3, (3, 5))
        for _ in range(depth):
            layers.append(Dense(channels, middle, growth, kernel))
            channels += growth
        if stage < len(depths) - 1:
            layers += [preceded(channels, channels // 2, 1), nn.AvgPool2d(2, 2)]
            channels //= 2
    return nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(), head(channels))


class _ChannelsLast(nn.Module):
    """Layer normalisation over the channels of a feature map."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.norm(inputs.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)  # type: ignore[no-any-return]


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution, followed by two linear layers over the channels."""

    def __init__(self, channels: int, kernel: int, ratio: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.layers = nn.Sequential(
            nn.Linear(channels, ratio * channels), nn.GELU(), nn.Linear(ratio * channels, channels)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.depthwise(inputs).permute(0, 2, 3, 1)
        return inputs + self.layers(self.norm(outputs)).permute(0, 3, 1, 2)  # type: ignore[no-any-return]


def convnext(vary: Variation) -> nn.Module:
    """ConvNeXt-T (arXiv:2201.03545); narrower and half as deep where it varies."""
    width = vary.scale(0.4, 0.9)
    depths = (3, 3, 9, 3) if vary.published else tuple(vary.depth(usual) for usual in (2, 2, 5, 2))
    layers: list[nn.Module] = []
    channels = 3
    for usual, depth in zip((96, 192, 384, 768), depths, strict=True):
        outputs = vary.channels(max(8, round(usual * width / 8) * 8), low=0.8, high=1.2)
        if channels == 3:
            layers += [nn.Conv2d(3, outputs, 4, 4), _ChannelsLast(outputs)]
        else:
            layers += [_ChannelsLast(channels), nn.Conv2d(channels, outputs, 2, 2)]
        channels = outputs
        kernel, ratio = vary.kernel(7, (3, 5, 7)), vary.choose(4, (2, 3, 4))
        layers += [ConvNeXtBlock(channels, kernel, ratio) for _ in range(depth)]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(channels), nn.Linear(channels, 1000)
    )


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
    """Three nodes after the input, each the sum of the edges from all previous nodes."""

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
    # Draw again if no path connects input and output.
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
    """Whether every node with an input is reachable from the cell's input, and the last one is."""
    open_edges = iter(edges)
    reached = {0}
    for node in range(1, 4):
        sources = [source for source in range(node) if next(open_edges) != "none"]
        if not sources or not set(sources) <= reached:
            return False
        reached.add(node)
    return True
