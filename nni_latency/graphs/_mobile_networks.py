# SPDX-License-Identifier: Apache-2.0
"""Families for small devices: MobileNets, MnasNet, ProxylessNAS, EfficientNet, ShuffleNet."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nni_latency.graphs._blocks import Gate, InvertedResidual, Variation, convolution, head
from nni_latency.operators import shuffle_channels


def _scaled(vary: Variation, usual: int, width: float) -> int:
    return vary.channels(max(8, round(usual * width / 8) * 8), low=0.8, high=1.25)


def mobilenetv1(vary: Variation) -> nn.Module:
    """MobileNet (arXiv:1704.04861)."""
    width = vary.scale(0.4, 1.4)
    channels = _scaled(vary, 32, width)
    layers: list[nn.Module] = [convolution(3, channels, 3, 2)]
    for usual, depth, stride in ((64, 1, 1), (128, 2, 2), (256, 2, 2), (512, 6, 2), (1024, 2, 2)):
        for block in range(vary.depth(depth)):
            outputs, kernel = _scaled(vary, usual, width), vary.kernel(3)
            layers.append(convolution(channels, channels, kernel, 1 if block else stride, groups=channels))
            layers.append(convolution(channels, outputs, 1))
            channels = outputs
    return nn.Sequential(*layers, head(channels))


def mobilenetv2(vary: Variation) -> nn.Module:
    """MobileNetV2 (arXiv:1801.04381)."""
    stages = ((16, 1, 1, 1), (24, 2, 2, 6), (32, 3, 2, 6), (64, 4, 2, 6), (96, 3, 1, 6), (160, 3, 2, 6), (320, 1, 1, 6))
    return _inverted(vary, stages, stem=32, last=1280, activation="relu6")


def proxylessnas(vary: Variation) -> nn.Module:
    """ProxylessNAS for a phone, with windows of its own in every block (arXiv:1812.00332)."""
    stages = ((16, 1, 1, 1), (32, 3, 2, 3), (40, 4, 2, 3), (80, 4, 2, 6), (96, 4, 1, 3), (192, 4, 2, 6), (320, 1, 1, 6))
    return _inverted(vary, stages, stem=32, last=1280, activation="relu6", ratios=(3, 6), mixed=True)


def _inverted(
    vary: Variation,
    stages: tuple[tuple[int, int, int, int], ...],
    *,
    stem: int,
    last: int,
    activation: str,
    ratios: tuple[int, ...] = (3, 4, 6),
    mixed: bool = False,
) -> nn.Module:
    """Return a network of inverted residuals; stages are channels, blocks, stride and expansion."""
    width = vary.scale(0.4, 1.5)
    channels = _scaled(vary, stem, width)
    layers: list[nn.Module] = [convolution(3, channels, 3, 2, activation=activation)]
    for usual, depth, stride, ratio in stages:
        outputs, kernel = _scaled(vary, usual, width), vary.kernel(3)
        expansion = ratio if ratio == 1 else vary.choose(ratio, ratios)
        for block in range(vary.depth(depth)):
            if mixed and block:
                kernel = vary.kernel(3)
            expanded = channels * expansion
            layers.append(
                InvertedResidual(channels, outputs, kernel, 1 if block else stride, expanded, activation=activation)
            )
            channels = outputs
    last = _scaled(vary, last, max(1.0, width))
    layers.append(convolution(channels, last, 1, activation=activation))
    return nn.Sequential(*layers, head(last))


#: Kernel size, expanded channels, channels, gate, activation, stride.
_MOBILENETV3 = (
    (3, 16, 16, False, "relu", 1),
    (3, 64, 24, False, "relu", 2),
    (3, 72, 24, False, "relu", 1),
    (5, 72, 40, True, "relu", 2),
    (5, 120, 40, True, "relu", 1),
    (5, 120, 40, True, "relu", 1),
    (3, 240, 80, False, "hswish", 2),
    (3, 200, 80, False, "hswish", 1),
    (3, 184, 80, False, "hswish", 1),
    (3, 184, 80, False, "hswish", 1),
    (3, 480, 112, True, "hswish", 1),
    (3, 672, 112, True, "hswish", 1),
    (5, 672, 160, True, "hswish", 2),
    (5, 960, 160, True, "hswish", 1),
    (5, 960, 160, True, "hswish", 1),
)


def mobilenetv3(vary: Variation) -> nn.Module:
    """MobileNetV3-Large (arXiv:1905.02244)."""
    width = vary.scale(0.4, 1.5)
    channels = _scaled(vary, 16, width)
    layers: list[nn.Module] = [convolution(3, channels, 3, 2, activation="hswish")]
    outputs, usual_before = channels, 16
    for kernel, expanded, usual, gated, activation, stride in _MOBILENETV3:
        if usual != usual_before or stride > 1:
            outputs = _scaled(vary, usual, width)
        elif not vary.published and vary.scale(0.5, 2.0) < 0.6:
            continue  # a block less
        usual_before = usual
        wide = _scaled(vary, expanded, width)
        gate = Gate(wide, max(8, wide // 32 * 8)) if gated else None
        block = InvertedResidual(channels, outputs, vary.kernel(kernel), stride, wide, activation=activation, gate=gate)
        layers.append(block)
        channels = outputs
    last, linear = _scaled(vary, 960, width), _scaled(vary, 1280, width)
    layers.append(convolution(channels, last, 1, activation="hswish"))
    ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, linear), nn.Hardswish(), nn.Linear(linear, 1000)]
    return nn.Sequential(*layers, *ends)


def mnasnet(vary: Variation) -> nn.Module:
    """MnasNet-A1 (arXiv:1807.11626)."""
    stages = (
        (24, 2, 2, 6, 3, False),
        (40, 3, 2, 3, 5, True),
        (80, 4, 2, 6, 3, False),
        (112, 2, 1, 6, 3, True),
        (160, 3, 2, 6, 5, True),
        (320, 1, 1, 6, 3, False),
    )
    width = vary.scale(0.4, 1.5)
    stem, channels = _scaled(vary, 32, width), _scaled(vary, 16, width)
    layers: list[nn.Module] = [
        convolution(3, stem, 3, 2),
        convolution(stem, stem, 3, groups=stem),
        convolution(stem, channels, 1, activation=None),
    ]
    for usual, depth, stride, ratio, kernel, gated in stages:
        outputs, window, expansion = _scaled(vary, usual, width), vary.kernel(kernel), vary.choose(ratio, (3, 4, 6))
        for block in range(vary.depth(depth)):
            wide = channels * expansion
            gate = Gate(wide, max(8, channels // 4), hard=False) if gated else None
            layers.append(
                InvertedResidual(channels, outputs, window, 1 if block else stride, wide, activation="relu", gate=gate)
            )
            channels = outputs
    layers.append(convolution(channels, 1280, 1))
    return nn.Sequential(*layers, head(1280))


def efficientnet(vary: Variation) -> nn.Module:
    """EfficientNet-B0 (arXiv:1905.11946)."""
    stages = (
        (16, 1, 1, 1, 3),
        (24, 2, 2, 6, 3),
        (40, 2, 2, 6, 5),
        (80, 3, 2, 6, 3),
        (112, 3, 1, 6, 5),
        (192, 4, 2, 6, 5),
        (320, 1, 1, 6, 3),
    )
    width = vary.scale(0.4, 1.4)
    channels = _scaled(vary, 32, width)
    layers: list[nn.Module] = [convolution(3, channels, 3, 2, activation="silu")]
    for usual, depth, stride, ratio, kernel in stages:
        outputs, window = _scaled(vary, usual, width), vary.kernel(kernel)
        expansion = ratio if ratio == 1 else vary.choose(ratio, (4, 6))
        for block in range(vary.depth(depth)):
            wide = channels * expansion
            gate = Gate(wide, max(4, channels // 4), activation="silu", hard=False)
            layers.append(
                InvertedResidual(channels, outputs, window, 1 if block else stride, wide, activation="silu", gate=gate)
            )
            channels = outputs
    last = _scaled(vary, 1280, max(1.0, width))
    layers.append(convolution(channels, last, 1, activation="silu"))
    return nn.Sequential(*layers, head(last))


class Shuffling(nn.Module):
    """A unit of ShuffleNetV2: half of the channels bypass it, or both branches have stride 2."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        half = outputs // 2
        self.stride = stride
        taken = inputs if stride > 1 else half
        self.main = nn.Sequential(
            convolution(taken, half, 1),
            convolution(half, half, kernel, stride, groups=half, activation=None),
            convolution(half, half, 1),
        )
        self.beside = (
            nn.Sequential(
                convolution(inputs, inputs, kernel, stride, groups=inputs, activation=None),
                convolution(inputs, half, 1),
            )
            if stride > 1
            else None
        )

    def forward(self, inputs: Tensor) -> Tensor:
        if self.beside is None:
            passed, taken = inputs.chunk(2, dim=1)
            joined = torch.cat([passed, self.main(taken)], dim=1)
        else:
            joined = torch.cat([self.beside(inputs), self.main(inputs)], dim=1)
        return shuffle_channels(joined)


def shufflenetv2(vary: Variation) -> nn.Module:
    """ShuffleNetV2 (arXiv:1807.11164)."""
    width = vary.scale(0.6, 1.8)
    channels = vary.channels(24)
    layers: list[nn.Module] = [convolution(3, channels, 3, 2), nn.MaxPool2d(3, 2, 1)]
    for usual, depth in ((116, 4), (232, 8), (464, 4)):
        outputs = usual if vary.published else vary.channels(max(16, round(usual * width / 16) * 16), multiple=16)
        kernel = vary.kernel(3)
        for block in range(vary.depth(depth, least=2)):
            layers.append(Shuffling(channels, outputs, kernel, 1 if block else 2))
            channels = outputs
    return nn.Sequential(*layers, convolution(channels, 1024, 1), head(1024))
