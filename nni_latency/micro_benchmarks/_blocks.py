# SPDX-License-Identifier: Apache-2.0
"""`Block`: declarative description of a block of the micro-benchmarks; the predefined set and random blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from nni_latency.errors import InvalidValueError
from nni_latency.micro_benchmarks import _modules as modules

if TYPE_CHECKING:
    from torch import nn

#: Factory of the module, by kind of block.
KINDS: dict[str, Callable[..., nn.Module]] = {
    "conv": modules.convolution,
    "basic": modules.basic_block,
    "bottleneck": modules.bottleneck,
    "grouped-bottleneck": modules.bottleneck,
    "inverted-residual": modules.InvertedResidual,
    "mbconv": partial(modules.InvertedResidual, gate=True),
    "transformer": modules.TransformerBlock,
    "relative-attention": modules.RelativeAttention,
    "cell": modules.Cell,
    "shuffle": modules.ShuffleUnit,
    "pooling": modules.pooling,
    "stem": modules.stem,
    "head": modules.head,
}

#: Kinds whose input is tokens instead of an image.
_OF_TOKENS = ("transformer", "relative-attention")

#: Arguments whose values come first in a name, without a label.
_IN_FRONT = ("channels", "out", "classes")

#: Batch sizes to try, smallest first.
BATCHES = (1, 4, 16, 64, 256)


@dataclass(frozen=True)
class Block:
    """One block with the size of its input, for measurement at several batch sizes. Immutable.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    size : int
        Side of the input image [pixel], or number of tokens.
    arguments : tuple of (str, int)
        Arguments of the factory; ``channels`` are those of the input. Use `Block.of` to pass keywords.

    Examples
    --------
    >>> block = Block.of("bottleneck", 56, channels=256, out=256, width=64)
    >>> block.name, block.input_shape(4)
    ('bottleneck-256-256-width64@56', (4, 256, 56, 56))
    """

    kind: str
    size: int
    arguments: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidValueError(f"The 'kind' of a Block must be one of {', '.join(KINDS)}. Got {self.kind!r}.")

    @classmethod
    def of(cls, kind: str, size: int, **arguments: int) -> Block:
        """Construct a block from keywords."""
        return cls(kind, size, tuple(arguments.items()))

    @property
    def name(self) -> str:
        """Unique name of the block."""
        given = dict(self.arguments)
        sizes = [str(given[key]) for key in _IN_FRONT if key in given]
        others = [f"{key}{int(value)}" for key, value in self.arguments if key not in _IN_FRONT]
        return f"{'-'.join([self.kind, *sizes, *others])}@{self.size}"

    def input_shape(self, batch: int) -> tuple[int, ...]:
        """Return the shape of its input, batch first."""
        channels = dict(self.arguments)["channels"]
        return (batch, self.size, channels) if self.kind in _OF_TOKENS else (batch, channels, self.size, self.size)

    def build(self) -> nn.Module:
        """Build its module, with random weights."""
        return KINDS[self.kind](**dict(self.arguments))


#: The predefined set: every kind small and large, wide and narrow, because sizes are more informative than batch sizes;
#: some with channels that are not a multiple of 16, the width of a vector.
BLOCKS: tuple[Block, ...] = (
    Block.of("conv", 56, channels=64, out=64, kernel=3),
    Block.of("conv", 14, channels=256, out=256, kernel=3),
    Block.of("conv", 112, channels=32, out=64, kernel=3, stride=2),
    Block.of("conv", 7, channels=64, out=64, kernel=3),
    Block.of("conv", 28, channels=24, out=48, kernel=5),
    Block.of("conv", 14, channels=64, out=128, kernel=1),
    Block.of("conv", 7, channels=160, out=32, kernel=1),
    Block.of("conv", 28, channels=16, out=96, kernel=1, stride=2),
    Block.of("conv", 56, channels=64, out=256, kernel=1),
    Block.of("basic", 56, channels=64, out=64),
    Block.of("basic", 28, channels=32, out=32),
    Block.of("basic", 14, channels=128, out=256, stride=2),
    Block.of("basic", 7, channels=512, out=512),
    Block.of("bottleneck", 56, channels=256, out=256, width=64),
    Block.of("bottleneck", 28, channels=512, out=512, width=128),
    Block.of("bottleneck", 14, channels=1024, out=1024, width=256),
    Block.of("bottleneck", 14, channels=256, out=512, width=128, stride=2),
    Block.of("bottleneck", 7, channels=80, out=160, width=40),
    Block.of("grouped-bottleneck", 56, channels=256, out=256, width=128, groups=32),
    Block.of("grouped-bottleneck", 14, channels=1024, out=1024, width=512, groups=32),
    Block.of("grouped-bottleneck", 28, channels=64, out=64, width=32, groups=4),
    Block.of("grouped-bottleneck", 14, channels=144, out=256, width=72, groups=8, stride=2),
    Block.of("grouped-bottleneck", 7, channels=320, out=320, width=160, groups=4),
    Block.of("inverted-residual", 112, channels=32, out=16, expansion=1),
    Block.of("inverted-residual", 112, channels=16, out=24, expansion=6, stride=2),
    Block.of("inverted-residual", 56, channels=32, out=32, expansion=6),
    Block.of("inverted-residual", 28, channels=32, out=32, expansion=6),
    Block.of("inverted-residual", 28, channels=24, out=48, expansion=3, kernel=5, stride=2),
    Block.of("inverted-residual", 14, channels=96, out=96, expansion=6),
    Block.of("inverted-residual", 14, channels=40, out=40, expansion=1),
    Block.of("inverted-residual", 7, channels=160, out=320, expansion=6),
    Block.of("mbconv", 56, channels=24, out=40, expansion=6, kernel=5, stride=2),
    Block.of("mbconv", 28, channels=40, out=40, expansion=6, kernel=5),
    Block.of("mbconv", 28, channels=32, out=16, expansion=1),
    Block.of("mbconv", 14, channels=112, out=112, expansion=6, kernel=5),
    Block.of("mbconv", 7, channels=192, out=192, expansion=6, kernel=5),
    Block.of("transformer", 196, channels=192, heads=3),
    Block.of("transformer", 49, channels=96, heads=3),
    Block.of("transformer", 64, channels=384, heads=6),
    Block.of("transformer", 196, channels=768, heads=12),
    Block.of("relative-attention", 197, channels=192, heads=3),
    Block.of("relative-attention", 100, channels=128, heads=4),
    Block.of("relative-attention", 49, channels=256, heads=4),
    Block.of("cell", 32, channels=16, branches=4),
    Block.of("cell", 14, channels=96, branches=2),
    Block.of("cell", 8, channels=64, branches=3),
    Block.of("shuffle", 28, channels=116),
    Block.of("shuffle", 7, channels=464),
    Block.of("pooling", 32, channels=16, average=1),
    Block.of("pooling", 14, channels=96, stride=2, average=1),
    Block.of("pooling", 56, channels=44, stride=2),
    Block.of("pooling", 14, channels=176),
    Block.of("stem", 224, channels=3, out=64, kernel=7, pool=True),
    Block.of("stem", 224, channels=3, out=32, kernel=3, pool=False),
    Block.of("head", 7, channels=512, classes=1000),
    Block.of("head", 7, channels=1280, classes=1000),
)


def draw_blocks(count: int, seed: int = 0) -> tuple[Block, ...]:
    """Sample random blocks outside of the predefined set, with other channels, sizes, strides and proportions.

    Parameters
    ----------
    count : int
        Number of blocks, all different.
    seed : int, default=0
        Seed of the random generator.
    """
    generator = np.random.default_rng(seed)
    drawn: dict[Block, None] = {}
    kinds = ("conv", "basic", "bottleneck", "grouped-bottleneck", "inverted-residual", "mbconv", "transformer")
    while len(drawn) < count:
        block = _draw(str(generator.choice(kinds)), generator)
        if block not in BLOCKS:
            drawn[block] = None
    return tuple(drawn)


def _draw(kind: str, generator: np.random.Generator) -> Block:
    def pick(*values: int) -> int:
        return int(generator.choice(values))

    size = pick(7, 10, 14, 20, 28, 40, 56)
    stride = pick(1, 1, 2)
    # Large feature maps have few channels in networks.
    most = max(4, 448 // size)
    channels = 8 * int(generator.integers(2, max(3, most)))
    if kind == "transformer":
        heads = pick(2, 4, 6, 8)
        return Block.of(kind, pick(32, 49, 100, 144, 256), channels=heads * pick(32, 48, 64), heads=heads)
    out = channels if stride == 1 and pick(0, 1) else 8 * int(generator.integers(2, max(3, most)))
    common = {"channels": channels, "out": out, "stride": stride}
    if kind == "conv":
        return Block.of(kind, size, **common, kernel=pick(1, 3, 5))
    if kind == "basic":
        return Block.of(kind, size, **common)
    if kind == "bottleneck":
        return Block.of(kind, size, **{**common, "channels": 2 * channels, "out": 2 * out}, width=channels)
    if kind == "grouped-bottleneck":
        groups = pick(4, 8)
        width = groups * max(1, channels // groups)
        return Block.of(kind, size, **{**common, "channels": 2 * channels, "out": 2 * out}, width=width, groups=groups)
    return Block.of(kind, size, **common, expansion=pick(1, 3, 4, 6), kernel=pick(3, 5))
