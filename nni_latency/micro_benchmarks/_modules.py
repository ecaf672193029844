# SPDX-License-Identifier: Apache-2.0
"""The blocks of the micro-benchmarks as modules of torch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from nni_latency.operators import shuffle_channels


def convolution(
    channels: int,
    out: int,
    *,
    kernel: int = 3,
    stride: int = 1,
    groups: int = 1,
    activation: Callable[[], nn.Module] | None = nn.ReLU,
) -> nn.Sequential:
    """Build a 'same'-padded convolution with batch normalisation and an optional activation."""
    parts: list[nn.Module] = [
        nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out),
    ]
    return nn.Sequential(*parts, *([activation()] if activation else []))


class Residual(nn.Module):
    """A body with a residual connection, which is a 1x1 convolution where the shapes differ.

    Parameters
    ----------
    body : nn.Module
        The residual branch.
    channels, out : int
        Channels of input and output.
    stride : int
        Stride of the body.
    """

    def __init__(self, body: nn.Module, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = body
        same = channels == out and stride == 1
        self.shortcut = nn.Identity() if same else convolution(channels, out, kernel=1, stride=stride, activation=None)
        self.activation = nn.ReLU()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Add the input to the output of the body."""
        summed: torch.Tensor = self.activation(self.body(inputs) + self.shortcut(inputs))
        return summed


def basic_block(channels: int, out: int, *, stride: int = 1) -> nn.Module:
    """Build the block of ResNet-18 and -34 (arXiv:1512.03385): two 3x3 convolutions."""
    body = nn.Sequential(convolution(channels, out, stride=stride), convolution(out, out, activation=None))
    return Residual(body, channels, out, stride)


def bottleneck(channels: int, out: int, *, width: int, stride: int = 1, groups: int = 1) -> nn.Module:
    """Build the block of ResNet-50, or with groups of ResNeXt (arXiv:1611.05431): 1x1, 3x3 and 1x1 convolution."""
    body = nn.Sequential(
        convolution(channels, width, kernel=1),
        convolution(width, width, stride=stride, groups=groups),
        convolution(width, out, kernel=1, activation=None),
    )
    return Residual(body, channels, out, stride)


class SqueezeExcite(nn.Module):
    """Squeeze-and-excitation (arXiv:1709.01507): scales channels by a gate computed from their averages.

    Parameters
    ----------
    channels, squeezed : int
        Channels of the input, and between the two 1x1 convolutions.
    """

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce = nn.Conv2d(channels, squeezed, 1)
        self.activation = nn.SiLU()
        self.expand = nn.Conv2d(squeezed, channels, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Scale the channels."""
        weights = torch.sigmoid(self.expand(self.activation(self.reduce(self.pool(inputs)))))
        return inputs * weights


class InvertedResidual(nn.Module):
    """The block of MobileNetV2 (arXiv:1801.04381); with a gate and SiLU, that of EfficientNet (arXiv:1905.11946).

    Parameters
    ----------
    channels, out : int
        Channels of input and output.
    expansion : int
        Expansion factor of the inner channels.
    kernel, stride : int
        Kernel size and stride of the depthwise convolution.
    gate : bool
        Whether to add squeeze-and-excitation.
    """

    def __init__(
        self, channels: int, out: int, *, expansion: int, kernel: int = 3, stride: int = 1, gate: bool = False
    ) -> None:
        super().__init__()
        inside, activation = channels * expansion, nn.SiLU if gate else nn.ReLU6
        parts: list[nn.Module] = []
        if expansion > 1:
            parts.append(convolution(channels, inside, kernel=1, activation=activation))
        parts.append(convolution(inside, inside, kernel=kernel, stride=stride, groups=inside, activation=activation))
        if gate:
            parts.append(SqueezeExcite(inside, max(1, channels // 4)))
        parts.append(convolution(inside, out, kernel=1, activation=None))
        self.body = nn.Sequential(*parts)
        self.adds = channels == out and stride == 1

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Apply the body; add the input where the shapes allow it."""
        result: torch.Tensor = self.body(inputs)
        return inputs + result if self.adds else result


def _split_heads(projected: torch.Tensor, heads: int) -> tuple[torch.Tensor, ...]:
    """Split a joint projection into query, key and value, (batch, heads, count, channels per head) each."""
    batch, count, channels = projected.shape
    return projected.view(batch, count, 3, heads, channels // 3 // heads).permute(2, 0, 3, 1, 4).unbind(0)


class TransformerBlock(nn.Module):
    """A pre-norm encoder block (arXiv:2010.11929): attention, then two linear layers.

    Parameters
    ----------
    channels : int
        Channels of a token.
    heads : int
        Attention heads.
    expansion : int
        Expansion factor of the channels between the linear layers.
    """

    def __init__(self, channels: int, *, heads: int, expansion: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.project_in = nn.Linear(channels, 3 * channels)
        self.project_out = nn.Linear(channels, channels)
        self.widen, self.activation = nn.Linear(channels, expansion * channels), nn.GELU()
        self.narrow = nn.Linear(expansion * channels, channels)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Apply attention across tokens, then the feed-forward layers to each token."""
        tokens = tokens + self._attend(self.before(tokens))
        changed: torch.Tensor = self.narrow(self.activation(self.widen(self.between(tokens))))
        return tokens + changed

    def _attend(self, tokens: torch.Tensor) -> torch.Tensor:
        batch, count, channels = tokens.shape
        query, key, value = _split_heads(self.project_in(tokens), self.heads)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        result: torch.Tensor = self.project_out(mixed.transpose(1, 2).reshape(batch, count, channels))
        return result


class RelativeAttention(nn.Module):
    """Unfused attention with learned relative position embeddings (arXiv:1803.02155).

    There is one embedding for the row offset and one for the column offset, as if tokens were patches of an image.

    Parameters
    ----------
    channels : int
        Channels of a token.
    heads : int
        Attention heads.
    reach : int
        Largest offset with a separate embedding.
    """

    def __init__(self, channels: int, *, heads: int, reach: int = 14) -> None:
        super().__init__()
        self.heads, self.reach = heads, reach
        self.project_in, self.project_out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.rows, self.columns = (nn.Parameter(torch.randn(2 * reach + 1, channels // heads)) for _ in range(2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Apply attention across tokens, with scores that depend on their distance."""
        batch, count, channels = tokens.shape
        query, key, value = _split_heads(self.project_in(tokens), self.heads)
        places = torch.arange(count, device=tokens.device)
        side = max(1, math.isqrt(count))
        vectors = self.rows[self._steps(places // side)] + self.columns[self._steps(places % side)]
        near = query.permute(2, 0, 1, 3).reshape(count, batch * self.heads, -1) @ vectors.transpose(1, 2)
        scores = query @ key.transpose(-2, -1) + near.transpose(0, 1).reshape(batch, self.heads, count, count)
        mixed = scores.softmax(dim=-1) @ value
        result: torch.Tensor = self.project_out(mixed.transpose(1, 2).reshape(batch, count, channels))
        return result

    def _steps(self, places: torch.Tensor) -> torch.Tensor:
        return (places[None] - places[:, None]).clamp(-self.reach, self.reach) + self.reach


class Cell(nn.Module):
    """Two nodes of a searched cell (arXiv:1806.09055): sums of branches, and a concatenation of nodes.

    Parameters
    ----------
    channels : int
        Channels of the input, and of every node.
    branches : int
        Branches summed in a node, the first of them a 1x1 convolution.
    """

    def __init__(self, channels: int, *, branches: int) -> None:
        super().__init__()
        self.branches = branches
        self.convolve = nn.Sequential(nn.ReLU(), convolution(channels, channels, kernel=1, activation=None))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Sum the branches, then concatenate the nodes."""
        first = torch.stack([self.convolve(inputs), *[inputs] * (self.branches - 1)]).sum(0)
        second = torch.stack([first] * self.branches).sum(0)
        return torch.cat([first, second], 1)


class ShuffleUnit(nn.Module):
    """The unit of ShuffleNet V2 (arXiv:1807.11164): convolves half of the channels, then shuffles all.

    Parameters
    ----------
    channels : int
        Channels of input and output.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.body = nn.Sequential(
            convolution(half, half, kernel=1),
            convolution(half, half, groups=half, activation=None),
            convolution(half, half, kernel=1),
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Convolve one half, concatenate, shuffle."""
        kept, changed = inputs.chunk(2, 1)
        return shuffle_channels(torch.cat([kept, self.body(changed)], 1))


def pooling(channels: int, *, kernel: int = 3, stride: int = 1, average: bool = False) -> nn.Module:
    """Build a 'same'-padded pooling layer followed by batch normalisation, as in searched cells."""
    layer = nn.AvgPool2d if average else nn.MaxPool2d
    return nn.Sequential(layer(kernel, stride, padding=kernel // 2), nn.BatchNorm2d(channels))


def stem(channels: int, out: int, *, kernel: int, pool: bool) -> nn.Module:
    """Build the stem of a network: a strided convolution and an optional pooling layer."""
    first = convolution(channels, out, kernel=kernel, stride=2)
    return nn.Sequential(first, nn.MaxPool2d(3, 2, padding=1)) if pool else first


def head(channels: int, classes: int) -> nn.Module:
    """Build the head of a network: global average pooling and a linear layer."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
