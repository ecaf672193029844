# SPDX-License-Identifier: Apache-2.0
"""Export networks that no predictor learns from, to judge predictors on.

    python examples/unseen_sources.py --out sources      # a file for each, some minutes; those there already are kept
    python examples/unseen_sources.py --out sources --only yolov8 --only t5_encoder

Published architectures of many fields, in sizes that run on devices, written without looking at the generators of
`nni_latency.graphs`. Weights are random. The files have operator sets 13 to 17.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn
from torch.nn import functional

#: A network, and what it is given.
Built = tuple[nn.Module, tuple[Tensor, ...]]
Act = Callable[[], nn.Module] | None
#: Makes a block from its channels, those it returns, and its stride.
Block = Callable[[int, int, int], nn.Module]

add: Callable[[Sequence[Tensor]], Tensor] = functools.partial(functools.reduce, operator.add)
multiply: Callable[[Sequence[Tensor]], Tensor] = functools.partial(functools.reduce, operator.mul)
concat = functools.partial(torch.cat, dim=1)
Seq, Id = nn.Sequential, nn.Identity


class Do(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        """Return what the function does."""
        return self.function(*inputs)


class Ways(nn.Module):
    """Several ways from the same inputs, and a function of the list of their results."""

    def __init__(self, join: Callable[..., Any], *ways: nn.Module) -> None:
        super().__init__()
        self.join, self.ways = join, nn.ModuleList(ways)

    def forward(self, inputs: Any) -> Any:
        """Return the joined results."""
        return self.join([way(inputs) for way in self.ways])


def residual(*layers: nn.Module) -> nn.Module:
    """Add layers to their input."""
    return Ways(add, Id(), Seq(*layers))


def conv(
    channels: int, out: int, kernel: int = 3, stride: int = 1, act: Act = nn.ReLU, *, groups: int = 1, dilation: int = 1
) -> nn.Sequential:
    """Make a convolution with batch normalisation and an activation."""
    padding = kernel // 2 * dilation
    layers = [nn.Conv2d(channels, out, kernel, stride, padding, dilation, groups, bias=False), nn.BatchNorm2d(out)]
    return Seq(*layers, *([act()] if act else []))


def stack(block: Block, channels: int, plan: Sequence[tuple[int, int, int]]) -> list[nn.Module]:
    """Make stages of (channels, stride of the first block, blocks)."""
    layers = []
    for out, stride, depth in plan:
        for place in range(depth):
            layers.append(block(channels, out, 1 if place else stride))
            channels = out
    return layers


def head(channels: int, classes: int = 1000) -> list[nn.Module]:
    """Make a classifier."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


def squeeze(channels: int, reduced: int, gate: Callable[[], nn.Module] = nn.Sigmoid) -> nn.Module:
    """Make a squeeze-and-excitation gate."""
    inner = [nn.Conv2d(channels, reduced, 1), nn.ReLU(), nn.Conv2d(reduced, channels, 1)]
    return Ways(multiply, Id(), Seq(nn.AdaptiveAvgPool2d(1), *inner, gate()))


def joined(main: nn.Module, channels: int, out: int, stride: int) -> nn.Module:
    """Add a shortcut, projected where sizes differ, and activate."""
    shortcut = Id() if (channels, stride) == (out, 1) else conv(channels, out, 1, stride, None)
    return Seq(Ways(add, main, shortcut), nn.ReLU())


def basic(channels: int, out: int, stride: int, *inside: nn.Module, dilation: int = 1) -> nn.Module:
    """Make the block of ResNet-18."""
    main = [conv(channels, out, 3, stride, dilation=dilation), conv(out, out, act=None, dilation=dilation)]
    return joined(Seq(*main, *inside), channels, out, stride)


def inverted(channels: int, out: int, stride: int, expand: int = 6, act: Act = nn.ReLU6) -> nn.Module:
    """Make the block of MobileNetV2."""
    wide = channels * expand
    layers = [conv(channels, wide, 1, act=act), conv(wide, wide, 3, stride, act, groups=wide)]
    layers.append(conv(wide, out, 1, act=None))
    return residual(*layers) if (channels, stride) == (out, 1) else Seq(*layers)


def upsample(factor: int, mode: str = "nearest") -> nn.Module:
    """Make a layer that enlarges."""
    return nn.Upsample(scale_factor=factor, mode=mode, **({} if mode == "nearest" else {"align_corners": False}))


def picture(height: int, width: int = 0, channels: int = 3) -> tuple[Tensor]:
    """Return one picture; a square unless told."""
    return (torch.randn(1, channels, height, width or height),)


def tokens(count: int, vocabulary: int, batch: int = 1) -> Tensor:
    """Return numbers of tokens."""
    return torch.randint(0, vocabulary, (batch, count))


# Pictures: classes ---------------------------------------------------------------------------------------------------


def resnext50() -> Built:
    """Bottlenecks of 32 groups."""

    def block(channels: int, out: int, stride: int) -> nn.Module:
        layers = [conv(channels, out // 2, 1), conv(out // 2, out // 2, 3, stride, groups=32)]
        return joined(Seq(*layers, conv(out // 2, out, 1, act=None)), channels, out, stride)

    stages = stack(block, 64, [(256, 1, 3), (512, 2, 4), (1024, 2, 6), (2048, 2, 3)])
    return Seq(conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), *stages, *head(2048)), picture(192)


def regnet_y() -> Built:
    """RegNetY-800MF: groups of 16 channels, with gates."""

    def block(channels: int, out: int, stride: int) -> nn.Module:
        layers = [conv(channels, out, 1), conv(out, out, 3, stride, groups=out // 16), squeeze(out, channels // 4)]
        return joined(Seq(*layers, conv(out, out, 1, act=None)), channels, out, stride)

    stages = stack(block, 32, [(64, 2, 1), (144, 2, 3), (320, 2, 8), (784, 2, 2)])
    return Seq(conv(3, 32, 3, 2), *stages, *head(784)), picture(224)


def ghostnet() -> Built:
    """Half of the channels by a cheap depthwise convolution."""

    def ghost(channels: int, out: int, act: Act = nn.ReLU) -> nn.Module:
        half = out // 2
        return Seq(conv(channels, half, 1, act=act), Ways(concat, Id(), conv(half, half, 3, 1, act, groups=half)))

    plan = [(3, 16, 16, 0, 1), (3, 48, 24, 0, 2), (3, 72, 24, 0, 1), (5, 72, 40, 20, 2), (5, 120, 40, 32, 1)]
    plan += [(3, 240, 80, 0, 2), (3, 200, 80, 0, 1), (3, 184, 80, 0, 1), (3, 480, 112, 120, 1), (3, 672, 112, 168, 1)]
    plan += [(5, 672, 160, 168, 2), (5, 960, 160, 0, 1), (5, 960, 160, 240, 1), (5, 960, 160, 0, 1)]
    layers, channels = [conv(3, 16, 3, 2)], 16
    for kernel, wide, out, reduced, stride in plan:
        inner = [ghost(channels, wide)]
        inner += [conv(wide, wide, kernel, stride, None, groups=wide)] if stride > 1 else []
        inner += [squeeze(wide, reduced, nn.Hardsigmoid)] if reduced else []
        main, same = Seq(*inner, ghost(wide, out, None)), (channels, stride) == (out, 1)
        depthwise = conv(channels, channels, kernel, stride, None, groups=channels)
        layers.append(Seq(Ways(add, main, Id() if same else Seq(depthwise, conv(channels, out, 1, act=None)))))
        channels = out
    last = [nn.AdaptiveAvgPool2d(1), nn.Conv2d(960, 1280, 1), nn.ReLU(), nn.Flatten(), nn.Linear(1280, 1000)]
    return Seq(*layers, conv(160, 960, 1), *last), picture(224)


def se_resnet() -> Built:
    """SE-ResNet-34 on small pictures."""
    stages = stack(
        lambda channels, out, stride: basic(channels, out, stride, squeeze(out, out // 16)),
        64,
        [(64, 1, 3), (128, 2, 4), (256, 2, 6), (512, 2, 3)],
    )
    return Seq(conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), *stages, *head(512, 200)), picture(160)


def nfnet() -> Built:
    """Without normalisation: scaled activations and residuals, groups, gates."""

    def gelu() -> nn.Module:
        return Do(lambda inputs: functional.gelu(inputs) * 1.7015)

    def block(channels: int, out: int, stride: int) -> nn.Module:
        half = out // 2
        layers = [nn.Conv2d(channels, half, 1), gelu(), nn.Conv2d(half, half, 3, stride, 1, groups=half // 64), gelu()]
        layers += [nn.Conv2d(half, half, 3, padding=1, groups=half // 64), gelu(), nn.Conv2d(half, out, 1)]
        main = Seq(*layers, squeeze(out, out // 2), Do(lambda inputs: inputs * 2 * 0.2))
        pooled = [nn.AvgPool2d(2, ceil_mode=True)] if stride > 1 else []
        shortcut = Id() if channels == out else Seq(*pooled, nn.Conv2d(channels, out, 1))
        return Seq(gelu(), Do(lambda inputs: inputs * 0.97), Ways(add, main, shortcut))

    stem = [nn.Conv2d(3, 32, 3, 2, 1), gelu(), nn.Conv2d(32, 128, 3, 2, 1)]
    stages = stack(block, 128, [(256, 1, 1), (512, 2, 2), (768, 2, 3), (768, 1, 1)])
    return Seq(*stem, *stages, gelu(), *head(768)), picture(160)


def mobilefacenet() -> Built:
    """Embed faces: PReLU, and a depthwise convolution of the whole map."""

    def block(channels: int, out: int, stride: int) -> nn.Module:
        wide = 2 * max(channels, out)
        layers = [nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.PReLU(wide)]
        layers += [conv(wide, wide, 3, stride, None, groups=wide), nn.PReLU(wide), conv(wide, out, 1, act=None)]
        return residual(*layers) if (channels, stride) == (out, 1) else Seq(*layers)

    stages = stack(block, 64, [(64, 2, 5), (128, 2, 7), (128, 2, 3)])
    last = [conv(128, 512, 1, act=None), nn.PReLU(512), nn.Conv2d(512, 512, 7, groups=512), nn.Flatten()]
    normal = Do(lambda inputs: functional.normalize(inputs, dim=1))
    return Seq(conv(3, 64, 3, 2, None), nn.PReLU(64), *stages, *last, nn.Linear(512, 128), normal), picture(112)


def siamese() -> Built:
    """Two pictures of signatures through the same layers, and how near they lie."""
    layers: list[nn.Module] = [nn.Conv2d(1, 64, 10), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 128, 7), nn.ReLU()]
    layers += [nn.MaxPool2d(2), nn.Conv2d(128, 128, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(128, 256, 4), nn.ReLU()]
    embed = Seq(*layers, nn.Flatten(), nn.Linear(9216, 256), Do(lambda inputs: functional.normalize(inputs, dim=1)))

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = embed

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return functional.pairwise_distance(self.embed(left), self.embed(right))

    return Pair(), (*picture(105, channels=1), *picture(105, channels=1))


def lenet() -> Built:
    """LeNet-5 on 32 digits at once."""
    layers: list[nn.Module] = [nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh()]
    layers += [nn.AvgPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh()]
    return Seq(*layers, nn.Linear(84, 10), nn.Softmax(1)), (torch.randn(32, 1, 32, 32),)


def mixer() -> Built:
    """Mixer-S/32: linear layers across patches and across channels."""

    def mlp(size: int, hidden: int) -> nn.Module:
        return Seq(nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, size))

    turn = Do(lambda inputs: inputs.transpose(1, 2))
    layers = [nn.Conv2d(3, 512, 32, 32), nn.Flatten(2), turn]
    for _ in range(8):
        layers += [residual(nn.LayerNorm(512), turn, mlp(49, 256), turn), residual(nn.LayerNorm(512), mlp(512, 2048))]
    last = [nn.LayerNorm(512), Do(lambda inputs: inputs.mean(1)), nn.Linear(512, 1000)]
    return Seq(*layers, *last), picture(224)


def convmixer() -> Built:
    """ConvMixer-256/12: large depthwise kernels on patches."""

    def part(channels: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
        padding = 0 if stride > 1 else kernel // 2
        return [nn.Conv2d(channels, 256, kernel, stride, padding, groups=groups), nn.GELU(), nn.BatchNorm2d(256)]

    layers = part(3, 7, 7)
    for _ in range(12):
        layers += [residual(*part(256, 9, groups=256)), *part(256, 1)]
    return Seq(*layers, *head(256)), picture(196)


# Transformers --------------------------------------------------------------------------------------------------------


class RmsNorm(nn.Module):
    """Normalisation by the root of the mean square."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return scaled inputs."""
        return self.weight * (inputs * torch.rsqrt(inputs.pow(2).mean(-1, keepdim=True) + 1e-6))


class Attention(nn.Module):
    """Attention of several heads.

    ``shared`` heads have the same keys and values; ``turned`` is the number of tokens whose places turn them.
    """

    cosine: Tensor
    sine: Tensor

    def __init__(self, size: int, heads: int, *, bias: bool = True, shared: int = 1, turned: int = 0) -> None:
        super().__init__()
        self.width, self.shared, self.turned = size // heads, shared, turned
        self.query, self.key = nn.Linear(size, size, bias), nn.Linear(size, size // shared, bias)
        self.value, self.out = nn.Linear(size, size // shared, bias), nn.Linear(size, size, bias)
        angles = torch.outer(torch.arange(turned), 1e4 ** (-torch.arange(0, self.width, 2) / self.width)).repeat(1, 2)
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())

    def turn(self, inputs: Tensor) -> Tensor:
        """Turn heads by the places of tokens."""
        first, second = inputs.chunk(2, -1)
        return inputs * self.cosine + torch.cat([-second, first], -1) * self.sine

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return tokens; a mask is added to scores, or forbids where it is true."""
        count, length, size = inputs.shape
        query, key, value = (
            layer(inputs).view(count, length, -1, self.width).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        if self.turned:
            query, key = self.turn(query), self.turn(key)
        if self.shared > 1:
            key, value = (
                item[:, :, None].expand(-1, -1, self.shared, -1, -1).reshape(query.shape) for item in (key, value)
            )
        scores = query @ key.transpose(2, 3) / math.sqrt(self.width)
        if mask is not None:
            scores = scores.masked_fill(mask, -1e9) if mask.dtype == torch.bool else scores + mask
        result: Tensor = self.out((scores.softmax(-1) @ value).transpose(1, 2).reshape(count, length, size))
        return result


class Layer(nn.Module):
    """Attention and a network of each token, normalised before (``first``) or after each."""

    def __init__(
        self,
        attention: Attention,
        feed: nn.Module | int,
        *,
        first: bool = True,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
        act: Callable[[], nn.Module] = nn.GELU,
    ) -> None:
        super().__init__()
        size = attention.out.out_features
        self.attention, self.first, self.one, self.two = attention, first, norm(size), norm(size)
        self.feed = Seq(nn.Linear(size, feed), act(), nn.Linear(feed, size)) if isinstance(feed, int) else feed

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return tokens."""
        if self.first:
            inputs = inputs + self.attention(self.one(inputs), mask)
            result: Tensor = inputs + self.feed(self.two(inputs))
        else:
            inputs = self.one(inputs + self.attention(inputs, mask))
            result = self.two(inputs + self.feed(inputs))
        return result


class Text(nn.Module):
    """Embeddings of tokens and of their places, layers, and a last layer."""

    def __init__(
        self, table: nn.Embedding, places: int, layers: Sequence[nn.Module], last: nn.Module, *between: nn.Module
    ) -> None:
        super().__init__()
        self.table, self.between, self.layers, self.last = table, Seq(*between), nn.ModuleList(layers), last
        self.places = nn.Parameter(torch.randn(1, places, table.embedding_dim)) if places else None
        self.mask: Callable[[], Tensor] | None = None

    def forward(self, numbers: Tensor, given: Tensor | None = None) -> Tensor:
        """Return tokens; a given mask is 1 where a token counts."""
        state = self.table(numbers)
        state = self.between(state if self.places is None else state + self.places[:, : numbers.shape[1]])
        mask = self.mask() if self.mask else None
        if given is not None:
            mask = (1 - given[:, None, None].to(state.dtype)) * -1e4
        for layer in self.layers:
            state = layer(state, mask)
        result: Tensor = self.last(state)
        return result


def gpt2() -> Built:
    """GPT-2's decoder: a causal mask, learned places, a large vocabulary."""
    forbidden = torch.ones(128, 128, dtype=torch.bool).triu(1)
    layers = [Layer(Attention(384, 6), 1536, act=lambda: nn.GELU("tanh")) for _ in range(6)]
    last = Seq(nn.LayerNorm(384), nn.Linear(384, 16000, bias=False))
    network = Text(nn.Embedding(16000, 384), 256, layers, last)
    network.mask = lambda: forbidden
    return network, (tokens(128, 16000),)


def llama() -> Built:
    """Llama's decoder: turned heads with shared keys, RMSNorm, SwiGLU."""
    forbidden = torch.full((64, 64), -1e9).triu(1)

    def layer() -> nn.Module:
        gate = Ways(multiply, Seq(nn.Linear(512, 1376, bias=False), nn.SiLU()), nn.Linear(512, 1376, bias=False))
        attention = Attention(512, 8, bias=False, shared=2, turned=64)
        return Layer(attention, Seq(gate, nn.Linear(1376, 512, bias=False)), norm=RmsNorm)

    last = Seq(RmsNorm(512), nn.Linear(512, 8000, bias=False))
    network = Text(nn.Embedding(8000, 512), 0, [layer() for _ in range(6)], last)
    network.mask = lambda: forbidden
    return network, (tokens(64, 8000),)


def t5_encoder() -> Built:
    """T5-small's encoder: scores with a learned bias of distances."""
    distance = torch.arange(64)[None] - torch.arange(64)[:, None]
    far = (8 + (distance.abs().clamp(min=1) / 8).log() / math.log(16) * 8).long().clamp(max=15)
    buckets = torch.where(distance.abs() < 8, distance.abs(), far) + 16 * (distance > 0)
    table = nn.Embedding(32, 8)

    def layer() -> nn.Module:
        feed = Seq(nn.Linear(512, 2048, bias=False), nn.ReLU(), nn.Linear(2048, 512, bias=False))
        return Layer(Attention(512, 8, bias=False), feed, norm=RmsNorm)

    network = Text(nn.Embedding(32128, 512), 0, [layer() for _ in range(6)], RmsNorm(512))
    network.mask = lambda: table(buckets).permute(2, 0, 1)[None]
    network.add_module("bias", table)
    return network, (tokens(64, 32128),)


def bert_mini() -> Built:
    """Four layers, with a mask of the tokens that count, and classes of the first token."""
    last = Seq(Do(lambda state: state[:, 0]), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 2))
    layers = [Layer(Attention(256, 4), 1024, first=False) for _ in range(4)]
    network = Text(nn.Embedding(30522, 256), 512, layers, last, nn.LayerNorm(256))
    return network, (tokens(128, 30522), torch.ones(1, 128, dtype=torch.long))


def electra_small() -> Built:
    """Twelve narrow layers on projected embeddings, and a number for each token."""
    layers = [Layer(Attention(256, 4), 1024, first=False) for _ in range(12)]
    last, between = Seq(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 1)), [nn.LayerNorm(128), nn.Linear(128, 256)]
    return Text(nn.Embedding(30522, 128), 512, layers, last, *between), (tokens(64, 30522),)


class Window(nn.Module):
    """A layer of Swin: attention in windows of 7x7, which may be shifted."""

    mask: Tensor

    def __init__(self, size: int, heads: int, side: int, shift: int) -> None:
        super().__init__()
        self.side, self.shift, self.layer = side, shift, Layer(Attention(size, heads), 4 * size)
        place = torch.stack(torch.meshgrid(torch.arange(7), torch.arange(7), indexing="ij")).flatten(1)
        offset = (place[:, :, None] - place[:, None] + 6) * torch.tensor([13, 1])[:, None, None]
        bias = (torch.randn(169, heads) * 0.02)[offset.sum(0)].permute(2, 0, 1)[None]
        region = torch.zeros(1, side, side, 1)
        if shift:
            edge = (torch.arange(side) >= side - 7).int() + (torch.arange(side) >= side - shift).int()
            region = (edge[:, None] * 3 + edge).float()[None, :, :, None]
        label = self.cut(region).squeeze(-1)
        self.register_buffer("mask", bias + (label[:, None] != label[:, :, None]).float()[:, None] * -100)

    def cut(self, inputs: Tensor) -> Tensor:
        """Return windows of 49 tokens."""
        parts = self.side // 7
        return inputs.view(1, parts, 7, parts, 7, -1).permute(0, 1, 3, 2, 4, 5).reshape(parts * parts, 49, -1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (1, side, side, size)."""
        if self.shift:
            inputs = torch.roll(inputs, (-self.shift, -self.shift), (1, 2))
        parts = self.side // 7
        state = self.layer(self.cut(inputs), self.mask).view(1, parts, parts, 7, 7, -1).permute(0, 1, 3, 2, 4, 5)
        result: Tensor = state.reshape(1, self.side, self.side, -1)
        return torch.roll(result, (self.shift, self.shift), (1, 2)) if self.shift else result


def swin() -> Built:
    """Windows of attention on maps of 56x56 to 7x7."""

    def merge(inputs: Tensor) -> Tensor:
        return torch.cat([inputs[:, row::2, column::2] for column in (0, 1) for row in (0, 1)], -1)

    layers = [nn.Conv2d(3, 64, 4, 4), Do(lambda inputs: inputs.permute(0, 2, 3, 1)), nn.LayerNorm(64)]
    for stage, depth in enumerate((2, 2, 4, 2)):
        size, side = 64 << stage, 56 >> stage
        if stage:
            layers += [Do(merge), nn.LayerNorm(2 * size), nn.Linear(2 * size, size, bias=False)]
        layers += [Window(size, 2 << stage, side, 3 * (place % 2) if side > 7 else 0) for place in range(depth)]
    last = [nn.LayerNorm(512), Do(lambda inputs: inputs.mean((1, 2))), nn.Linear(512, 1000)]
    return Seq(*layers, *last), picture(224)


def mobilevit() -> Built:
    """MobileViT-XS: transformers across patches between blocks of MobileNetV2."""

    def silu(channels: int, out: int, stride: int) -> nn.Module:
        return inverted(channels, out, stride, 4, nn.SiLU)

    def vit(channels: int, size: int, depth: int, side: int) -> nn.Module:
        def unfold(inputs: Tensor) -> Tensor:
            state = inputs.reshape(size * side // 2, 2, side // 2, 2).transpose(1, 2)
            return state.reshape(size, side * side // 4, 4).transpose(0, 2)

        def fold(inputs: Tensor) -> Tensor:
            state = inputs.transpose(0, 2).reshape(size * side // 2, side // 2, 2, 2)
            return state.transpose(1, 2).reshape(1, size, side, side)

        layers = [Layer(Attention(size, 4), 2 * size, act=nn.SiLU) for _ in range(depth)]
        inner = [conv(channels, channels, act=nn.SiLU), nn.Conv2d(channels, size, 1, bias=False), Do(unfold), *layers]
        main = Seq(*inner, nn.LayerNorm(size), Do(fold), conv(size, channels, 1, act=nn.SiLU))
        return Seq(Ways(concat, Id(), main), conv(2 * channels, channels, act=nn.SiLU))

    layers = [conv(3, 16, 3, 2, nn.SiLU), *stack(silu, 16, [(32, 1, 1), (48, 2, 3)])]
    layers += [silu(48, 64, 2), vit(64, 96, 2, 32), silu(64, 80, 2), vit(80, 120, 4, 16)]
    layers += [silu(80, 96, 2), vit(96, 144, 3, 8), conv(96, 384, 1, act=nn.SiLU)]
    return Seq(*layers, *head(384)), picture(256)


def detr() -> Built:
    """Questions that attend to a map of features: classes and boxes, without suppression of others."""

    class Detr(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            stages = stack(basic, 64, [(64, 1, 2), (128, 2, 2), (256, 2, 2)])
            self.body = Seq(conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), *stages, nn.Conv2d(256, 192, 1))
            self.encoder = nn.TransformerEncoderLayer(192, 8, 768, batch_first=True)
            self.decoders = nn.ModuleList(nn.TransformerDecoderLayer(192, 8, 768, batch_first=True) for _ in range(3))
            self.places, self.questions = nn.Parameter(torch.randn(1, 144, 192)), nn.Parameter(torch.randn(1, 50, 192))
            self.kind, self.box = nn.Linear(192, 92), Seq(nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 4))

        def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
            memory, state = self.body(inputs).flatten(2).transpose(1, 2) + self.places, self.questions
            memory = self.encoder(memory)
            for layer in self.decoders:
                state = layer(state, memory)
            return self.kind(state), self.box(state).sigmoid()

    return Detr(), picture(192)


# Pictures: segments, boxes, other pictures ---------------------------------------------------------------------------


class Exchange(nn.Module):
    """Maps of several sizes, each of which gets the sum of all."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Seq(basic(size, size, 1), basic(size, size, 1)) for size in sizes)
        self.count = len(sizes)
        self.ways = nn.ModuleList(self.way(sizes, *pair) for pair in itertools.product(range(self.count), repeat=2))

    @staticmethod
    def way(sizes: Sequence[int], target: int, source: int) -> nn.Module:
        """Bring a map to the size of another."""
        if source > target:
            return Seq(conv(sizes[source], sizes[target], 1, act=None), upsample(2 ** (source - target)))
        layers = [conv(sizes[source], sizes[source], 3, 2) for _ in range(target - source - 1)]
        return Seq(*layers, *([conv(sizes[source], sizes[target], 3, 2, None)] if source < target else []))

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """Return as many maps."""
        maps = [block(item) for block, item in zip(self.blocks, maps, strict=True)]
        found = [way(maps[number % self.count]) for number, way in enumerate(self.ways)]
        starts = range(0, len(found), self.count)
        return [functional.relu(add(found[start : start + self.count])) for start in starts]


def hrnet() -> Built:
    """Poses from three resolutions kept side by side."""
    stem = [conv(3, 64, 3, 2), conv(64, 64, 3, 2), basic(64, 64, 1)]
    two = Seq(Ways(list, conv(64, 18), conv(64, 36, 3, 2)), Exchange([18, 36]))
    third = conv(36, 72, 3, 2)
    three = Seq(Ways(lambda parts: [*parts[0], parts[1]], Id(), Seq(Do(operator.itemgetter(1)), third)))
    last = [Exchange([18, 36, 72]), Exchange([18, 36, 72]), Do(operator.itemgetter(0)), nn.Conv2d(18, 17, 1)]
    return Seq(*stem, two, three, *last), picture(256, 192)


def unet() -> Built:
    """U-Net with 32 channels: connections across, transposed convolutions."""

    def level(channels: int, out: int, depth: int) -> nn.Module:
        layers: list[nn.Module] = [conv(channels, out), conv(out, out)]
        if depth:
            inner = Seq(nn.MaxPool2d(2), level(out, 2 * out, depth - 1), nn.ConvTranspose2d(2 * out, out, 2, 2))
            layers += [Ways(concat, Id(), inner), conv(2 * out, out), conv(out, out)]
        return Seq(*layers)

    return Seq(level(1, 32, 4), nn.Conv2d(32, 2, 1)), picture(128, channels=1)


def attention_unet() -> Built:
    """U-Net whose connections pass a gate that the deeper level opens."""

    def level(channels: int, out: int, depth: int) -> nn.Module:
        layers: list[nn.Module] = [conv(channels, out), conv(out, out)]
        if depth:
            gate = Seq(nn.ReLU(), conv(out // 2, 1, 1, act=nn.Sigmoid))
            across, below = conv(out, out // 2, 1, act=None), conv(out, out // 2, 1, act=None)
            modules = nn.ModuleList([gate, across, below])

            def join(parts: list[Tensor]) -> Tensor:
                return torch.cat([parts[0] * modules[0](modules[1](parts[0]) + modules[2](parts[1])), parts[1]], 1)

            rise = Seq(upsample(2), conv(2 * out, out))
            ways = Ways(join, Id(), Seq(nn.MaxPool2d(2), level(out, 2 * out, depth - 1), rise))
            ways.add_module("gate", modules)
            layers += [ways, conv(2 * out, out)]
        return Seq(*layers)

    return Seq(level(3, 24, 3), nn.Conv2d(24, 1, 1), nn.Sigmoid()), picture(128)


def linknet() -> Built:
    """LinkNet: connections across that are added, over ResNet-18."""

    def level(channels: int, out: int, stride: int, deeper: int) -> nn.Module:
        encode, quarter = Seq(*stack(basic, channels, [(out, stride, 2)])), out // 4
        inner = [level(out, 2 * out, 2, deeper - 1)] if deeper else []
        rise = nn.ConvTranspose2d(quarter, quarter, 3, stride, 1, output_padding=stride - 1)
        decode = Seq(conv(out, quarter, 1), rise, nn.BatchNorm2d(quarter), nn.ReLU(), conv(quarter, channels, 1))
        return residual(encode, *inner, decode)

    ends = [
        nn.ConvTranspose2d(64, 32, 3, 2, 1, output_padding=1),
        nn.ReLU(),
        conv(32, 32),
        nn.ConvTranspose2d(32, 12, 2, 2),
    ]
    return Seq(conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), level(64, 64, 1, 3), *ends), picture(192)


def deeplabv3() -> Built:
    """Dilated convolutions side by side, over MobileNetV2."""
    plan = [(16, 1, 1), (24, 2, 2), (32, 2, 3), (64, 2, 4), (96, 1, 3)]
    body = [conv(3, 32, 3, 2, nn.ReLU6), *stack(inverted, 32, plan)]
    rates = [conv(96, 128, dilation=rate) for rate in (6, 12, 18)]
    whole = Seq(nn.AdaptiveAvgPool2d(1), conv(96, 128, 1), nn.Upsample((20, 20), mode="bilinear"))
    last = [conv(640, 128, 1), nn.Conv2d(128, 21, 1), upsample(16, "bilinear")]
    return Seq(*body, Ways(concat, conv(96, 128, 1), *rates, whole), *last), picture(320)


def pspnet() -> Built:
    """Pools of four sizes beside a dilated map."""
    body = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), *stack(basic, 64, [(64, 1, 2), (128, 2, 2)])]
    body += [basic(128, 192, 1, dilation=2), basic(192, 192, 1, dilation=4)]
    pools = [
        Seq(nn.AdaptiveAvgPool2d(size), conv(192, 48, 1), upsample(24 // size, "bilinear")) for size in (1, 2, 3, 6)
    ]
    last = [conv(384, 96), nn.Conv2d(96, 19, 1), upsample(8, "bilinear"), Do(lambda inputs: inputs.argmax(1))]
    return Seq(*body, Ways(concat, Id(), *pools), *last), picture(192)


class Split(nn.Module):
    """C2f: half of the channels through blocks, each of whose results is kept."""

    def __init__(self, channels: int, out: int, depth: int, short: bool) -> None:
        super().__init__()
        half = out // 2
        inner = [[conv(half, half, act=nn.SiLU), conv(half, half, act=nn.SiLU)] for _ in range(depth)]
        self.first, self.last = conv(channels, out, 1, act=nn.SiLU), conv(half * (2 + depth), out, 1, act=nn.SiLU)
        self.blocks = nn.ModuleList(residual(*layers) if short else Seq(*layers) for layers in inner)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (n, out, height, width)."""
        parts = list(self.first(inputs).chunk(2, 1))
        for block in self.blocks:
            parts.append(block(parts[-1]))
        result: Tensor = self.last(torch.cat(parts, 1))
        return result


def cross(channels: int, out: int, depth: int, short: bool) -> nn.Module:
    """Make C3: blocks beside a single convolution."""
    half = out // 2
    inner = [[conv(half, half, 1, act=nn.SiLU), conv(half, half, act=nn.SiLU)] for _ in range(depth)]
    blocks = [residual(*layers) if short else Seq(*layers) for layers in inner]
    ways = Ways(concat, Seq(conv(channels, half, 1, act=nn.SiLU), *blocks), conv(channels, half, 1, act=nn.SiLU))
    return Seq(ways, conv(out, out, 1, act=nn.SiLU))


class Pyramid(nn.Module):
    """A body of YOLO, and its way up and down through three sizes."""

    def __init__(self, block: Callable[[int, int, int, bool], nn.Module], stem: int, narrow: bool) -> None:
        super().__init__()

        def down(channels: int, out: int) -> nn.Module:
            return conv(channels, out, 3, 2, nn.SiLU)

        def reduce(channels: int) -> nn.Module:
            return conv(channels, channels // 2, 1, act=nn.SiLU) if narrow else Id()

        pool = nn.MaxPool2d(5, 1, 2)
        pools = Ways(concat, Id(), pool, Seq(pool, pool), Seq(pool, pool, pool))
        spp = Seq(conv(256, 128, 1, act=nn.SiLU), pools, conv(512, 256, 1, act=nn.SiLU))
        start = [conv(3, 16, stem, 2, nn.SiLU), down(16, 32), block(32, 32, 1, True)]
        self.three = Seq(*start, down(32, 64), block(64, 64, 2, True))
        self.four = Seq(down(64, 128), block(128, 128, 3 if narrow else 2, True))
        self.five = Seq(down(128, 256), block(256, 256, 1, True), spp)
        five, four = (128, 64) if narrow else (256, 128)
        self.reduce_five, self.reduce_four, self.up = reduce(256), reduce(128), upsample(2)
        self.up_four, self.up_three = block(five + 128, 128, 1, False), block(four + 64, 64, 1, False)
        self.low_four, self.low_five = block(64 + four, 128, 1, False), block(128 + five, 256, 1, False)
        self.down_three, self.down_four = down(64, 64), down(128, 128)

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return maps of 64, 128 and 256 channels."""
        three = self.three(inputs)
        four = self.four(three)
        five = self.reduce_five(self.five(four))
        four = self.reduce_four(self.up_four(torch.cat([self.up(five), four], 1)))
        three = self.up_three(torch.cat([self.up(four), three], 1))
        four = self.low_four(torch.cat([self.down_three(three), four], 1))
        return [three, four, self.low_five(torch.cat([self.down_four(four), five], 1))]


class Heads(nn.Module):
    """A layer for each map, and what becomes of all results."""

    def __init__(self, heads: Sequence[nn.Module], join: Callable[..., Any]) -> None:
        super().__init__()
        self.heads, self.join = nn.ModuleList(heads), join

    def forward(self, maps: list[Tensor]) -> Any:
        """Return what is joined."""
        return self.join([layer(item) for layer, item in zip(self.heads, maps, strict=True)])


def centres(side: int) -> Tensor:
    """Return the places of a map, (side * side, 2)."""
    row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return torch.stack([column, row], -1).reshape(-1, 2) + 0.5


def yolov5() -> Built:
    """YOLOv5n: C3, and boxes at anchors."""
    anchors = torch.rand(3, 1, 3, 1, 2) * 100

    def boxes(maps: list[Tensor]) -> Tensor:
        found = []
        for anchor, item, side in zip(anchors, maps, (40, 20, 10), strict=True):
            state = item.view(1, 3, 85, side, side).permute(0, 1, 3, 4, 2).reshape(1, 3, side * side, 85).sigmoid()
            place = (state[..., :2] * 2 - 1 + centres(side)) * (320 / side)
            size = (state[..., 2:4] * 2) ** 2 * anchor.view(1, 3, 1, 2)
            found.append(torch.cat([place, size, state[..., 4:]], -1).view(1, -1, 85))
        return torch.cat(found, 1)

    heads = Heads([nn.Conv2d(size, 255, 1) for size in (64, 128, 256)], boxes)
    return Seq(Pyramid(cross, 7, True), heads), picture(320)


def yolov8() -> Built:
    """YOLOv8n: C2f, and distances as means of 16 steps."""
    place = torch.cat([centres(side) for side in (40, 20, 10)]).T[None]
    stride = torch.cat([torch.full((side * side,), 320 / side) for side in (40, 20, 10)])

    def boxes(maps: list[Tensor]) -> Tensor:
        box, kind = torch.cat([item.flatten(2) for item in maps], 2).split((64, 80), 1)
        steps = box.view(1, 4, 16, 2100).transpose(1, 2).softmax(1)
        near, far = functional.conv2d(steps, torch.arange(16.0).view(1, 16, 1, 1)).view(1, 4, 2100).chunk(2, 1)
        low, high = place - near, place + far
        return torch.cat([torch.cat([(low + high) / 2, high - low], 1) * stride, kind.sigmoid()], 1)

    def branch(size: int, width: int, out: int) -> nn.Module:
        return Seq(conv(size, width, act=nn.SiLU), conv(width, width, act=nn.SiLU), nn.Conv2d(width, out, 1))

    heads = [Ways(concat, branch(size, 64, 64), branch(size, 80, 80)) for size in (64, 128, 256)]
    return Seq(Pyramid(Split, 3, False), Heads(heads, boxes)), picture(320)


class Body(nn.Module):
    """Stages in a row, whose results are all returned from one of them on."""

    def __init__(self, stages: Sequence[nn.Module], first: int = 0) -> None:
        super().__init__()
        self.stages, self.first = nn.ModuleList(stages), first

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return maps, large ones first."""
        maps = []
        for stage in self.stages:
            inputs = stage(inputs)
            maps.append(inputs)
        return maps[self.first :]


def ssdlite() -> Built:
    """Boxes at six sizes by depthwise heads, over MobileNetV2."""
    start = stack(inverted, 32, [(16, 1, 1), (24, 2, 2), (32, 2, 3), (64, 2, 4), (96, 1, 3)])
    stages = [
        Seq(conv(3, 32, 3, 2, nn.ReLU6), *start),
        Seq(*stack(inverted, 96, [(160, 2, 3), (320, 1, 1)]), conv(320, 1280, 1, act=nn.ReLU6)),
    ]
    sizes = (96, 1280, 512, 256, 256, 128)
    for before, size in itertools.pairwise(sizes[1:]):
        half = size // 2
        inner = [conv(before, half, 1, act=nn.ReLU6), conv(half, half, 3, 2, nn.ReLU6, groups=half)]
        stages.append(Seq(*inner, conv(half, size, 1, act=nn.ReLU6)))

    def branch(size: int, numbers: int) -> nn.Module:
        def flat(inputs: Tensor) -> Tensor:
            return inputs.permute(0, 2, 3, 1).reshape(1, -1, numbers)

        return Seq(conv(size, size, act=nn.ReLU6, groups=size), nn.Conv2d(size, 6 * numbers, 1), Do(flat))

    def join(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        kinds, boxes = zip(*parts, strict=True)
        return torch.cat(kinds, 1).softmax(-1), torch.cat(boxes, 1)

    heads = [Ways(tuple, branch(size, 21), branch(size, 4)) for size in sizes]
    return Seq(Body(stages), Heads(heads, join)), picture(300)


class BiFpn(nn.Module):
    """Maps of five sizes, joined upwards and downwards by weighted sums."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.rand(8, 3))
        self.layers = nn.ModuleList(
            Seq(nn.SiLU(), nn.Conv2d(size, size, 3, padding=1, groups=size), conv(size, size, 1, act=None))
            for _ in range(8)
        )
        self.up, self.down = upsample(2), nn.MaxPool2d(3, 2, 1)

    def mean(self, number: int, *maps: Tensor) -> Tensor:
        """Join maps, and convolve."""
        weights = functional.relu(self.weights[number, : len(maps)])
        weights = weights / (weights.sum() + 1e-4)
        result: Tensor = self.layers[number](add([weights[place] * item for place, item in enumerate(maps)]))
        return result

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """Return as many maps."""
        rising = [maps[4]]
        for number, item in enumerate(maps[3::-1]):
            rising.append(self.mean(number, item, self.up(rising[-1])))
        found = [rising.pop()]
        for number, (item, inner) in enumerate(zip(maps[1:4], rising[:0:-1], strict=True)):
            found.append(self.mean(4 + number, item, inner, self.down(found[-1])))
        return [*found, self.mean(7, maps[4], self.down(found[-1]))]


def efficientdet() -> Built:
    """Three BiFPN, and the same heads at five sizes."""

    def block(channels: int, out: int, stride: int) -> nn.Module:
        return inverted(channels, out, stride, 6, nn.SiLU)

    start = Seq(conv(3, 32, 3, 2, nn.SiLU), *stack(block, 32, [(16, 1, 1), (24, 2, 2), (40, 2, 2)]))
    middle = Seq(*stack(block, 40, [(80, 2, 3), (112, 1, 3)]))
    stages: list[nn.Module] = [start, middle, Seq(*stack(block, 112, [(192, 2, 4), (320, 1, 1)]))]
    stages += [Seq(conv(320, 64, 1, act=None), nn.MaxPool2d(3, 2, 1)), nn.MaxPool2d(3, 2, 1)]
    same = Heads([conv(size, 64, 1, act=None) for size in (40, 112, 320)] + [Id(), Id()], list)

    def branch(numbers: int) -> nn.Module:
        layers = [conv(64, 64, groups=64, act=None), conv(64, 64, 1, act=nn.SiLU)] * 3
        last = Do(lambda inputs: inputs.permute(0, 2, 3, 1).reshape(1, -1, numbers))
        return Seq(*layers, nn.Conv2d(64, 9 * numbers, 3, padding=1), last)

    kinds, boxes = branch(90), branch(4)
    ways = Ways(tuple, Heads([kinds] * 5, concat), Heads([boxes] * 5, concat))
    return Seq(Body(stages), same, *(BiFpn(64) for _ in range(3)), ways), picture(256)


def dbnet() -> Built:
    """Where text is: four sizes joined, and two maps at full size."""
    stages = [Seq(conv(3, 32, 3, 2), *stack(basic, 32, [(32, 2, 2)]))]
    stages += [Seq(*stack(basic, size, [(2 * size, 2, 2)])) for size in (32, 64, 128)]
    same = Heads([nn.Conv2d(size, 96, 1) for size in (32, 64, 128, 256)], list)

    def rise(maps: list[Tensor]) -> list[Tensor]:
        found = [maps[3]]
        for item in maps[2::-1]:
            found.append(item + functional.interpolate(found[-1], scale_factor=2.0))
        return found[::-1]

    smooth = [Seq(conv(96, 24), upsample(1 << place) if place else Id()) for place in range(4)]

    def branch() -> nn.Module:
        inner = [conv(96, 24), nn.ConvTranspose2d(24, 24, 2, 2), nn.BatchNorm2d(24), nn.ReLU()]
        return Seq(*inner, nn.ConvTranspose2d(24, 1, 2, 2), nn.Sigmoid())

    def binary(parts: list[Tensor]) -> Tensor:
        return torch.cat([*parts, torch.reciprocal(1 + torch.exp(-50 * (parts[0] - parts[1])))], 1)

    return Seq(Body(stages), same, Do(rise), Heads(smooth, concat), Ways(binary, branch(), branch())), picture(320)


def espcn() -> Built:
    """Three times as large by moving channels to places."""
    layers: list[nn.Module] = [nn.Conv2d(1, 64, 5, padding=2), nn.Tanh(), nn.Conv2d(64, 32, 3, padding=1), nn.Tanh()]
    return Seq(*layers, nn.Conv2d(32, 9, 3, padding=1), nn.PixelShuffle(3)), picture(180, 240, 1)


def srresnet() -> Built:
    """Four times as large: PReLU, a long connection, and two shuffles."""
    blocks = [residual(conv(64, 64, act=nn.PReLU), conv(64, 64, act=None)) for _ in range(12)]
    rise = [nn.Conv2d(64, 256, 3, padding=1), nn.PixelShuffle(2), nn.PReLU()]
    again = [nn.Conv2d(64, 256, 3, padding=1), nn.PixelShuffle(2), nn.PReLU(), nn.Conv2d(64, 3, 9, padding=4)]
    return Seq(
        nn.Conv2d(3, 64, 9, padding=4), nn.PReLU(), residual(*blocks, conv(64, 64, act=None)), *rise, *again
    ), picture(32)


def instance(channels: int, out: int, kernel: int, stride: int = 1, act: Act = nn.ReLU) -> nn.Module:
    """Make a convolution of a mirrored edge, with instance normalisation."""
    layers = [nn.ReflectionPad2d(kernel // 2), nn.Conv2d(channels, out, kernel, stride)]
    return Seq(*layers, nn.InstanceNorm2d(out, affine=True), *([act()] if act else []))


def style_transfer() -> Built:
    """Another style: instance normalisation, mirrored edges, enlarged maps."""
    layers = [instance(3, 32, 9), instance(32, 64, 3, 2), instance(64, 128, 3, 2)]
    layers += [residual(instance(128, 128, 3), instance(128, 128, 3, act=None)) for _ in range(5)]
    layers += [upsample(2), instance(128, 64, 3), upsample(2), instance(64, 32, 3)]
    return Seq(*layers, nn.ReflectionPad2d(4), nn.Conv2d(32, 3, 9)), picture(128)


def cyclegan() -> Built:
    """From picture to picture: transposed convolutions at the end."""

    def rise(channels: int, out: int) -> nn.Module:
        return Seq(nn.ConvTranspose2d(channels, out, 3, 2, 1, 1), nn.InstanceNorm2d(out), nn.ReLU())

    layers = [instance(3, 32, 7), instance(32, 64, 3, 2), instance(64, 128, 3, 2)]
    layers += [residual(instance(128, 128, 3), instance(128, 128, 3, act=None)) for _ in range(6)]
    last = [rise(128, 64), rise(64, 32), nn.ReflectionPad2d(3), nn.Conv2d(32, 3, 7), nn.Tanh()]
    return Seq(*layers, *last), picture(128)


# Sound, signals, text, tables ----------------------------------------------------------------------------------------


def recurrent(kind: Callable[..., nn.Module], *sizes: int, **options: Any) -> nn.Module:
    """Make a recurrent network that returns its states, (n, length, size)."""
    return Seq(kind(*sizes, batch_first=True, **options), Do(operator.itemgetter(0)))


def conv1d(
    channels: int, out: int, kernel: int, stride: int = 1, *, groups: int = 1, dilation: int = 1, causal: bool = False
) -> nn.Module:
    """Make a convolution of a signal that keeps its length, or sees only what came before."""
    reach = (kernel - 1) * dilation
    if causal:
        return Seq(nn.ConstantPad1d((reach, 0), 0.0), nn.Conv1d(channels, out, kernel, dilation=dilation))
    return nn.Conv1d(channels, out, kernel, stride, (reach + 1) // 2, dilation, groups)


def crnn() -> Built:
    """Text in a picture: convolutions of flat maps, and two BiLSTM."""
    layers = [conv(1, 64), nn.MaxPool2d(2), conv(64, 128), nn.MaxPool2d(2), conv(128, 256), conv(256, 256)]
    layers += [
        nn.MaxPool2d((2, 2), (2, 1), (0, 1)),
        conv(256, 384),
        conv(384, 384),
        nn.MaxPool2d((2, 2), (2, 1), (0, 1)),
    ]
    layers += [nn.Conv2d(384, 384, 2), nn.ReLU(), Do(lambda inputs: inputs.squeeze(2).transpose(1, 2))]
    layers += [recurrent(nn.LSTM, 384, 192, bidirectional=True), nn.Linear(384, 192)]
    layers += [recurrent(nn.LSTM, 192, 192, bidirectional=True), nn.Linear(384, 37), nn.LogSoftmax(2)]
    return Seq(*layers), picture(32, 100, 1)


def bilstm_tagger() -> Built:
    """Tag each word, by two layers of BiLSTM."""
    layers = [nn.Embedding(30000, 100), recurrent(nn.LSTM, 100, 256, 2, bidirectional=True), nn.Linear(512, 17)]
    return Seq(*layers, nn.LogSoftmax(2)), (tokens(50, 30000),)


def gru_enhancer() -> Built:
    """Mask the spectrum of noisy speech, by two GRU."""
    layers = [nn.Linear(257, 400), nn.ReLU(), recurrent(nn.GRU, 400, 400, 2), nn.Linear(400, 600), nn.ReLU()]
    return Ways(multiply, Id(), Seq(*layers, nn.Linear(600, 257), nn.Sigmoid())), (torch.rand(1, 100, 257),)


def ds_cnn() -> Built:
    """Keywords in a second of sound: depthwise separable convolutions."""
    first = [nn.Conv2d(1, 172, (10, 4), (2, 1), (5, 1)), nn.BatchNorm2d(172), nn.ReLU()]
    blocks = [Seq(conv(172, 172, groups=172), conv(172, 172, 1)) for _ in range(4)]
    return Seq(*first, *blocks, *head(172, 12)), picture(49, 10, 1)


def tcn() -> Built:
    """Dilated convolutions of what came before."""

    def block(channels: int, out: int, dilation: int) -> nn.Module:
        layers = [conv1d(channels, out, 5, dilation=dilation, causal=True), nn.ReLU(), nn.Dropout(0.1)]
        layers += [conv1d(out, out, 5, dilation=dilation, causal=True), nn.ReLU()]
        return Seq(Ways(add, Seq(*layers), Id() if channels == out else nn.Conv1d(channels, out, 1)), nn.ReLU())

    blocks = [block(64 if place else 24, 64, 1 << place) for place in range(7)]
    return Seq(*blocks, Do(lambda inputs: inputs[:, :, -1]), nn.Linear(64, 8)), (torch.randn(1, 24, 1024),)


class Skipping(nn.Module):
    """Blocks that return what goes on and what is summed at the end."""

    def __init__(self, first: nn.Module, blocks: Sequence[Sequence[nn.Module]]) -> None:
        super().__init__()
        inner, onward, kept = zip(*blocks, strict=True)
        self.first, self.inner = first, nn.ModuleList(inner)
        self.onward, self.kept = nn.ModuleList(onward), nn.ModuleList(kept)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the sum."""
        state, found = self.first(inputs), []
        for inner, onward, kept in zip(self.inner, self.onward, self.kept, strict=True):
            hidden = inner(state)
            state = state + onward(hidden)
            found.append(kept(hidden))
        return add(found)


def wavenet() -> Built:
    """Gates of dilated convolutions, whose sum tells the next of 256 steps."""

    def block(dilation: int) -> list[nn.Module]:
        gate = Do(lambda inputs: inputs.chunk(2, 1)[0].tanh() * inputs.chunk(2, 1)[1].sigmoid())
        return [
            Seq(conv1d(48, 96, 2, dilation=dilation, causal=True), gate),
            nn.Conv1d(48, 48, 1),
            nn.Conv1d(48, 128, 1),
        ]

    body = Skipping(nn.Conv1d(1, 48, 1), [block(1 << place % 9) for place in range(18)])
    last = [nn.ReLU(), nn.Conv1d(128, 128, 1), nn.ReLU(), nn.Conv1d(128, 256, 1)]
    return Seq(body, *last), (torch.randn(1, 1, 4000),)


def conv_tasnet() -> Built:
    """Two voices apart: a learned transform, masks, and back."""

    def block(dilation: int) -> list[nn.Module]:
        layers = [nn.Conv1d(96, 192, 1), nn.PReLU(), nn.GroupNorm(1, 192)]
        layers += [nn.Conv1d(192, 192, 3, padding=dilation, dilation=dilation, groups=192), nn.PReLU()]
        return [Seq(*layers, nn.GroupNorm(1, 192)), nn.Conv1d(192, 96, 1), nn.Conv1d(192, 96, 1)]

    first = Seq(nn.GroupNorm(1, 192), nn.Conv1d(192, 96, 1))
    body = Skipping(first, [block(1 << place % 8) for place in range(16)])
    masks = Seq(body, nn.PReLU(), nn.Conv1d(96, 384, 1), nn.Sigmoid(), Do(lambda inputs: inputs.view(2, 192, -1)))
    layers = [nn.Conv1d(1, 192, 16, 8, bias=False), nn.ReLU(), Ways(multiply, Id(), masks)]
    return Seq(*layers, nn.ConvTranspose1d(192, 1, 16, 8, bias=False)), (torch.randn(1, 1, 8000),)


def ecg_resnet() -> Built:
    """Rhythms in twelve leads: long kernels along time."""

    def block(channels: int, out: int, stride: int) -> nn.Module:
        layers = [conv1d(channels, out, 15, stride), nn.BatchNorm1d(out), nn.ReLU(), nn.Dropout(0.2)]
        shortcut = Seq(nn.MaxPool1d(stride, ceil_mode=True), Id() if channels == out else nn.Conv1d(channels, out, 1))
        return Seq(Ways(add, Seq(*layers, conv1d(out, out, 15), nn.BatchNorm1d(out)), shortcut), nn.ReLU())

    stages = stack(block, 64, [(64, 1, 1), (64, 4, 2), (128, 4, 2), (192, 4, 2)])
    last = [nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(192, 9), nn.Sigmoid()]
    return Seq(conv1d(12, 64, 15), nn.BatchNorm1d(64), nn.ReLU(), *stages, *last), (torch.randn(1, 12, 2048),)


def conformer() -> Built:
    """Speech: attention and convolution in turn, between halves of a network of each frame."""
    turn = Do(lambda inputs: inputs.transpose(1, 2))

    def block() -> list[nn.Module]:
        def half() -> nn.Module:
            inner = [nn.LayerNorm(144), nn.Linear(144, 576), nn.SiLU(), nn.Linear(576, 144)]
            return residual(*inner, Do(lambda inputs: inputs * 0.5))

        inner = [nn.LayerNorm(144), turn, nn.Conv1d(144, 288, 1), nn.GLU(1), conv1d(144, 144, 31, groups=144)]
        inner += [nn.BatchNorm1d(144), nn.SiLU(), nn.Conv1d(144, 144, 1), turn]
        return [half(), residual(nn.LayerNorm(144), Attention(144, 4)), residual(*inner), half(), nn.LayerNorm(144)]

    first = [nn.Conv2d(1, 72, 3, 2), nn.ReLU(), nn.Conv2d(72, 72, 3, 2), nn.ReLU()]
    first += [Do(lambda inputs: inputs.transpose(1, 2).flatten(2)), nn.Linear(72 * 19, 144)]
    blocks = [layer for _ in range(8) for layer in block()]
    return Seq(*first, *blocks, nn.Linear(144, 256), nn.LogSoftmax(2)), picture(300, 80, 1)


def wav2vec() -> Built:
    """Features of a waveform, with a convolution of 16 groups for the places."""
    layers: list[nn.Module] = [nn.Conv1d(1, 320, 10, 5, bias=False), nn.GroupNorm(320, 320), nn.GELU()]
    for kernel in (3, 3, 3, 3, 2, 2):
        layers += [nn.Conv1d(320, 320, kernel, 2, bias=False), nn.GELU()]
    turn = Do(lambda inputs: inputs.transpose(1, 2))
    place = residual(turn, nn.Conv1d(384, 384, 65, padding=32, groups=16), nn.GELU(), turn)
    layers += [turn, nn.LayerNorm(320), nn.Linear(320, 384), place, nn.LayerNorm(384)]
    return Seq(*layers, *(Layer(Attention(384, 6), 1536, first=False) for _ in range(3))), (torch.randn(1, 1, 16000),)


def perceptron(*sizes: int, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Make linear layers."""
    layers: list[nn.Module] = []
    for before, size in itertools.pairwise(sizes):
        layers += [nn.Linear(before, size), act()]
    return Seq(*layers[:-1])


def autoencoder() -> Built:
    """Rebuild 196 windows of the sound of a machine, narrow in the middle."""
    return perceptron(640, 128, 128, 128, 128, 8, 128, 128, 128, 128, 640), (torch.randn(196, 640),)


class Table(nn.Module):
    """Rows of categories and of numbers: embeddings, and what joins both."""

    def __init__(
        self, counts: Sequence[int], size: int, join: Callable[[Tensor, Tensor], Tensor], *inner: nn.Module
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(count, size) for count in counts)
        self.join, self.inner = join, nn.ModuleList(inner)

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        """Return one number of each row."""
        found = torch.stack([table(categories[:, place]) for place, table in enumerate(self.tables)], 1)
        result: Tensor = self.inner[2](self.join(self.inner[0](found), self.inner[1](numbers)))
        return result


def dlrm() -> Built:
    """Recommendations: products of the embeddings of 26 categories, for 128 rows."""
    row, column = torch.tril_indices(27, 27, -1)

    def join(found: Tensor, numbers: Tensor) -> Tensor:
        every = torch.cat([numbers[:, None], found], 1)
        return torch.cat([numbers, torch.bmm(every, every.transpose(1, 2))[:, row, column]], 1)

    layers = [Id(), Seq(perceptron(13, 512, 256, 16), nn.ReLU()), Seq(perceptron(367, 512, 256, 1), nn.Sigmoid())]
    return Table([4000] * 26, 16, join, *layers), (tokens(26, 4000, 128), torch.randn(128, 13))


def tab_transformer() -> Built:
    """Attention across the categories of 64 rows."""
    layers = [Layer(Attention(32, 8), 128) for _ in range(6)]
    inner = [Seq(*layers, nn.Flatten()), nn.LayerNorm(6), perceptron(326, 1304, 652, 1, act=nn.SELU)]
    join = Do(lambda found, numbers: torch.cat([found, numbers], 1))
    return Table([50] * 10, 32, join, *inner), (tokens(10, 50, 64), torch.randn(64, 6))


def pointnet() -> Built:
    """Classes of 1024 points, which are first turned as another network says."""

    def shared(*sizes: int) -> list[nn.Module]:
        layers: list[nn.Module] = []
        for before, size in itertools.pairwise(sizes):
            layers += [nn.Conv1d(before, size, 1), nn.BatchNorm1d(size), nn.ReLU()]
        return [*layers, Do(lambda inputs: inputs.max(2)[0])]

    turn = Seq(*shared(3, 64, 128, 1024), perceptron(1024, 512, 256, 9), Do(lambda inputs: inputs.view(-1, 3, 3)))
    turned = Ways(lambda parts: torch.bmm(parts[0], parts[1]), turn, Id())
    return Seq(turned, *shared(3, 64, 64, 128, 1024), perceptron(1024, 512, 256, 40)), (torch.randn(1, 3, 1024),)


def c3d() -> Built:
    """Actions in 16 frames: convolutions of space and of time apart."""

    def block(channels: int, out: int, stride: int) -> nn.Module:
        layers = [nn.Conv3d(channels, out, (1, 3, 3), (1, stride, stride), (0, 1, 1)), nn.BatchNorm3d(out), nn.ReLU()]
        layers += [nn.Conv3d(out, out, (3, 1, 1), (stride, 1, 1), (1, 0, 0)), nn.BatchNorm3d(out)]
        shortcut = Id() if (channels, stride) == (out, 1) else nn.Conv3d(channels, out, 1, stride)
        return Seq(Ways(add, Seq(*layers), shortcut), nn.ReLU())

    stages = stack(block, 24, [(32, 1, 2), (64, 2, 2), (128, 2, 2)])
    last = [nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(128, 101)]
    return Seq(nn.Conv3d(3, 24, (3, 7, 7), (1, 2, 2), (1, 3, 3)), nn.ReLU(), *stages, *last), (
        torch.randn(1, 3, 16, 64, 64),
    )


def architectures() -> dict[str, Callable[[], Built]]:
    """Return what makes each network, by its name."""
    pictures = [resnext50, regnet_y, ghostnet, se_resnet, nfnet, mobilefacenet, siamese, lenet, mixer, convmixer]
    transformers = [gpt2, llama, t5_encoder, bert_mini, electra_small, swin, mobilevit, detr]
    segments = [hrnet, unet, attention_unet, linknet, deeplabv3, pspnet, yolov5, yolov8, ssdlite, efficientdet, dbnet]
    others = [espcn, srresnet, style_transfer, cyclegan, crnn, bilstm_tagger, gru_enhancer, ds_cnn, tcn, wavenet]
    others += [conv_tasnet, ecg_resnet, conformer, wav2vec, autoencoder, dlrm, tab_transformer, pointnet, c3d]
    return {build.__name__: build for build in (*pictures, *transformers, *segments, *others)}


def export(name: str, path: Path) -> None:
    """Write a network with random weights, whose statistics are not all alike, as an ONNX file."""
    names = list(architectures())
    torch.manual_seed(names.index(name))
    network, inputs = architectures()[name]()
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            nn.init.uniform_(layer.weight, 0.5, 2)
            nn.init.normal_(layer.bias, std=0.1)
    opset = 13 + names.index(name) % 5
    unfinished = path.with_suffix(".part")
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(network.eval(), inputs, unfinished, dynamo=False, opset_version=opset)
    unfinished.replace(path)


@click.command()
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder of the files.")
@click.option(
    "--only", multiple=True, metavar="NAME", type=click.Choice(list(architectures())),
    help="A network that is exported; repeat for several.  [default: all]",
)  # fmt: skip
def main(out: Path, only: tuple[str, ...]) -> None:
    """Export networks as ONNX files; those that are there are kept."""
    out.mkdir(parents=True, exist_ok=True)
    torch.backends.mha.set_fastpath_enabled(False)
    for name in only or architectures():
        path, start = out / f"{name}.onnx", time.perf_counter()
        if not path.exists():
            export(name, path)
            click.echo(f"{name}: {path.stat().st_size / 1e6:.1f} MB, {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
