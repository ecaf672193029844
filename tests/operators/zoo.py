# SPDX-License-Identifier: Apache-2.0
"""Architectures of today in small, written as plain torch modules: what tracer, features and predictors must take."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

#: Name to ``(build, example inputs)``.
ZOO = {}


def _entry(*inputs, **keywords):
    def add(build):
        ZOO[build.__name__] = (build, inputs, keywords)
        return build

    return add


def _picture(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _tokens(*shape, top=50):
    return torch.randint(0, top, shape, generator=torch.Generator().manual_seed(0))


def _conv(fan_in, fan_out, *, stride=1, groups=1, kernel=3):
    convolution = nn.Conv2d(fan_in, fan_out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(fan_out), nn.ReLU(inplace=True))


@_entry(_picture(1, 3, 32, 32))
class ResNet(nn.Module):
    """Residual blocks with a projection."""

    def __init__(self):
        super().__init__()
        self.stem, self.one, self.two = _conv(3, 16), _conv(16, 16), _conv(16, 32, stride=2)
        self.project, self.head = nn.Conv2d(16, 32, 1, 2), nn.Linear(32, 10)

    def forward(self, x):
        x = self.stem(x)
        x = self.one(x) + x
        x = self.two(x) + self.project(x)
        return self.head(x.mean((2, 3)))


@_entry(_picture(1, 3, 32, 32))
class MobileNetV3(nn.Module):
    """Inverted bottleneck with squeeze and excitation."""

    def __init__(self):
        super().__init__()
        self.expand, self.depthwise = _conv(3, 24, kernel=1), _conv(24, 24, groups=24, kernel=5)
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(24, 6, 1), nn.ReLU(), nn.Conv2d(6, 24, 1), nn.Hardsigmoid()
        )
        self.project = nn.Sequential(nn.Conv2d(24, 16, 1), nn.BatchNorm2d(16), nn.Hardswish())

    def forward(self, x):
        x = self.depthwise(self.expand(x))
        return self.project(x * self.squeeze(x))


@_entry(_picture(2, 3, 32, 32))
class ConvNeXt(nn.Module):
    """Layer norm over channels, a layer scale, and a permutation to channels last."""

    def __init__(self):
        super().__init__()
        self.stem, self.depthwise = nn.Conv2d(3, 16, 4, 4), nn.Conv2d(16, 16, 7, padding=3, groups=16)
        self.norm, self.wide, self.narrow = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)
        self.scale = nn.Parameter(1e-6 * torch.ones(16))

    def forward(self, x):
        x = self.stem(x)
        y = self.depthwise(x).permute(0, 2, 3, 1)
        y = self.scale * self.narrow(functional.gelu(self.wide(self.norm(y))))
        return x + y.permute(0, 3, 1, 2)


@_entry(_picture(1, 3, 32, 32))
class DenseNet(nn.Module):
    """Concatenation of everything before."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(_conv(3 + 8 * place, 8) for place in range(4))

    def forward(self, x):
        found = [x]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        return torch.cat(found, 1)


@_entry(_picture(1, 8, 16, 16))
class ShuffleNet(nn.Module):
    """Channels are split, and shuffled by a view."""

    def __init__(self):
        super().__init__()
        self.branch = nn.Sequential(_conv(4, 4, kernel=1), _conv(4, 4, groups=4), _conv(4, 4, kernel=1))

    def forward(self, x):
        left, right = x.chunk(2, 1)
        x = torch.cat([left, self.branch(right)], 1)
        batch, channels, height, width = x.shape
        return x.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(batch, channels, height, width)


@_entry(_picture(1, 3, 32, 32))
class UNet(nn.Module):
    """Skip connections and two kinds of upsampling."""

    def __init__(self):
        super().__init__()
        self.down, self.middle = _conv(3, 8), _conv(8, 16, stride=2)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, 2), _conv(16, 2)

    def forward(self, x):
        fine = self.down(x)
        coarse = self.middle(functional.max_pool2d(fine, 1))
        merged = self.out(torch.cat([fine, self.up(coarse)], 1))
        return functional.interpolate(merged, scale_factor=2, mode="bilinear", align_corners=False)


@_entry(_picture(1, 3, 16, 16))
class VisionTransformer(nn.Module):
    """Patches, a class token, learned positions and torch's own encoder layer."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 4, 4)
        self.token, self.position = nn.Parameter(torch.zeros(1, 1, 16)), nn.Parameter(torch.zeros(1, 17, 16))
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        return self.encoder(x)[:, 0]


def _windows(x, size):
    batch, height, width, channels = x.shape
    x = x.view(batch, height // size, size, width // size, size, channels)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, size * size, channels)


@_entry(_picture(1, 8, 8, 16))
class SwinBlock(nn.Module):
    """Shifted windows by roll, a table of relative positions that is indexed, and a mask."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.table = nn.Parameter(torch.zeros(49, 2))
        self.register_buffer("index", torch.randint(0, 49, (16, 16), generator=torch.Generator().manual_seed(0)))
        self.register_buffer("mask", torch.zeros(4, 1, 16, 16))

    def forward(self, x):
        windows = _windows(torch.roll(x, (-2, -2), (1, 2)), 4)
        query, key, value = self.qkv(windows).view(-1, 16, 3, 2, 8).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) / math.sqrt(8)
        scores = scores + self.table[self.index].permute(2, 0, 1) + self.mask
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).reshape(-1, 16, 16))


@_entry(_tokens(2, 12))
class Bert(nn.Module):
    """Token and position embeddings, and attention with a mask of the padding."""

    def __init__(self):
        super().__init__()
        self.words, self.positions, self.norm = nn.Embedding(50, 16), nn.Embedding(32, 16), nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, tokens):
        x = self.norm(self.words(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device)))
        return self.attention(x, x, x, key_padding_mask=tokens == 0, need_weights=False)[0]


@_entry(_tokens(1, 10))
class Llama(nn.Module):
    """Rotary embeddings, RMS norm, grouped queries, a causal mask and a gated feed-forward."""

    def __init__(self):
        super().__init__()
        self.words, self.gain = nn.Embedding(50, 16), nn.Parameter(torch.ones(16))
        self.query, self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 8), nn.Linear(16, 8)
        self.gate, self.up, self.down = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 16)
        self.register_buffer("frequencies", 1.0 / 10000 ** (torch.arange(0, 8, 2) / 8))

    def _rotated(self, x):
        angle = torch.outer(torch.arange(x.shape[2]).float(), self.frequencies)
        turn = torch.cat([angle, angle], -1)
        first, second = x.chunk(2, -1)
        return x * turn.cos() + torch.cat([-second, first], -1) * turn.sin()

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain

    def forward(self, tokens):
        x = self.words(tokens)
        y = self._norm(x)
        query = self._rotated(self.query(y).unflatten(-1, (2, 8)).transpose(1, 2))
        key = self._rotated(self.key(y).unflatten(-1, (1, 8)).transpose(1, 2)).repeat_interleave(2, 1)
        value = self.value(y).unflatten(-1, (1, 8)).transpose(1, 2).repeat_interleave(2, 1)
        x = x + functional.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)
        y = self._norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


@_entry(_tokens(1, 8), _tokens(1, 6))
class EncoderDecoder(nn.Module):
    """Torch's own transformer on two inputs; input and output embeddings share their weights."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.transformer = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)
        self.out = nn.Linear(16, 50, bias=False)
        self.out.weight = self.words.weight

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.out(self.transformer(self.words(source), self.words(target), tgt_mask=mask))


@_entry(_picture(1, 3, 16, 16), _tokens(1, 7))
class Clip(nn.Module):
    """Two towers, and a temperature without dimensions."""

    def __init__(self):
        super().__init__()
        self.picture, self.text = nn.Conv2d(3, 8, 4, 4), nn.Embedding(50, 8)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, picture, text):
        first = functional.normalize(self.picture(picture).mean((2, 3)), dim=-1)
        second = functional.normalize(self.text(text).mean(1), dim=-1)
        return self.logit_scale.exp() * first @ second.t()


@_entry(_picture(1, 3, 16, 16))
class ScalarGate(nn.Module):
    """A gate without dimensions, and a way that depends on the data."""

    def __init__(self):
        super().__init__()
        self.convolution, self.scale = nn.Conv2d(3, 8, 3), nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        x = self.convolution(x) * torch.sigmoid(self.scale)
        return x + 1 if x.sum() > 0 else x - 1


@_entry(_picture(2, 10, 8))
class Lstm(nn.Module):
    """A bidirectional LSTM of two layers, whose state is used too."""

    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.LSTM(8, 12, 2, batch_first=True, bidirectional=True), nn.Linear(24, 4)

    def forward(self, x):
        found, (state, _) = self.cells(x)
        return self.head(found[:, -1]), state


@_entry(_picture(2, 6, 8))
class GruCells(nn.Module):
    """Cells called in a loop."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(8, 12)

    def forward(self, x):
        state = x.new_zeros(len(x), 12)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state


@_entry(_picture(1, 16, 12))
class StateSpace(nn.Module):
    """A scan with einsum and a cumulative sum, as in selective state spaces."""

    def __init__(self):
        super().__init__()
        self.inner, self.short = nn.Linear(12, 24), nn.Conv1d(24, 24, 3, padding=2, groups=24)
        self.decay, self.out = nn.Parameter(torch.randn(24, 4)), nn.Linear(24, 12)

    def forward(self, x):
        y = functional.silu(self.short(self.inner(x).transpose(1, 2))[..., : x.shape[1]]).transpose(1, 2)
        weights = torch.exp(-functional.softplus(self.decay))
        state = torch.cumsum(torch.einsum("bld,dn->bldn", y, weights), 1)
        return self.out(torch.einsum("bldn,dn->bld", state, weights))


@_entry(_picture(1, 1, 400))
class WaveNet(nn.Module):
    """Dilated causal convolutions over a signal, gated."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(1 if not place else 8, 16, 2, dilation=2**place) for place in range(4))

    def forward(self, x):
        for place, layer in enumerate(self.layers):
            gate, value = layer(functional.pad(x, (2**place, 0))).chunk(2, 1)
            x = torch.tanh(value) * torch.sigmoid(gate)
        return x.amax(-1)


@_entry(_picture(1, 1, 4000))
class Whisper(nn.Module):
    """A spectrogram of complex numbers before the first convolution."""

    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(64))
        self.convolution = nn.Conv1d(33, 16, 3, padding=1)

    def forward(self, x):
        spectrum = torch.stft(x.flatten(1), 64, 32, window=self.window, return_complex=True)
        return functional.gelu(self.convolution(torch.log(spectrum.abs() ** 2 + 1e-6)))


@_entry(_picture(1, 2, 8, 16, 16))
class VideoNet(nn.Module):
    """Convolutions, normalisation and pooling in three dimensions."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv3d(2, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(), nn.MaxPool3d(2), nn.ConvTranspose3d(8, 4, 2, 2)
        )

    def forward(self, x):
        return self.body(x)


@_entry(_picture(2, 64, 3))
class PointNet(nn.Module):
    """A matrix that the network itself computes, and a maximum over points."""

    def __init__(self):
        super().__init__()
        self.transform, self.body = nn.Linear(3, 9), nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU())

    def forward(self, x):
        matrix = self.transform(x.mean(1)).view(-1, 3, 3)
        return self.body(torch.bmm(x, matrix).transpose(1, 2)).max(-1).values


@_entry(_picture(20, 8), _tokens(2, 60, top=20))
class GraphConvolution(nn.Module):
    """Messages along edges: gathered by an index, added into place."""

    def __init__(self):
        super().__init__()
        self.message, self.update = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, nodes, edges):
        messages = self.message(nodes)[edges[0]]
        found = torch.zeros(len(nodes), 16).index_add(0, edges[1], messages)
        return self.update(torch.relu(found))


@_entry(_picture(1, 3, 32, 32))
class Normalisations(nn.Module):
    """Group, instance, layer and local response normalisation."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.norms = nn.Sequential(
            nn.GroupNorm(2, 8),
            nn.InstanceNorm2d(8, affine=True),
            nn.LocalResponseNorm(3),
            nn.LayerNorm([8, 30, 30]),
            nn.RMSNorm(30),
        )
        self.last = nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 4, 1))

    def forward(self, x):
        return self.last(self.norms(self.stem(x)))


@_entry(_picture(1, 3, 32, 32))
class SharedWeights(nn.Module):
    """One block that runs three times, on inputs of two sizes."""

    def __init__(self):
        super().__init__()
        self.stem, self.block = nn.Conv2d(3, 8, 1), _conv(8, 8)

    def forward(self, x):
        x = self.block(self.block(self.stem(x)))
        return self.block(functional.avg_pool2d(x, 2))


@_entry(_picture(1, 3, 32, 32))
class Detector(nn.Module):
    """A pyramid with several outputs in a dictionary, and boxes picked by their scores."""

    def __init__(self):
        super().__init__()
        self.fine, self.coarse = _conv(3, 8, stride=2), _conv(8, 8, stride=2)
        self.lateral, self.scores, self.boxes = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 2, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x):
        fine = self.fine(x)
        coarse = self.coarse(fine)
        merged = self.lateral(fine) + functional.interpolate(coarse, size=fine.shape[-2:], mode="nearest")
        scores = self.scores(merged).sigmoid().flatten(2)
        best = scores.amax(1).topk(5).indices
        boxes = self.boxes(merged).flatten(2).gather(2, best[:, None].expand(-1, 4, -1))
        return {"boxes": boxes, "pyramid": [fine, coarse]}


@_entry(_picture(1, 4, 8, 8), torch.tensor([7]))
class Diffusion(nn.Module):
    """A time step as sine and cosine that scales the features, and attention over the picture."""

    def __init__(self):
        super().__init__()
        self.time, self.stem, self.norm = nn.Linear(16, 16), nn.Conv2d(4, 8, 3, padding=1), nn.GroupNorm(4, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x, step):
        angle = step[:, None].float() * torch.exp(-torch.arange(8) / 8)
        scale, shift = self.time(torch.cat([angle.sin(), angle.cos()], -1))[..., None, None].chunk(2, 1)
        x = functional.silu(self.norm(self.stem(x)) * (1 + scale) + shift)
        flat = x.flatten(2).transpose(1, 2)
        return x + self.attention(flat, flat, flat)[0].transpose(1, 2).view_as(x)


@_entry(_tokens(2, 8))
class MixtureOfExperts(nn.Module):
    """A router, and experts that see the tokens of a mask."""

    def __init__(self):
        super().__init__()
        self.words, self.router = nn.Embedding(50, 8), nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, tokens):
        x = self.words(tokens).flatten(0, 1)
        weight, choice = self.router(x).softmax(-1).topk(1)
        found = torch.zeros_like(x)
        for place, expert in enumerate(self.experts):
            mask = choice[:, 0] == place
            found[mask] = weight[mask] * expert(x[mask])
        return found


@_entry(_picture(1, 3, 16, 16))
class ComplexIndexing(nn.Module):
    """Slices, ellipses, new axes, masks and assignments into slices."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x):
        x = self.convolution(x)
        y = x[..., ::2, 1:-1].clone()
        y[:, 0] = 0.0
        y[:, 1:, :2] += 1.0
        rows = torch.tensor([0, 2, 3])
        return torch.where(y > 0, y, 0.1 * y)[:, [0, 1, 3]][:, :, rows, None].squeeze(3)


@_entry(_picture(1, 3, 16, 16))
class MixedTypes(nn.Module):
    """Half precision inside, integers and booleans beside."""

    def __init__(self):
        super().__init__()
        self.convolution, self.head = nn.Conv2d(3, 8, 3).bfloat16(), nn.Linear(8, 5)

    def forward(self, x):
        x = self.convolution(x.bfloat16()).float()
        count = (x > 0).sum((2, 3)).clamp(min=1)
        return self.head(x.sum((2, 3)) / count).argmax(-1)


@_entry(_picture(4, 13), _tokens(4, 3))
class TabularNet(nn.Module):
    """Numbers and categories, with batch normalisation of vectors, dropout and a bag of embeddings."""

    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 6)
        self.body = nn.Sequential(nn.Linear(19, 32), nn.BatchNorm1d(32), nn.PReLU(), nn.Dropout(0.3), nn.Linear(32, 1))

    def forward(self, numbers, categories):
        return self.body(torch.cat([numbers, self.bag(categories)], 1)).squeeze(-1)


@_entry(_picture(1, 3, 24, 24))
class SuperResolution(nn.Module):
    """Pixel shuffle, reflection and replication padding, and channel attention."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(3, 12, 3), nn.PReLU(12), nn.ReplicationPad2d(1), nn.Conv2d(12, 12, 3)
        )
        self.shuffle = nn.PixelShuffle(2)

    def forward(self, x):
        y = self.body(x)
        return torch.clamp(self.shuffle(y * y.mean((2, 3), keepdim=True).sigmoid()), 0, 1)


@_entry(_picture(1, 3, 16, 16), mask=torch.ones(1, 16, 16, dtype=torch.bool), scale=torch.tensor(0.5))
class KeywordInputs(nn.Module):
    """A mask and a number without dimensions, given by name."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x, *, mask, scale):
        return self.convolution(x).masked_fill(~mask[:, None], 0.0) * scale


@_entry(_picture(1, 3, 20, 20))
class Inception(nn.Module):
    """Branches with unequal windows, pooling among them, and an early way out of a loop."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList(nn.Conv2d(3, 4, size, padding=size // 2) for size in (1, 3, 5))
        self.pool = nn.Sequential(nn.AvgPool2d(3, 1, 1), nn.Conv2d(3, 4, 1))

    def forward(self, x):
        found = torch.cat([*(branch(x) for branch in self.branches), self.pool(x)], 1)
        for step in range(5):
            found = functional.elu(found)
            if step >= 1:
                break
        return functional.adaptive_max_pool2d(found, (3, 5))
