"""Gaussian processes whose covariance is a weighted sum of parts, and the likeliest weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import scipy
from numpy.typing import NDArray
from pydantic import PositiveFloat

from nni_latency.documents import RECORD, InFile, Vector
from nni_latency.regression import Posterior

#: Variance of the constant, in units of the typical network: its cost is known to about a third.
CONSTANT = 0.1

#: Bounds of the logarithms of variances, in units of the typical network.
_BOUNDS = (-18.0, 4.0)

#: Degrees of freedom of the errors of measurements: few, because some are far off.
FREEDOM = 4.0

_JITTER = 1e-10


@dataclass(frozen=True)
class Expectation:
    """A prior of the logarithms of variances, those of the parts first, that of the noise last.

    Parameters
    ----------
    centre, spread : ndarray of shape (n_parts + 1,)
        Mean and standard deviation of a normal prior.
    """

    centre: Vector
    spread: Annotated[NDArray[np.float64], InFile(list[PositiveFloat], np.array, np.ndarray.tolist)]

    __pydantic_config__ = RECORD


@dataclass(frozen=True)
class Observations:
    """Measured networks as observations of a Gaussian process, in units of the typical network.

    Parameters
    ----------
    parts : ndarray of shape (n_parts, n, n)
        Covariance of the networks by part.
    values : ndarray of shape (n,)
        Their costs, less one.
    weights : ndarray of shape (n,)
        Factor on the variance of each one's noise; 1 for a measurement as good as any.
    floor : float, default=0.0
        Variance that no measurement is free of, such as that of rounding.
    """

    parts: NDArray[np.float64]
    values: NDArray[np.float64]
    weights: NDArray[np.float64]
    floor: float = 0.0

    def posterior(self, logs: NDArray[np.float64]) -> Posterior:
        """Return the measured values as observed under these log variances."""
        return Posterior(self.covariance(logs), self.values)

    def covariance(self, logs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the covariance of the measured values under these log variances, (n, n)."""
        variances = np.exp(logs)
        total: NDArray[np.float64] = CONSTANT + np.tensordot(variances[:-1], self.parts, 1)
        total[np.diag_indices_from(total)] += variances[-1] * self.weights + self.floor + _JITTER
        return total

    def evidence(self, logs: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return the logarithm of the marginal likelihood, up to a constant, and its gradient [1]_.

        References
        ----------
        .. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006,
           section 5.4.1.
        """
        variances, seen = np.exp(logs), self.posterior(logs)
        slope = seen.slope
        gradient = 0.5 * variances[:-1] * (self.parts.reshape(len(self.parts), -1) @ slope.ravel())
        noise = 0.5 * variances[-1] * float(np.diag(slope) @ self.weights)
        return seen.log_likelihood, np.append(gradient, noise)

    def likeliest(
        self, expected: Expectation, start: NDArray[np.float64] | None = None, *, steps: int = 30
    ) -> tuple[NDArray[np.float64], float]:
        """Return the log variances with the highest posterior density, and its logarithm."""

        def cost(logs: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            value, gradient = self.evidence(logs)
            off = (logs - expected.centre) / expected.spread
            return 0.5 * float(off @ off) - value, off / expected.spread - gradient

        first = np.clip(expected.centre if start is None else start, *_BOUNDS)
        found = scipy.optimize.minimize(
            cost, first, jac=True, method="L-BFGS-B", bounds=[_BOUNDS] * len(first), options={"maxiter": steps}
        )
        return np.asarray(found.x, dtype=np.float64), -float(found.fun)

    def surprise(self, logs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the squared leave-one-out residual of each value, in variances of a usual one, (n,)."""
        off, spread = self.posterior(logs).left_out()
        usual = spread + np.exp(logs[-1]) * (1.0 - self.weights)
        surprise: NDArray[np.float64] = off**2 / np.maximum(usual, _JITTER)
        return surprise


def student_weights(surprise: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the factors on the variances under which normal errors are as surprising as Student's, at least 1."""
    weights: NDArray[np.float64] = np.maximum(1.0, (FREEDOM + surprise) / (FREEDOM + 1.0))
    return weights


def weight_prior(weights: NDArray[np.float64]) -> float:
    """Return the logarithm of the prior density of the factors, relative to all of them being 1."""
    return float((-(FREEDOM / 2 + 1) * np.log(weights) - FREEDOM / (2 * weights) + FREEDOM / 2).sum())
