"""`KnownDevice`: a device fitted to the latencies of many networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat

from nni_latency.documents import RECORD, InFile, Vector
from nni_latency.estimators.transfer._encoding import Encoding
from nni_latency.estimators.transfer._evidence import FREEDOM, Expectation, Observations
from nni_latency.regression import deviation

#: Networks from which the variances of the parts are found; the weights then come from all.
_SUBSET = 192

#: Turns of finding weights and the reliability of each measurement.
_TURNS = 6

#: Costs further from the typical one than these factors tell nothing about the variances.
_PLAUSIBLE = (0.1, 3.0)

#: Least noise, as a share of the typical network: some series are sums of parts and have none.
LEAST_NOISE = 1e-3


def _nothing(_: object) -> None:
    """Leave out of a file what it does not hold."""


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


def learn_device(
    name: str,
    encoding: Encoding,
    features: NDArray[np.float64],
    latencies: NDArray[np.float64],
    generator: np.random.Generator,
) -> KnownDevice:
    """Fit a device: the variances of the parts by marginal likelihood, the weights so that outliers count little.

    Parameters
    ----------
    name : str
        Name of the device.
    encoding : Encoding
        The space.
    features : ndarray of shape (n, n_features)
        Centred features of the networks.
    latencies : ndarray of shape (n,)
        What they took [s].
    generator : Generator
        Draws the networks from which the variances are found.
    """
    unit = float(np.median(latencies))
    values = latencies / unit
    prior = _prior(encoding, features, values, generator)
    n_features = features.shape[1]
    extended = np.hstack([features, np.ones((len(features), 1))])
    # The mean over the space is about the typical latency, but it is not held to it.
    whole = np.zeros((n_features + 1, n_features + 1))
    whole[:-1, :-1], whole[-1, -1] = prior, 10.0
    weights, noise = np.ones(len(values)), 0.05
    for _ in range(_TURNS):
        precision = (extended.T * weights) @ extended / noise**2
        covariance = _solve(np.eye(n_features + 1) + whole @ precision, whole)
        found = covariance @ ((extended.T * weights) @ values) / noise**2
        errors = values - extended @ found
        # What the fit has bent itself to does not show in the errors any more.
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
