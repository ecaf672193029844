# SPDX-License-Identifier: Apache-2.0
"""Windows of convolutions that reach beyond the edges of a picture, where there is less to compute."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from nni_latency.operators import OpSpec, form_of, sides_of, spread

#: Kinds of convolutions.
_CONVOLUTIONS = frozenset(f"{kind}{rank}d" for kind in ("conv", "conv_transpose") for rank in (1, 2, 3))


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

    @property
    def inside(self) -> float:
        """Share of the elements of windows that lie inside, over all dimensions."""
        return self.across * self.along

    @property
    def features(self) -> tuple[float, float, float]:
        """Logarithms of the shares of elements, and the share of whole windows."""
        return math.log2(self.across), math.log2(self.along), self.whole


def coverage_of(op: OpSpec) -> Coverage:
    """Return how much of the windows of a convolution lies inside; all of them for any other operator.

    Runtimes skip what lies outside: of a convolution with a window of three on a picture of one row, they compute a
    third. Many compute positions at the edges one at a time.

    Raises
    ------
    InvalidValueError
        If a window does not fit into the picture.

    Examples
    --------
    >>> size = {"out_channels": 8, "kernel_size": (3, 3), "stride": 1}
    >>> found = coverage_of(OpSpec.of("conv2d", [(1, 8, 1, 4)], **size))
    >>> round(found.across, 3), round(found.along, 3), found.whole
    (0.333, 0.833, 0.5)
    """
    if op.kind not in _CONVOLUTIONS or form_of(op) is None:
        return Coverage()
    taken, returned = sides_of(op)
    rank, padding = len(taken), op.get("padding")
    kernel, stride, dilation = (spread(op.get(name, 1), rank) for name in ("kernel_size", "stride", "dilation"))
    if op.kind.startswith("conv_transpose"):
        positions, limits, padding = taken, returned, padding or 0
    else:
        positions, limits = returned, taken
    if padding is None:
        before = tuple(gap * (side - 1) // 2 for side, gap in zip(kernel, dilation, strict=True))
    else:
        before = spread(padding, rank)[:rank]
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
