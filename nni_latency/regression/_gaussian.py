# SPDX-License-Identifier: Apache-2.0
"""Gaussian processes seen at points or through sums: what is left to know once some normal values were observed.

Values at points have the covariance of the process; sums of them, `A` times the values, have `A` times that times `A`
transposed. Whoever knows the covariance of what was observed, and that of it with what is asked, has all that is
needed: both kinds of process are one.

C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, chapters 2 and 5.
https://gaussianprocess.org/gpml/
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import scipy
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Correlation by distance: of functions that are continuous, of those with one derivative, and of smooth ones.
CORRELATIONS: dict[str, Callable[[Array], Array]] = {
    "matern12": lambda distance: np.exp(-distance),
    "matern32": lambda distance: (1 + np.sqrt(3) * distance) * np.exp(-np.sqrt(3) * distance),
    "gaussian": lambda distance: np.exp(-(distance**2) / 2),
}

#: The height of a process is never taken for less, in squared units of its values.
_LEAST_HEIGHT = 1e-12


def squared_distances(one: Array, other: Array) -> Array:
    """Return the squared Euclidean distances of all pairs of rows, (n_one, n_other)."""
    squares = (one**2).sum(1)[:, None] + (other**2).sum(1)[None, :] - 2 * one @ other.T
    return np.asarray(np.maximum(squares, 0.0))


class Posterior:
    """Normal values of zero mean that were observed, and what they say of others.

    Parameters
    ----------
    covariance : ndarray of shape (n, n)
        Of the observed values, noise included; positive definite.
    values : ndarray of shape (n,)
        What was observed.

    Attributes
    ----------
    weights : ndarray of shape (n,)
        The inverse of the covariance times the values. What another value is expected to be is the sum of these, each
        times its covariance with that value.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the covariance is not positive definite.

    Examples
    --------
    >>> seen = Posterior(np.array([[1.0, 0.5], [0.5, 1.0]]), np.array([1.0, 3.0]))
    >>> seen.mean(np.array([[0.5, 1.0]])).round(6).tolist()
    [3.0]
    >>> errors, variances = seen.left_out()
    >>> errors.round(6).tolist(), variances.round(6).tolist()
    ([-0.5, 2.5], [0.75, 0.75])
    """

    def __init__(self, covariance: Array, values: Array) -> None:
        self._values = values
        self._factor = scipy.linalg.cho_factor(covariance, lower=True)
        self.weights: Array = self._solve(values)

    def _solve(self, right: Array) -> Array:
        return np.asarray(scipy.linalg.cho_solve(self._factor, right, check_finite=False))

    @cached_property
    def inverse(self) -> Array:
        """Inverse of the covariance, (n, n)."""
        return self._solve(np.eye(len(self._values)))

    @property
    def half_log_determinant(self) -> float:
        """Half the logarithm of the determinant of the covariance."""
        return float(np.log(np.diag(self._factor[0])).sum())

    @property
    def log_likelihood(self) -> float:
        """Logarithm of the density of the values, up to a constant."""
        return -0.5 * float(self._values @ self.weights) - self.half_log_determinant

    @property
    def slope(self) -> Array:
        """Twice the derivative of `log_likelihood` by each number of the covariance, (n, n)."""
        return np.outer(self.weights, self.weights) - self.inverse

    def left_out(self) -> tuple[Array, Array]:
        """Return how far each value is from what the others say, and the variance that is expected of that, (n,)."""
        variances = 1 / np.diag(self.inverse)
        return self.weights * variances, variances

    def mean(self, cross: Array) -> Array:
        """Return what other values are expected to be, (n_others,), by their covariances with these, (n_others, n)."""
        return np.asarray(cross @ self.weights)

    def covariance(self, cross: Array, prior: Array) -> Array:
        """Return the covariance that is left of other values, (n_others, n_others).

        Parameters
        ----------
        cross : ndarray of shape (n_others, n)
            Their covariances with the observed values.
        prior : ndarray of shape (n_others, n_others)
            Their covariance before anything was observed.
        """
        return np.asarray(prior - cross @ self._solve(cross.T))

    def variances(self, cross: Array, prior: Array) -> Array:
        """Return the variances that are left of other values, (n_others,), with the prior ones, (n_others,)."""
        return np.asarray(np.maximum(prior - np.einsum("ij,ji->i", cross, self._solve(cross.T)), 0.0))


class Spectrum:
    """Normal values under any height and noise: one decomposition of their correlation serves all of them.

    Parameters
    ----------
    correlation : ndarray of shape (n, n)
        Of the values, without noise.
    values : ndarray of shape (n,)
        What was observed.
    """

    def __init__(self, correlation: Array, values: Array) -> None:
        levels, self._turns = np.linalg.eigh(correlation)
        self._levels = np.maximum(levels, 0.0)
        self._turned = self._turns.T @ values

    def log_likelihood(self, noise: float) -> float:
        """Return the logarithm of the density of the values, up to a constant, under the likeliest height.

        Parameters
        ----------
        noise : float
            Variance of the noise over the height.
        """
        levels = self._levels + noise
        height = float((self._turned**2 / levels).mean()) + _LEAST_HEIGHT
        return -0.5 * (len(levels) * float(np.log(height)) + float(np.log(levels).sum()))

    def left_out(self, noise: float) -> tuple[Array, Array]:
        """Return what `Posterior.left_out` does, (n,), for the height 1 and this variance of the noise."""
        inverse = 1 / (self._levels + noise)
        variances = 1 / (self._turns**2 @ inverse)
        return (self._turns @ (inverse * self._turned)) * variances, variances


def ordinary_weights(covariance: Array, cross: Array) -> Array:
    """Return the weights of ordinary kriging, (n,).

    Of all weights that add up to 1, these make the variance of the error the least, whatever the mean is
    (G. Matheron, "Principles of geostatistics", Economic Geology 1963).

    Parameters
    ----------
    covariance : ndarray of shape (n, n)
        Of the known values; positive definite.
    cross : ndarray of shape (n,)
        Covariances of the wanted value with these.
    """
    known = Posterior(covariance, cross)
    shares = known.inverse.sum(axis=1)
    return np.asarray(known.weights + shares * (1 - known.weights.sum()) / shares.sum())
