# SPDX-License-Identifier: Apache-2.0
"""`Population`: differences between known devices, and the choice of networks to measure on a new one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nni_latency.estimators.transfer._encoding import Encoding
from nni_latency.estimators.transfer._known import (
    CONSTANT,
    Expectation,
    KnownDevice,
    Observations,
    learn_device,
    seen,
    student_weights,
    with_constant,
)

#: Number of networks of the held-out device for its variance estimate.
_NETWORKS = 64

#: Number of best-matching known devices to try as the one similar to the held-out device.
_TRIED = 3

#: Initial standard deviations of the parts, in units of the typical network: factor on a similar device, mix of all
#: others, deviations, and measurement noise.
_LIKE, _MIXED, _DEVIATION, _ALONE, _NOISE = 0.7, 0.1, 0.01, 0.05, 0.02

#: Initial uncertainty of these variances in natural logarithms, and its lower bound after fitting.
_VAGUE, _LEAST, _FACTOR_SPREAD = 2.0, 1.0, 1.5

#: Factor by which a near twin deviates less, and the uncertainty of its variances in natural logarithms.
_TWIN, _TWIN_SPREAD = 4.0, 0.7

#: Quantiles of the noise of known devices, used for a new one when networks are chosen.
_NOISES = (0.5, 0.9)

#: Lower bound of the measurement noise.
_LEAST_NOISE = 0.003

#: Weight of a device unlike all known ones when networks are chosen.
_NOVEL = 0.15

#: Largest number of candidates; a larger pool is subsampled.
_CANDIDATES = 4096

#: Share of the variance that may be discarded.
_NEGLIGIBLE = 1e-4

#: Rounds of exchanging chosen networks for better ones.
_EXCHANGES = 3


@dataclass(frozen=True)
class Population:
    """Known devices, and the priors of a new one.

    There is a hypothesis for every known device: the new one is similar to it, up to a factor, a mix of all others and
    further deviations. One more assumes similarity to the mean of all, and the last one to none.

    Parameters
    ----------
    encoding : Encoding
        The space.
    devices : tuple of KnownDevice
        At least one.
    similar_prior, novel_prior : Expectation
        Priors of the log variances of a device similar to a known one, and of a novel one: factor, mix, parts, noise.
    noises : tuple of float
        Standard deviations of the known devices' measurements, as shares of their typical network.
    """

    encoding: Encoding
    devices: tuple[KnownDevice, ...]
    similar_prior: Expectation
    novel_prior: Expectation
    noises: tuple[float, ...]

    def without(self, place: int) -> Population:
        """Return the same without one device."""
        devices, noises = list(self.devices), list(self.noises)
        del devices[place], noises[place]
        return replace(self, devices=tuple(devices), noises=tuple(noises))

    @cached_property
    def coefficients(self) -> NDArray[np.float64]:
        """Coefficients of the known devices, (n_devices, n_features)."""
        return np.stack([device.coefficients for device in self.devices])

    @property
    def hypotheses(self) -> tuple[str, ...]:
        """Names of the hypotheses: the known devices, their mean, none of them."""
        return (*(device.name for device in self.devices), "their mean", "none of them")

    def expectations(self, hypothesis: int) -> tuple[Expectation, ...]:
        """Return the priors of the log variances: the general one and, for a known device, that of a near twin."""
        if hypothesis == len(self.devices) + 1:
            return (self.novel_prior,)
        centre, spread = self.similar_prior.centre.copy(), self.similar_prior.spread.copy()
        centre[2:-1] -= 2 * np.log(_TWIN)
        spread[2:-1] = np.minimum(spread[2:-1], _TWIN_SPREAD)
        return self.similar_prior, Expectation(centre, spread)

    def parts(self, features: NDArray[np.float64], hypothesis: int) -> NDArray[np.float64]:
        """Return the covariance of networks by part: factor, mix, and those of the encoding, (n_parts + 2, n, n)."""
        return _parts(self.encoding, self.coefficients, features, hypothesis)

    def prior(self, logs: NDArray[np.float64], hypothesis: int) -> NDArray[np.float64]:
        """Return the covariance of a new device's coefficients, (n_features, n_features)."""
        variances = np.exp(logs)
        covariance: NDArray[np.float64] = np.tensordot(variances[2:-1], self.encoding.stack, 1)
        model = _model(self.coefficients, hypothesis)
        if model is not None:
            covariance += variances[0] * np.outer(model, model)
            covariance += variances[1] * self.coefficients.T @ self.coefficients
        return covariance

    @property
    def design_prior(self) -> NDArray[np.float64]:
        """Covariance of a new device's coefficients under all hypotheses, before anything is measured."""
        n_similar = len(self.devices) + 1
        similar = (
            sum((self.prior(self.similar_prior.centre, place) for place in range(n_similar)), np.zeros(())) / n_similar
        )
        mixed: NDArray[np.float64] = (1 - _NOVEL) * similar + _NOVEL * self.prior(self.novel_prior.centre, n_similar)
        return mixed

    @property
    def design_noises(self) -> list[float]:
        """Assumed standard deviations of measurements, as shares of the typical network."""
        return [max(_LEAST_NOISE, float(noise)) for noise in np.quantile(self.noises, _NOISES)]


def learn_population(
    encoding: Encoding,
    indices: NDArray[np.int64],
    series: Mapping[str, NDArray[np.float64]],
    seed: int,
    least_noise: float = 0.0,
) -> Population:
    """Fit the known devices and the priors of a new one.

    Every known device is left out in turn, and the likeliest variances under which the others explain some of its
    networks are found. Their centre and spread over the devices form the prior of a new device.

    Parameters
    ----------
    encoding : Encoding
        The space.
    indices : ndarray of int of shape (n, n_labels)
        Networks measured on the known devices.
    series : mapping of str to ndarray of shape (n,)
        Latencies by device [s]. A single device contains no information on how devices differ.
    seed : int
        Seed of the networks used to estimate variances.
    least_noise : float, default=0.0
        Lower bound of the expected noise of a new device, as a share of its typical network.
    """
    generator = np.random.default_rng(seed)
    features, latencies = encoding.features(indices), list(series.values())
    devices = [learn_device(name, encoding, features, values, generator) for name, values in series.items()]
    return expect(encoding, devices, features, latencies, generator, least_noise)


def expect(
    encoding: Encoding,
    devices: Sequence[KnownDevice],
    features: NDArray[np.float64],
    latencies: Sequence[NDArray[np.float64]],
    generator: np.random.Generator,
    least_noise: float = 0.0,
) -> Population:
    """Derive the priors of a new device from fitted known ones."""
    noises = tuple(max(device.noise, least_noise) for device in devices)
    similar, novel = [], []
    for place, device in enumerate(devices):
        chosen = generator.permutation(len(features))[:_NETWORKS]
        others = np.array([item.coefficients for item in devices if item is not device])
        observed = _observe(device, features[chosen], latencies[place][chosen])
        if len(others):
            similar.append(_like_one(encoding, others, observed, features[chosen], device.noise))
        novel.append(_like_none(encoding, observed, features[chosen], device.noise))
    start = vague(encoding, noise=float(np.median(noises)))
    return Population(
        encoding,
        tuple(devices),
        _summary(np.array(similar), start[0], least_noise) if len(similar) > 1 else start[0],
        _summary(np.array(novel), start[1], least_noise) if len(novel) > 1 else start[1],
        noises,
    )


def suggest_networks(
    population: Population, indices: NDArray[np.int64], count: int, measured: Sequence[int], seed: int
) -> list[int]:
    """Return the indices of the most informative networks of a pool for a new device."""
    features = population.encoding.features(indices)
    prior = np.zeros((features.shape[1] + 1, features.shape[1] + 1))
    prior[:-1, :-1], prior[-1, -1] = population.design_prior, CONSTANT
    return choose_networks(
        with_constant(features),
        prior,
        population.design_noises,
        count,
        known=measured,
        generator=np.random.default_rng(seed),
    )


def vague(encoding: Encoding, noise: float = _NOISE) -> tuple[Expectation, Expectation]:
    """Return the initial priors of a device similar to a known one, and of a novel one."""
    n_parts = len(encoding.parts)
    spread = np.append(np.full(n_parts + 2, _VAGUE), _VAGUE)
    similar_prior, novel_prior = (
        Expectation(2 * np.log([_LIKE, _MIXED, *[size] * n_parts, max(noise, 0.005)]), spread)
        for size in (_DEVIATION, _ALONE)
    )
    return similar_prior, novel_prior


def _observe(device: KnownDevice, features: NDArray[np.float64], latencies: NDArray[np.float64]) -> Observations:
    values = latencies / device.constant - 1.0
    errors = (values - features @ device.coefficients) / device.noise
    return Observations(np.zeros((0, len(values), len(values))), values, student_weights(errors**2))


def _like_one(
    encoding: Encoding,
    others: NDArray[np.float64],
    observed: Observations,
    features: NDArray[np.float64],
    noise: float,
) -> NDArray[np.float64]:
    """Return the likeliest log variances of a device, given that it is similar to another one or to their mean."""
    expected = _known_noise(vague(encoding)[0], noise)
    candidates = [
        Observations(_parts(encoding, others, features, place), observed.values, observed.weights)
        for place in range(len(others) + 1)
    ]
    best = sorted(candidates, key=lambda item: -item.evidence(expected.centre)[0])[:_TRIED]
    logs, _ = max((item.likeliest(expected) for item in best), key=lambda found: found[1])
    return logs


def _like_none(
    encoding: Encoding, observed: Observations, features: NDArray[np.float64], noise: float
) -> NDArray[np.float64]:
    expected = _known_noise(vague(encoding)[1], noise)
    parts = np.concatenate([np.zeros((2, len(features), len(features))), seen(encoding, features)])
    return Observations(parts, observed.values, observed.weights).likeliest(expected)[0]


def _known_noise(expected: Expectation, noise: float) -> Expectation:
    return Expectation(np.append(expected.centre[:-1], 2 * np.log(noise)), np.append(expected.spread[:-1], 0.3))


def _summary(logs: NDArray[np.float64], start: Expectation, least_noise: float) -> Expectation:
    """Return centre and spread over devices; the factor stays vague, since similarity is accidental."""
    centre, spread = np.median(logs, axis=0), np.maximum(logs.std(axis=0), _LEAST)
    centre[0], spread[0] = start.centre[0], _FACTOR_SPREAD
    centre[-1] = max(centre[-1], 2 * np.log(max(_LEAST_NOISE, least_noise)))
    return Expectation(centre, spread)


def _model(coefficients: NDArray[np.float64], hypothesis: int) -> NDArray[np.float64] | None:
    """Return the coefficients of the similar device of a hypothesis; None if there is none."""
    if hypothesis > len(coefficients):
        return None
    model: NDArray[np.float64] = (
        coefficients[hypothesis] if hypothesis < len(coefficients) else coefficients.mean(axis=0)
    )
    return model


def _parts(
    encoding: Encoding, coefficients: NDArray[np.float64], features: NDArray[np.float64], hypothesis: int
) -> NDArray[np.float64]:
    model, n = _model(coefficients, hypothesis), len(features)
    if model is None:
        shared = np.zeros((2, n, n))
    else:
        similar, mixed = features @ model, features @ coefficients.T
        shared = np.stack([np.outer(similar, similar), mixed @ mixed.T])
    return np.concatenate([shared, seen(encoding, features)])


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

    Minimises the mean variance of all networks after the measurements: greedily, then by exchanging one network at a
    time (an A-optimal design, or I-optimal over the pool [1]_).

    Parameters
    ----------
    features : ndarray of shape (n, n_features)
        Features of the pool, with a column of ones if the constant has a variance in `prior`.
    prior : ndarray of shape (n_features, n_features)
        Covariance of the weights of the features.
    noises : sequence of float
        Possible standard deviations of a measurement, in the units of `prior`.
    count : int
        Number of networks to choose.
    known : sequence of int, default=()
        Networks of the pool measured before.
    generator : Generator
        Draws the candidates from a large pool.

    Returns
    -------
    list of int
        Indices in the pool, most informative first.

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
    """Return the reduction of the mean variance of all networks by measuring each network, (n,)."""
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
    """Return the most useful additional network, on average over cases of noise and covariance."""
    scores = np.zeros(len(pool))
    for noise, covariance in cases:
        after = _measured(covariance, pool[list(taken)], noise)
        scores += gains(pool, after, moment, noise) / max(float((after * moment).sum()), 1e-300)
    scores[list(taken)] = -1.0
    return int(scores.argmax())
