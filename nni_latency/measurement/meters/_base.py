# SPDX-License-Identifier: Apache-2.0
"""Base classes of meters: of energy counters, and of power sampled over time; and a constant power."""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nni_latency.errors import InvalidValueError, LatencyError, MeasurementError, reason_of
from nni_latency.measurement._meter import Meter, WindowLostError
from nni_latency.units import format_seconds

#: Number of steps of a counter that determine its period, and the longest wait for them [s].
_STEPS, _PATIENCE = 8, 3.0

#: A counter that does not change for this many periods has stalled.
_STALLED = 20

#: Assumed period if readings never change [s].
_USUAL_PERIOD = 0.1

#: Number of readings that are kept.
_KEPT = 200_000

#: Number of periods without a reading from which readings count as missing.
_GAP = 5.0

#: A meter has stalled if its power is constant for this many periods, and at least this many seconds.
_STALL, _LEAST_STALL = 30.0, 2.0


class _EnergyMeter(Meter):
    """Base of energy meters whose device is open within a session."""

    metric = "energy"

    #: Time for which the idle power is read [s].
    idle_time = 1.0

    #: Clock, and function that waits [s].
    clock: Callable[[], float] = staticmethod(time.perf_counter)
    sleep: Callable[[float], object] = staticmethod(time.sleep)

    #: Length of the last window [s].
    _took = 0.0

    def opened(self) -> contextlib.AbstractContextManager[None]:
        """Open the device; nothing by default."""
        return contextlib.nullcontext()

    def idle(self) -> float:
        """Return the idle power [W], over a second or as long as the meter needs."""
        self.start()
        self.sleep(max(self.idle_time, self.shortest))
        energy = self.stop()
        return energy / self._took


class CounterMeter(_EnergyMeter):
    """Reads an energy counter at both ends of a window. Its period is determined when a session opens.

    Parameters
    ----------
    clock, sleep : callable
        Clock, and function that waits [s].
    """

    #: Both ends of a window are uncertain by up to a period.
    least_steps = 50

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self.clock, self.sleep = clock, sleep
        self._begin = (0.0, 0.0)

    @abstractmethod
    def read(self) -> float:
        """Return the reading of the counter [J], which must not fall; see `between`.

        Raises
        ------
        MeasurementError
            If the device does not answer.
        """

    def between(self, first: float, last: float) -> float:
        """Return the energy between two readings [J].

        Raises
        ------
        MeasurementError
            If the counter was reset in between.
        """
        if last < first:
            raise MeasurementError(
                f"The counter of {self.description} fell from {first:.6g} to {last:.6g} J while it was read: the "
                "driver was loaded again, or the device reset. Run the command again."
            )
        return last - first

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Open the device and determine the period of the counter.

        Raises
        ------
        MeasurementError
            If it does not count.
        """
        with self.opened():
            self.period = self._find_period()
            yield

    def _find_period(self) -> float:
        begin, readings = self.clock(), [(self.clock(), self.read())]
        while self.clock() - begin < _PATIENCE:
            value = self.read()
            if value != readings[-1][1]:
                readings.append((self.clock(), value))
                if len(readings) > _STEPS:
                    break
            self.sleep(0.0)
        found = update_period(*zip(*readings, strict=True))
        if found is None:
            raise MeasurementError(
                f"{self.description} did not count in {format_seconds(_PATIENCE)}: it is switched off or stands still."
            )
        return found

    def start(self) -> None:
        """Begin a window."""
        self._begin = (self.clock(), self.read())

    def stop(self) -> float:
        """End the window and return its energy [J].

        Raises
        ------
        MeasurementError
            If the counter stalled or was reset.
        """
        begin, first = self._begin
        energy, took = self.between(first, self.read()), self.clock() - begin
        self._took = took
        if not energy and took > _STALLED * self.period > 0:
            raise MeasurementError(
                f"{self.description} has not counted for {format_seconds(took)}, while it usually does so every "
                f"{format_seconds(self.period)}: it has stalled."
            )
        return energy


def update_period(times: Sequence[float], values: Sequence[float]) -> float | None:
    """Return the median time between changes of a reading [s]; None if there are fewer than two changes.

    The first whole period begins with the first change.

    Parameters
    ----------
    times : sequence of float
        Times of the readings [s].
    values : sequence of float
        The readings.

    Examples
    --------
    >>> update_period([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [5, 5, 7, 7, 8, 8, 9])
    0.2
    """
    pairs = itertools.pairwise(zip(times, values, strict=True))
    changes = [after for (_, before), (after, now) in pairs if now != before]
    steps = [after - before for before, after in itertools.pairwise(changes)]
    return round(statistics.median(steps), 9) if steps else None


class SampledMeter(_EnergyMeter):
    """Reads power in a background thread and integrates it. Its period is determined when a session opens.

    Parameters
    ----------
    every : float, default=0.005
        Time between readings [s].
    """

    resolution = 1e-3

    #: Drivers and external meters average over some tenths of a second, so the beginning of a window reflects the time
    #: before it. All runs of a window are alike: its power is that of the rest of it.
    settling = 0.5

    #: Time for which readings are observed to determine their period [s].
    watch = 1.5

    #: Longest wait for the first reading, and for the one after a window [s].
    patience = 10.0

    #: The likely reason for missing readings, appended to the message after a comma.
    silence = ""

    def __init__(self, every: float = 0.005) -> None:
        self.every = every
        self._readings: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self._begin = 0.0
        self._failure: Exception | None = None

    @abstractmethod
    def readings(self) -> Sequence[tuple[float, float]]:
        """Return new readings: time by `time.perf_counter` [s], and power [W]. Called in a thread.

        Raises
        ------
        MeasurementError
            If the device does not answer.
        """

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Open the device, start reading, and determine the period.

        Raises
        ------
        MeasurementError
            If it does not answer.
        """
        self._readings.clear()
        self._failure, over = None, threading.Event()
        with self.opened():
            thread = threading.Thread(target=self._follow, args=(over,), name="meter", daemon=True)
            thread.start()
            try:
                now = time.perf_counter()
                self._await(now, "did not answer")
                time.sleep(self.watch)
                self.period = max(self.every, self._log().period or _USUAL_PERIOD)
                yield
            finally:
                over.set()
                thread.join(self.patience)
                self._readings.clear()

    def _follow(self, over: threading.Event) -> None:
        while not over.is_set():
            try:
                self._readings.extend(self.readings())
            except Exception as error:  # meters of plugins raise anything
                self._failure = error
                return
            over.wait(self.every)

    def _log(self) -> PowerLog:
        return PowerLog.of(list(self._readings))

    def _await(self, moment: float, what: str) -> None:
        """Wait for a reading after a moment."""
        until = time.perf_counter() + max(self.patience, 5 * self.period)
        while not (self._readings and self._readings[-1][0] >= moment):
            if self._failure is not None:
                known = isinstance(self._failure, LatencyError)
                reason = str(self._failure) if known else reason_of(self._failure)
                raise MeasurementError(f"{self.description} {what}: {reason}") from self._failure
            if time.perf_counter() > until:
                raise MeasurementError(
                    f"{self.description} {what}: there was no reading for "
                    f"{format_seconds(self.patience)}{self.silence}."
                )
            time.sleep(min(0.002, self.every))

    def start(self) -> None:
        """Begin a window."""
        self._begin = time.perf_counter()

    def stop(self) -> float:
        """End the window and return its energy [J]: the power once it is settled, times the time.

        Raises
        ------
        MeasurementError
            If the meter died, missed readings or stalled.
        """
        end = time.perf_counter()
        self._await(end, "stopped answering while it was measured")
        self._took = end - self._begin
        return self._energy(self._begin, end)

    def _energy(self, begin: float, end: float) -> float:
        settled = min(begin + self.settling, begin + 0.5 * (end - begin))
        log = self._log().within(settled, end)
        log.check(settled, end, self.period, self.description)
        return log.energy(settled, end) / (end - settled) * (end - begin)


@dataclass(frozen=True)
class PowerLog:
    """Readings of a power, oldest first. Immutable.

    Parameters
    ----------
    times : tuple of float
        Times of the readings [s].
    watts : tuple of float
        The readings [W].

    Examples
    --------
    >>> log = PowerLog.of([(0.0, 10.0), (1.0, 10.0), (2.0, 30.0), (3.0, 30.0)])
    >>> log.energy(0.0, 3.0)
    60.0
    """

    #: Shortest time between two readings that can be a gap [s].
    least_gap: ClassVar[float] = 0.25

    times: tuple[float, ...]
    watts: tuple[float, ...]

    @classmethod
    def of(cls, readings: Iterable[tuple[float, float]]) -> PowerLog:
        """Make a log of pairs of time and power."""
        pairs = sorted(readings)
        return cls(tuple(time for time, _ in pairs), tuple(watts for _, watts in pairs))

    @property
    def period(self) -> float | None:
        """Time between updates of the power [s]; None if it never changes."""
        return update_period(self.times, self.watts)

    def within(self, begin: float, end: float) -> PowerLog:
        """Return the readings from `begin` to `end`, and one more on each side."""
        inside = [place for place, time in enumerate(self.times) if begin <= time <= end]
        first = inside[0] if inside else next((i for i, time in enumerate(self.times) if time > end), len(self.times))
        last = inside[-1] if inside else first - 1
        reach = slice(max(0, first - 1), last + 2)
        return PowerLog(self.times[reach], self.watts[reach])

    def energy(self, begin: float, end: float) -> float:
        """Return the energy from `begin` to `end` [J], with linear interpolation between readings."""
        points = [begin, *(time for time in self.times if begin < time < end), end]
        powers = np.interp(points, self.times, self.watts)
        return float(np.diff(points) @ (powers[1:] + powers[:-1])) / 2

    def check(self, begin: float, end: float, period: float, what: str) -> None:
        """Check that the readings cover a window.

        Parameters
        ----------
        begin, end : float
            The window [s].
        period : float
            Usual time between updates of the power [s].
        what : str
            Name of the meter in messages.

        Raises
        ------
        WindowLostError
            If readings are missing.
        MeasurementError
            If they stay the same for too long.
        """
        around = self.within(begin, end)
        marks = [max(begin, min(end, time)) for time in (begin, *around.times, end)]
        gap = max((after - before for before, after in itertools.pairwise(marks)), default=end - begin)
        if not around.times or gap > max(self.least_gap, _GAP * period):
            raise WindowLostError(
                f"{what} gave no reading for {format_seconds(gap)} while it was measured, and usually gives one every "
                f"{format_seconds(period)}: the window is lost."
            )
        same = max((len(list(group)) for _, group in itertools.groupby(around.watts)), default=0)
        still = _longest_still(around.times, around.watts)
        if same > 1 and still > max(_LEAST_STALL, _STALL * period):
            raise MeasurementError(
                f"{what} has shown the same power for {format_seconds(still)}, and usually changes every "
                f"{format_seconds(period)}: it has stalled."
            )


def _longest_still(times: Sequence[float], watts: Sequence[float]) -> float:
    longest, since = 0.0, times[0] if times else 0.0
    for (_, before), (moment, now) in itertools.pairwise(zip(times, watts, strict=True)):
        if now != before:
            since = moment
        longest = max(longest, moment - since)
    return longest


class ConstantMeter(Meter):
    """Energy as time times an assumed power, if nothing can be read.

    It ranks networks as their latency does. Every result states the assumption.

    Parameters
    ----------
    watts : float
        The power [W].
    clock : callable, default=time.perf_counter
        Clock [s].

    Raises
    ------
    InvalidValueError
        If the power is not a positive, finite number.

    Examples
    --------
    >>> ConstantMeter(15).assumption
    'a constant power of 15 W'
    """

    metric = "energy"
    resolution = 1e-9

    def __init__(self, watts: float, clock: Callable[[], float] = time.perf_counter) -> None:
        if not 0 < watts < math.inf:
            raise _wrong(watts)
        self.watts, self.clock = float(watts), clock
        self.assumption = f"a constant power of {watts:g} W"
        self._begin = 0.0

    @classmethod
    def of(cls, device: str, argument: str = "") -> ConstantMeter:
        """Make the meter from ``constant:WATTS``."""
        try:
            watts = float(argument)
        except ValueError:
            raise _wrong(argument) from None
        return cls(watts)

    @property
    def description(self) -> str:
        """Its description in results and messages."""
        return f"constant:{self.watts:g}"

    def start(self) -> None:
        """Begin a window."""
        self._begin = self.clock()

    def stop(self) -> float:
        """Return the time since `start` times the power [J]."""
        return self.watts * (self.clock() - self._begin)


def _wrong(given: object) -> InvalidValueError:
    return InvalidValueError(f"The meter 'constant' takes a positive power in watts, as in constant:15. Got {given!r}.")
