# SPDX-License-Identifier: Apache-2.0
"""Families on sequences: vision and text transformers, and one-dimensional convolutions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from nni_latency.graphs._blocks import Variation

#: Vocabulary size of a text transformer.
VOCABULARY = 8000


class _Attention(nn.Module):
    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.taken, self.given = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, inputs: Tensor) -> Tensor:
        count, tokens, channels = inputs.shape
        parts = self.taken(inputs).reshape(count, tokens, 3, self.heads, channels // self.heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(queries, keys, values)
        return self.given(mixed.transpose(1, 2).reshape(count, tokens, channels))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """A pre-norm or post-norm transformer layer."""

    def __init__(self, channels: int, heads: int, ratio: float, *, before: bool) -> None:
        super().__init__()
        self.before = before
        self.attention, self.norms = _Attention(channels, heads), nn.ModuleList(nn.LayerNorm(channels) for _ in "12")
        wide = int(channels * ratio)
        self.layers = nn.Sequential(nn.Linear(channels, wide), nn.GELU(), nn.Linear(wide, channels))

    def forward(self, inputs: Tensor) -> Tensor:
        first, second = self.norms
        if self.before:
            inputs = inputs + self.attention(first(inputs))
            return inputs + self.layers(second(inputs))  # type: ignore[no-any-return]
        inputs = first(inputs + self.attention(inputs))
        return second(inputs + self.layers(inputs))  # type: ignore[no-any-return]


class _VisionTransformer(nn.Module):
    def __init__(self, patch: int, channels: int, layers: list[nn.Module]) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, channels, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, channels))
        self.places = nn.Parameter(torch.randn(1, (224 // patch) ** 2 + 1, channels) * 0.02)
        self.layers, self.norm, self.head = nn.Sequential(*layers), nn.LayerNorm(channels), nn.Linear(channels, 1000)

    def forward(self, inputs: Tensor) -> Tensor:
        patches = self.patches(inputs).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(inputs.shape[0], -1, -1), patches], dim=1) + self.places
        return self.head(self.norm(self.layers(tokens))[:, 0])  # type: ignore[no-any-return]


def vit(vary: Variation) -> nn.Module:
    """ViT-Ti/16 (arXiv:2010.11929)."""
    heads = vary.choose(3, (2, 3, 4, 6))
    channels = heads * vary.choose(64, (32, 48, 64))
    ratio, patch = vary.choose(4.0, (2.0, 3.0, 4.0)), vary.choose(16, (14, 16, 28, 32))
    layers: list[nn.Module] = [Encoder(channels, heads, ratio, before=True) for _ in range(vary.depth(12, spread=5))]
    return _VisionTransformer(patch, channels, layers)


class _TextTransformer(nn.Module):
    def __init__(self, tokens: int, channels: int, layers: list[nn.Module]) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, channels)
        self.places = nn.Parameter(torch.randn(1, tokens, channels) * 0.02)
        self.norm, self.layers, self.head = nn.LayerNorm(channels), nn.Sequential(*layers), nn.Linear(channels, 2)

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.layers(self.norm(self.words(words) + self.places))
        return self.head(torch.tanh(hidden[:, 0]))  # type: ignore[no-any-return]


#: Tokens of a text.
TEXT_LENGTH = 64


def bert(vary: Variation) -> nn.Module:
    """Small text transformer of BERT's kind (arXiv:1810.04805, arXiv:1908.08962)."""
    heads = vary.choose(4, (2, 4, 6, 8))
    channels = heads * vary.choose(64, (32, 48, 64))
    ratio, depth = vary.choose(4.0, (2.0, 3.0, 4.0)), vary.depth(4, spread=3)
    layers: list[nn.Module] = [Encoder(channels, heads, ratio, before=False) for _ in range(depth)]
    return _TextTransformer(TEXT_LENGTH, channels, layers)


class _Residual1d(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm1d(outputs),
            nn.ReLU(),
            nn.Conv1d(outputs, outputs, kernel, 1, kernel // 2, bias=False),
            nn.BatchNorm1d(outputs),
        )
        changes = stride > 1 or inputs != outputs
        self.shortcut = nn.Conv1d(inputs, outputs, 1, stride) if changes else None

    def forward(self, inputs: Tensor) -> Tensor:
        beside = inputs if self.shortcut is None else self.shortcut(inputs)
        return functional.relu(self.layers(inputs) + beside)


#: Samples of a signal.
SIGNAL_LENGTH = 4096


def resnet1d(vary: Variation) -> nn.Module:
    """Residual network on signals, after ResNet for time series (arXiv:1611.06455)."""
    width = vary.scale(0.5, 2.0)
    channels = vary.channels(round(32 * width / 8) * 8)
    kernel = vary.kernel(15, (7, 11, 15, 31))
    layers: list[nn.Module] = [
        nn.Conv1d(1, channels, kernel, 2, kernel // 2, bias=False),
        nn.BatchNorm1d(channels),
        nn.ReLU(),
        nn.MaxPool1d(2, 2),
    ]
    for usual in (32, 64, 128, 256):
        outputs, window = vary.channels(max(8, round(usual * width / 8) * 8)), vary.kernel(7, (3, 5, 7, 9))
        for block in range(vary.depth(2)):
            layers.append(_Residual1d(channels, outputs, window, 1 if block else 2))
            channels = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(channels, 10))
