# SPDX-License-Identifier: Apache-2.0
"""Layouts of pictures: whether channels or places lie side by side, and which results are laid out anew."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nni_latency.operators import OpSpec, TracedOperator

#: Dimensions of a picture, and of a volume.
_PICTURES = (4, 5)

#: Kinds that write pictures with channels side by side, alone or in blocks, and the dimensions of these.
_CONVOLUTIONS = {"conv2d": 4, "conv_transpose2d": 4, "conv3d": 5, "conv_transpose3d": 5}

#: Kinds that take pictures as the network has them, with places side by side.
_PLANAR = frozenset(
    (
        *("matmul", "bmm", "einsum", "linear", "scaled_dot_product_attention", "softmax", "log_softmax", "cumsum"),
        *("layer_norm", "rms_norm", "grid_sample", "fold", "topk", "sort", "argsort", "gather", "scatter"),
        *("lstm", "gru", "rnn_tanh", "rnn_relu", "dft", "stft", "hardsigmoid"),
    )
)

#: Bytes of an element; bytes of a way of the near cache, and lines of a set that channels can have.
_BYTES, _WAY, _LINES = 4, 2**12, 8

#: Crowding from which it costs no more, and the most channels that are laid out one by one: with more, small blocks
#: are.
_MOST_CROWDED, _MOST_CHANNELS = 4.0, 64

#: Order in which channels are shuffled among groups.
_SHUFFLE = (0, 2, 1, 3, 4)

#: Orders of a picture whose places become rows of channels, which is the order in which they lie.
_ROWS, _CHANNELS_LAST = (0, 2, 1), (0, 2, 3, 1)


@dataclass(frozen=True)
class Layouts:
    """How the results of operators lie in memory.

    Parameters
    ----------
    behind : tuple of bool
        Whether each operator reads a picture with channels side by side.
    anew : tuple of float
        Elements of its result, if it has channels side by side and is needed with places side by side as well.
    crowded : tuple of float
        The same, times how far the cache lines that are written in turn exceed those of a set of the near cache.
    """

    behind: tuple[bool, ...]
    anew: tuple[float, ...]
    crowded: tuple[float, ...]


def layouts_of(
    operators: Sequence[TracedOperator], readers: Sequence[Sequence[int]], written: Sequence[float]
) -> Layouts:
    """Find the layouts of the pictures of a network.

    Convolutions write channels side by side, or in blocks. Other operators do so behind them, unless they take
    pictures as the network has them. A result is laid out anew where it is an output of the network, or where an
    operator reads it in another shape or as the network has it. In OpenVINO this takes 0.3 ns an element, and up to
    11 ns where up to 64 channels of a place share a set of the cache: longer than the convolution before it. There, a
    picture with its channels last is laid out anew as well if it is normalised along these.

    Parameters
    ----------
    operators : sequence of TracedOperator
        Operators of a network.
    readers : sequence of sequence of int
        The operators that read each result.
    written : sequence of float
        Elements of the results.
    """
    pictures: list[_Picture | None] = []
    behind: list[bool] = []
    turned: list[bool] = []
    for item, elements in zip(operators, written, strict=True):
        sources = [pictures[source] for source in item.sources]
        behind.append(any(source and source.is_read_by(item.op) for source in sources))
        is_picture = any(source and not source.is_normalised for source in sources)
        turned.append(_is_turned(item.op, is_picture, any(turned[source] for source in item.sources)))
        if turned[-1] and item.op.kind == "layer_norm":
            pictures.append(_Picture.normalised(item.op.input_shapes[0]))
        else:
            pictures.append(_Picture.of(item.op, elements, is_behind=behind[-1]))
    anew = tuple(
        picture.elements if picture and picture.is_laid_out_for([operators[reader].op for reader in found]) else 0.0
        for picture, found in zip(pictures, readers, strict=True)
    )
    crowded = tuple(
        elements * picture.crowding if picture else 0.0 for picture, elements in zip(pictures, anew, strict=True)
    )
    return Layouts(tuple(behind), anew, crowded)


@dataclass(frozen=True)
class _Picture:
    """A result with channels side by side: its elements, its channels, and the elements of one.

    One that was normalised along its last dimension lies so by its second dimension, and is always laid out anew.
    """

    elements: float
    channels: int
    places: float
    is_normalised: bool = False

    @classmethod
    def of(cls, op: OpSpec, elements: float, *, is_behind: bool) -> _Picture | None:
        """Return the picture that an operator writes with channels side by side, if it does."""
        shape = _written(op)
        if op.kind in _CONVOLUTIONS:
            is_picture = len(shape) == _CONVOLUTIONS[op.kind]
        else:
            is_picture = is_behind and len(shape) in _PICTURES and op.get("dims", _SHUFFLE) == _SHUFFLE
        if not is_picture:
            return None
        channels = max(1, math.prod(shape[1:3]) if op.get("dims") == _SHUFFLE else shape[1])
        return cls(elements, channels, elements / max(1, shape[0] * channels))

    @classmethod
    def normalised(cls, shape: Sequence[int]) -> _Picture:
        """Return what a normalisation along the last dimension writes, in OpenVINO, if its input was a picture."""
        return cls(math.prod(shape), shape[1], math.prod(shape[2:]), is_normalised=True)

    @property
    def crowding(self) -> float:
        """How many times the lines that the channels of a place need in a set of the cache are more than it has."""
        if self.channels > _MOST_CHANNELS:
            return 0.0
        lines = self.channels * math.gcd(round(self.places) * _BYTES, _WAY) / _WAY
        return min(_MOST_CROWDED, max(0.0, lines / _LINES - 1))

    def is_read_by(self, op: OpSpec) -> bool:
        """Return whether an operator reads it as it is, or a part of it."""
        if op.kind in _PLANAR or self.is_normalised:
            return False
        if op.get("dims") == _ROWS:
            return any(shape[-1:] == (self.places,) for shape in op.input_shapes)
        return op.get("dims") == _SHUFFLE or any(map(self._has_form, op.input_shapes))

    def is_laid_out_for(self, readers: Sequence[OpSpec]) -> bool:
        """Return whether it is needed with places side by side, by one of its readers or outside of the network."""
        return self.places > 1 and not (readers and all(map(self.is_read_by, readers)))

    def _has_form(self, shape: Sequence[int]) -> bool:
        if len(shape) not in _PICTURES:
            return False
        return math.prod(shape[2:]) == self.places or math.prod(shape) != self.elements


def _written(op: OpSpec) -> tuple[int, ...]:
    """Return the shape that an operator writes; the sides of a convolution are those that it reads."""
    if op.kind in _CONVOLUTIONS and op.input_shapes:
        taken = op.input_shapes[0]
        return (*taken[:1], int(op.get("out_channels", 0)), *taken[2:])
    shapes = [op["out"]] if isinstance(op.get("out"), tuple) else op.input_shapes
    rank = max(map(len, shapes), default=0)
    aligned = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(map(max, zip(*aligned, strict=True)))


def _is_turned(op: OpSpec, is_picture: bool, is_turned: bool) -> bool:
    """Return whether an operator works on a picture that a transposition gave its channels last."""
    if not op.input_shapes or len(op.input_shapes[0]) != _CONVOLUTIONS["conv2d"]:
        return False
    if op.kind == "layer_norm":
        return is_picture or is_turned
    return is_turned if op.kind in ("add", "mul") else is_picture and op.get("dims") == _CHANNELS_LAST
