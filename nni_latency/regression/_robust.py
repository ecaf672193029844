# SPDX-License-Identifier: Apache-2.0
"""Robust statistics: locations and scales that a few values far off hardly change, of one sample or of many groups."""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Where Huber's loss changes from squares to absolute values [standard deviations].
_HUBER = 1.345

#: Median of the absolute value of a standard normal quantity.
_NORMAL_MEDIAN = 0.6745

#: Steps of the iteration towards Huber locations.
_STEPS = 10

#: No scale is less, so that nothing is divided by zero.
_LEAST = 1e-12


def deviation(values: Array) -> float:
    """Return the standard deviation around zero by the median of absolute values.

    Parameters
    ----------
    values : ndarray of shape (n,)
        Residuals; at least one.

    Examples
    --------
    >>> round(deviation(np.array([-1.0, 1.0, 1.0, 1000.0])), 3)
    1.483
    """
    return float(np.median(np.abs(values))) / _NORMAL_MEDIAN


def huber_weights(rest: Array, scale: float) -> Array:
    """Return the weights under which a weighted least-squares fit is Huber's [1]_.

    Parameters
    ----------
    rest : ndarray
        Residuals.
    scale : float
        Their standard deviation; those within 1.345 of it have the weight 1.

    References
    ----------
    .. [1] P. J. Huber, "Robust Estimation of a Location Parameter", Ann. Math. Statist. 35 (1964).
       https://doi.org/10.1214/aoms/1177703732

    Examples
    --------
    >>> huber_weights(np.array([0.5, -2.69]), 1.0).tolist()
    [1.0, 0.5]
    """
    weights: Array = 1 / np.maximum(1.0, np.abs(rest) / max(_HUBER * scale, _LEAST))
    return weights


def huber_losses(rest: Array, scale: float) -> Array:
    """Return Huber's loss of residuals in units of their standard deviation: half the square, linear far out."""
    far = np.abs(rest) / scale
    return np.where(far <= _HUBER, far**2 / 2, _HUBER * (far - _HUBER / 2))


def group_means(values: Array, groups: Ints, count: int, weights: Array | None = None, restraint: float = 0.0) -> Array:
    """Return the weighted mean of each group; nan for an empty one.

    Parameters
    ----------
    values : ndarray of shape (n,)
        All values.
    groups : ndarray of int of shape (n,)
        Group of each, from 0.
    count : int
        Number of groups.
    weights : ndarray of shape (n,), optional
        By default all values count the same.
    restraint : float, default=0.0
        Weight of a zero that is added to each group; with it, means are those of a random effect.
    """
    shares = np.ones(len(values)) if weights is None else weights
    with np.errstate(invalid="ignore"):
        mean: Array = np.bincount(groups, shares * values, count) / (np.bincount(groups, shares, count) + restraint)
    return mean


def group_quantiles(values: Array, groups: Ints, count: int, level: float, outlier: float = 0.0) -> Array:
    """Return a quantile of each group after trimming, as `nni_latency.measurement.quantile` of `trim` does of one.

    Parameters
    ----------
    values : ndarray of shape (n,)
        All values.
    groups : ndarray of int of shape (n,)
        Group of each, from 0.
    count : int
        Number of groups; the quantile of an empty one is nan.
    level : float
        In [0, 1].
    outlier : float, default=0.0
        Share of the values that is left out at each end.
    """
    ordered = np.append(values[np.lexsort((values, groups))], np.nan)
    sizes = np.bincount(groups, minlength=count)
    trimmed = (sizes * outlier).astype(np.int64)
    position = trimmed + level * np.maximum(sizes - 2 * trimmed - 1, 0)
    lower = np.floor(position).astype(np.int64)
    starts = np.where(sizes > 0, np.cumsum(sizes) - sizes, len(values))
    below, above = ordered[starts + lower], ordered[starts + np.minimum(lower + 1, np.maximum(sizes - 1, 0))]
    found: Array = below + (position - lower) * (above - below)
    return found


def huber_locations(values: Array, groups: Ints, count: int) -> Array:
    """Return the Huber location of each group, with the standard deviation of all groups in common.

    Parameters
    ----------
    values : ndarray of shape (n,)
        All values.
    groups : ndarray of int of shape (n,)
        Group of each, from 0.
    count : int
        Number of groups.
    """
    found = group_quantiles(values, groups, count, 0.5)
    for _ in range(_STEPS if len(values) else 0):
        rest = values - found[groups]
        found = group_means(values, groups, count, huber_weights(rest, deviation(rest)))
    return found


def weighted_quantile(values: Array, weights: Array, level: float) -> float:
    """Return the smallest value that, with all smaller ones, has this share of the weight.

    Parameters
    ----------
    values, weights : ndarray of shape (n,)
        At least one value; weights are not negative.
    level : float
        In [0, 1].

    Examples
    --------
    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.array([0.5, 0.25, 0.25]), 0.5)
    2.0
    """
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order[min(int(np.searchsorted(reached, level)), len(values) - 1)]])


def can_correlate(first: ArrayLike, second: ArrayLike) -> bool:
    """Return whether a correlation is defined: at least three pairs, and no constant values."""
    return bool(np.size(first) > 2 and np.ptp(first) > 0 and np.ptp(second) > 0)


def rank_correlation(first: ArrayLike, second: ArrayLike) -> float:
    """Return Spearman's rank correlation; nan for fewer than three pairs or constant values.

    Examples
    --------
    >>> round(rank_correlation([1.0, 2.0, 3.0], [1.0, 9.0, 2.0]), 3), rank_correlation([1.0, 2.0], [1.0, 2.0])
    (0.5, nan)
    """
    return float(scipy.stats.spearmanr(first, second).statistic) if can_correlate(first, second) else math.nan
