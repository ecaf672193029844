"""The tensors of an ONNX file as far as they are known without running it, and sizes that depend on data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from nni_latency.operators._op_spec import Shape


@dataclass(frozen=True)
class Value:
    """One tensor of a network, as far as it is known without running the network.

    Parameters
    ----------
    shape : tuple of int
        All its sizes.
    dtype : str
        Element type, as torch names it.
    type : onnx.TypeProto
        The same, as ONNX has it.
    is_constant : bool
        Whether it depends on the inputs of the network.
    data : ndarray or None
        The values of a small constant.
    writers : tuple of int
        Numbers of the operators that it comes from.
    parameters : tuple of str
        Names of the weights in the file that a constant is made of.
    is_assumed : bool
        Whether its shape depends on data, or on an operator that is not known.
    """

    shape: Shape
    dtype: str
    type: Any = field(repr=False, compare=False)
    is_constant: bool = False
    data: NDArray[Any] | None = field(default=None, repr=False)
    writers: tuple[int, ...] = ()
    parameters: tuple[str, ...] = ()
    is_assumed: bool = False

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


def assumed_shape(sizes: Sequence[int | None] | None, given: Sequence[Value]) -> Shape:
    """Fill sizes that are open: those of an input with as many dimensions, or all its numbers in the first of them."""
    if not given:
        return tuple(size or 1 for size in sizes or ())
    # What is computed is of the first input, but for look-ups and comparisons with something larger.
    first = next((item for item in given if not item.is_constant), given[0])
    if sizes is None:
        return first.shape
    like = next((item.shape for item in given if len(item.shape) == len(sizes) and not item.is_constant), None)
    if like is not None:
        return tuple(other if size is None else size for size, other in zip(sizes, like, strict=True))
    left = max(1, first.size // max(1, math.prod(size for size in sizes if size is not None)))
    found: list[int] = []
    for size in sizes:
        found.append(left if size is None else size)
        left = 1 if size is None else left
    return tuple(found)


def _at_most_nonzero(node: Any, place: int, given: Sequence[Value]) -> Shape:
    return len(given[0].shape), given[0].size


def _at_most_selected(node: Any, place: int, given: Sequence[Value]) -> Shape:
    """Return the shape of what a suppression selects: of every class and image as many boxes as it may, or all."""
    boxes, scores = given[0].shape, given[1].shape
    most = given[2].data if len(given) > 2 else None
    kept = min(boxes[1], int(most.reshape(-1)[0])) if most is not None and most.size else boxes[1]
    return scores[0] * scores[1] * max(1, kept), 3


def _at_most_compressed(node: Any, place: int, given: Sequence[Value]) -> Shape:
    """Return the shape where nothing is left out; without an axis the input is flattened."""
    axes = [item.i for item in node.attribute if item.name == "axis"]
    return given[0].shape if axes and place == 0 else (given[0].size if not axes else given[0].shape[axes[0]],)


#: Operators whose results are as large as the data say: the largest shape.
AT_MOST: dict[str, Callable[[Any, int, Sequence[Value]], Shape]] = {
    "NonZero": _at_most_nonzero,
    "NonMaxSuppression": _at_most_selected,
    "Compress": _at_most_compressed,
    "Unique": _at_most_compressed,
}


def without_data(value: Value) -> Value:
    """Return the same tensor with values that are not known."""
    return replace(value, is_constant=False, data=None)
