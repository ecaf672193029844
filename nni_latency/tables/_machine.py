"""What the machine does to measurements: its speed from visit to visit, and what small networks find in the cache."""

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

#: Over how many visits the weight of a neighbour fades, and the share and reach of a slower fading beside it.
_REACH, _FAR_SHARE, _FAR_REACH = 2.0, 0.02, 30.0

#: Seconds between visits where their moments are known: how fast a busy host is changes from one second to the next.
_SECONDS = 0.1

#: Neighbours farther away than this count for nothing.
_FARTHEST = 300

#: A visit counts as no further off the others than this logarithm, or as this many of their standard deviations.
_LARGEST_EXCESS, _MOST_DEVIATIONS = 0.4, 3.0

#: What the speed is made of before anything was seen, the reference operator alone, and how much that counts [visits].
_PRIOR_WEIGHTS, _PRIOR_COUNT = (0.0, 1.0, 0.0), 2.0

#: Turns after which speeds and locations no longer change.
_TURNS = 4

#: Pieces of a run whose means tell how far visits that lie close together agree by more than chance.
_PIECES = 6

#: Visits for which the noise of all networks counts beside the noise of each.
_COMMON_COUNT = 6.0

#: Savings that are tried, and what is thought of them before anything was measured: mean and standard deviation.
_SAVINGS = np.linspace(0.0, 0.6, 121)
_USUAL_SAVING, _SAVING_DEVIATION = 0.18, 0.08

#: The scale as a share of the median network's sum. Runs tell the saving, but hardly the scale apart from it.
_SCALE = 0.3

#: The curve is kept only if the runs are likelier with it than without by this much (logarithm of the ratio).
_LEAST_EVIDENCE = 2.0

#: How many times as long the longest run must take as the shortest one for the curve to be seen at all.
_LEAST_RANGE = 1.5

#: Residuals are never taken for smaller than this share: below it lies the rounding of the clock.
_LEAST_NOISE = 1e-6


def local_speed(excess: Floats, reference: Floats, usual: float, moments: Floats | None = None) -> Floats:
    """Return how slow the machine was at each visit, as a logarithm, from its neighbours and the reference operator.

    The visit itself does not count: what it took longer than expected may be its network's own.

    Parameters
    ----------
    excess : ndarray of shape (n_visits,)
        Logarithm of what each visit took over what its network takes, in the order of the visits.
    reference : ndarray of shape (n_visits,)
        Logarithm of the time of the reference operator before each visit.
    usual : float
        Which quantile of the speeds is 0.
    moments : ndarray of shape (n_visits,), optional
        When each visit was [s], in order. By default visits are as long as each other.
    """
    places = np.arange(len(excess), dtype=np.float64) if moments is None else moments / _SECONDS
    centred, operator = excess - np.median(excess), reference - np.median(reference)
    limit = max(_LARGEST_EXCESS, _MOST_DEVIATIONS * deviation(centred))
    clipped = np.clip(centred, -limit, limit)
    near = _neighbours(np.column_stack([clipped, operator]), places)
    columns = np.column_stack([near[:, 0], operator, near[:, 1]])
    columns -= columns.mean(axis=0)
    prior, target = np.array(_PRIOR_WEIGHTS), clipped - clipped.mean()
    # A ridge towards the prior: with few visits the regression would explain their noise.
    ridge = _PRIOR_COUNT * float(target @ target) / len(target) * np.eye(3)
    weights = (
        prior + np.linalg.lstsq(columns.T @ columns + ridge, columns.T @ (target - columns @ prior), rcond=None)[0]
    )
    speed: Floats = columns @ weights
    return speed - float(np.quantile(speed, usual))


def _neighbours(values: Floats, places: Floats) -> Floats:
    """Return the mean of the neighbours of every row, without itself, weighed by how near their places are."""
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
    """What networks take at the speed that the machine usually had, and how well that is known.

    Parameters
    ----------
    values : ndarray of shape (n_networks,)
        Logarithm of each network's time; nan for one that was never visited.
    errors : ndarray of shape (n_networks,)
        Standard errors of those.
    speed : ndarray of shape (n_visits,)
        Logarithm of how slow the machine was at each visit.
    """

    values: Floats
    errors: Floats
    speed: Floats


def locate(
    times: Floats, reference: Floats, networks: Ints, count: int, usual: float, moments: Floats | None = None
) -> Locations:
    """Find in turns what networks take and how fast the machine was.

    Parameters
    ----------
    times, reference : ndarray of shape (n_visits,)
        Logarithms of what each visit took, and of the reference operator before it, in the order of the visits.
    networks : ndarray of int of shape (n_visits,)
        Which of `count` networks was visited.
    usual : float
        Which quantile of the machine's speeds counts as its usual one.
    moments : ndarray of shape (n_visits,), optional
        When each visit was [s], in order. By default visits are as long as each other.
    """
    values = group_quantiles(times, networks, count, 0.5)
    for _ in range(_TURNS):
        speed = local_speed(times - values[networks], reference, usual, moments)
        values = huber_locations(times - speed, networks, count)
    return Locations(values, location_errors(times - speed - values[networks], networks, count), speed)


def location_errors(rest: Floats, groups: Ints, count: int) -> Floats:
    """Return the standard errors of Huber locations, given what is left after they are taken off.

    Visits close to each other in time have more in common than chance. So the means of pieces of the run say by how
    much more the location of a network varies than if its visits were independent.
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
    """Return the variance of means of pieces over that of independent visits, of all groups together; 1 at least."""
    order, rank = np.argsort(groups, kind="stable"), np.empty(len(rest), dtype=np.int64)
    starts = np.searchsorted(groups[order], np.arange(len(sizes)))
    rank[order] = np.arange(len(rest)) - starts[groups[order]]
    pieces = groups * _PIECES + rank * _PIECES // sizes[groups]
    counts = np.bincount(pieces, minlength=len(sizes) * _PIECES)
    sums = np.bincount(pieces, rest, len(sizes) * _PIECES)
    many = np.repeat(sizes >= 2 * _PIECES, _PIECES)
    if not many.any() or not common:
        return 1.0
    # Means of pieces scatter about the group's own mean, which takes one degree of freedom away.
    scatter = float(np.sum(sums[many] ** 2 / counts[many])) / (many.sum() * (1 - 1 / _PIECES))
    return max(1.0, float(scatter / common))


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
        """Return what networks cost whose entries add up to `total`, a number or an array; it rises with `total`."""
        exp = np.exp if isinstance(total, np.ndarray) else math.exp
        return total * (1 - self.saving * exp(-total / self.scale))

    def inverse(self, cost: float) -> float:
        """Return what the entries of a network that costs `cost` add up to."""
        low, high = cost, cost / (1 - self.saving)
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if self(middle) < cost else (low, middle)
        return (low + high) / 2

    def scaled(self, factor: float) -> Residency:
        """Return the same curve for sums that are `factor` times as large."""
        return Residency(self.saving, self.scale * factor)


def fit_residency(
    sums: Sequence[float] | NDArray[np.float64],
    totals: Sequence[float] | NDArray[np.float64],
    weights: Sequence[float] | NDArray[np.float64] | None = None,
) -> tuple[float, Residency | None]:
    """Find the factor and the curve that take the sums of entries to the times of whole networks.

    The scale is a fixed share of the median sum. The factor is a Huber location of what the curve leaves, and the
    saving is the likeliest under a weak prior, 0.18 +- 0.08.

    Parameters
    ----------
    sums : array-like of shape (n_runs,)
        Sum of the entries of the network of each run.
    totals : array-like of shape (n_runs,)
        Time of each run.
    weights : array-like of shape (n_runs,), optional
        How much each run counts; runs of one network tell less than as many runs of different ones.

    Returns
    -------
    calibration : float
        Factor on the sums.
    residency : Residency or None
        For the calibrated sums; None where the runs are as likely with a plain factor, by a likelihood ratio.
    """
    parts, logs = np.asarray(sums, dtype=np.float64), np.log(np.asarray(totals) / np.asarray(sums))
    if parts.max() < _LEAST_RANGE * parts.min():
        return math.exp(float(np.median(logs))), None
    shares = np.ones(len(parts)) if weights is None else np.asarray(weights, dtype=np.float64)
    scale = _SCALE * float(np.median(parts))
    rest = logs - np.log1p(-_SAVINGS[:, None] * np.exp(-parts / scale))
    # The noise is that of the curve that leaves least, so that the curves are compared on equal terms.
    noise = max(_LEAST_NOISE, min(map(deviation, rest - np.median(rest, axis=1)[:, None])))
    factors, losses = _huber_rows(rest, shares, noise)
    best = int(np.argmin(losses + ((_SAVINGS - _USUAL_SAVING) / _SAVING_DEVIATION) ** 2 / 2))
    if losses[0] - losses[best] < _LEAST_EVIDENCE:
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
