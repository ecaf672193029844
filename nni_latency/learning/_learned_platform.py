# SPDX-License-Identifier: Apache-2.0
"""Adding a measured machine to a graph predictor, with its error on networks kept apart."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nni_latency.graphs import GraphPredictor, MeasuredNetwork
from nni_latency.learning._this_machine import FEWEST
from nni_latency.platforms import Platform, torch_threads

#: One in this many networks is kept apart to score the predictor.
_KEPT_APART = 5


@dataclass(frozen=True)
class LearnedPlatform:
    """A predictor with an added platform, and its error on networks kept apart. Immutable.

    Parameters
    ----------
    predictor : GraphPredictor
        The predictor, which has learned from all networks.
    platform : Platform
        The added platform.
    networks : int
        Number of measured networks.
    kept_apart : int
        Number of networks kept apart, which a predictor of the others was scored on.
    error : float or None
        Mean absolute error on them, as a ratio; None if the networks were too few to keep any apart.
    inside : int
        Number of them whose latency lies in its interval.
    """

    predictor: GraphPredictor
    platform: Platform
    networks: int
    kept_apart: int = 0
    error: float | None = None
    inside: int = 0


def learn_machine(
    predictor: GraphPredictor,
    networks: Sequence[MeasuredNetwork],
    watch: Callable[[int, int], None] = lambda _done, _total: None,
) -> LearnedPlatform:
    """Add a platform to a predictor, and score it on networks kept apart.

    A fifth of the networks, chosen by name, is kept apart. A predictor that learns from the others is scored on them;
    the returned one learns from all.

    Parameters
    ----------
    predictor : GraphPredictor
        Predictor that gets the platform. It is not changed.
    networks : sequence of MeasuredNetwork
        Networks of one platform. If it lacks the fact ``reference``, that of the predictor's platform stays.
    watch : callable, optional
        Called with the finished steps and their total.

    Raises
    ------
    InvalidValueError
        As for `GraphPredictor.adapt`.
    """
    networks = _with_reference(networks, predictor)
    apart = {item.name for item in kept_apart(networks)}
    rest = [item for item in networks if item.name not in apart]
    held_out = [item for item in networks if item.name in apart]
    total = len(predictor.members_) * (2 if held_out else 1)
    done = 0

    def advance(_done: int, _total: int) -> None:
        nonlocal done
        done += 1
        watch(done, total)

    platform = networks[0].platform
    errors, inside = [], 0
    # Several threads gain nothing on graphs of this size, and wait for each other where the machine is busy.
    with torch_threads(1):
        if held_out:
            scored = predictor.adapt(rest, advance)
            for item in held_out:
                estimate = scored.estimate_platforms(item.graph)[platform.id]
                errors.append(abs(estimate.value / item.latency - 1))
                inside += estimate.low <= item.latency <= estimate.high
        found = predictor.adapt(networks, advance)
    error = statistics.fmean(errors) if errors else None
    return LearnedPlatform(found, platform, len(networks), len(held_out), error, inside)


def _with_reference(networks: Sequence[MeasuredNetwork], predictor: GraphPredictor) -> list[MeasuredNetwork]:
    """Add the time of the reference operator, as of when the platform was learned before, if it is not known."""
    platform = networks[0].platform
    known = {item.id: item.facts["reference"] for item in predictor.platforms_ if "reference" in item.facts}
    if "reference" in platform.facts or platform.id not in known:
        return list(networks)
    platform = replace(platform, facts={**platform.facts, "reference": known[platform.id]})
    return [replace(item, platform=platform) for item in networks]


def kept_apart(networks: Sequence[MeasuredNetwork]) -> list[MeasuredNetwork]:
    """Return the fifth of the networks to keep apart, determined by name; at least five are left."""
    count = max(0, min(len(networks) // _KEPT_APART, len(networks) - FEWEST))
    return sorted(networks, key=lambda item: hashlib.sha256(item.name.encode()).hexdigest())[:count]
