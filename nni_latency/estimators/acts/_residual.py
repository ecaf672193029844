"""`Residual`: by what factor pieces of work cost more or less than their amounts say, learned from whole workloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nni_latency.estimators.acts._traits import Work
from nni_latency.estimators.acts._workloads import Workloads
from nni_latency.regression import CORRELATIONS, Posterior, Spectrum, squared_distances

Array = NDArray[np.float64]

#: Correlations by distance that are tried: of functions that are continuous, and of some that are smooth.
KERNELS = ("matern12", "matern32")

#: What is tried: ranges of the correlation in standard deviations of the traits, and noise over signal.
_RANGES = (0.5, 1.0, 2.0, 4.0, 8.0)
_NOISES = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)

#: Squared distance, in variances of a trait, that lies between two groups.
_BETWEEN_GROUPS = 8.0

#: Correlation that all pieces of work have in common: the level may be off everywhere.
_COMMON = 0.5

#: Steps of the Gauss-Newton iteration.
_STEPS = 4


@dataclass(frozen=True)
class Residual:
    """A Gaussian process over pieces of work, whose values are logarithms of factors on their costs.

    Parameters
    ----------
    kernel : str
        Name of the correlation by distance.
    reach : float
        Distance over which the correlation falls.
    centre, scale : tuple of float
        Mean and standard deviation of the traits.
    work : tuple of Work
        What it was learned from.
    weights : tuple of float
        Of the correlations with those; the logarithm is their weighted sum.
    """

    kernel: str
    reach: float
    centre: tuple[float, ...]
    scale: tuple[float, ...]
    work: tuple[Work, ...]
    weights: tuple[float, ...]

    def __call__(self, work: Sequence[Work]) -> Array:
        """Return the factor of every piece of work."""
        distances = _distances(work, self.work, self.centre, self.scale)
        logs = _correlation(self.kernel, distances, self.reach) @ np.array(self.weights)
        return np.asarray(np.exp(logs))


def fit_residual(workloads: Workloads, base: Array, seconds: Array) -> Residual:
    """Learn factors of pieces of work from the time of whole workloads.

    The logarithm of a workload's time is not linear in the logarithms of its pieces, so it is linearised around the
    factors found so far, which gives a Gaussian process observed through sums [1]_, and solved again.

    Parameters
    ----------
    workloads : Workloads
        Of n workloads with m distinct pieces of work.
    base : ndarray of shape (m,)
        What the pieces cost by their amounts [s].
    seconds : ndarray of shape (n,)
        Measured latencies [s].

    References
    ----------
    .. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, chapters 2
       and 5. https://gaussianprocess.org/gpml/
    """
    traits = np.array([piece.traits for piece in workloads.work])
    centre, scale = traits.mean(axis=0), traits.std(axis=0)
    scale[scale < 1e-9] = 1.0
    distances = _distances(workloads.work, workloads.work, tuple(centre), tuple(scale))
    logs = np.zeros(len(base))
    found: tuple[str, float, float] | None = None
    for _ in range(_STEPS):
        costs = workloads.counts * (base * np.exp(logs))
        whole = costs.sum(axis=1)
        shares = costs / whole[:, None]
        target = np.log(seconds / whole) + shares @ logs
        found = found or _likeliest(distances, shares, target)
        kernel, reach, noise = found
        correlation = _correlation(kernel, distances, reach)
        covariance = shares @ correlation @ shares.T
        weights = shares.T @ Posterior(covariance + noise * np.eye(len(target)), target).weights
        logs = correlation @ weights
    return Residual(
        kernel, reach, tuple(centre.tolist()), tuple(scale.tolist()), workloads.work, tuple(weights.tolist())
    )


def _likeliest(distances: Array, shares: Array, target: Array) -> tuple[str, float, float]:
    """Choose the kernel, its reach and the noise by their likelihood, the height of the signal integrated out."""
    found = {
        (kernel, reach, noise): spectrum.log_likelihood(noise)
        for kernel in KERNELS
        for reach in _RANGES
        for spectrum in (Spectrum(shares @ _correlation(kernel, distances, reach) @ shares.T, target),)
        for noise in _NOISES
    }
    return max(found, key=lambda choice: found[choice])


def _correlation(kernel: str, distances: Array, reach: float) -> Array:
    return np.asarray(CORRELATIONS[kernel](distances / reach) + _COMMON)


def _distances(one: Sequence[Work], other: Sequence[Work], centre: Sequence[float], scale: Sequence[float]) -> Array:
    """Return the root of the mean squared difference of the traits, groups included."""
    first, second = (
        (np.array([piece.traits for piece in work]) - np.array(centre)) / np.array(scale) for work in (one, other)
    )
    names = {name: index for index, name in enumerate(sorted({piece.group for piece in (*one, *other)}))}
    groups, others = (np.array([names[piece.group] for piece in work]) for work in (one, other))
    squares = squared_distances(first, second) + _BETWEEN_GROUPS * (groups[:, None] != others[None])
    return np.asarray(np.sqrt(squares / first.shape[1]))
