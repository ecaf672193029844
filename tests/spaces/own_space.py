# SPDX-License-Identifier: Apache-2.0
"""A user's own spaces, as they are given on the command line."""

from __future__ import annotations

import nni
import torch
from nni.nas.nn.pytorch import LayerChoice, ModelSpace, MutableConv2d, MutableLinear, Repeat
from torch import nn


class OwnSpace(ModelSpace):
    """Channels, a layer choice, a depth, and functional code."""

    def __init__(self, widths: tuple[int, ...] = (8, 16), num_labels: int = 3) -> None:
        super().__init__()
        width = nni.choice("width", list(widths))
        self.stem = MutableConv2d(3, width, 3, padding=1)
        self.act = LayerChoice({"relu": nn.ReLU(), "tanh": nn.Tanh()}, label="act")
        self.body = Repeat(lambda index: MutableConv2d(width, width, 1), (1, 3), label="depth")
        self.head = MutableLinear(width, num_labels)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        features = self.body(self.act(self.stem(inputs)))
        return self.head(torch.relu(features).mean((2, 3)))

    def example_inputs(self, batch_size: int = 1) -> torch.Tensor:
        return torch.zeros(batch_size, 3, 16, 16)


class SkippingSpace(OwnSpace):
    """A space whose layer behind the stem may be computed in vain."""

    def __init__(self) -> None:
        super().__init__((8,))
        self.branch = LayerChoice({"taken": nn.Conv2d(8, 8, 3, padding=1), "ignored": Ignored()}, label="branch")

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        features = self.branch(self.act(self.stem(inputs)))
        return self.head(self.body(features).mean((2, 3)))


class Ignored(nn.Module):
    """A convolution whose result nothing takes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 5, padding=2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.conv(inputs)
        return inputs


class NeedsArguments(ModelSpace):
    """A space that cannot be made without an argument."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = LayerChoice([nn.Conv2d(3, width, 1), nn.Conv2d(3, width, 3, padding=1)], label="layer")

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs)


class NoSpace(nn.Module):
    """A plain module."""
