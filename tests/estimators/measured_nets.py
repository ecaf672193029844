# SPDX-License-Identifier: Apache-2.0
"""Networks for the tests of what measures on demand, and the invented times of their operators."""

from __future__ import annotations

import torch
from torch import nn

#: Powers of two, so that no sum is rounded.
TIMES = {
    "conv2d": 2**-6,
    "relu": 2**-9,
    "add": 2**-8,
    "mean": 2**-10,
    "linear": 2**-5,
    "mul": 2**-7,
    "embedding": 2**-8,
}


def latency(op):
    """Return the invented time of an operator [s]; twice as much with twice the input."""
    size = sum(torch.Size(shape).numel() for shape in op.input_shapes)
    return TIMES[op.kind] * 2.0 ** (size // 1024)


class Small(nn.Module):
    """Leaf modules, a shared one, functional code between them, an identity and a layer that is never called."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, padding=1)
        self.relu = nn.ReLU()
        self.identity = nn.Identity()
        self.inactive = nn.Conv2d(9, 9, 9)
        self.head = nn.Linear(channels, 2)

    def forward(self, pictures):
        value = self.relu(self.conv(pictures))
        value = self.relu(value + value)
        return self.head(self.identity(value).mean([2, 3]).flatten(1))


class Several(nn.Module):
    """Takes a tensor, a list of tensors, and whole numbers by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, first, others, *, words):
        return first * others[0] + self.table(words)


SEVERAL_INPUTS = (torch.ones(2, 4), [torch.ones(2, 4)], {"words": torch.tensor([1, 2])})


class Undecided(nn.Module):
    """Its way depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, value):
        if value.sum() > 0:
            value = value + 1
        return self.head(value)


class Fickle(nn.Module):
    """Calls more functions every time."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def forward(self, value):
        self.runs += 1
        for _ in range(self.runs):
            value = value + value
        return value
