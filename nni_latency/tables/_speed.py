"""How fast the machine was from visit to visit, and locations of what was measured meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nni_latency.regression import deviation, group_quantiles, huber_locations

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
