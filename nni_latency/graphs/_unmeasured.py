"""What a platform that nobody measured might take: that of the platforms that are most like it, scaled by facts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nni_latency.errors import InvalidValueError
from nni_latency.graphs._encoding import TERMS
from nni_latency.graphs._graph_measurements import Measurements, spreads_of
from nni_latency.graphs._graph_network import GraphNetwork
from nni_latency.graphs._predicting import predict_terms
from nni_latency.platforms import Platform

Array = NDArray[np.float64]

#: Facts that scale what is computed and what is moved: operations and bytes per second, and bytes.
PEAK, BANDWIDTH, CACHE = "peak_flops", "memory_bandwidth", "cache"

#: Distances at which a platform counts for a third of one that is equal.
_REACH = 0.5

#: How far platforms are apart that differ in a word.
_APART = {"runtime": 1.0, "precision": 1.0, "device": 0.3}

#: Platforms that one is guessed from at least.
_FEWEST_PLATFORMS = 3

_BITS = {"fp32": 32, "bf16": 16, "fp16": 16, "int8": 8}

_COMPUTING = np.array([name in ("flops", "padded") for name in TERMS])
_MOVING = np.array([name.endswith(("inputs", "outputs", "weights")) for name in TERMS])


@dataclass(frozen=True)
class Unmeasured:
    """How a platform relates to those that are known.

    Parameters
    ----------
    weights : ndarray of shape (n_platforms,)
        How much each counts; they add up to 1.
    factors : ndarray of shape (n_platforms, n_terms)
        By how much each part of the time of each is longer on the new platform.
    nearest : int
        The one that counts the most.
    """

    weights: Array
    factors: Array
    nearest: int

    @classmethod
    def of(cls, platform: Platform, known: Sequence[Platform]) -> Unmeasured:
        """Compare a platform with those that are known.

        Raises
        ------
        InvalidValueError
            If one of its facts is no positive number.
        """
        check_facts(platform.facts)
        distances = np.array([distance(platform, other) for other in known])
        weights = np.exp(-(distances - distances.min()) / _REACH)
        factors = np.array([_factors(platform, other) for other in known])
        return cls(weights / weights.sum(), factors, int(weights.argmax()))

    def latencies(self, terms: Array) -> Array:
        """Return what networks might take [s], (n_graphs,), from their times by platform and term."""
        scaled = (terms * self.factors).sum(2)
        found: Array = np.exp(np.log(scaled) @ self.weights)
        return found


def check_facts(facts: Mapping[str, object]) -> None:
    """Raise `InvalidValueError` if a fact that scales is no positive number."""
    for name in (PEAK, BANDWIDTH, CACHE):
        value = facts.get(name)
        if value is not None and not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
            raise InvalidValueError(f"The fact {name!r} of a platform must be a positive number. Got {value!r}.")


def distance(one: Platform, other: Platform) -> float:
    """Return how far two platforms are apart: differences in words, and logarithms of ratios of facts."""
    found = sum(apart for name, apart in _APART.items() if getattr(one, name) != getattr(other, name))
    found += abs(math.log2(one.threads / other.threads))
    for name in (PEAK, BANDWIDTH, CACHE):
        ratio = _ratio(one, other, name)
        found += abs(math.log(ratio)) * (0.1 if name == CACHE else 0.5) if ratio else 0.0
    return found


def _factors(new: Platform, old: Platform) -> Array:
    """Return by how much each part of a time is longer on a new platform."""
    bits = _BITS[new.precision] / _BITS[old.precision]
    threads = (old.threads / new.threads) ** 0.8
    computing = 1 / (_ratio(new, old, PEAK) or 1 / (bits * threads))
    moving = bits / (_ratio(new, old, BANDWIDTH) or 1 / threads**0.5)
    return np.where(_COMPUTING, computing, np.where(_MOVING, moving, 1.0))


def _ratio(new: Platform, old: Platform, name: str) -> float:
    mine, theirs = new.facts.get(name), old.facts.get(name)
    if isinstance(mine, (int, float)) and isinstance(theirs, (int, float)) and mine > 0 and theirs > 0:
        return float(mine) / float(theirs)
    return 0.0


def left_out_errors(terms: Array, latencies: Array, platforms: Sequence[Platform]) -> Array:
    """Guess every platform from the others.

    Parameters
    ----------
    terms : ndarray of shape (n_graphs, n_platforms, n_terms)
        Parts of the times of networks [s].
    latencies : ndarray of shape (n_graphs, n_platforms)
        Measured times [s]; NaN where there are none.
    platforms : sequence of Platform
        The platforms.

    Returns
    -------
    ndarray of shape (n_graphs, n_platforms)
        Logarithms of guessed over measured times.
    """
    found = np.full(latencies.shape, np.nan)
    for number, platform in enumerate(platforms):
        others = [other for other in range(len(platforms)) if other != number]
        if others:
            guess = Unmeasured.of(platform, [platforms[other] for other in others])
            found[:, number] = np.log(guess.latencies(terms[:, others]) / latencies[:, number])
    return found


def spread(members: Sequence[GraphNetwork], data: Measurements, confidence: float) -> float:
    """Return half the width of an interval on a platform that nobody measured, as a logarithm.

    It is infinite where too few platforms are known to leave one out. Platforms are few: the worst of those that were
    left out counts.
    """
    if len(data.platforms) < _FEWEST_PLATFORMS:
        return math.inf
    terms = predict_terms(members, data.examples.graphs)
    errors = left_out_errors(terms, data.examples.latencies, data.platforms)
    return float(spreads_of(errors, data.family_of, confidence).max())
