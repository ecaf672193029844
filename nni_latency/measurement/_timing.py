# SPDX-License-Identifier: Apache-2.0
"""Measuring protocol, timing with clocks, and statistics of samples. Standard library only."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import threading
import time
import typing
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from nni_latency.costs import Cost
from nni_latency.errors import InvalidValueError, MeasurementError, MismatchError, check_ints

#: One part of a chain, which takes the output of the previous part.
Stage = Callable[[Any], Any]


@dataclass(frozen=True)
class Protocol:
    """How a measurement is taken. Immutable.

    The first four names are those of the latency estimators of nnabla-nas.

    Parameters
    ----------
    n_warmup : int, default=1
        Untimed runs before the timed ones, each time a network is visited.
    n_run : int, default=1
        Timed runs each time a network is visited: this many with a mark between the layers, and as many without.
    outlier : float, default=0.05
        Share of the samples dropped at each end before anything is computed of them, in [0, 0.5).
    max_measure_execution_time : float, default=10.0
        Longest time spent on the timed runs of one visit [s]; at least one is always taken.
    rounds : int, default=1000
        Most rounds over all candidates; the time budget usually ends the work earlier.
    threads : int, default=1
        Threads that compute one network.
    time_budget : float, default=50.0
        Most time spent measuring a table [s]; a round that has begun is finished.
    half_width : float, default=0.02
        How narrow the interval of an entry has to become, as half its width over its value. When all are, measuring
        ends before the budget is spent; 0 spends the whole budget.
    processes : int, default=3
        Worker processes that share the rounds, one after another. Where a process places weights and activations in
        memory makes a layer a few per cent faster or slower for as long as it lives. There are fewer where the budget
        leaves less than five seconds to each.
    timeout : float, default=120.0
        Longest time that a candidate may take to load or a network to be visited [s]; what takes longer hangs, and is
        recorded as failed.
    statistic : float, default=0.25
        The quantile of the kept samples that becomes the value. The lower quartile throws off the
        interference of other processes, which only ever adds time.
    confidence : float, default=0.95
        Level of the interval from `low` to `high`.
    seed : int, default=0
        Seed of the order of the networks in the rounds.

    Raises
    ------
    InvalidValueError
        If a value is outside its range.

    Examples
    --------
    >>> Protocol(time_budget=20).time_budget
    20.0
    """

    n_warmup: int = 1
    n_run: int = 1
    outlier: float = 0.05
    max_measure_execution_time: float = 10.0
    rounds: int = 1000
    threads: int = 1
    time_budget: float = 50.0
    half_width: float = 0.02
    processes: int = 3
    timeout: float = 120.0
    statistic: float = 0.25
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        check_ints("a Protocol", vars(self), n_warmup=0, n_run=1, rounds=1, threads=1, processes=1, seed=0)
        self._check_float("outlier", 0.0, 0.5, open_left=False)
        self._check_float("statistic", 0.0, 1.0)
        self._check_float("confidence", 0.0, 1.0)
        self._check_float("time_budget", 0.0, math.inf)
        self._check_float("half_width", 0.0, 1.0, open_left=False)
        self._check_float("timeout", 0.0, math.inf)
        self._check_float("max_measure_execution_time", 0.0, math.inf)

    def _check_float(self, name: str, low: float, high: float, *, open_left: bool = True) -> None:
        value = getattr(self, name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not (low < value if open_left else low <= value) or not value < high:
            bracket = "(" if open_left else "["
            raise InvalidValueError(
                f"The {name!r} of a Protocol must be a number in {bracket}{low:g}, {high:g}). Got {value!r}."
            )
        object.__setattr__(self, name, float(value))

    def check_threads(self, threads: int) -> None:
        """Raise `MismatchError` if a runtime computes with another number of threads."""
        if threads != self.threads:
            raise MismatchError(
                f"The 'threads' must agree: the runtime has {threads}, the protocol says {self.threads}."
            )

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a plain dictionary."""
        return asdict(self)

    def differences(self, other: Protocol, *, ignore: tuple[str, ...] = ()) -> list[str]:
        """Describe the fields that differ, except those in `ignore`."""
        return [
            f"{field.name}: {getattr(self, field.name)} against {getattr(other, field.name)}"
            for field in fields(self)
            if field.name not in ignore and getattr(self, field.name) != getattr(other, field.name)
        ]


@dataclass(frozen=True)
class Summary(Cost):
    """Statistics of the samples of a measurement.

    Parameters
    ----------
    value, low, high : float
        The protocol's quantile and its confidence interval, in the unit of the metric.
    n_samples, n_dropped : int
        Number of samples, and how many of them were trimmed away.
    """

    n_samples: int
    n_dropped: int


@dataclass(frozen=True)
class Measurement:
    """One timed experiment with its raw samples. Immutable; every statistic is derived.

    Parameters
    ----------
    samples : tuple of float
        Times of all timed runs, in order [s].
    protocol : Protocol
        Measuring protocol.

    Raises
    ------
    MeasurementError
        If there is no sample, or one that is not a positive, finite number.

    Examples
    --------
    >>> Measurement((2.0, 1.0, 3.0, 4.0, 5.0), Protocol(outlier=0)).summary.value
    2.0
    """

    samples: tuple[float, ...]
    protocol: Protocol

    def __post_init__(self) -> None:
        if not self.samples:
            raise MeasurementError("A measurement needs at least one sample. Got none.")
        bad = [sample for sample in self.samples if not (math.isfinite(sample) and sample > 0)]
        if bad:
            raise MeasurementError(
                f"Every sample must be a positive, finite number. Got {bad[0]!r}: the clock does not work."
            )

    @cached_property
    def _split(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return trim(self.samples, self.protocol.outlier)

    @property
    def kept(self) -> tuple[float, ...]:
        """Samples left after trimming."""
        return self._split[0]

    @property
    def dropped(self) -> tuple[float, ...]:
        """Samples trimmed away."""
        return self._split[1]

    @cached_property
    def summary(self) -> Summary:
        """Value, interval and counts.

        The value is a quantile of the kept samples. The interval is that of the corresponding quantile of all samples,
        because the samples left after trimming are not a random sample.
        """
        share = self.protocol.outlier
        level = share + self.protocol.statistic * (1 - 2 * share)
        value = quantile(self.kept, self.protocol.statistic)
        low, high = quantile_interval(self.samples, level, self.protocol.confidence)
        return Summary(value, min(low, value), max(high, value), len(self.samples), len(self.dropped))


@dataclass(frozen=True)
class NetworkSummary(Cost):
    """Statistics of the visits of a network. Immutable.

    Parameters
    ----------
    value, low, high : float
        Latency and its interval [s].
    n_samples : int
        Number of runs.
    n_visits : int
        Number of visits, in different rounds.
    repeatability : float
        Relative standard deviation of the visits; 0 for a single visit.
    """

    n_samples: int = 0
    n_visits: int = 0
    repeatability: float = 0.0


def summarise_visits(visits: Sequence[Sequence[float]], protocol: Protocol) -> NetworkSummary:
    """Return the statistics of the visits of a network.

    Parameters
    ----------
    visits : sequence of sequence of float
        Times of the runs of each visit [s]; at least one visit with at least one run.
    protocol : Protocol
        Determines the statistic.

    Raises
    ------
    MeasurementError
        If there is no run, or the time of one is not positive and finite.

    Examples
    --------
    >>> found = summarise_visits([[1.0, 1.0], [3.0, 3.0]], Protocol(statistic=0.5, outlier=0))
    >>> found.value, found.n_samples, found.n_visits, round(found.repeatability, 3)
    (2.0, 4, 2, 0.707)
    """
    found = Measurement(tuple(seconds for runs in visits for seconds in runs), protocol).summary
    each = [quantile(runs, protocol.statistic) for runs in visits]
    mean = math.fsum(each) / len(each)
    squares = math.fsum((value - mean) ** 2 for value in each)
    spread = math.sqrt(squares / (len(each) - 1)) / mean if len(each) > 1 else 0.0
    return NetworkSummary(found.value, found.low, found.high, found.n_samples, len(visits), spread)


class Clock(typing.Protocol):
    """Marks moments and returns the times between them.

    The clock of an asynchronous device marks on the device, and waits for it in `intervals`.
    """

    #: Shortest time that it can resolve [s].
    resolution: float

    def mark(self) -> Any:
        """Note this moment."""

    def intervals(self, marks: Sequence[Any]) -> list[float]:
        """Return the times between neighbouring marks [s]; one fewer than there are marks."""


class PerfClock:
    """The monotonic clock of the operating system, for synchronous work."""

    resolution = max(time.get_clock_info("perf_counter").resolution, 1e-9)

    def mark(self) -> float:
        """Note this moment."""
        return time.perf_counter()

    def intervals(self, marks: Sequence[float]) -> list[float]:
        """Return the times between neighbouring marks [s]."""
        return [after - before for before, after in itertools.pairwise(marks)]


#: Most attempts to read a mark whose two readings are close to each other, and how close they must be [s].
_MOST_READINGS, _LONGEST_READING = 5, 2e-5


class ProcessorClock:
    """The same, without the time for which the thread waited for a processor, if Linux reports it.

    On an overloaded machine a run mostly waits, which says nothing about the network.
    """

    resolution = PerfClock.resolution

    def mark(self) -> tuple[float, float, float]:
        """Note this moment, how long the thread has waited so far, and the moment when that was read [s].

        If the thread waits between the readings, that wait is subtracted from an interval that does not contain it.
        """
        for _ in range(_MOST_READINGS):
            begin, waited, end = time.perf_counter(), _time_waited(), time.perf_counter()
            if end - begin < _LONGEST_READING:
                break
        return begin, waited, end

    def intervals(self, marks: Sequence[tuple[float, float, float]]) -> list[float]:
        """Return the times between neighbouring marks [s], without waiting."""
        return [
            max(0.0, (end - begin) - (waited - waited_before))
            for (_, waited_before, begin), (end, waited, _) in itertools.pairwise(marks)
        ]


class _ThreadFile:
    """The file in which Linux reports how long a thread waited for a processor; open until the thread ends."""

    def __init__(self) -> None:
        self.descriptor: int | None = None
        with contextlib.suppress(OSError):
            self.descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def __del__(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)


_of_thread = threading.local()

if hasattr(os, "register_at_fork"):
    # A child process inherits the file of its parent.
    os.register_at_fork(after_in_child=lambda: _of_thread.__dict__.clear())


def _time_waited() -> float:
    """Return how long this thread has waited for a processor [s]; 0 if that is unknown."""
    try:
        file = _of_thread.file
    except AttributeError:
        file = _of_thread.file = _ThreadFile()
    # The second number, in nanoseconds.
    return 0.0 if file.descriptor is None else int(os.pread(file.descriptor, 64, 0).split()[1]) * 1e-9


def time_chain(stages: Sequence[Stage], value: Any, clock: Clock) -> list[float]:
    """Run stages in sequence, each on the output of the previous one, and time every one.

    Parameters
    ----------
    stages : sequence of callable
        Parts of one network, in order.
    value : object
        Input of the first stage.
    clock : Clock
        Clock that times them.

    Returns
    -------
    list of float, as long as `stages`
        Time of every stage [s], at least the clock's resolution.
    """
    marks = [clock.mark()]
    for stage in stages:
        value = stage(value)
        marks.append(clock.mark())
    return [max(seconds, clock.resolution) for seconds in clock.intervals(marks)]


def trim(samples: Sequence[float], outlier: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Split samples into those to keep and those to drop.

    Parameters
    ----------
    samples : sequence of float
        Samples in measuring order.
    outlier : float
        Share to drop at each end, in [0, 0.5). The count is rounded down, and at least one sample is kept.

    Returns
    -------
    kept, dropped : tuple of float
        Both in the original order.

    Raises
    ------
    InvalidValueError
        If `outlier` is outside its range.

    Examples
    --------
    >>> trim([3.0, 1.0, 99.0, 2.0, 0.1], 0.2)
    ((3.0, 1.0, 2.0), (99.0, 0.1))
    """
    if not 0 <= outlier < 0.5:
        raise InvalidValueError(f"The 'outlier' share must be a number in [0, 0.5). Got {outlier!r}.")
    count = int(len(samples) * outlier)
    order = sorted(range(len(samples)), key=lambda index: samples[index])
    out = {*order[:count], *order[len(order) - count :]}
    return (
        tuple(sample for index, sample in enumerate(samples) if index not in out),
        tuple(sample for index, sample in enumerate(samples) if index in out),
    )


def quantile(samples: Sequence[float], q: float) -> float:
    """Return the `q`-quantile with linear interpolation between the ordered samples.

    Raises
    ------
    InvalidValueError
        If there is no sample.

    Examples
    --------
    >>> quantile([4.0, 1.0, 3.0, 2.0, 5.0], 0.25)
    2.0
    """
    if not samples:
        raise InvalidValueError("A quantile needs at least one sample. Got none.")
    ordered = sorted(samples)
    position = q * (len(ordered) - 1)
    lower = math.floor(position)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (position - lower) * (ordered[upper] - ordered[lower])


def quantile_interval(samples: Sequence[float], q: float, confidence: float = 0.95) -> tuple[float, float]:
    """Return a distribution-free confidence interval of the `q`-quantile.

    The number of samples below the true quantile is binomial with n and q, so two order statistics enclose it with a
    known probability [1]_. With few samples no pair suffices; the interval is then the whole range, and too narrow.

    Parameters
    ----------
    samples : sequence of float
        Independent samples.
    q : float
        The quantile, in (0, 1).
    confidence : float, default=0.95
        Level of the interval.

    Returns
    -------
    low, high : float

    References
    ----------
    .. [1] H. A. David, H. N. Nagaraja, "Order Statistics", 3rd ed., Wiley 2003, section 7.1.
       https://doi.org/10.1002/0471722162
    """
    if not samples:
        raise InvalidValueError("An interval needs at least one sample. Got none.")
    ordered = sorted(samples)
    low, high = _order_ranks(len(ordered), q, confidence)
    return ordered[low], ordered[high]


@functools.lru_cache(maxsize=256)
def fewest_samples(q: float, confidence: float = 0.95) -> int:
    """Return the fewest samples of which two order statistics enclose the `q`-quantile with a confidence.

    >>> fewest_samples(0.5), fewest_samples(0.25)
    (6, 13)
    """
    tail = (1 - confidence) / 2
    return math.ceil(math.log(tail) / math.log(max(q, 1 - q)))


def windows_agree(samples: Sequence[float], size: int, tolerance: float) -> bool:
    """Return whether the medians of the last two windows of `size` samples differ by at most `tolerance`.

    A warm-up ends when they do.

    >>> windows_agree([9.0, 5.0, 4.0, 4.1], 2, 0.1), windows_agree([5.0, 4.0, 4.0, 4.1], 1, 0.1)
    (False, True)
    """
    if len(samples) < 2 * size:
        return False
    before, after = quantile(samples[-2 * size : -size], 0.5), quantile(samples[-size:], 0.5)
    return abs(after - before) <= tolerance * min(before, after)


@functools.lru_cache(maxsize=4096)
def _order_ranks(n: int, q: float, confidence: float) -> tuple[int, int]:
    """Return the ranks (from 0) of the two order statistics; each tail holds at most half of the rest."""
    tail = (1 - confidence) / 2
    low, high, cumulated = 0, n - 1, 0.0
    for below in range(n):
        cumulated += _binomial(n, below, q)
        if cumulated <= tail:
            low = below
        if cumulated >= 1 - tail:
            high = below
            break
    return low, min(high, n - 1)


def _binomial(n: int, k: int, p: float) -> float:
    log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p)
    return math.exp(log)
