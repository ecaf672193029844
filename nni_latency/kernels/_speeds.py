"""How fast the machine was at every visit of kernels, so that times of different visits can be compared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from nni_latency.measurement import Record, quantile
from nni_latency.regression import deviation, group_means, huber_weights

Array = NDArray[np.float64]

#: By subject, the time of every run of a visit [s].
Times = Mapping[str, Sequence[float]]

#: Visits of a round that tell by their reference operator how fast the machine is.
_ENOUGH_REFERENCES = 4

#: Passes over kernels and visits; the last ones change nothing.
_PASSES = 40


class Speeds(ABC):
    """What says how fast the machine was at every visit. Visits are numbered from 0 in their order."""

    @abstractmethod
    def observe(self, references: Sequence[float], times: Sequence[Times]) -> None:
        """Take in the visits of a round: what the reference operator took before each [s], and every run of a part."""

    @abstractmethod
    def slowness(self) -> Array:
        """Return a number for every visit in proportion to what everything took in it; nan where nothing tells."""


class ReferenceSpeeds(Speeds):
    """Speeds by the reference operator, which is timed before every visit: one for all visits of a round.

    Parameters
    ----------
    statistic : float
        The quantile that stands for all visits of a round.
    """

    def __init__(self, statistic: float) -> None:
        self._statistic = statistic
        self._slowness: list[float] = []

    def observe(self, references: Sequence[float], times: Sequence[Times]) -> None:
        """Take in the reference times of a round."""
        # A reference that another process interrupts would make kernels fast, so few say nothing.
        known = quantile(references, self._statistic) if len(references) >= _ENOUGH_REFERENCES else np.nan
        self._slowness += [known] * len(references)

    def slowness(self) -> Array:
        """Return the time of the reference operator by visit [s]."""
        return np.array(self._slowness)


class CompanySpeeds(Speeds):
    """Speeds by what all parts of a network took in other visits, in other company.

    What a part takes in a visit is its own time, times a factor of the visit. Both follow from all visits, since parts
    meet others in every round. A single reference operator says less: what a busy host takes away differs by what a
    kernel needs.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._part: list[int] = []
        self._visit: list[int] = []
        self._logs: list[float] = []
        self._visits = 0
        self._known: Array | None = None

    def observe(self, references: Sequence[float], times: Sequence[Times]) -> None:
        """Take in the parts of the visits of a round."""
        for by_key in times:
            for key, seconds in by_key.items():
                self._part.append(self._numbers.setdefault(key, len(self._numbers)))
                self._visit.append(self._visits)
                self._logs.append(float(np.log(quantile(seconds, 0.5))))
            self._visits += 1
        self._known = None

    def slowness(self) -> Array:
        """Return the factor by visit; that of the median visit is 1."""
        if self._known is None:
            self._known = np.exp(_visit_effects(np.array(self._part), np.array(self._visit), np.array(self._logs)))
        return self._known


def runs_by_key(record: Record) -> dict[str, list[float]]:
    """Return the time [s] of every run of a visit by subject."""
    if not record.parts:
        return {record.subjects[0]: list(record.whole)}
    return {key: [run[place] for run in record.parts] for place, key in enumerate(record.subjects)}


def shares_by_key(record: Record) -> dict[str, list[float]]:
    """Return the time [s] of every run by subject, such that medians add up to what the faster half of the runs took.

    The lower quartiles of the parts of a network add up to less than that of the network: each part is quick in other
    runs. So the median of a part is brought to its mean in those runs that were quicker as a whole.
    """
    runs = np.array(record.parts)
    whole = runs.sum(axis=1)
    quick = runs[whole <= np.median(whole)].mean(axis=0)
    brought = runs * (quick / np.median(runs, axis=0))
    return {key: brought[:, place].tolist() for place, key in enumerate(record.subjects)}


def _visit_effects(part: NDArray[np.int64], visit: NDArray[np.int64], logs: Array) -> Array:
    """Fit ``logs = of_part[part] + of_visit[visit]`` robustly; return ``of_visit`` less its median.

    A visit of few parts is held to the others, as a random effect [1]_: it may be that its parts were slow, and not the
    machine.

    .. [1] G. K. Robinson, "That BLUP is a Good Thing: The Estimation of Random Effects", Statistical Science, 1991.
    """
    if not len(logs):
        return np.empty(0)
    parts, visits = int(part.max()) + 1, int(visit.max()) + 1
    weights, of_visit, restraint = np.ones(len(logs)), np.zeros(visits), 0.0
    for _ in range(_PASSES):
        of_part = group_means(logs - of_visit[visit], part, parts, weights)
        of_visit = group_means(logs - of_part[part], visit, visits, weights, restraint)
        rest = logs - of_part[part] - of_visit[visit]
        noise = deviation(rest) + 1e-12
        weights = huber_weights(rest, noise)
        uncertain = noise**2 / np.median(np.bincount(visit, weights) + restraint)
        machine = np.mean((of_visit - np.median(of_visit)) ** 2) + uncertain
        restraint = noise**2 / machine
    return np.asarray(of_visit - np.median(of_visit))


def level_of(slowness: Array) -> float:
    """Return the speed to which times are brought, that of the median visit; 0 where nothing tells it."""
    known = slowness[np.isfinite(slowness)]
    return float(np.median(known)) if len(known) else 0.0


def at_level(level: float, runs: Sequence[tuple[float, int]], slowness: Array) -> tuple[float, ...]:
    """Return the times of runs [s] at one speed of the machine; `runs` are seconds and the number of the visit."""
    return tuple(
        seconds * level / slowness[visit] if level and np.isfinite(slowness[visit]) else seconds
        for seconds, visit in runs
    )
