# SPDX-License-Identifier: Apache-2.0
"""The order in which an operator meets memory: what lies side by side, and how many inner loops it takes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from nni_latency.operators import OpSpec, form_of

#: Kinds that multiply one matrix after another.
_MATRICES = frozenset(("matmul", "bmm", "einsum", "scaled_dot_product_attention"))

#: Convolutions that most runtimes compute as a matrix product for every group.
_CONVOLUTIONS = frozenset(("conv1d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"))

#: Kinds that compute all channels of one place of a picture at a time.
_OF_PLACES = frozenset(("interpolate", "grid_sample"))

#: Channels that runtimes compute together come in multiples of this number; fewer channels than the second number are
#: read as they are.
_BLOCK, FEW_CHANNELS = 4, 16

#: Kinds that work on one row of the last dimensions, on one channel, and on one row of their output at a time.
_OF_ROWS = frozenset(("layer_norm", "rms_norm"))
_OF_CHANNELS = frozenset(("instance_norm", "group_norm", "prelu"))
_OF_OUTPUT_ROWS = frozenset(("pad", "repeat"))

#: Kinds that work along one dimension.
_SOFTMAX = frozenset(("softmax", "log_softmax"))

#: Kinds that take rows of a table, or a part of what they read.
_LOOKUPS = frozenset(("index", "gather", "embedding", "embedding_bag"))


def inner_loops(op: OpSpec) -> float:
    """Return the number of inner loops of an operator after the first.

    These are the matrices of a batched product, the rows of a reduction or normalisation, the places of a picture that
    is interpolated, the pieces that are moved as a whole, and the stretches over which two inputs are broadcast in the
    same way. Each costs some nanoseconds on top of the work that is done in it, which dominates where rows are short.
    A reduction over other dimensions than the last adds up whole rows.

    Parameters
    ----------
    op : OpSpec
        The operator.

    Examples
    --------
    >>> inner_loops(OpSpec.of("softmax", [(1, 8, 16, 16)], dim=-1))
    127.0
    >>> inner_loops(OpSpec.of("copy", [(1, 16, 8, 4)], dims=(0, 2, 1, 3), out=(1, 8, 16, 4)))
    127.0
    >>> inner_loops(OpSpec.of("add", [(1, 32, 7, 7), (1, 32, 1, 1)]))
    31.0
    >>> inner_loops(OpSpec.of("mean", [(1, 8, 16, 16)], dim=(1,), out=(1, 1, 16, 16)))
    7.0
    """
    return float(max(0.0, _loops(op) - 1))


def _loops(op: OpSpec) -> float:
    taken, out = op.input_shapes[0] if op.input_shapes else (), out_shape(op)
    elements = math.prod(taken)
    if op.kind in _MATRICES:
        return _matrices(op)
    if op.kind in _CONVOLUTIONS or (groups_of(op) > 1 and op.kind == "conv2d" and not is_blocked(op)):
        return (taken[0] if taken else 1) * groups_of(op)
    if op.kind in _OF_ROWS:
        return elements / max(1, _size(str(op.get("weights") or "1").split("+")[0]))
    if op.kind in _OF_CHANNELS:
        return math.prod(taken[:2])
    if op.kind in _OF_OUTPUT_ROWS:
        return math.prod(out[:-1])
    if op.kind in _OF_PLACES:
        return math.prod(out[:1]) * math.prod(out[2:])
    if op.kind == "topk":
        return math.prod(taken[:-1])
    if op.kind == "cat":
        dim = max(dims_of(op), default=0)
        return sum(math.prod(shape[:dim]) for shape in op.input_shapes)
    run = run_of(op)
    if op.kind in _LOOKUPS:
        return elements if is_table(op) else math.prod(out) / max(1, run)
    if isinstance(op.get("dims"), tuple):
        # Where single elements are moved, their number is what counts.
        return elements / run if run > 1 else 1
    if dims_of(op):
        return elements / max(1, run if run > 1 else length_of(op))
    return max((_stretches(taken, other) for other in op.input_shapes[1:]), default=1)


def is_blocked(op: OpSpec) -> bool:
    """Whether runtimes can compute a convolution in blocks of channels: of a picture, with a multiple of four channels.

    Every group must consist of whole blocks, unless the convolution is depthwise with one output for each channel.

    Examples
    --------
    >>> size = {"out_channels": 32, "kernel_size": 3, "stride": 1}
    >>> [is_blocked(OpSpec.of("conv2d", [(1, channels, 8, 8)], **size)) for channels in (3, 30, 32)]
    [True, False, True]
    >>> [is_blocked(OpSpec.of("conv2d", [(1, 32, 8, 8)], groups=groups, **size)) for groups in (4, 16, 32)]
    [True, False, True]
    """
    if op.kind != "conv2d" or not op.input_shapes or len(op.input_shapes[0]) < 2:
        return False
    channels, groups = op.input_shapes[0][1], groups_of(op)
    if groups == 1:
        return channels % _BLOCK == 0 or channels < FEW_CHANNELS
    if form_of(op) == "depthwise":
        return channels % _BLOCK == 0 and op.get("out_channels") == channels
    return channels // groups % _BLOCK == 0


def is_table(op: OpSpec) -> bool:
    """Whether a lookup takes rows of a table by indices, instead of a part of what it reads.

    Examples
    --------
    >>> is_table(OpSpec.of("index", [(1, 128)], dim=0, out=(1, 128, 64)))
    True
    """
    if op.kind.startswith("embedding"):
        return True
    return op.kind in _LOOKUPS and len(out_shape(op)) > len(op.input_shapes[0] if op.input_shapes else ())


def _matrices(op: OpSpec) -> int:
    """Return the number of matrices that an operator multiplies one after another.

    Those of a sum of products are counted by the dimensions of both inputs and of the result.
    """
    equation = str(op.get("equation", "")).replace(" ", "")
    inputs, _, output = equation.partition("->")
    letters = inputs.split(",")
    if not output or "." in equation or list(map(len, letters)) != list(map(len, op.input_shapes)):
        return math.prod(out_shape(op)[:-2])
    sizes = dict(zip("".join(letters), itertools.chain(*op.input_shapes), strict=True))
    return math.prod(sizes[letter] for letter in set(output).intersection(*letters))


def _size(weights: str) -> int:
    """Return the number of elements of weights from their shape, such as ``"64"`` or ``"8x64"``."""
    return math.prod(int(size) for size in weights.split("x") if size.isdigit())


def _stretches(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of stretches over which both arrays are read element by element, or one of them is constant."""
    rank = max(len(one), len(other))
    first, second = ((1,) * (rank - len(shape)) + tuple(shape) for shape in (one, other))
    pairs = [pair for pair in zip(first, second, strict=True) if pair != (1, 1)]
    is_alike = bool(pairs) and pairs[-1][0] == pairs[-1][1]
    while pairs and (pairs[-1][0] == pairs[-1][1]) == is_alike:
        pairs.pop()
    return math.prod(max(pair) for pair in pairs)


def run_of(op: OpSpec) -> int:
    """Return the number of elements next to each other that an operator moves, or that it treats side by side."""
    taken, dims = op.input_shapes[0] if op.input_shapes else (), dims_of(op)
    if moved := moved_dims(op):
        return moved[-1][1] if moved[-1][0] == len(moved) - 1 else 1
    if op.kind == "repeat":
        sizes = zip(reversed(taken), reversed(out_shape(op)), strict=False)
        alike = itertools.takewhile(lambda pair: pair[0] == pair[1], sizes)
        return math.prod(size for size, _ in alike)
    if not dims or max(dims) >= len(taken):
        return 0
    return math.prod(taken[max(dims) + (op.kind != "cat") :])


def moved_dims(op: OpSpec) -> list[tuple[int, int]]:
    """Return the dimensions of the output of a transposition, with their place in the input and their size.

    Dimensions of one element are left out, and those that stay next to each other are one: most permutations of many
    dimensions move one or two blocks.

    Examples
    --------
    >>> moved_dims(OpSpec.of("copy", [(1, 16, 8, 4)], dims=(0, 2, 3, 1), out=(1, 8, 4, 16)))
    [(1, 32), (0, 16)]
    >>> moved_dims(OpSpec.of("copy", [(1, 16, 1, 4)], dims=(0, 2, 1, 3), out=(1, 1, 16, 4)))
    [(0, 64)]
    """
    taken, order = op.input_shapes[0] if op.input_shapes else (), op.get("dims")
    if not isinstance(order, tuple) or sorted(order) != list(range(len(taken))):
        return []
    blocks: list[list[int]] = []
    for dim in (dim for dim in order if taken[dim] != 1):
        if blocks and all(taken[between] == 1 for between in range(blocks[-1][-1] + 1, dim)) and blocks[-1][-1] < dim:
            blocks[-1].append(dim)
        else:
            blocks.append([dim])
    places = {block[0]: place for place, block in enumerate(sorted(blocks))}
    return [(places[block[0]], math.prod(taken[dim] for dim in block)) for block in blocks]


def moves_elements(op: OpSpec) -> bool:
    """Whether an operator transposes so that single elements are moved: not one dimension, and no rows of elements.

    A softmax across rows is computed along the last dimension by ONNX Runtime, which exchanges the two.

    Examples
    --------
    >>> [moves_elements(OpSpec.of("copy", [(1, 8, 9, 4)], dims=dims)) for dims in ((0, 2, 3, 1), (0, 3, 2, 1))]
    [False, True]
    >>> [moves_elements(OpSpec.of("softmax", [(1, 8, 9, 4)], dim=dim)) for dim in (1, 2, 3)]
    [True, False, False]
    """
    taken, order = op.input_shapes[0] if op.input_shapes else (), op.get("dims")
    if op.kind in _SOFTMAX and dims_of(op):
        return taken[-1] > 1 and math.prod(taken[max(dims_of(op)) + 1 : -1]) > 1
    if not isinstance(order, tuple) or not moved_dims(op) or run_of(op) != 1:
        return False
    rest = [[other for other in range(len(order)) if other != dim] for dim in order]
    return not any([other for other in order if other in others] == others for others in rest)


def length_of(op: OpSpec) -> int:
    """Return the number of elements along the dimensions that an operator works on."""
    taken, dims = op.input_shapes[0] if op.input_shapes else (), dims_of(op)
    return math.prod(taken[dim] for dim in dims) if dims and max(dims) < len(taken) else 0


def dims_of(op: OpSpec) -> tuple[int, ...]:
    """Return the dimensions that an operator works on, counted from the first."""
    dims = op.get("dim", ())
    found = (dims,) if isinstance(dims, int) else dims if isinstance(dims, tuple) else ()
    rank = len(op.input_shapes[0]) if op.input_shapes else 0
    return tuple(int(dim) % rank for dim in found) if rank else ()


def out_shape(op: OpSpec) -> tuple[int, ...]:
    """Return the shape of the output of an operator, as far as its attributes tell; else that of its first input."""
    out = op.get("out")
    if isinstance(out, tuple):
        return out
    return (out,) if isinstance(out, int) else op.input_shapes[0] if op.input_shapes else ()


def groups_of(op: OpSpec) -> int:
    """Return the number of groups of a convolution; 1 for anything else."""
    groups = op.get("groups", 1)
    return groups if isinstance(groups, int) else 1
