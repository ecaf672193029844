"""`PowerLog`: readings of power in time, and the energy that follows from them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nni_latency.errors import MeasurementError
from nni_latency.measurement._meter import WindowLostError
from nni_latency.measurement.meters._counter import update_period
from nni_latency.units import format_seconds

#: Readings may lie so many periods apart, and so many seconds at least, before one is missed.
_GAP, _LEAST_GAP = 5.0, 0.25

#: A power may stay the same for so many periods, and so many seconds at least, before the meter has stalled.
_STALL, _LEAST_STALL = 30.0, 2.0


@dataclass(frozen=True)
class PowerLog:
    """Readings of a power, oldest first. Immutable.

    Parameters
    ----------
    times : tuple of float
        When they were taken [s].
    watts : tuple of float
        What they said [W].

    Examples
    --------
    >>> log = PowerLog.of([(0.0, 10.0), (1.0, 10.0), (2.0, 30.0), (3.0, 30.0)])
    >>> log.energy(0.0, 3.0)
    60.0
    """

    times: tuple[float, ...]
    watts: tuple[float, ...]

    @classmethod
    def of(cls, readings: Iterable[tuple[float, float]]) -> PowerLog:
        """Make it of pairs of time and power."""
        pairs = sorted(readings)
        return cls(tuple(time for time, _ in pairs), tuple(watts for _, watts in pairs))

    @property
    def period(self) -> float | None:
        """How often the power is updated [s]; None where it never changes."""
        return update_period(self.times, self.watts)

    def within(self, begin: float, end: float) -> PowerLog:
        """Return the readings from `begin` to `end`, and one more on either side."""
        inside = [place for place, time in enumerate(self.times) if begin <= time <= end]
        first = inside[0] if inside else next((i for i, time in enumerate(self.times) if time > end), len(self.times))
        last = inside[-1] if inside else first - 1
        reach = slice(max(0, first - 1), last + 2)
        return PowerLog(self.times[reach], self.watts[reach])

    def energy(self, begin: float, end: float) -> float:
        """Return the energy from `begin` to `end` [J], the power taken as straight between readings."""
        points = [begin, *(time for time in self.times if begin < time < end), end]
        powers = [_between(self.times, self.watts, point) for point in points]
        return math.fsum(
            (after - before) * (low + high) / 2
            for (before, low), (after, high) in itertools.pairwise(zip(points, powers, strict=True))
        )

    def check(self, begin: float, end: float, period: float, what: str) -> None:
        """Check that the readings cover a window.

        Parameters
        ----------
        begin, end : float
            The window [s].
        period : float
            How often the power is usually updated [s].
        what : str
            What gave the readings, for messages.

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
        if not around.times or gap > max(_LEAST_GAP, _GAP * period):
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


def _between(times: Sequence[float], watts: Sequence[float], at: float) -> float:
    """Return the power at a moment, straight between readings and as the nearest outside of them [W]."""
    if at <= times[0]:
        return watts[0]
    for (before, low), (after, high) in itertools.pairwise(zip(times, watts, strict=True)):
        if before <= at <= after:
            return high if after == before else low + (high - low) * (at - before) / (after - before)
    return watts[-1]


def _longest_still(times: Sequence[float], watts: Sequence[float]) -> float:
    longest, since = 0.0, times[0] if times else 0.0
    for (_, before), (time, now) in itertools.pairwise(zip(times, watts, strict=True)):
        if now != before:
            since = time
        longest = max(longest, time - since)
    return longest
