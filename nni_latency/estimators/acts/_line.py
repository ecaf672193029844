"""`ActsLine`: the published formula, a plane through ACTS, INP and FLOPs with a second line for what is small."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nni_latency.regression import nonnegative

#: Points that the first line needs at least, and the second one.
_FEWEST, _FEWEST_BELOW = 10, 5


@dataclass(frozen=True)
class ActsLine:
    """``latency = a*ACTS + b*INP + c*FLOPs + d``; where that is below the breakpoint, ``slope`` times it + ``offset``.

    Parameters
    ----------
    a, b, c : float
        Time of one ACTS, INP and FLOP [s], not negative.
    d : float
        Time of a block that does nothing [s], not negative.
    breakpoint : float
        Where the second line ends [s]; 0 if there is none.
    slope : float
        Of the second line, not negative.
    offset : float
        Of the second line [s]; it may be negative, but the line is not, above `d`.
    """

    a: float
    b: float
    c: float
    d: float
    breakpoint: float = 0.0
    slope: float = 1.0
    offset: float = 0.0

    def plane(self, totals: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the first line alone [s], of shape (n,), for totals of shape (n, 3)."""
        return np.asarray(totals @ np.array([self.a, self.b, self.c]) + self.d)

    def predict(self, totals: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return latencies [s], of shape (n,), for totals of shape (n, 3)."""
        plane = self.plane(totals)
        return np.where(plane < self.breakpoint, self.slope * plane + self.offset, plane)

    def shares(self, totals: NDArray[np.float64]) -> dict[str, float]:
        """Return what ACTS, INP, FLOPs and the constant make up of the first line, on average over the convolving."""
        totals = totals[convolving(totals)]
        terms = np.column_stack([totals * np.array([self.a, self.b, self.c]), np.full(len(totals), self.d)])
        whole = np.maximum(terms.sum(axis=1, keepdims=True), 1e-300)
        return dict(zip(("acts", "inp", "flops", "constant"), map(float, (terms / whole).mean(axis=0)), strict=True))


def fit_line(totals: NDArray[np.float64], seconds: NDArray[np.float64], *, relative: bool) -> ActsLine:
    """Fit both lines by least squares, on the points that the formula is about, see `convolving`.

    Parameters
    ----------
    totals : ndarray of shape (n, 3)
        ACTS, INP and FLOPs.
    seconds : ndarray of shape (n,)
        Measured latencies [s].
    relative : bool
        Whether errors count as shares of the measurement, instead of in seconds as published.
    """
    about = convolving(totals)
    totals, seconds = totals[about], seconds[about]
    weights = 1 / seconds if relative else np.ones(len(seconds))
    columns = np.column_stack([totals, np.ones(len(totals))])
    a, b, c, d = nonnegative(columns * weights[:, None], seconds * weights).tolist()
    first = ActsLine(a, b, c, d)
    plane = first.plane(totals)
    best, least = first, _error(first, totals, seconds, weights)
    for limit in _breakpoints(plane):
        below = plane < limit
        # Through the height at d, the least that the first line can be, so that no prediction is negative.
        design = np.column_stack([plane[below] - d, np.ones(below.sum())])
        slope, height = nonnegative(design * weights[below, None], seconds[below] * weights[below]).tolist()
        line = ActsLine(a, b, c, d, breakpoint=float(limit), slope=slope, offset=height - slope * d)
        error = _error(line, totals, seconds, weights)
        if error < least * (1 - 1e-9):
            best, least = line, error
    return best


def convolving(totals: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which points have convolutions, of shape (n,): ACTS and INP count those, other blocks say nothing of them.

    Where there are too few to fit a line on, all points are taken.
    """
    found = np.asarray(totals[:, 0] > 0)
    return found if found.sum() >= _FEWEST else np.ones(len(totals), dtype=bool)


def _breakpoints(plane: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the middles between neighbouring predictions that leave enough points below."""
    ordered = np.unique(plane)
    middles = (ordered[1:] + ordered[:-1]) / 2
    return np.array([limit for limit in middles if (plane < limit).sum() >= _FEWEST_BELOW])


def _error(
    line: ActsLine, totals: NDArray[np.float64], seconds: NDArray[np.float64], weights: NDArray[np.float64]
) -> float:
    return float((((line.predict(totals) - seconds) * weights) ** 2).sum())
