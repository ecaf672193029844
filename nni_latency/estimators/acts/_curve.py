"""`CostCurve`: a monotone correction of what a piece of work costs by its amounts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nni_latency.estimators.acts._workloads import Workloads
from nni_latency.regression import nonnegative

Array = NDArray[np.float64]

#: Pieces of the curve, and how strongly each is held to the slope 1, as a share of the points.
_PIECES, _SHRINKAGE = 5, 0.01


@dataclass(frozen=True)
class CostCurve:
    """A rising line of several pieces, from what work should cost to what it does.

    Parameters
    ----------
    start : float
        Cost of what should cost nothing [s].
    knots : tuple of float
        Where a new piece begins [s]; the first at 0.
    slopes : tuple of float
        Of the pieces, not negative.
    """

    start: float
    knots: tuple[float, ...]
    slopes: tuple[float, ...]

    def __call__(self, costs: Array) -> Array:
        """Return corrected costs [s]; rising where the costs rise."""
        return np.asarray(np.maximum(self.start + _pieces(costs, self.knots) @ np.array(self.slopes), 1e-9))


def fit_curve(workloads: Workloads, base: Array, seconds: Array) -> CostCurve:
    """Fit a curve on the time of whole workloads, by relative errors.

    Parameters
    ----------
    workloads : Workloads
        Of n workloads with m distinct pieces of work.
    base : ndarray of shape (m,)
        What the pieces cost by their amounts [s].
    seconds : ndarray of shape (n,)
        Measured latencies [s].
    """
    knots = (0.0, *np.unique(np.quantile(base, np.arange(1, _PIECES) / _PIECES)).tolist())
    columns = np.column_stack([workloads.counts.sum(axis=1), workloads.counts @ _pieces(base, knots)])
    columns = columns / seconds[:, None]
    prior = np.concatenate([[0.0], np.ones(len(knots))])
    start, *slopes = nonnegative(columns, np.ones(len(seconds)), prior, _SHRINKAGE).tolist()
    return CostCurve(start, knots, tuple(slopes))


def _pieces(costs: Array, knots: Sequence[float]) -> Array:
    """Return by cost and piece how far the cost goes into the piece; of shape (n_costs, n_pieces)."""
    begins, ends = np.array(knots), np.array([*knots[1:], np.inf])
    return np.asarray(np.clip(costs[:, None], begins, ends) - begins)
