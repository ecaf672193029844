# SPDX-License-Identifier: Apache-2.0
"""`KnownDevice`: a device fitted to the latencies of many networks by Gaussian processes with several parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import scipy
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat

from nni_latency.documents import RECORD, InFile, Vector
from nni_latency.estimators.transfer._encoding import Encoding
from nni_latency.regression import Posterior, deviation

#: Number of networks to estimate the variances of the parts; the weights are fitted to all.
_SUBSET = 192

#: Iterations of estimating weights and the reliability of each measurement.
_TURNS = 6

#: Costs outside these factors of the typical one are excluded from the variance estimate.
_PLAUSIBLE = (0.1, 3.0)

#: Lower bound of the noise, as a share of the typical network: some series are sums of parts without noise.
LEAST_NOISE = 1e-3

#: Prior variance of the constant, in units of the typical network: about a third.
CONSTANT = 0.1

#: Bounds of the logarithms of variances, in units of the typical network.
_BOUNDS = (-18.0, 4.0)

#: Degrees of freedom of the measurement errors: few, because of outliers.
FREEDOM = 4.0

_JITTER = 1e-10


def _nothing(_: object) -> None:
    """Return None for fields that a file does not contain."""


@dataclass(frozen=True)
class KnownDevice:
    """A device as a regression on the features of a space.

    Parameters
    ----------
    name : str
        Name of the device.
    coefficients : ndarray of shape (n_features,)
        Weights of the centred features, as shares of `constant`.
    constant : float
        Mean latency over the space [s].
    noise : float
        Standard deviation of the errors, as a share of `constant`; outliers do not count.
    covariance : ndarray of shape (n_features + 1, n_features + 1) or None
        Of the errors of the coefficients and of the constant, in the same units.
    """

    name: str
    coefficients: Vector
    constant: PositiveFloat
    noise: PositiveFloat
    covariance: Annotated[NDArray[np.float64] | None, InFile(None, _nothing, _nothing), Field(exclude=True)] = None

    __pydantic_config__ = RECORD

    def predict(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return latencies [s] by centred features, (n,)."""
        predicted: NDArray[np.float64] = self.constant * (1.0 + features @ self.coefficients)
        return predicted


def with_constant(features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Append a column of ones to features, for the constant."""
    return np.hstack([features, np.ones((len(features), 1))])


def prediction_variances(features: NDArray[np.float64], covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the variances of predictions, (n,), by the covariance of the coefficients and the constant."""
    extended = with_constant(features)
    variances: NDArray[np.float64] = ((extended @ covariance) * extended).sum(axis=1)
    return variances


def learn_device(
    name: str,
    encoding: Encoding,
    features: NDArray[np.float64],
    latencies: NDArray[np.float64],
    generator: np.random.Generator,
) -> KnownDevice:
    """Fit a device: variances of the parts by marginal likelihood, weights by a robust fit.

    Parameters
    ----------
    name : str
        Name of the device.
    encoding : Encoding
        The space.
    features : ndarray of shape (n, n_features)
        Centred features of the networks.
    latencies : ndarray of shape (n,)
        Measured latencies [s].
    generator : Generator
        Draws the networks for the variance estimate.
    """
    unit = float(np.median(latencies))
    values = latencies / unit
    prior = _prior(encoding, features, values, generator)
    n_features = features.shape[1]
    extended = with_constant(features)
    # The mean over the space is close to the typical latency, but not fixed to it.
    whole = np.zeros((n_features + 1, n_features + 1))
    whole[:-1, :-1], whole[-1, -1] = prior, 10.0
    weights, noise = np.ones(len(values)), 0.05
    for _ in range(_TURNS):
        precision = (extended.T * weights) @ extended / noise**2
        covariance = _solve(np.eye(n_features + 1) + whole @ precision, whole)
        found = covariance @ ((extended.T * weights) @ values) / noise**2
        errors = values - extended @ found
        # Correct for the effective degrees of freedom of the fit.
        freedom = 1.0 - min(0.9, float((covariance * precision).sum()) / len(values))
        noise = max(LEAST_NOISE * 0.1, deviation(errors) / freedom**0.5)
        weights = (FREEDOM + 1) / (FREEDOM + (errors / noise) ** 2)
    constant = float(found[-1])
    return KnownDevice(
        name,
        found[:-1] / constant,
        constant * unit,
        max(LEAST_NOISE, noise / constant),
        covariance / constant**2,
    )


def _prior(
    encoding: Encoding, features: NDArray[np.float64], values: NDArray[np.float64], generator: np.random.Generator
) -> NDArray[np.float64]:
    """Return the prior covariance of the weights under the likeliest variances."""
    chosen = generator.permutation(len(values))[:_SUBSET]
    n_parts = len(encoding.parts)
    expected = Expectation(
        np.append(np.full(n_parts, np.log(0.003)), np.log(0.03**2)), np.append(np.full(n_parts, 3.0), 1.5)
    )
    observed = Observations(
        seen(encoding, features[chosen]), np.clip(values[chosen], *_PLAUSIBLE) - 1.0, np.ones(len(chosen))
    )
    logs, _ = observed.likeliest(expected, steps=40)
    prior: NDArray[np.float64] = np.tensordot(np.exp(logs[:-1]), encoding.stack, 1)
    return prior


def seen(encoding: Encoding, features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the covariance of networks by part, (n_parts, n, n)."""
    return np.stack([features @ part @ features.T for part in encoding.stack])


def _solve(system: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.linalg.solve(system, values), dtype=np.float64)


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
        Factor on the noise variance of each network; 1 for a regular measurement.
    floor : float, default=0.0
        Variance of all measurements, such as that of rounding.
    """

    parts: NDArray[np.float64]
    values: NDArray[np.float64]
    weights: NDArray[np.float64]
    floor: float = 0.0

    def posterior(self, logs: NDArray[np.float64]) -> Posterior:
        """Return the posterior of the measured values under these log variances."""
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
        """Return the squared leave-one-out residual of each value, in variances of a regular one, (n,)."""
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
