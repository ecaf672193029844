"""Which networks to measure: those after which the latencies of all others are best known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Networks that are considered; of a larger pool as many are drawn.
_CANDIDATES = 4096

#: Share of the variance that may be left out of sight.
_NEGLIGIBLE = 1e-4

#: Rounds in which every network chosen may be exchanged for a better one.
_EXCHANGES = 3


def choose_networks(
    features: NDArray[np.float64],
    prior: NDArray[np.float64],
    noises: Sequence[float],
    count: int,
    *,
    known: Sequence[int] = (),
    generator: np.random.Generator,
) -> list[int]:
    """Choose networks to measure.

    The mean variance of all networks after the measurements is made small: greedily first, then by exchanging one
    network after another (an A-optimal design, or I-optimal over the pool [1]_).

    Parameters
    ----------
    features : ndarray of shape (n, n_features)
        Of the pool, with a column of ones for the constant if it has a variance in `prior`.
    prior : ndarray of shape (n_features, n_features)
        Covariance of what the features weigh.
    noises : sequence of float
        What the standard deviation of a measurement may be, in the units of `prior`.
    count : int
        How many to choose.
    known : sequence of int, default=()
        Networks of the pool that are measured already.
    generator : Generator
        Draws the candidates from a large pool.

    Returns
    -------
    list of int
        Their places in the pool, the most telling first.

    References
    ----------
    .. [1] K. Chaloner, I. Verdinelli, "Bayesian Experimental Design: A Review", Statistical Science 10 (1995).
       https://doi.org/10.1214/ss/1177009939
    """
    candidates = np.setdiff1d(np.arange(len(features)), np.asarray(known, dtype=np.int64))
    if len(candidates) > _CANDIDATES:
        candidates = np.sort(generator.permutation(candidates)[:_CANDIDATES])
    whole = features @ _directions(prior, features.T @ features / len(features))
    pool, moment, start = whole[candidates], whole.T @ whole / len(whole), np.eye(whole.shape[1])
    cases = [(noise, _measured(start, whole[list(known)], noise)) for noise in noises]
    picks: list[int] = []
    for _ in range(count):
        picks.append(_best(pool, cases, moment, picks))
    for _ in range(_EXCHANGES):
        before = list(picks)
        for place in range(count):
            picks[place] = _best(pool, cases, moment, picks[:place] + picks[place + 1 :])
        if picks == before:
            break
    return [int(candidates[pick]) for pick in picks]


def _directions(covariance: NDArray[np.float64], moment: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the directions along which the pool's latencies are uncertain, each with a variance of one."""
    values, vectors = np.linalg.eigh(covariance)
    kept = values > 1e-12 * values[-1]
    root = vectors[:, kept] * np.sqrt(values[kept])
    shares, turns = np.linalg.eigh(root.T @ moment @ root)
    known = np.cumsum(shares) <= _NEGLIGIBLE * shares.sum()
    directions: NDArray[np.float64] = root @ turns[:, ~known]
    return directions


def gains(
    features: NDArray[np.float64],
    covariance: NDArray[np.float64],
    moment: NDArray[np.float64],
    noise: float,
) -> NDArray[np.float64]:
    """Return by how much the mean variance of all networks falls if one network is measured, (n,)."""
    spread = features @ covariance
    variances = (spread * features).sum(axis=1) + noise**2
    fall: NDArray[np.float64] = ((spread @ moment) * spread).sum(axis=1) / variances
    return fall


def _measured(covariance: NDArray[np.float64], rows: NDArray[np.float64], noise: float) -> NDArray[np.float64]:
    """Return the covariance after these networks were measured."""
    if not len(rows):
        return covariance
    gain = covariance @ rows.T
    inner = rows @ gain + noise**2 * np.eye(len(rows))
    after: NDArray[np.float64] = covariance - gain @ np.linalg.solve(inner, gain.T)
    return after


def _best(
    pool: NDArray[np.float64],
    cases: Sequence[tuple[float, NDArray[np.float64]]],
    moment: NDArray[np.float64],
    taken: Sequence[int],
) -> int:
    """Return the network that helps most beside those taken, on average over cases of noise and covariance."""
    scores = np.zeros(len(pool))
    for noise, covariance in cases:
        after = _measured(covariance, pool[list(taken)], noise)
        scores += gains(pool, after, moment, noise) / max(float((after * moment).sum()), 1e-300)
    scores[list(taken)] = -1.0
    return int(scores.argmax())
