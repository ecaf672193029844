# SPDX-License-Identifier: Apache-2.0
"""Building blocks of families: random variation of published networks, and modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

T = TypeVar("T")

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "hswish": nn.Hardswish,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


class Variation:
    """Random variation of the sizes of a published network.

    Parameters
    ----------
    seed : int
        Seed of the random choices. 0 gives the published network.
    family : str, default=""
        Added to the seed, so that networks of different families vary independently.

    Examples
    --------
    >>> Variation(0).channels(64), Variation(0).depth(3), Variation(0).kernel(3)
    (64, 3, 3)
    >>> Variation(7).channels(64) == Variation(7).channels(64)
    True
    """

    def __init__(self, seed: int, family: str = "") -> None:
        self.published = seed == 0
        self._generator = np.random.default_rng([seed, *family.encode()])

    def scale(self, low: float = 0.4, high: float = 1.6) -> float:
        """Draw a factor, uniformly on a logarithmic scale."""
        factor = float(np.exp(self._generator.uniform(np.log(low), np.log(high))))
        return 1.0 if self.published else factor

    def channels(self, usual: int, *, multiple: int = 8, low: float = 0.6, high: float = 1.4) -> int:
        """Draw a number of channels near the usual one, rounded to a multiple."""
        factor = self.scale(low, high)
        return usual if self.published else max(multiple, round(usual * factor / multiple) * multiple)

    def depth(self, usual: int, *, least: int = 1, spread: int = 1) -> int:
        """Draw a number of blocks that differs by at most `spread` from the usual one."""
        off = int(self._generator.integers(-spread, spread, endpoint=True))
        return usual if self.published else max(least, usual + off)

    def kernel(self, usual: int, choices: Sequence[int] = (3, 5, 7)) -> int:
        """Draw a kernel size: the usual one with probability one half."""
        drawn, stays = int(self._generator.choice(list(choices))), self._generator.random() < 0.5
        return usual if self.published or stays else drawn

    def choose(self, usual: T, choices: Sequence[T]) -> T:
        """Draw one of several values."""
        drawn = choices[int(self._generator.integers(len(choices)))]
        return usual if self.published else drawn


def convolution(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, *, groups: int = 1, activation: str | None = "relu"
) -> nn.Sequential:
    """Return a 'same'-padded convolution with batch normalisation and an optional activation."""
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    if activation is not None:
        layers.append(ACTIVATIONS[activation]())
    return nn.Sequential(*layers)


def head(channels: int, classes: int = 1000) -> nn.Sequential:
    """Return the head of a classifier: global average pooling and a linear layer."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


class Branches(nn.Module):
    """Parallel branches whose outputs are concatenated along the channels."""

    def __init__(self, ways: Sequence[nn.Module]) -> None:
        super().__init__()
        self.ways = nn.ModuleList(ways)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([way(inputs) for way in self.ways], dim=1)


class Gate(nn.Module):
    """Squeeze and excitation (arXiv:1709.01507)."""

    def __init__(self, channels: int, reduced: int, *, activation: str = "relu", hard: bool = True) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, reduced, 1),
            ACTIVATIONS[activation](),
            nn.Conv2d(reduced, channels, 1),
            nn.Hardsigmoid() if hard else nn.Sigmoid(),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.gate(inputs)  # type: ignore[no-any-return]


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution and projection (arXiv:1801.04381), with an optional gate."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int,
        expanded: int,
        *,
        activation: str = "relu6",
        gate: nn.Module | None = None,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        if expanded != inputs:
            layers.append(convolution(inputs, expanded, 1, activation=activation))
        layers.append(convolution(expanded, expanded, kernel, stride, groups=expanded, activation=activation))
        if gate is not None:
            layers.append(gate)
        layers.append(convolution(expanded, outputs, 1, activation=None))
        self.layers = nn.Sequential(*layers)
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.layers(inputs)
        return inputs + outputs if self.is_residual else outputs  # type: ignore[no-any-return]
