# SPDX-License-Identifier: Apache-2.0
"""`ActsLine`: the published formula, and the metrics of papers on block predictors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import NonNegativeFloat

from nni_latency.documents import RECORD
from nni_latency.estimators._scores import check_pairs
from nni_latency.regression import can_correlate, nonnegative

#: Minimum number of points of the first and the second line.
_FEWEST, _FEWEST_BELOW = 10, 5

#: Threshold between short and long blocks [s].
SHORT = 2e-3


@dataclass(frozen=True)
class ActsLine:
    """``latency = a*ACTS + b*INP + c*FLOPs + d``; where that is below the breakpoint, ``slope`` times it + ``offset``.

    Parameters
    ----------
    a, b, c : float
        Time of one ACTS, INP and FLOP [s], not negative.
    d : float
        Time of an empty block [s], not negative.
    breakpoint : float
        Upper end of the second line [s]; 0 if there is none.
    slope : float
        Of the second line, not negative.
    offset : float
        Offset of the second line [s]; it may be negative, but the line is not, above `d`.
    """

    a: NonNegativeFloat
    b: NonNegativeFloat
    c: NonNegativeFloat
    d: NonNegativeFloat
    breakpoint: NonNegativeFloat = 0.0
    slope: NonNegativeFloat = 1.0
    offset: float = 0.0

    __pydantic_config__ = RECORD

    def plane(self, totals: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the first line [s], of shape (n,), for totals of shape (n, 3)."""
        return np.asarray(totals @ np.array([self.a, self.b, self.c]) + self.d)

    def predict(self, totals: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return latencies [s], of shape (n,), for totals of shape (n, 3)."""
        plane = self.plane(totals)
        return np.where(plane < self.breakpoint, self.slope * plane + self.offset, plane)

    def shares(self, totals: NDArray[np.float64]) -> dict[str, float]:
        """Return the mean shares of ACTS, INP, FLOPs and constant in the first line, over points with convolutions."""
        totals = totals[convolving(totals)]
        terms = np.column_stack([totals * np.array([self.a, self.b, self.c]), np.full(len(totals), self.d)])
        whole = np.maximum(terms.sum(axis=1, keepdims=True), 1e-300)
        return dict(zip(("acts", "inp", "flops", "constant"), map(float, (terms / whole).mean(axis=0)), strict=True))


def fit_line(totals: NDArray[np.float64], seconds: NDArray[np.float64], *, relative: bool) -> ActsLine:
    """Fit both lines by least squares on points with convolutions, see `convolving`.

    Parameters
    ----------
    totals : ndarray of shape (n, 3)
        ACTS, INP and FLOPs.
    seconds : ndarray of shape (n,)
        Measured latencies [s].
    relative : bool
        Whether to use relative errors instead of errors in seconds as published.
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
        # Constrain the value at d, the minimum of the first line, so that no prediction is negative.
        design = np.column_stack([plane[below] - d, np.ones(below.sum())])
        slope, height = nonnegative(design * weights[below, None], seconds[below] * weights[below]).tolist()
        line = ActsLine(a, b, c, d, breakpoint=float(limit), slope=slope, offset=height - slope * d)
        error = _error(line, totals, seconds, weights)
        if error < least * (1 - 1e-9):
            best, least = line, error
    return best


def convolving(totals: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the mask of points with convolutions, of shape (n,): ACTS and INP only count convolutions.

    If there are too few to fit a line, all points are selected.
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


@dataclass(frozen=True)
class BlockScores:
    """Agreement of predictions with measurements of blocks. Errors are ratios, 0.05 being 5 %.

    Parameters
    ----------
    n, n_short : int
        Blocks, and those measured below 2 ms.
    median : float
        Median of abs(predicted / measured - 1).
    median_short, median_long : float
        The same below 2 ms, and from 2 ms; NaN without blocks.
    correlation : float
        Pearson's, of the latencies; nan for fewer than three blocks.
    r2 : float
        Share of the latencies' variance that is predicted; nan for fewer than three blocks.
    """

    n: int
    n_short: int
    median: float
    median_short: float
    median_long: float
    correlation: float
    r2: float


def score_blocks(predicted: ArrayLike, measured: ArrayLike) -> BlockScores:
    """Compare predictions with measurements.

    Parameters
    ----------
    predicted, measured : array-like of shape (n,)
        Latencies [s]; measurements positive.

    Raises
    ------
    InvalidValueError
        If they are not as many, none at all, not finite, or a measurement is not positive.

    Examples
    --------
    >>> found = score_blocks([0.0011, 0.0018, 0.005], [0.001, 0.002, 0.005])
    >>> found.n_short, round(found.median_short, 3), round(found.median_long, 3)
    (1, 0.1, 0.05)
    """
    guesses, truth = check_pairs(predicted, measured)
    errors, short = np.abs(guesses / truth - 1), truth < SHORT
    varied = can_correlate(guesses, truth)
    return BlockScores(
        n=len(truth),
        n_short=int(short.sum()),
        median=float(np.median(errors)),
        median_short=_median(errors[short]),
        median_long=_median(errors[~short]),
        correlation=float(np.corrcoef(guesses, truth)[0, 1]) if varied else math.nan,
        r2=float(1 - ((guesses - truth) ** 2).sum() / ((truth - truth.mean()) ** 2).sum()) if varied else math.nan,
    )


def _median(errors: NDArray[np.float64]) -> float:
    return float(np.median(errors)) if len(errors) else math.nan
