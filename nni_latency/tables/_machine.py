# SPDX-License-Identifier: Apache-2.0
"""Effects of the machine on measurements: its speed from visit to visit, and cache residency of small networks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat

from nni_latency.documents import RECORD
from nni_latency.errors import InvalidValueError
from nni_latency.regression import deviation, group_quantiles, huber_locations, huber_losses, huber_weights

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Decay of the weight of neighbours [visits], and the share and decay of a second, slower component.
_REACH, _FAR_SHARE, _FAR_REACH = 2.0, 0.02, 30.0

#: Seconds per visit, where the moments of visits are known: the speed of a busy host changes within a second.
_SECONDS = 0.1

#: Maximum distance of neighbours [visits].
_FARTHEST = 300

#: Clipping of the deviation of a visit: at this logarithm, or at this many standard deviations if that is more.
_LARGEST_EXCESS, _MOST_DEVIATIONS = 0.4, 3.0

#: Prior of the regression weights, the reference operator alone, and its strength [visits].
_PRIOR_WEIGHTS, _PRIOR_COUNT = (0.0, 1.0, 0.0), 2.0

#: Clipping of the deviation of a visit from its group's median, in medians of such deviations.
_MOST_SPREADS = 4.5

#: Iterations of the alternating fit of speeds and locations; it has converged by then.
_TURNS = 4

#: Pieces of a run whose means show the correlation of visits that are close in time.
_PIECES = 6

#: Strength of the pooled noise variance in that of each network [visits].
_COMMON_COUNT = 6.0

#: Grid of savings, and their prior: mean and standard deviation.
_SAVINGS = np.linspace(0.0, 0.6, 121)
_USUAL_SAVING, _SAVING_DEVIATION = 0.18, 0.08

#: A lesser saving is none.
_LEAST_SAVING = 0.01

#: Scale as a share of the median network's sum. Runs determine the saving, but hardly the scale separately.
_SCALE = 0.3

#: Least ratio of the longest to the shortest run for which a curve is fitted.
_LEAST_RANGE = 1.5

#: Lower bound of the relative noise, the rounding of the clock.
_LEAST_NOISE = 1e-6


def local_speed(
    excess: Floats,
    reference: Floats,
    usual: float,
    moments: Floats | None = None,
    *,
    largest: float = _LARGEST_EXCESS,
) -> Floats:
    """Return the slowness of the machine at each visit, as a logarithm, from its neighbours and the reference operator.

    The visit itself is excluded: its excess may be due to its network.

    Parameters
    ----------
    excess : ndarray of shape (n_visits,)
        Logarithm of the ratio of each visit's time to that of its network, in the order of the visits.
    reference : ndarray of shape (n_visits,)
        Logarithm of the time of the reference operator before each visit.
    usual : float
        Quantile of the speeds that is defined as 0.
    moments : ndarray of shape (n_visits,), optional
        Times at which visits began [s], in order. By default visits are equally long.
    largest : float, default=0.4
        Clipping of the deviation of a visit, or three standard deviations if that is more.
    """
    places = np.arange(len(excess), dtype=np.float64) if moments is None else moments / _SECONDS
    centred, operator = excess - np.median(excess), reference - np.median(reference)
    limit = max(largest, _MOST_DEVIATIONS * deviation(centred))
    clipped = np.clip(centred, -limit, limit)
    near = _neighbours(np.column_stack([clipped, operator]), places)
    columns = np.column_stack([near[:, 0], operator, near[:, 1]])
    columns -= columns.mean(axis=0)
    prior, target = np.array(_PRIOR_WEIGHTS), clipped - clipped.mean()
    # Ridge regression towards the prior: with few visits, the weights would otherwise fit their noise.
    ridge = _PRIOR_COUNT * float(target @ target) / len(target) * np.eye(3)
    weights = (
        prior + np.linalg.lstsq(columns.T @ columns + ridge, columns.T @ (target - columns @ prior), rcond=None)[0]
    )
    speed: Floats = columns @ weights
    return speed - float(np.quantile(speed, usual))


def _neighbours(values: Floats, places: Floats) -> Floats:
    """Return the mean of the neighbours of every row, without the row, weighted by their proximity."""
    sums, weights = np.zeros(values.shape), np.full((len(values), 1), 1e-300)
    for away in range(1, min(_FARTHEST + 1, len(values))):
        gaps = places[away:, None] - places[:-away, None]
        near = np.exp(-gaps / _REACH) + _FAR_SHARE * np.exp(-gaps / _FAR_REACH)
        sums[away:] += near * values[:-away]
        sums[:-away] += near * values[away:]
        weights[away:] += near
        weights[:-away] += near
    mean: Floats = sums / weights
    return mean


@dataclass(frozen=True)
class Locations:
    """Times of networks at the machine's usual speed, with their standard errors.

    Parameters
    ----------
    values : ndarray of shape (n_networks,)
        Logarithm of each network's time; nan for one that was never visited.
    errors : ndarray of shape (n_networks,)
        Standard errors of `values`.
    speed : ndarray of shape (n_visits,)
        Logarithm of the machine's slowness at each visit.
    """

    values: Floats
    errors: Floats
    speed: Floats


def locate(
    times: Floats, reference: Floats, networks: Ints, count: int, usual: float, moments: Floats | None = None
) -> Locations:
    """Fit the times of networks and the machine's speed, alternately.

    Parameters
    ----------
    times, reference : ndarray of shape (n_visits,)
        Logarithms of the time of each visit, and of the reference operator before it, in the order of the visits.
    networks : ndarray of int of shape (n_visits,)
        Index of the visited network, less than `count`.
    usual : float
        Quantile of the machine's speeds that is defined as usual.
    moments : ndarray of shape (n_visits,), optional
        Times at which visits began [s], in order. By default visits are equally long.
    """
    values = group_quantiles(times, networks, count, 0.5)
    for _ in range(_TURNS):
        speed = local_speed(times - values[networks], reference, usual, moments)
        values = huber_locations(times - speed, networks, count)
    return Locations(values, location_errors(times - speed - values[networks], networks, count), speed)


def location_errors(rest: Floats, groups: Ints, count: int) -> Floats:
    """Return the standard errors of Huber locations, given the residuals.

    Visits that are close in time are correlated. The variance of the means of pieces of a run, relative to that of
    independent visits, corrects the standard errors for it.
    """
    sizes = np.maximum(np.bincount(groups, minlength=count), 1)
    scale = max(deviation(rest), 1e-12)
    limited = np.clip(rest, -3 * scale, 3 * scale)
    common = float(np.mean(limited**2))
    own = np.bincount(groups, limited**2, count)
    variance = (own + _COMMON_COUNT * common) / (sizes + _COMMON_COUNT - 1)
    errors: Floats = np.sqrt(variance * _clustering(limited, groups, sizes, common) / sizes)
    return errors


def _clustering(rest: Floats, groups: Ints, sizes: Ints, common: float) -> float:
    """Return the variance of means of pieces over that of independent visits, over all groups; 1 at least."""
    order, rank = np.argsort(groups, kind="stable"), np.empty(len(rest), dtype=np.int64)
    starts = np.searchsorted(groups[order], np.arange(len(sizes)))
    rank[order] = np.arange(len(rest)) - starts[groups[order]]
    pieces = groups * _PIECES + rank * _PIECES // sizes[groups]
    counts = np.bincount(pieces, minlength=len(sizes) * _PIECES)
    sums = np.bincount(pieces, rest, len(sizes) * _PIECES)
    many = np.repeat(sizes >= 2 * _PIECES, _PIECES)
    if not many.any() or not common:
        return 1.0
    # Means of pieces scatter about the estimated mean of the group, which costs one degree of freedom.
    scatter = float(np.sum(sums[many] ** 2 / counts[many])) / (many.sum() * (1 - 1 / _PIECES))
    return max(1.0, float(scatter / common))


def process_error(values: Floats, groups: Ints, processes: Ints, count: int) -> float:
    """Return by how much the same work differs between processes beyond chance, as a standard deviation.

    Where a process places weights and activations changes their times for as long as it lives, so its visits are not
    independent. The variance between the means of processes, over that within them, is an analysis of variance [1]_
    over all groups; noisy groups count less.

    Parameters
    ----------
    values : ndarray of shape (n,)
        Logarithms of times.
    groups : ndarray of int of shape (n,)
        What was timed, less than `count`.
    processes : ndarray of int of shape (n,)
        Number of the process of each value, from 0.
    count : int
        Number of groups.

    Returns
    -------
    float
        0 where no group was timed in two processes.

    References
    ----------
    .. [1] S. R. Searle, G. Casella, C. E. McCulloch, "Variance Components", Wiley 1992, chapter 3.
       https://doi.org/10.1002/9780470316856

    Examples
    --------
    >>> processes, groups = np.repeat([0, 1, 2], 40), np.zeros(120, dtype=np.int64)
    >>> times = np.tile([0.01, 0.0, -0.01, 0.0], 30) + 0.05 * processes
    >>> round(process_error(times, groups, processes, 1), 3)
    0.05
    """
    rest = values - group_quantiles(values, groups, count, 0.5)[groups]
    limits = _MOST_SPREADS * group_quantiles(np.abs(rest), groups, count, 0.5)[groups]
    rest = np.where(limits > 0, np.clip(rest, -limits, limits), rest)
    sizes, sums = (np.zeros((count, int(processes.max(initial=0)) + 1)) for _ in range(2))
    np.add.at(sizes, (groups, processes), 1.0)
    np.add.at(sums, (groups, processes), rest)
    totals, degrees = sizes.sum(axis=1), (sizes > 0).sum(axis=1) - 1.0
    taken = (degrees > 0) & (totals > degrees + 1)
    if not taken.any():
        return 0.0
    squares = np.bincount(groups, rest**2, count)[taken]
    sizes, sums, totals, degrees = (item[taken] for item in (sizes, sums, totals, degrees))
    explained = (sums**2 / np.maximum(sizes, 1.0)).sum(axis=1)
    noise = np.maximum(squares - explained, 0.0) / (totals - degrees - 1)
    between = explained - sums.sum(axis=1) ** 2 / totals
    weights = 1 / np.maximum(noise + np.median(noise), _LEAST_NOISE**2)
    shared = float(weights @ (totals - (sizes**2).sum(axis=1) / totals))
    return math.sqrt(max(0.0, float(weights @ (between - degrees * noise)) / shared))


@dataclass(frozen=True)
class Residency:
    r"""How much faster a network runs than the sum of its entries, because its data are still in the cache. Immutable.

    Of a network whose entries add up to :math:`S`, the share :math:`\text{saving} \cdot e^{-S / \text{scale}}` is
    saved. It fades with the size of the network, as less and less of what one run touched is left for the next.

    Parameters
    ----------
    saving : float
        Share saved by a network that takes no time at all, in [0, 1).
    scale : float
        Sum over which the saving fades, in the unit of the table's metric.

    Raises
    ------
    InvalidValueError
        If a value is outside its range.

    Examples
    --------
    >>> residency = Residency(0.5, 0.004)
    >>> round(residency(0.004), 6), round(residency(0.04), 6), round(residency.inverse(residency(0.004)), 9)
    (0.003264, 0.039999, 0.004)
    """

    saving: Annotated[float, Field(ge=0, lt=1, description="share saved by a network that takes no time at all")]
    scale: Annotated[PositiveFloat, Field(description="sum over which the saving fades, in the table's unit")]

    __pydantic_config__ = RECORD

    def __post_init__(self) -> None:
        if not 0 <= self.saving < 1:
            raise InvalidValueError(f"The 'saving' of a residency must be in [0, 1). Got {self.saving!r}.")
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise InvalidValueError(f"The 'scale' of a residency must be positive and finite. Got {self.scale!r}.")

    def __call__(self, total: Any) -> Any:
        """Return the cost of networks whose entries add up to `total`, a number or an array; increases with `total`."""
        exp = np.exp if isinstance(total, np.ndarray) else math.exp
        return total * (1 - self.saving * exp(-total / self.scale))

    def inverse(self, cost: float) -> float:
        """Return the sum of the entries of a network that costs `cost`."""
        low, high = cost, cost / (1 - self.saving)
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if self(middle) < cost else (low, middle)
        return (low + high) / 2

    def scaled(self, factor: float) -> Residency:
        """Return the same curve for sums scaled by `factor`."""
        return Residency(self.saving, self.scale * factor)


def fit_residency(
    sums: Sequence[float] | NDArray[np.float64],
    totals: Sequence[float] | NDArray[np.float64],
    weights: Sequence[float] | NDArray[np.float64] | None = None,
) -> tuple[float, Residency | None]:
    """Fit the factor and the curve that map sums of entries to times of whole networks.

    The scale is a fixed share of the median sum. The factor is the Huber location of the residuals of the curve, and
    the saving maximises the posterior under a weak prior, 0.18 +- 0.08: runs that scatter too much to show a curve
    leave the usual one.

    Parameters
    ----------
    sums : array-like of shape (n_runs,)
        Sum of the entries of the network of each run.
    totals : array-like of shape (n_runs,)
        Time of each run.
    weights : array-like of shape (n_runs,), optional
        Weight of each run; repeated runs of one network are less informative than runs of different ones.

    Returns
    -------
    calibration : float
        Factor of the sums.
    residency : Residency or None
        Curve over the calibrated sums; None if the saving is next to nothing, or all networks are alike.
    """
    parts, logs = np.asarray(sums, dtype=np.float64), np.log(np.asarray(totals) / np.asarray(sums))
    if parts.max() < _LEAST_RANGE * parts.min():
        return math.exp(float(np.median(logs))), None
    shares = np.ones(len(parts)) if weights is None else np.asarray(weights, dtype=np.float64)
    scale = _SCALE * float(np.median(parts))
    rest = logs - np.log1p(-_SAVINGS[:, None] * np.exp(-parts / scale))
    # Use the noise of the curve with the least residuals for all, so that their likelihoods are comparable.
    noise = max(_LEAST_NOISE, min(map(deviation, rest - np.median(rest, axis=1)[:, None])))
    factors, losses = _huber_rows(rest, shares, noise)
    best = int(np.argmin(losses + ((_SAVINGS - _USUAL_SAVING) / _SAVING_DEVIATION) ** 2 / 2))
    if _SAVINGS[best] < _LEAST_SAVING:
        return math.exp(factors[0]), None
    factor = math.exp(factors[best])
    return factor, Residency(float(_SAVINGS[best]), scale * factor)


def _huber_rows(
    rest: NDArray[np.float64], shares: NDArray[np.float64], noise: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the Huber location of every row and its loss, in units of the noise."""
    location = np.median(rest, axis=1)
    for _ in range(10):
        weights = shares * huber_weights(rest - location[:, None], noise)
        location = (weights * rest).sum(axis=1) / weights.sum(axis=1)
    return location, (shares * huber_losses(rest - location[:, None], noise)).sum(axis=1)
