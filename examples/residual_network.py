# SPDX-License-Identifier: Apache-2.0
"""A network of the form of ResNet-18, to divide into kernels.

nni-latency learn kernels --fusion all --runtime torchscript --out rules.json
nni-latency show rules.json --network examples/residual_network.py:Net --input 3,224,224 --plot kernels.png
"""

from __future__ import annotations

import torch
from torch import nn


def convolve(channels: int, out: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Make a convolution with batch normalisation."""
    return nn.Sequential(nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, bias=False), nn.BatchNorm2d(out))


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = convolve(channels, out, 3, stride), convolve(out, out, 3)
        self.shortcut = nn.Identity() if (channels, stride) == (out, 1) else convolve(channels, out, 1, stride)
        self.activation = nn.ReLU()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the activated sum of both ways."""
        inner = self.second(self.activation(self.first(inputs)))
        result: torch.Tensor = self.activation(inner + self.shortcut(inputs))
        return result


class Net(nn.Sequential):
    """A stem, four stages of blocks, and a head.

    Parameters
    ----------
    width : int, default=64
        Channels of the first stage; each later one has twice as many.
    depth : int, default=2
        Blocks of a stage.
    """

    def __init__(self, width: int = 64, depth: int = 2) -> None:
        layers: list[nn.Module] = [convolve(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
        channels = width
        for stage in range(4):
            for place in range(depth):
                layers.append(Block(channels, width << stage, 2 if stage and not place else 1))
                channels = width << stage
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))
