# SPDX-License-Identifier: Apache-2.0
"""Well-known networks, as short as they can be written, to hold counts against published ones."""

from __future__ import annotations

import torch
from torch import nn


def _conv(before, after, kernel=1, stride=1, groups=1, act=nn.ReLU):
    parts = [nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(after)]
    return nn.Sequential(*parts, *([act()] if act else []))


class _Add(nn.Module):
    """Adds a shortcut to a body."""

    def __init__(self, body, shortcut=None):
        super().__init__()
        self.body, self.shortcut = body, shortcut or nn.Identity()

    def forward(self, inputs):
        return self.body(inputs) + self.shortcut(inputs)


def _classifier(channels, classes=1000):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def _stage(blocks):
    return nn.Sequential(*blocks)


def alexnet():
    """Build AlexNet in the version with one tower (arXiv:1404.5997)."""
    convolutions = [(3, 64, 11, 4, 2), (64, 192, 5, 1, 2)]
    convolutions += [(192, 384, 3, 1, 1), (384, 256, 3, 1, 1), (256, 256, 3, 1, 1)]
    parts = []
    for index, sizes in enumerate(convolutions):
        parts += [nn.Conv2d(*sizes), nn.ReLU(), *([nn.MaxPool2d(3, 2)] if index in (0, 1, 4) else [])]
    dense = [nn.Linear(9216, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(6), nn.Flatten(), *dense)


def vgg16():
    """Build VGG-16 without batch normalisation (arXiv:1409.1556)."""
    parts, before = [], 3
    for after in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        parts += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()] if after else [nn.MaxPool2d(2)]
        before = after or before
    dense = [nn.Linear(25088, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)]
    return nn.Sequential(*parts, nn.Flatten(), *dense)


def _resnet(block, depths, widths, last):
    stem = nn.Sequential(_conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1))
    parts, before = [stem], 64
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        for index in range(depth):
            made, before = block(before, width, 2 if stage and not index else 1)
            parts.append(made)
    return nn.Sequential(*parts, _classifier(last))


def resnet18():
    """Build ResNet-18 (arXiv:1512.03385)."""

    def block(before, width, stride):
        body = nn.Sequential(_conv(before, width, 3, stride), _conv(width, width, 3, act=None))
        shortcut = None if before == width and stride == 1 else _conv(before, width, 1, stride, act=None)
        return nn.Sequential(_Add(body, shortcut), nn.ReLU()), width

    return _resnet(block, (2, 2, 2, 2), (64, 128, 256, 512), 512)


def _bottlenecks(groups, factor):
    def block(before, width, stride):
        inner, after = width * factor, width * 4
        body = nn.Sequential(
            _conv(before, inner), _conv(inner, inner, 3, stride, groups), _conv(inner, after, act=None)
        )
        shortcut = None if before == after and stride == 1 else _conv(before, after, 1, stride, act=None)
        return nn.Sequential(_Add(body, shortcut), nn.ReLU()), after

    return _resnet(block, (3, 4, 6, 3), (64, 128, 256, 512), 2048)


def resnet50():
    """Build ResNet-50, with the stride in the 3x3 convolutions."""
    return _bottlenecks(1, 1)


def resnext50():
    """Build ResNeXt-50 with 32 groups of 4 channels (arXiv:1611.05431)."""
    return _bottlenecks(32, 2)


def mobilenet_v2():
    """Build MobileNetV2 (arXiv:1801.04381)."""
    parts, before = [_conv(3, 32, 3, 2, act=nn.ReLU6)], 32
    for expansion, after, count, stride in (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    ):
        for index in range(count):
            inner, step = before * expansion, stride if index == 0 else 1
            body = [_conv(before, inner, act=nn.ReLU6)] if expansion > 1 else []
            body += [_conv(inner, inner, 3, step, inner, nn.ReLU6), _conv(inner, after, act=None)]
            parts.append(_Add(_stage(body)) if before == after and step == 1 else _stage(body))
            before = after
    return nn.Sequential(*parts, _conv(320, 1280, act=nn.ReLU6), _classifier(1280))


class _Gate(nn.Module):
    def __init__(self, channels, squeezed):
        super().__init__()
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.ReLU(),
            nn.Conv2d(squeezed, channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, inputs):
        return inputs * self.weigh(inputs)


def mobilenet_v3_large():
    """Build MobileNetV3-Large (arXiv:1905.02244)."""
    parts = [_conv(3, 16, 3, 2, act=nn.Hardswish)]
    rows = [
        (16, 3, 16, 16, 0, 0, 1), (16, 3, 64, 24, 0, 0, 2), (24, 3, 72, 24, 0, 0, 1), (24, 5, 72, 40, 1, 0, 2),
        (40, 5, 120, 40, 1, 0, 1), (40, 5, 120, 40, 1, 0, 1), (40, 3, 240, 80, 0, 1, 2), (80, 3, 200, 80, 0, 1, 1),
        (80, 3, 184, 80, 0, 1, 1), (80, 3, 184, 80, 0, 1, 1), (80, 3, 480, 112, 1, 1, 1), (112, 3, 672, 112, 1, 1, 1),
        (112, 5, 672, 160, 1, 1, 2), (160, 5, 960, 160, 1, 1, 1), (160, 5, 960, 160, 1, 1, 1),
    ]  # fmt: skip
    for before, kernel, inner, after, gate, hard, stride in rows:
        act = nn.Hardswish if hard else nn.ReLU
        body = [_conv(before, inner, act=act)] if inner != before else []
        body.append(_conv(inner, inner, kernel, stride, inner, act))
        if gate:
            squeezed = max(8, (inner // 4 + 4) // 8 * 8)
            body.append(_Gate(inner, squeezed + 8 if squeezed < 0.9 * inner / 4 else squeezed))
        body.append(_conv(inner, after, act=None))
        parts.append(_Add(_stage(body)) if before == after and stride == 1 else _stage(body))
    dense = [nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, 1000)]
    return nn.Sequential(*parts, _conv(160, 960, act=nn.Hardswish), nn.AdaptiveAvgPool2d(1), nn.Flatten(), *dense)


class _Cat(nn.Module):
    """Puts the outputs of several branches side by side, or the input beside one output."""

    def __init__(self, *branches, keep=False):
        super().__init__()
        self.branches, self.keep = nn.ModuleList(branches), keep

    def forward(self, inputs):
        found = [branch(inputs) for branch in self.branches]
        return torch.cat([inputs, *found] if self.keep else found, 1)


def densenet121():
    """Build DenseNet-121 (arXiv:1608.06993)."""
    parts, channels = [_conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
    for stage, depth in enumerate((6, 12, 24, 16)):
        for _ in range(depth):
            inner = [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 128, 1, bias=False)]
            outer = [nn.BatchNorm2d(128), nn.ReLU(), nn.Conv2d(128, 32, 3, padding=1, bias=False)]
            parts.append(_Cat(nn.Sequential(*inner, *outer), keep=True))
            channels += 32
        if stage < 3:
            halved = nn.Conv2d(channels, channels // 2, 1, bias=False)
            parts += [nn.BatchNorm2d(channels), nn.ReLU(), halved, nn.AvgPool2d(2)]
            channels //= 2
    return nn.Sequential(*parts, nn.BatchNorm2d(channels), nn.ReLU(), _classifier(channels))


def squeezenet():
    """Build SqueezeNet 1.1 (arXiv:1602.07360)."""

    def fire(before, squeezed, each):
        wide = [nn.Sequential(nn.Conv2d(squeezed, each, size, padding=size // 2), nn.ReLU()) for size in (1, 3)]
        return nn.Sequential(nn.Conv2d(before, squeezed, 1), nn.ReLU(), _Cat(*wide))

    pool = [nn.MaxPool2d(3, 2, ceil_mode=True) for _ in range(3)]
    parts = [nn.Conv2d(3, 64, 3, 2), nn.ReLU(), pool[0], fire(64, 16, 64), fire(128, 16, 64), pool[1]]
    parts += [fire(128, 32, 128), fire(256, 32, 128), pool[2], fire(256, 48, 192), fire(384, 48, 192)]
    parts += [fire(384, 64, 256), fire(512, 64, 256), nn.Conv2d(512, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*parts, nn.Flatten())


class _ChannelsLast(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, inputs):
        return self.body(inputs.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class _Scale(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, inputs):
        return self.weight * inputs


def convnext_tiny():
    """Build ConvNeXt-T (arXiv:2201.03545)."""

    def norm(channels):
        return _ChannelsLast(nn.LayerNorm(channels))

    parts, before = [], 3
    for depth, width in zip((3, 3, 9, 3), (96, 192, 384, 768), strict=True):
        if before == 3:
            parts += [nn.Conv2d(3, width, 4, 4), norm(width)]
        else:
            parts += [norm(before), nn.Conv2d(before, width, 2, 2)]
        for _ in range(depth):
            dense = [nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
            depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
            parts.append(_Add(nn.Sequential(depthwise, _ChannelsLast(nn.Sequential(*dense)), _Scale(width))))
        before = width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), norm(768), nn.Flatten(), nn.Linear(768, 1000))


class _Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attend = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, tokens):
        return self.attend(tokens, tokens, tokens, need_weights=False)[0]


class VisionTransformer(nn.Module):
    """ViT-B/16 (arXiv:2010.11929)."""

    def __init__(self, width=768, heads=12, depth=12):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.zeros(1, 197, width))
        blocks = []
        for _ in range(depth):
            dense = [nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
            blocks += [_Add(nn.Sequential(nn.LayerNorm(width), _Attention(width, heads))), _Add(nn.Sequential(*dense))]
        self.blocks = nn.Sequential(*blocks, nn.LayerNorm(width))
        self.head = nn.Linear(width, 1000)

    def forward(self, pictures):
        """Classify pictures of 224 pixels."""
        tokens = self.patches(pictures).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(tokens), -1, -1), tokens], 1) + self.places
        return self.head(self.blocks(tokens)[:, 0])


#: By name: what builds it, published parameters, and published multiply-adds of one picture of 224 pixels in units of
#: a billion, as listed with the weights of torchvision (there called GFLOPS), with the digits that are given.
KNOWN = {
    "alexnet": (alexnet, 61_100_840, 0.71),
    "vgg16": (vgg16, 138_357_544, 15.47),
    "resnet18": (resnet18, 11_689_512, 1.81),
    "resnet50": (resnet50, 25_557_032, 4.09),
    "resnext50": (resnext50, 25_028_904, 4.23),
    "mobilenet_v2": (mobilenet_v2, 3_504_872, 0.30),
    "mobilenet_v3_large": (mobilenet_v3_large, 5_483_032, 0.22),
    "densenet121": (densenet121, 7_978_856, 2.83),
    "squeezenet": (squeezenet, 1_235_496, 0.35),
    "convnext_tiny": (convnext_tiny, 28_589_128, 4.46),
    "vit_b_16": (VisionTransformer, 86_567_656, 17.56),
}
