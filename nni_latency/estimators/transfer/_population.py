"""`Population`: how devices differ, learned from known ones, and which networks of a new one to measure."""

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
)

#: Networks of the device left out, from which its variances are found.
_NETWORKS = 64

#: Known devices that are tried as the one that the device left out is like; those that look best.
_TRIED = 3

#: Before anything is learned: standard deviations of the parts, in units of the typical network. A device is like
#: another one up to a factor on what networks differ by; mixes a little of all others in; deviates; is measured.
_LIKE, _MIXED, _DEVIATION, _ALONE, _NOISE = 0.7, 0.1, 0.01, 0.05, 0.02

#: How many natural logarithms these variances may be off before anything is learned, and at least after it.
_VAGUE, _LEAST, _FACTOR_SPREAD = 2.0, 1.0, 1.5

#: A near twin deviates this many times less, and how many natural logarithms its variances may be off.
_TWIN, _TWIN_SPREAD = 4.0, 0.7

#: Quantiles of the noises of known devices that are taken for that of a new one when networks are chosen.
_NOISES = (0.5, 0.9)

#: No measurement is taken to be better than this.
_LEAST_NOISE = 0.003

#: Weight of a device unlike all known ones when networks are chosen.
_NOVEL = 0.15

#: Networks that are considered; of a larger pool as many are drawn.
_CANDIDATES = 4096

#: Share of the variance that may be left out of sight.
_NEGLIGIBLE = 1e-4

#: Rounds in which every network chosen may be exchanged for a better one.
_EXCHANGES = 3


@dataclass(frozen=True)
class Population:
    """Known devices, and the priors of a new one.

    There is a hypothesis for every known device: the new one is like it, up to a factor, a mix of all others and
    further deviations. One more takes the mean of all for the device that it is like, and the last one none at all.

    Parameters
    ----------
    encoding : Encoding
        The space.
    devices : tuple of KnownDevice
        At least one.
    similar_prior, novel_prior : Expectation
        Priors of the log variances of a device like a known one, and of one unlike all: factor, mix, parts, noise.
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
        """What the new device may be like: the names of the known ones, their mean, none of them."""
        return (*(device.name for device in self.devices), "their mean", "none of them")

    def expectations(self, hypothesis: int) -> tuple[Expectation, ...]:
        """Return priors of the log variances: the usual one; of one like a known device, also a near twin."""
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
        """Standard deviations of measurements to be prepared for, as shares of the typical network."""
        return [max(_LEAST_NOISE, float(noise)) for noise in np.quantile(self.noises, _NOISES)]


def learn_population(
    encoding: Encoding,
    indices: NDArray[np.int64],
    series: Mapping[str, NDArray[np.float64]],
    seed: int,
    least_noise: float = 0.0,
) -> Population:
    """Learn the known devices, and the priors of a new one.

    Every known device is left out in turn. The likeliest variances under which the others explain some of its networks
    are what one device says; centre and spread over the devices are what is expected of the next.

    Parameters
    ----------
    encoding : Encoding
        The space.
    indices : ndarray of int of shape (n, n_labels)
        Networks that the known devices were measured on.
    series : mapping of str to ndarray of shape (n,)
        By device, what they took [s]. With one device alone nothing is learned about how devices differ.
    seed : int
        Seed of the networks from which variances are found.
    least_noise : float, default=0.0
        Least noise that is expected of a new device's measurements, as a share of its typical network.
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
    """Learn the priors of a new device from known ones that are fitted already."""
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
    """Choose the most informative networks of a pool for a new device, by their places."""
    features = population.encoding.features(indices)
    prior = np.zeros((features.shape[1] + 1, features.shape[1] + 1))
    prior[:-1, :-1], prior[-1, -1] = population.design_prior, CONSTANT
    return choose_networks(
        np.hstack([features, np.ones((len(features), 1))]),
        prior,
        population.design_noises,
        count,
        known=measured,
        generator=np.random.default_rng(seed),
    )


def vague(encoding: Encoding, noise: float = _NOISE) -> tuple[Expectation, Expectation]:
    """Return the priors before anything is learned: of a device similar to a known one, and of one unlike all."""
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
    """Return the likeliest log variances of a device, given that it is like one of the others or their mean."""
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
    """Return centre and spread over devices; the factor stays vague: which device is similar is chance."""
    centre, spread = np.median(logs, axis=0), np.maximum(logs.std(axis=0), _LEAST)
    centre[0], spread[0] = start.centre[0], _FACTOR_SPREAD
    centre[-1] = max(centre[-1], 2 * np.log(max(_LEAST_NOISE, least_noise)))
    return Expectation(centre, spread)


def _model(coefficients: NDArray[np.float64], hypothesis: int) -> NDArray[np.float64] | None:
    """Return the coefficients of what the new device is like, if it is like anything."""
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
        Their places in the pool, the most informative first.

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
