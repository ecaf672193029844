# SPDX-License-Identifier: Apache-2.0
"""Random networks of blocks of all families, which show predictors the costs of blocks in other contexts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from nni_latency.graphs._blocks import ACTIVATIONS, Branches, Gate, InvertedResidual, Variation, convolution, head
from nni_latency.graphs._mobile_networks import Shuffling
from nni_latency.graphs._picture_networks import ConvNeXtBlock, Dense, Residual, plain, preceded
from nni_latency.graphs._sequence_networks import Encoder

#: Names of the families of random blocks; their networks are unrelated, so each counts as its own family.
MIXED = frozenset(
    (
        *("mixed", "mixed-small", "blocks-large", "blocks-picture", "blocks-rare", "blocks-recurrent"),
        *("blocks-signal", "blocks-staged", "blocks-streaming", "blocks-task", "blocks-token", "blocks-vector"),
    )
)

#: Largest side of a feature map to which attention is applied.
_LARGEST_ATTENTION = 14

#: Side of the feature map at which a network ends.
_LEAST_SIDE = 7

_ACTIVATIONS = tuple(ACTIVATIONS)


@dataclass
class _Stage:
    """State of a network under construction, for blocks of one size.

    Parameters
    ----------
    vary : Variation
        Source of random choices.
    channels : int
        Input channels of the next block.
    side : int
        Side of its input.
    size : int
        Approximate product of channels and side.
    """

    vary: Variation
    channels: int
    side: int
    size: int

    def width(self) -> int:
        """Draw a number of channels that fits the side."""
        usual = round(self.size / self.side * self.vary.scale(0.4, 1.6))
        multiple = self.vary.choose(8, (8, 8, 8, 4, 2))
        return max(multiple, round(usual / multiple) * multiple)

    def window(self, *choices: int) -> int:
        """Draw a kernel size."""
        return self.vary.choose(3, choices or (3, 3, 5))

    def activation(self) -> str:
        """Draw an activation."""
        return self.vary.choose("relu", _ACTIVATIONS)

    def shrink(self, stride: int) -> None:
        """Reduce the side by a stride."""
        self.side = -(-self.side // stride)


def _convolution(stage: _Stage, stride: int) -> nn.Module:
    outputs, normalised = stage.width(), stage.vary.choose(True, (True, False))
    kernel = stage.window(1, 3, 3, 5)
    made = (
        convolution(stage.channels, outputs, kernel, stride, activation=stage.activation())
        if normalised
        else plain(stage.channels, outputs, kernel, stride)
    )
    stage.channels = outputs
    return made


def _separable(stage: _Stage, stride: int) -> nn.Module:
    inputs, outputs, activation = stage.channels, stage.width(), stage.activation()
    stage.channels = outputs
    window = stage.window(3, 5, 7)
    return nn.Sequential(
        convolution(inputs, inputs, window, stride, groups=inputs, activation=activation),
        convolution(inputs, outputs, 1, activation=activation),
    )


def _inverted(stage: _Stage, stride: int) -> nn.Module:
    inputs, activation = stage.channels, stage.activation()
    outputs = stage.vary.choose(inputs, (inputs, stage.width() // 2))
    wide, gated = inputs * stage.vary.choose(3, (1, 2, 3, 4, 6)), stage.vary.choose(False, (False, True))
    gate = Gate(wide, max(4, wide // 16), activation=stage.activation(), hard=stage.vary.choose(True, (True, False)))
    stage.channels = outputs
    return InvertedResidual(
        inputs, outputs, stage.window(3, 5, 7), stride, wide, activation=activation, gate=gate if gated else None
    )


def _residual(stage: _Stage, stride: int) -> nn.Module:
    inputs, middle, window = stage.channels, stage.width(), stage.window(3, 3, 5)
    kind = stage.vary.choose("basic", ("basic", "bottleneck", "grouped"))
    if kind == "basic":
        outputs = stage.vary.choose(inputs, (inputs, middle))
        layers = [convolution(inputs, middle, window, stride), convolution(middle, outputs, window, activation=None)]
    else:
        outputs = stage.vary.choose(inputs, (inputs, 2 * middle))
        groups = stage.vary.choose(2, (2, 4, 8)) if kind == "grouped" else 1
        middle = max(groups, middle // groups * groups)
        layers = [
            convolution(inputs, middle, 1),
            convolution(middle, middle, window, stride, groups=groups),
            convolution(middle, outputs, 1, activation=None),
        ]
    shortcut = convolution(inputs, outputs, 1, stride, activation=None) if stride > 1 or inputs != outputs else None
    stage.channels = outputs
    return Residual(nn.Sequential(*layers), shortcut)


def _fire(stage: _Stage, stride: int) -> nn.Module:
    inputs, wide = stage.channels, stage.width()
    narrow, half = max(4, wide // 4), max(4, wide // 2)
    stage.channels = 2 * half
    squeezed = plain(inputs, narrow, 1, stride)
    return nn.Sequential(squeezed, Branches([plain(narrow, half, 1), plain(narrow, half, stage.window())]))


def _inception(stage: _Stage, stride: int) -> nn.Module:
    inputs, quarter = stage.channels, max(4, stage.width() // 4)
    stage.channels = 4 * quarter
    before = max(4, quarter // 2)
    ways = [
        plain(inputs, quarter, 1, stride),
        nn.Sequential(plain(inputs, before, 1), plain(before, quarter, 3, stride)),
        nn.Sequential(plain(inputs, before, 1), plain(before, quarter, stage.window(3, 5, 7), stride)),
        nn.Sequential(nn.MaxPool2d(3, stride, 1), plain(inputs, quarter, 1)),
    ]
    return Branches(ways)


def _dense(stage: _Stage, stride: int) -> nn.Module:
    layers: list[nn.Module] = [nn.AvgPool2d(stride, stride)] if stride > 1 else []
    growth, count = max(8, stage.width() // 4), stage.vary.choose(2, (1, 2, 3))
    for _ in range(count):
        layers.append(Dense(stage.channels, 2 * growth, growth, stage.window(3, 3, 5)))
        stage.channels += growth
    narrow = max(8, stage.channels // 2)
    layers.append(preceded(stage.channels, narrow, 1))
    stage.channels = narrow
    return nn.Sequential(*layers)


def _shuffling(stage: _Stage, stride: int) -> nn.Module:
    inputs, outputs = stage.channels, stage.channels // 2 * 2 if stride == 1 else max(8, stage.width() // 2 * 2)
    layers: list[nn.Module] = [] if inputs == outputs or stride > 1 else [convolution(inputs, outputs, 1)]
    stage.channels = outputs
    return nn.Sequential(*layers, Shuffling(inputs if stride > 1 else outputs, outputs, stage.window(3, 5), stride))


def _convnext(stage: _Stage, stride: int) -> nn.Module:
    layers: list[nn.Module] = []
    if stride > 1:
        outputs = stage.width()
        layers.append(nn.Conv2d(stage.channels, outputs, 2, 2, padding=stage.side % 2))
        stage.channels = outputs
    layers.append(ConvNeXtBlock(stage.channels, stage.window(3, 5, 7), stage.vary.choose(4, (2, 3, 4))))
    return nn.Sequential(*layers)


class _Attending(nn.Module):
    """Transformer layers over the pixels of a feature map."""

    def __init__(self, channels: int, heads: int, ratio: float, count: int, *, before: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Encoder(channels, heads, ratio, before=before) for _ in range(count)))

    def forward(self, inputs: Tensor) -> Tensor:
        tokens = self.layers(inputs.flatten(2).transpose(1, 2))
        return tokens.transpose(1, 2).reshape(inputs.shape)  # type: ignore[no-any-return]


def _attending(stage: _Stage, stride: int) -> nn.Module:
    heads = stage.vary.choose(4, (1, 2, 4, 8))
    outputs = heads * max(8, stage.width() // heads // 8 * 8)
    reached = convolution(stage.channels, outputs, 1 if stride == 1 else 3, stride, activation=None)
    stage.channels = outputs
    ratio, count, before = (stage.vary.choose(4.0, (2.0, 4.0)), *(stage.vary.choose(1, (0, 1)) for _ in "12"))
    return nn.Sequential(reached, _Attending(outputs, heads, ratio, 1 + count, before=bool(before)))


def _pooling(stage: _Stage, stride: int) -> nn.Module:
    kind = stage.vary.choose("max", ("max", "mean"))
    window = stage.window(2, 3) if stride > 1 else 3
    padding = window // 2 if stride == 1 or stage.side % 2 else (window - 1) // 2
    return nn.MaxPool2d(window, stride, padding) if kind == "max" else nn.AvgPool2d(window, stride, padding)


_Block = Callable[[_Stage, int], nn.Module]

#: Block factories: given a stage and a stride, each builds a block and updates the channels of the stage.
_BLOCKS: tuple[_Block, ...] = (
    _convolution, _separable, _inverted, _residual, _fire, _inception, _dense, _shuffling, _convnext, _attending,
    _pooling,
)  # fmt: skip


def _block(stage: _Stage, kinds: tuple[_Block, ...], stride: int) -> nn.Module:
    kind = stage.vary.choose(kinds[0], kinds)
    if kind is _attending and -(-stage.side // stride) > _LARGEST_ATTENTION:
        kind = _convolution
    made = kind(stage, stride)
    stage.shrink(stride)
    return made


def _stem(stage: _Stage, sizes: tuple[tuple[int, int], ...]) -> nn.Module:
    kernel, stride = stage.vary.choose(sizes[0], sizes)
    stage.shrink(stride)
    taken, stage.channels = stage.channels, stage.width()
    if kernel == stride:
        return nn.Conv2d(taken, stage.channels, kernel, stride)
    return convolution(taken, stage.channels, kernel, stride, activation=stage.activation())


def _end(stage: _Stage) -> nn.Module:
    kind = stage.vary.choose("mean", ("mean", "mean", "two", "flat", "convolution"))
    channels, wide = stage.channels, 64 * stage.vary.choose(16, (4, 8, 16, 32, 48))
    if kind == "two":
        activation = ACTIVATIONS[stage.activation()]()
        ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, wide), activation, nn.Linear(wide, 1000)]
        return nn.Sequential(*ends)
    if kind == "flat":
        size = channels * stage.side**2
        ends = [nn.Flatten(), nn.Linear(size, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 1000)]
        return nn.Sequential(*ends)
    if kind == "convolution":
        return nn.Sequential(plain(channels, 1000, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return head(channels)


def mixed(vary: Variation) -> nn.Module:
    """Random blocks of all families, as random networks teach of others (arXiv:2110.13100)."""
    stems = ((3, 2), (5, 2), (7, 2), (7, 4), (11, 4), (4, 4), (8, 8), (16, 16))
    return _mixed(_Stage(vary, 3, 224, 2700), stems, (1, 2, 3, 4))


def mixed_small(vary: Variation) -> nn.Module:
    """Random blocks of all families, on small pictures (arXiv:2110.13100)."""
    return _mixed(_Stage(vary, 3, 32, 900), ((3, 1), (3, 1), (5, 1), (3, 2), (2, 2)), (2, 3, 4, 6))


def _mixed(stage: _Stage, stems: tuple[tuple[int, int], ...], depths: tuple[int, ...]) -> nn.Module:
    vary = stage.vary
    # There is no published network of this family: seed 0 is random as well.
    vary.published = False
    layers = [_stem(stage, stems)]
    # Few kinds per network: in real networks a block is often followed by another of its kind.
    kinds = tuple(vary.choose(_convolution, _BLOCKS) for _ in range(vary.choose(2, (1, 2, 3, 4))))
    while True:
        layers += [_block(stage, kinds, 1) for _ in range(vary.choose(2, depths))]
        if stage.side <= _LEAST_SIDE:
            break
        layers.append(_block(stage, kinds, 2))
    return nn.Sequential(*layers, _end(stage))
