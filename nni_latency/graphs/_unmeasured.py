"""What a platform that nobody measured might take, from those that are known.

The logarithm of a latency is seen as a sum of what device, runtime and precision add. So a platform is guessed by
ordinary kriging: of all weights that add up to 1 those that make the variance of the error the least. A runtime on a
new device counts as on a known one, times what the new device takes in other runtimes over what the known one takes
there. Facts scale devices that are known in no other way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nni_latency.errors import InvalidValueError
from nni_latency.graphs._encoding import TERMS
from nni_latency.graphs._examples import Measurements, spreads_of
from nni_latency.graphs._graph_network import GraphNetwork, predict_terms
from nni_latency.platforms import Platform
from nni_latency.regression import ordinary_weights

Array = NDArray[np.float64]

#: Facts of devices: operations of single precision and bytes moved per second, by which times are scaled; and bytes.
PEAK, BANDWIDTH, CACHE = FACTS = ("peak_flops", "memory_bandwidth", "cache")

#: How much the logarithm of a ratio of facts counts for how far devices are apart; at 1 they share a third of the
#: variance.
_APART = {PEAK: 1.0, BANDWIDTH: 1.0, CACHE: 0.2}

#: Variances of what device, runtime and precision add to the logarithm of a latency, and a platform beyond them. Tried
#: by leaving out each of the eleven platforms of the data set that ships: with any of them a third or three times as
#: large, the mean error stays between 20.9 and 21.5 %.
_DEVICE, _RUNTIME, _PRECISION, _OWN = 0.3, 0.3, 1.0, 0.02

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
        How much each counts; they add up to 1, and may be negative.
    factors : ndarray of shape (n_platforms, n_terms)
        By how much each part of the time of each is longer on the new platform.
    nearest : int
        The one that counts the most.
    idle : tuple of str
        Facts of the new platform that are known of no other one, so that they say nothing.
    """

    weights: Array
    factors: Array
    nearest: int
    idle: tuple[str, ...] = ()

    @classmethod
    def of(cls, platform: Platform, known: Sequence[Platform]) -> Unmeasured:
        """Compare a platform with those that are known.

        Raises
        ------
        InvalidValueError
            If a fact of one of them is no positive number.
        """
        check_facts([platform, *known])
        given = [name for name in FACTS if platform.facts.get(name)]
        idle = tuple(name for name in given if not any(name in other.facts for other in known))
        used = _comparable(platform, known, [name for name in given if name not in idle])
        scaling = [name for name in given if all(name in known[place].facts for place in used)]
        weights, factors = np.zeros(len(known)), np.ones((len(known), len(TERMS)))
        weights[used] = _kriging(platform, [known[place] for place in used], scaling)
        factors[used] = [_factors(platform, known[place], scaling) for place in used]
        return cls(weights, factors, int(weights.argmax()), idle)

    def latencies(self, terms: Array) -> Array:
        """Return what networks might take [s], (n_graphs,), from their times by platform and term."""
        scaled = (terms * self.factors).sum(2)
        found: Array = np.exp(np.log(scaled) @ self.weights)
        return found


def _comparable(platform: Platform, known: Sequence[Platform], facts: Sequence[str]) -> list[int]:
    """Return the places of platforms to compare with: for a device that is known by facts alone, those with facts."""
    places = list(range(len(known)))
    if any(other.device == platform.device for other in known):
        return places
    return [place for place in places if all(name in known[place].facts for name in facts)] or places


def _kriging(platform: Platform, known: Sequence[Platform], facts: Sequence[str]) -> Array:
    """Return the weights of ordinary kriging, (n_known,)."""
    among = np.array([[_covariance(one, other, facts) for other in known] for one in known])
    return ordinary_weights(among, np.array([_covariance(platform, other, facts) for other in known]))


def _covariance(one: Platform, other: Platform, facts: Sequence[str]) -> float:
    """Return what the logarithms of the latencies of two platforms have in common."""
    return (
        _DEVICE * _alike(one, other, facts)
        + _RUNTIME * (one.runtime == other.runtime)
        + _PRECISION * (one.precision == other.precision)
        + _OWN * (one.id == other.id)
    )


def _alike(one: Platform, other: Platform, facts: Sequence[str]) -> float:
    """Return how alike two devices are, from 0 to 1: as their facts are, or not at all where there are none."""
    if one.device == other.device or not facts:
        return float(one.device == other.device)
    return math.exp(-sum(_APART[name] * abs(math.log(_ratio(one, other, name))) for name in facts))


def check_facts(platforms: Sequence[Platform]) -> None:
    """Raise `InvalidValueError` if a fact that scales is no positive number."""
    for platform, name in itertools.product(platforms, FACTS):
        value = platform.facts.get(name)
        if value is not None and not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
            raise InvalidValueError(
                f"The fact {name!r} of the platform {platform.id} must be a positive number. Got {value!r}."
            )


def _factors(new: Platform, old: Platform, facts: Sequence[str]) -> Array:
    """Return by how much each part of a time is longer on a new platform, by those facts that both have."""
    bits = _BITS[new.precision] / _BITS[old.precision]
    threads = (new.threads / old.threads) ** 0.8
    computing = bits / (_ratio(new, old, PEAK) if PEAK in facts else threads)
    moving = bits / (_ratio(new, old, BANDWIDTH) if BANDWIDTH in facts else threads**0.5)
    return np.where(_COMPUTING, computing, np.where(_MOVING, moving, 1.0))


def _ratio(new: Platform, old: Platform, name: str) -> float:
    return float(new.facts[name]) / float(old.facts[name])


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
