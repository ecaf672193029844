# SPDX-License-Identifier: Apache-2.0
"""Visits of kernels: how they are executed and grouped, and how times of different visits are made comparable."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from nni_latency.kernels._kernel import Kernel
from nni_latency.measurement import Chain, Record, Subject, quantile
from nni_latency.measurement.runtimes import Runtime
from nni_latency.micro_benchmarks import FEEDER
from nni_latency.operators import Features
from nni_latency.regression import deviation, group_means, huber_weights

#: How a kernel is run: after layers that produce its input, in parallel with others in one network, or standalone.
ExecutionMode = Literal["chained", "parallel", "standalone"]

#: Fewest and most kernels of a network, and the multiply-adds at which it is full.
_FEWEST, MOST, MOST_MACS = 4, 16, 4 * 10**8

#: Multiply-adds and bytes per second of a nominal machine, whose times are used to group kernels by size.
_MACS_A_SECOND, _BYTES_A_SECOND = 3e10, 1e10

#: Lower bound of a nominal time [s].
_SHORTEST = 1e-6

#: Random displacement of kernels in the order of size from round to round, as a logarithm of their size.
_JITTER = 0.7

#: Keys of the network that measures the constant overhead, or of its first part, and of the rest.
CONSTANT, BODY = "constant", "body of constant"

_IMAGE, _CHANNELS = (1, 3, 224, 224), (3, 24, 48, 96, 192, 384)

#: Times below this are below the resolution of runtimes, most of which report whole microseconds [s].
_RESOLUTION = 1e-8

Array = NDArray[np.float64]

#: The time of every run of a visit, by subject [s].
Times = Mapping[str, Sequence[float]]

#: Fewest visits in a round from whose reference operator the machine's speed is taken.
_ENOUGH_REFERENCES = 4

#: Iterations of the robust fit over kernels and visits; it has converged by then.
_PASSES = 40


def execution_mode_of(runtime: Runtime) -> ExecutionMode:
    """Return the execution mode of kernels on a runtime."""
    if runtime.divides:
        return "parallel"
    return "chained" if runtime.supports_layer_timing else "standalone"


def execution_mode_of_records(records: Sequence[Record]) -> ExecutionMode:
    """Return the execution mode of the kernels in records."""
    keys = {key for record in records for key in record.subjects}
    if any(key.startswith(FEEDER) for key in keys):
        return "chained"
    return "parallel" if any(record.parts for record in records) else "standalone"


def alike(
    kernels: Sequence[Kernel], work: Callable[[Kernel], Features], generator: random.Random
) -> list[list[Kernel]]:
    """Group kernels of similar size into networks, differently on every call.

    A kernel of a few microseconds takes up to twice as long after one of a millisecond as after others of its size,
    which evict less of its caches and page tables. In a network, the kernels before and after it are of similar size.

    Parameters
    ----------
    kernels : sequence of Kernel
        Kernels to measure.
    work : callable
        Returns the work and memory traffic of a kernel.
    generator : random.Random
        Source of the displacement of kernels and the order of networks.

    Returns
    -------
    list of list of Kernel
        Networks in random order, so that drift over time is not confounded with size.
    """
    places = {kernel: math.log(_size(work(kernel))) + _JITTER * generator.uniform(-1, 1) for kernel in kernels}
    networks: list[list[Kernel]] = []
    macs = 0
    for kernel in sorted(places, key=places.__getitem__):
        if not networks or len(networks[-1]) == MOST or (macs >= MOST_MACS and len(networks[-1]) >= _FEWEST):
            networks.append([])
            macs = 0
        networks[-1].append(kernel)
        macs += work(kernel).macs
    if len(networks) > 1 and len(networks[-1]) < _FEWEST:
        few = networks.pop()
        networks[-1] += few
    for network in networks:
        generator.shuffle(network)
    generator.shuffle(networks)
    return networks


def _size(work: Features) -> float:
    """Return the time of a kernel on the nominal machine [s]."""
    numbers = work.inputs + work.outputs + work.params
    return max(_SHORTEST, work.macs / _MACS_A_SECOND + 4 * numbers / _BYTES_A_SECOND)


def constant_chain(inside: bool) -> Chain:
    """Return the network that measures the overhead of a run outside of its kernels.

    A trivial network runs so often that all its data stays in the caches. Where a runtime reports times of nodes, the
    overhead is instead the remainder of a real network, whose first part does nothing. The network takes two
    milliseconds, like other small networks, which evicts the code and data of the start and end of a run from the
    caches.
    """
    if not inside:
        return (Subject(CONSTANT, nn.ReLU, (1, 1, 1, 1), "network", CONSTANT),)
    return (
        Subject(CONSTANT, nn.Identity, _IMAGE, "block", CONSTANT),
        Subject(BODY, _body, _IMAGE, "block", BODY),
    )


def _body() -> nn.Module:
    """Return a vision network of 0.17 G multiply-adds and 1.5 M weights."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(_CHANNELS):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.ReLU(), nn.Conv2d(outputs, outputs, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(_CHANNELS[-1], 1000))


def measurable(times: Mapping[Kernel, float]) -> dict[Kernel, float]:
    """Drop kernels with no measurable time where others of their kind have one.

    They are below the resolution of the runtime's clock, or part of another kernel. Kinds that cost nothing, such as
    splitting a tensor into views, are kept.

    Parameters
    ----------
    times : mapping of Kernel to float
        Times of kernels [s].

    Returns
    -------
    dict of Kernel to float
        Measurable times, in the same order.
    """
    by_kind = defaultdict[str, list[float]](list)
    for kernel, seconds in times.items():
        by_kind[kernel.kind].append(seconds)
    usual = {kind: quantile(found, 0.5) for kind, found in by_kind.items()}
    return {
        kernel: seconds
        for kernel, seconds in times.items()
        if seconds >= _RESOLUTION or usual[kernel.kind] < _RESOLUTION
    }


class Speeds(ABC):
    """Base of estimates of the machine's speed at every visit. Visits are numbered from 0 in order."""

    @abstractmethod
    def observe(self, references: Sequence[float], times: Sequence[Times]) -> None:
        """Add the visits of a round: the reference operator's time before each [s], and the times of runs by part."""

    @abstractmethod
    def slowness(self) -> Array:
        """Return a number for every visit, proportional to the times in it; nan where it is unknown."""


class ReferenceSpeeds(Speeds):
    """Speeds from the reference operator, which is timed before every visit: one speed for all visits of a round.

    Parameters
    ----------
    statistic : float
        Quantile of the reference times that represents a round.
    """

    def __init__(self, statistic: float) -> None:
        self._statistic = statistic
        self._slowness: list[float] = []

    def observe(self, references: Sequence[float], times: Sequence[Times]) -> None:
        """Add the reference times of a round."""
        # An interrupted reference would make kernels seem fast, so a few values are not enough.
        known = quantile(references, self._statistic) if len(references) >= _ENOUGH_REFERENCES else np.nan
        self._slowness += [known] * len(references)

    def slowness(self) -> Array:
        """Return the time of the reference operator by visit [s]."""
        return np.array(self._slowness)


class GroupSpeeds(Speeds):
    """Speeds from the times of all parts of a network in other visits, together with other parts.

    The time of a part in a visit is its usual time times a factor of the visit. Both are fitted to all visits, since
    parts are grouped differently in every round. A single reference operator is less accurate: the slowdown of a busy
    host depends on the resources that a kernel uses.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._part: list[int] = []
        self._visit: list[int] = []
        self._logs: list[float] = []
        self._visits = 0
        self._known: Array | None = None

    def observe(self, references: Sequence[float], times: Sequence[Times]) -> None:
        """Add the parts of the visits of a round."""
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
    """Return the time of every run of a visit by subject [s]."""
    if not record.parts:
        return {record.subjects[0]: list(record.whole)}
    return {key: [run[place] for run in record.parts] for place, key in enumerate(record.subjects)}


def shares_by_key(record: Record) -> dict[str, list[float]]:
    """Return the time of every run by subject [s], so that medians sum to the mean of the faster half of the runs.

    The lower quartiles of the parts of a network sum to less than that of the network, because each part is fast in
    different runs. So the median of a part is scaled to its mean over the runs that were faster as a whole.
    """
    runs = np.array(record.parts)
    whole = runs.sum(axis=1)
    quick = runs[whole <= np.median(whole)].mean(axis=0)
    scaled = runs * (quick / np.median(runs, axis=0))
    return {key: scaled[:, place].tolist() for place, key in enumerate(record.subjects)}


def _visit_effects(part: NDArray[np.int64], visit: NDArray[np.int64], logs: Array) -> Array:
    """Fit ``logs = of_part[part] + of_visit[visit]`` robustly; return ``of_visit`` less its median.

    A visit of few parts is shrunk towards the others, as a random effect [1]_: its parts may have been slow rather than
    the machine.

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
    """Return the machine speed to which times are normalised, that of the median visit; 0 if it is unknown."""
    known = slowness[np.isfinite(slowness)]
    return float(np.median(known)) if len(known) else 0.0


def at_level(level: float, runs: Sequence[tuple[float, int]], slowness: Array) -> tuple[float, ...]:
    """Normalise times of runs [s] to one machine speed; `runs` are pairs of seconds and the number of the visit."""
    return tuple(
        seconds * level / slowness[visit] if level and np.isfinite(slowness[visit]) else seconds
        for seconds, visit in runs
    )
