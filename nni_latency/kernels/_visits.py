"""Visits of kernels: how and with which others they run, and how times of different visits are compared."""

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

#: How a kernel is run: after layers that produce its input, side by side with others in one network, or as a network.
ExecutionMode = Literal["chained", "parallel", "standalone"]

#: Kernels of a network at least and at most, and the multiply-adds from which it takes no more.
_FEWEST, MOST, MOST_MACS = 4, 16, 4 * 10**8

#: A plain machine, whose times say which kernels are alike: multiply-adds and bytes a second.
_MACS_A_SECOND, _BYTES_A_SECOND = 3e10, 1e10

#: The shortest time that is told from others [s].
_SHORTEST = 1e-6

#: How far kernels move among others from round to round, as a logarithm of their size.
_JITTER = 0.7

#: Keys of the network that tells it, or of its first part, and of the rest.
CONSTANT, BODY = "constant", "body of constant"

_PICTURE, _CHANNELS = (1, 3, 224, 224), (3, 24, 48, 96, 192, 384)

#: What takes less was not shown by a runtime, most of which tell whole microseconds [s].
_SHOWN = 1e-8

Array = NDArray[np.float64]

#: By subject, the time of every run of a visit [s].
Times = Mapping[str, Sequence[float]]

#: Visits of a round that tell by their reference operator how fast the machine is.
_ENOUGH_REFERENCES = 4

#: Passes over kernels and visits; the last ones change nothing.
_PASSES = 40


def execution_mode_of(runtime: Runtime) -> ExecutionMode:
    """Return how a runtime runs kernels."""
    if runtime.divides:
        return "parallel"
    return "chained" if runtime.supports_layer_timing else "standalone"


def execution_mode_of_records(records: Sequence[Record]) -> ExecutionMode:
    """Return how kernels were run whose records these are."""
    keys = {key for record in records for key in record.subjects}
    if any(key.startswith(FEEDER) for key in keys):
        return "chained"
    return "parallel" if any(record.parts for record in records) else "standalone"


def alike(
    kernels: Sequence[Kernel], work: Callable[[Kernel], Features], generator: random.Random
) -> list[list[Kernel]]:
    """Divide kernels into networks of kernels of about one size, other ones every time.

    A kernel of a few microseconds takes up to twice as long behind one of a millisecond as among others like it, which
    leave caches and page tables to it. In a network, the kernels before and behind it are about as large as it is.

    Parameters
    ----------
    kernels : sequence of Kernel
        What is measured.
    work : callable
        Says what a kernel computes and moves.
    generator : random.Random
        Moves kernels a little, and puts the networks in order.

    Returns
    -------
    list of list of Kernel
        Networks in random order: what changes with time is not taken for what changes with size.
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
    """Return what a kernel takes on a plain machine [s]."""
    numbers = work.inputs + work.outputs + work.params
    return max(_SHORTEST, work.macs / _MACS_A_SECOND + 4 * numbers / _BYTES_A_SECOND)


def constant_chain(inside: bool) -> Chain:
    """Return the network that tells what a run takes outside of its kernels.

    One that does next to nothing runs so often that all it needs is in the caches. Where a runtime tells what its nodes
    take, what is left of a real network is asked for: nothing runs in its first part. It takes two milliseconds, as
    small networks do: what a run begins and ends with is out of the caches then.
    """
    if not inside:
        return (Subject(CONSTANT, nn.ReLU, (1, 1, 1, 1), "network", CONSTANT),)
    return (
        Subject(CONSTANT, nn.Identity, _PICTURE, "block", CONSTANT),
        Subject(BODY, _body, _PICTURE, "block", BODY),
    )


def _body() -> nn.Module:
    """Return a network of pictures, of 0.17 G multiply-adds and 1.5 M weights."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(_CHANNELS):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.ReLU(), nn.Conv2d(outputs, outputs, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(_CHANNELS[-1], 1000))


def shown(times: Mapping[Kernel, float]) -> dict[Kernel, float]:
    """Leave out kernels that take no time where others of their kind do.

    They are shorter than the runtime's clock tells, or part of another kernel. Of a kind that costs nothing, such as
    dividing a tensor into views, all are kept.

    Parameters
    ----------
    times : mapping of Kernel to float
        What kernels take [s].

    Returns
    -------
    dict of Kernel to float
        In the same order.
    """
    by_kind = defaultdict[str, list[float]](list)
    for kernel, seconds in times.items():
        by_kind[kernel.kind].append(seconds)
    usual = {kind: quantile(found, 0.5) for kind, found in by_kind.items()}
    return {kernel: seconds for kernel, seconds in times.items() if seconds >= _SHOWN or usual[kernel.kind] < _SHOWN}


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
