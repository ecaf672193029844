"""What the networks of several families are made of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "hswish": nn.Hardswish,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


def convolution(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, *, groups: int = 1, activation: str | None = "relu"
) -> nn.Sequential:
    """Return a convolution with batch normalisation and an activation, padded to keep the size."""
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    if activation is not None:
        layers.append(ACTIVATIONS[activation]())
    return nn.Sequential(*layers)


def head(channels: int, classes: int = 1000) -> nn.Sequential:
    """Return the usual end of a network of images: the mean of every channel, and a linear layer."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


class Branches(nn.Module):
    """Several ways side by side, the results behind each other in the channels."""

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
    """Expansion, depthwise convolution and projection (arXiv:1801.04381), with a gate or without."""

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
