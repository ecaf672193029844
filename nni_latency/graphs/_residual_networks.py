"""Families whose blocks add or append to what comes in: ResNet, DenseNet, ConvNeXt."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nni_latency.graphs._blocks import convolution, head
from nni_latency.graphs._variation import Variation


class Residual(nn.Module):
    """Layers whose result is added to what comes in, or to a shortcut of it, and ReLU."""

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
    """Normalisation and activation, and a convolution behind them."""
    return nn.Sequential(
        nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
    )


class Dense(nn.Module):
    """Layers whose result is put behind what comes in."""

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
    """Layer normalisation over the channels of a picture."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.norm(inputs.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)  # type: ignore[no-any-return]


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution, and two linear layers over the channels."""

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
