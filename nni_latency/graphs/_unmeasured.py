# SPDX-License-Identifier: Apache-2.0
"""Latencies on an unmeasured platform, estimated from the known ones.

The logarithm of a latency is modelled as a sum of effects of device, runtime and precision, and a platform is estimated
by ordinary kriging: of all weights that sum to 1, those with the least variance of the error. A runtime on a new device
thus follows from that runtime on a known device, times the ratio of the two devices in other runtimes. Facts scale
devices that are not known otherwise.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from nni_latency.errors import InvalidValueError
from nni_latency.graphs._encoding import TERMS
from nni_latency.graphs._examples import Measurements
from nni_latency.graphs._graph_network import GraphNetwork, predict_terms
from nni_latency.graphs._intervals import spreads_with
from nni_latency.platforms import Platform
from nni_latency.regression import ordinary_weights

Array = NDArray[np.float64]

#: Facts of devices: single-precision operations and bytes moved per second, which scale times; and cache bytes.
PEAK, BANDWIDTH, CACHE = FACTS = ("peak_flops", "memory_bandwidth", "cache")

#: Weight of the logarithm of a ratio of facts in the distance of devices; where it amounts to 1, devices share a third
#: of the variance.
_DISTANCE_WEIGHTS = {PEAK: 1.0, BANDWIDTH: 1.0, CACHE: 0.2}

#: Variances of the effects of device, runtime and precision on the logarithm of a latency, and of the platform's
#: residual. Validated by leaving out each of the eleven platforms of an earlier data set: with any of them divided or
#: multiplied by three, the mean error stays between 20.9 and 21.5 %.
_DEVICE, _RUNTIME, _PRECISION, _OWN = 0.3, 0.3, 1.0, 0.02

#: Fewest platforms to estimate one from.
_FEWEST_PLATFORMS = 3

_BITS = {"fp32": 32, "bf16": 16, "fp16": 16, "int8": 8}

_COMPUTING = np.array([name in ("flops", "padded") for name in TERMS])
_MOVING = np.array([name.endswith(("inputs", "outputs", "weights")) for name in TERMS])


@dataclass(frozen=True)
class Unmeasured:
    """Relation of a new platform to the known ones.

    Parameters
    ----------
    weights : ndarray of shape (n_platforms,)
        Weight of each; they sum to 1, and may be negative.
    factors : ndarray of shape (n_platforms, n_terms)
        Ratio of each part of the time on the new platform to that on the known one.
    nearest : int
        Index of the platform with the largest weight.
    idle : tuple of str
        Facts of the new platform that no other one has, and which are therefore unused.
    """

    weights: Array
    factors: Array
    nearest: int
    idle: tuple[str, ...] = ()

    @classmethod
    def of(cls, platform: Platform, known: Sequence[Platform]) -> Unmeasured:
        """Compare a platform with the known ones.

        Raises
        ------
        InvalidValueError
            If a fact of one of them is not a positive number.
        """
        check_facts([platform, *known])
        known = _with_facts_of_devices(known)
        given = [name for name in FACTS if platform.facts.get(name)]
        idle = tuple(name for name in given if not any(name in other.facts for other in known))
        used = _comparable(platform, known, [name for name in given if name not in idle])
        scaling = [name for name in given if all(name in known[place].facts for place in used)]
        weights, factors = np.zeros(len(known)), np.ones((len(known), len(TERMS)))
        weights[used] = _kriging(platform, [known[place] for place in used], scaling)
        factors[used] = [_factors(platform, known[place], scaling) for place in used]
        return cls(weights, factors, int(weights.argmax()), idle)

    def latencies(self, terms: Array) -> Array:
        """Estimate the latencies of networks [s], (n_graphs,), from their times by known platform and term."""
        scaled = (terms * self.factors).sum(2)
        found: Array = np.exp(np.log(scaled) @ self.weights)
        return found


def _with_facts_of_devices(platforms: Sequence[Platform]) -> list[Platform]:
    """Return platforms with the medians of their device's facts, which were measured on different days.

    Facts that differed between platforms of one device would make some of them more similar to a new device than
    others, and weights large and of both signs.
    """
    facts: dict[tuple[str, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for item in platforms:
        for name in FACTS:
            if item.facts.get(name):
                facts[item.device, item.threads][name].append(float(item.facts[name]))
    medians = {key: {name: median(values) for name, values in found.items()} for key, found in facts.items()}
    return [replace(item, facts={**item.facts, **medians.get((item.device, item.threads), {})}) for item in platforms]


def _comparable(platform: Platform, known: Sequence[Platform], facts: Sequence[str]) -> list[int]:
    """Return the indices of platforms to compare with: for an unknown device, those that have its facts, if any."""
    places = list(range(len(known)))
    if any(other.device == platform.device for other in known):
        return places
    return [place for place in places if all(name in known[place].facts for name in facts)] or places


def _kriging(platform: Platform, known: Sequence[Platform], facts: Sequence[str]) -> Array:
    """Return the weights of ordinary kriging, (n_known,)."""
    among = np.array([[_covariance(one, other, facts) for other in known] for one in known])
    return ordinary_weights(among, np.array([_covariance(platform, other, facts) for other in known]))


def _covariance(one: Platform, other: Platform, facts: Sequence[str]) -> float:
    """Return the covariance of the logarithms of the latencies of two platforms."""
    return (
        _DEVICE * _similarity(one, other, facts)
        + _RUNTIME * (one.runtime == other.runtime)
        + _PRECISION * (one.precision == other.precision)
        + _OWN * (one.id == other.id)
    )


def _similarity(one: Platform, other: Platform, facts: Sequence[str]) -> float:
    """Return the similarity of two devices, from 0 to 1: by their facts, or 0 where there are none."""
    if one.device == other.device or not facts:
        return float(one.device == other.device)
    return math.exp(-sum(_DISTANCE_WEIGHTS[name] * abs(math.log(_ratio(one, other, name))) for name in facts))


def check_facts(platforms: Sequence[Platform]) -> None:
    """Raise `InvalidValueError` if a fact is not a positive number."""
    for platform, name in itertools.product(platforms, FACTS):
        value = platform.facts.get(name)
        if value is not None and not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
            raise InvalidValueError(
                f"The fact {name!r} of the platform {platform.id} must be a positive number. Got {value!r}."
            )


def _factors(new: Platform, old: Platform, facts: Sequence[str]) -> Array:
    """Return the ratio of each part of a time on a new platform to that on an old one, by the facts that both have."""
    bits = _BITS[new.precision] / _BITS[old.precision]
    threads = (new.threads / old.threads) ** 0.8
    computing = bits / (_ratio(new, old, PEAK) if PEAK in facts else threads)
    moving = bits / (_ratio(new, old, BANDWIDTH) if BANDWIDTH in facts else threads**0.5)
    return np.where(_COMPUTING, computing, np.where(_MOVING, moving, 1.0))


def _ratio(new: Platform, old: Platform, name: str) -> float:
    return float(new.facts[name]) / float(old.facts[name])


def left_out_errors(terms: Array, latencies: Array, platforms: Sequence[Platform]) -> Array:
    """Estimate every platform from the others.

    Parameters
    ----------
    terms : ndarray of shape (n_graphs, n_platforms, n_terms)
        Parts of the predicted times of networks [s].
    latencies : ndarray of shape (n_graphs, n_platforms)
        Measured times [s]; NaN where not measured.
    platforms : sequence of Platform
        The platforms.

    Returns
    -------
    ndarray of shape (n_graphs, n_platforms)
        Logarithms of estimated over measured times.
    """
    found = np.full(latencies.shape, np.nan)
    for number, platform in enumerate(platforms):
        others = [other for other in range(len(platforms)) if other != number]
        if others:
            guess = Unmeasured.of(platform, [platforms[other] for other in others])
            found[:, number] = np.log(guess.latencies(terms[:, others]) / latencies[:, number])
    return found


def spread(members: Sequence[GraphNetwork], data: Measurements, confidence: float) -> float:
    """Return half the width of an interval on an unmeasured platform, as a logarithm.

    It is infinite where there are too few platforms to leave one out. Because platforms are few, it is the maximum over
    those left out.
    """
    if len(data.platforms) < _FEWEST_PLATFORMS:
        return math.inf
    terms = predict_terms(members, data.examples.graphs)
    errors = left_out_errors(terms, data.examples.latencies, data.platforms)
    return float(spreads_with(errors, np.ones_like(errors), data.family_of, confidence).max())
