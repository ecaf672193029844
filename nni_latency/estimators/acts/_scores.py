"""How well latencies of blocks are predicted: the figures that papers on ACTS predictors report."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nni_latency.estimators._scores import can_correlate, check_pairs

#: Latency that divides short blocks from long ones [s].
SHORT = 2e-3


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
        The same below 2 ms, and from there on; nan where there is no block.
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
