# SPDX-License-Identifier: Apache-2.0
"""Windows of convolutions that reach beyond the edges of a picture, where there is less to compute."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from nni_latency.operators import OpSpec


@dataclass(frozen=True)
class Coverage:
    """How much of the windows of a convolution lies inside of its input, or of the output that it is transposed to.

    Parameters
    ----------
    across : float
        Share of the elements of windows along all dimensions but the last.
    along : float
        Share along the last dimension.
    whole : float
        Share of the windows that lie completely inside, along the last dimension.
    """

    across: float = 1.0
    along: float = 1.0
    whole: float = 1.0


def coverage_of(op: OpSpec) -> Coverage:
    """Return how much of the windows of a convolution lies inside; all of them for any other operator.

    Runtimes that skip what lies outside compute a third of a convolution with a window of three on a picture of one
    row; and positions at the edges one at a time.

    Examples
    --------
    >>> size = {"out_channels": 8, "kernel_size": (3, 3), "stride": 1}
    >>> found = coverage_of(OpSpec.of("conv2d", [(1, 8, 1, 4)], **size))
    >>> round(found.across, 3), round(found.along, 3), found.whole
    (0.333, 0.833, 0.5)
    """
    taken = op.input_shapes[0][2:] if op.input_shapes else ()
    if not op.kind.startswith("conv") or not taken:
        return Coverage()
    rank = len(taken)
    kernel, stride, dilation = (_sides(op, name, rank) for name in ("kernel_size", "stride", "dilation"))
    if op.kind.startswith("conv_transpose"):
        more = _sides(op, "output_padding", rank, 0)
        before, behind = _padding(op, rank) or ((0,) * rank, (0,) * rank)
        sizes = zip(taken, stride, kernel, dilation, before, behind, more, strict=True)
        limits = [(n - 1) * s + d * (k - 1) + 1 - b - a + m for n, s, k, d, b, a, m in sizes]
        positions = list(taken)
    else:
        limits = list(taken)
        padding = _padding(op, rank)
        if padding is None:
            positions = [-(-size // step) for size, step in zip(taken, stride, strict=True)]
            before = tuple(d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True))
        else:
            before, behind = padding
            rows = zip(taken, before, behind, stride, kernel, dilation, strict=True)
            positions = [(n + b + a - d * (k - 1) - 1) // s + 1 for n, b, a, s, k, d in rows]
    found = [_covered(*each) for each in zip(positions, stride, kernel, dilation, before, limits, strict=True)]
    return Coverage(math.prod(share for share, _ in found[:-1]), *found[-1])


@lru_cache(maxsize=2**14)
def _covered(count: int, stride: int, kernel: int, dilation: int, before: int, limit: int) -> tuple[float, float]:
    """Return the share of the elements of windows that lie inside, and the share of whole windows."""
    if count < 1 or kernel < 1 or limit < 1 or stride < 1 or dilation < 1:
        return 1.0, 1.0
    # The fewer of elements and positions are gone through; the others that lie inside with each are a range.
    each, step, others, stretch = (
        (kernel, dilation, count, stride) if kernel < count else (count, stride, kernel, dilation)
    )
    inside = sum(_within(number * step - before, others, stretch, limit) for number in range(each))
    whole = _within(-before, count, stride, limit - dilation * (kernel - 1))
    return max(inside, 1) / (count * kernel), whole / count


def _within(start: int, count: int, step: int, limit: int) -> int:
    """Return how many of the numbers ``start + step * i``, for i below `count`, are in [0, limit)."""
    first, last = max(0, -(start // step)), min(count - 1, (limit - 1 - start) // step)
    return max(0, last - first + 1)


def _sides(op: OpSpec, name: str, rank: int, usual: int = 1) -> tuple[int, ...]:
    """Return an attribute for every dimension."""
    given = op.get(name, usual)
    sides = given if isinstance(given, tuple) else (given,) * rank
    return tuple(map(int, sides)) if len(sides) == rank else (usual,) * rank


def _padding(op: OpSpec, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the padding before and behind; None where it keeps the size of the picture."""
    given = op.get("padding")
    if not isinstance(given, (int, tuple)):
        return None
    sides = tuple(map(int, given)) if isinstance(given, tuple) else (given,) * rank
    return (sides[:rank], sides[rank:]) if len(sides) == 2 * rank else (sides, sides)
