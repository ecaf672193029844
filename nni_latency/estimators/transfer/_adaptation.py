# SPDX-License-Identifier: Apache-2.0
"""Adaptation from known devices to a new one: prior, posterior and calibration of errors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.typing import NDArray

from nni_latency.errors import LatencyWarning
from nni_latency.estimators.transfer._encoding import Encoding
from nni_latency.estimators.transfer._inputs import check_units
from nni_latency.estimators.transfer._known import (
    CONSTANT,
    Expectation,
    Observations,
    prediction_variances,
    student_weights,
    weight_prior,
    with_constant,
)
from nni_latency.estimators.transfer._population import Population, learn_population

#: Iterations of estimating variances and the reliability of each measurement.
_TURNS = 3

#: Relative error variance of a measurement that triggers a second start.
_DOUBTFUL = 1.5

#: Optimiser steps for the variances in each iteration but the first.
_STEPS = 12

#: Minimum probability of a hypothesis.
_NEGLIGIBLE = 1e-3

#: Numbers of networks to adapt a known device with, and to evaluate it on.
_ADAPTED, _HELD_OUT = 10, 200

#: Number of stored quantiles of the errors.
_LEVELS = 201

#: With fewer known devices, errors are assumed to be normal.
_FEWEST_DEVICES = 3


@dataclass(frozen=True)
class Adaptation:
    """A new device: mean and covariance of its coefficients, averaged over all hypotheses.

    Parameters
    ----------
    unit : float
        Typical latency [s]; everything else is in multiples of it.
    mean : ndarray of shape (n_features + 1,)
        Weights of the centred features, and the constant.
    covariance : ndarray of shape (n_features + 1, n_features + 1)
        Of their errors.
    noise : float
        Standard deviation of a measurement.
    probabilities : ndarray of shape (n_devices + 2,)
        Of the hypotheses: like each known device, like their mean, like none.
    weights : ndarray of shape (n,)
        Relative error variance of every measurement.
    """

    unit: float
    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]
    noise: float
    probabilities: NDArray[np.float64]
    weights: NDArray[np.float64]

    def predict(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return latencies [s] by centred features, (n,)."""
        predicted: NDArray[np.float64] = self.unit * (features @ self.mean[:-1] + self.mean[-1])
        return predicted

    def deviations(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return standard deviations of measurements of networks [s], (n,)."""
        variances = prediction_variances(features, self.covariance) + self.noise**2
        deviations: NDArray[np.float64] = self.unit * np.sqrt(np.maximum(variances, 0.0))
        return deviations


@dataclass(frozen=True)
class _Belief:
    """Posterior of one hypothesis."""

    evidence: float
    logs: NDArray[np.float64]
    observed: Observations


def adapt(
    population: Population, features: NDArray[np.float64], latencies: NDArray[np.float64], resolution: float = 0.0
) -> Adaptation:
    """Adapt to a new device: all hypotheses with maximum-likelihood variances, weighted by probability.

    Parameters
    ----------
    population : Population
        The known devices.
    features : ndarray of shape (n, n_features)
        Centred features of the measured networks.
    latencies : ndarray of shape (n,)
        Measured latencies [s].
    resolution : float, default=0.0
        Step to which the latencies were rounded [s].
    """
    unit = float(np.median(latencies))
    floor = (resolution / unit) ** 2 / 12
    beliefs = [
        _believe(population, features, latencies / unit - 1.0, floor, place)
        for place in range(len(population.devices) + 2)
    ]
    evidences = np.array([belief.evidence for belief in beliefs])
    odds = np.exp(evidences - evidences.max())
    probabilities = odds / odds.sum()
    kept = [place for place in range(len(beliefs)) if probabilities[place] > _NEGLIGIBLE]
    shares = probabilities[kept] / probabilities[kept].sum()
    posteriors = [_posterior(population, features, beliefs[place], place) for place in kept]
    mean = sum((share * item[0] for share, item in zip(shares, posteriors, strict=True)), np.zeros(()))
    covariance = sum(
        (
            share * (item[1] + np.outer(item[0] - mean, item[0] - mean))
            for share, item in zip(shares, posteriors, strict=True)
        ),
        np.zeros(()),
    )
    noise = float(sum(share * np.exp(beliefs[place].logs[-1]) for share, place in zip(shares, kept, strict=True)))
    best = beliefs[int(np.argmax(evidences))]
    return Adaptation(
        unit,
        mean + np.append(np.zeros(features.shape[1]), 1.0),
        covariance,
        float(np.sqrt(noise + floor)),
        probabilities,
        best.observed.weights,
    )


def _believe(
    population: Population, features: NDArray[np.float64], values: NDArray[np.float64], floor: float, place: int
) -> _Belief:
    """Find the likeliest variances and weights from two starts: with all measurements, or without outliers.

    A single outlier can inflate the noise estimate so much that it is no longer detected.
    """
    parts = population.parts(features, place)
    good = Observations(parts, values, np.ones(len(values)), floor)
    beliefs = []
    for expected in population.expectations(place):
        doubtful = good
        for _ in range(_TURNS):
            doubtful = replace(good, weights=student_weights(doubtful.surprise(expected.centre)))
        starts = [good, doubtful] if doubtful.weights.max() > _DOUBTFUL else [good]
        beliefs += [_settle(start, expected) for start in starts]
    return max(beliefs, key=lambda belief: belief.evidence)


def _settle(observed: Observations, expected: Expectation) -> _Belief:
    """Alternate between variances and weights."""
    logs, evidence = observed.likeliest(expected)
    for _ in range(_TURNS):
        observed = replace(observed, weights=student_weights(observed.surprise(logs)))
        logs, evidence = observed.likeliest(expected, logs, steps=_STEPS)
    return _Belief(evidence + weight_prior(observed.weights), logs, observed)


def _posterior(
    population: Population, features: NDArray[np.float64], belief: _Belief, place: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and covariance of the coefficients, and of the constant less one."""
    n_features = features.shape[1]
    prior = np.zeros((n_features + 1, n_features + 1))
    prior[:-1, :-1], prior[-1, -1] = population.prior(belief.logs, place), CONSTANT
    gain = prior @ with_constant(features).T
    seen = belief.observed.posterior(belief.logs)
    return seen.mean(gain), seen.covariance(gain, prior)


def error_quantiles(
    population: Population,
    features: NDArray[np.float64],
    latencies: list[NDArray[np.float64]],
    generator: np.random.Generator,
) -> NDArray[np.float64]:
    """Return quantiles, evenly spaced from 0 to 1, of errors over their expected standard deviation, (n_levels,).

    Every known device is treated as new in turn: the others adapt to a few random networks of it, and the errors on its
    other networks are compared with their expected standard deviation. Because of outliers and few measurements, the
    errors are larger than normal ones.
    """
    errors = []
    for place, values in enumerate(latencies):
        if len(population.devices) < _FEWEST_DEVICES:
            break
        drawn = generator.permutation(len(features))[: _ADAPTED + _HELD_OUT]
        chosen, others = drawn[:_ADAPTED], drawn[_ADAPTED:]
        adaptation = adapt(population.without(place), features[chosen], values[chosen])
        off = np.abs(values[others] - adaptation.predict(features[others])) / adaptation.deviations(features[others])
        errors.append(np.quantile(off, np.linspace(0, 1, _LEVELS)))
    return pooled(errors) if errors else half_normal()


def pooled(errors: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return quantiles of the errors of all devices, with equal weight per device."""
    return np.quantile(np.concatenate(errors), np.linspace(0, 1, _LEVELS))


def half_normal() -> NDArray[np.float64]:
    """Return the quantiles of absolute normal errors."""
    return np.asarray(scipy.stats.norm.ppf(0.5 + np.linspace(0, 1, _LEVELS) / 2.004), dtype=np.float64)


class FewSourcesWarning(LatencyWarning):
    """Issued for a single known device, which contains no information on how devices differ."""


@dataclass(frozen=True)
class Learned:
    """Prior knowledge before a new device is measured.

    Parameters
    ----------
    population : Population
        Known devices, and the prior of a new one.
    indices : ndarray of int of shape (n, n_labels)
        Networks measured on the known devices.
    errors : ndarray of shape (n_levels,)
        Quantiles of errors over their expected standard deviation.
    """

    population: Population
    indices: NDArray[np.int64]
    errors: NDArray[np.float64]


def learn(
    encoding: Encoding,
    indices: NDArray[np.int64],
    series: Mapping[str, NDArray[np.float64]],
    seed: int,
    *,
    check: bool,
    least_noise: float = 0.0,
) -> Learned:
    """Fit known devices to validated latencies.

    Parameters
    ----------
    encoding : Encoding
        The space.
    indices : ndarray of int of shape (n, n_labels)
        Networks measured on the known devices.
    series : mapping of str to ndarray of shape (n,)
        Latencies by device [s].
    seed : int
        Random seed.
    check : bool
        Whether to reject series that differ in unit.
    least_noise : float, default=0.0
        Lower bound of the expected noise of a new device, as a share of its typical network.

    Raises
    ------
    InvalidValueError
        If a series is in another unit than the others.
    """
    if check:
        check_units(series)
    if len(series) == 1:
        warnings.warn(
            f"There is one known device, {next(iter(series))!r}: nothing is known about how devices differ. "
            "Expect larger errors, measure more networks, or add devices.",
            FewSourcesWarning,
            stacklevel=3,
        )
    population = learn_population(encoding, indices, series, seed, least_noise)
    features, generator = encoding.features(indices), np.random.default_rng(seed)
    return Learned(population, indices, error_quantiles(population, features, list(series.values()), generator))
