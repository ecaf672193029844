"""The timed loop. It knows a clock and callables, no model, no device and no framework."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

#: One part of a chain: takes what the part before returned.
Stage = Callable[[Any], Any]


class Clock(Protocol):
    """Something that marks moments and tells the time between them.

    A device that works asynchronously marks on the device and waits in `intervals`.
    """

    #: The shortest time that it can tell from none [s].
    resolution: float

    def mark(self) -> Any:
        """Note this moment."""

    def intervals(self, marks: Sequence[Any]) -> list[float]:
        """Return the times between neighbouring marks [s]; one fewer than there are marks."""


class PerfClock:
    """The monotonic clock of the operating system, for work that is done when a call returns."""

    resolution = max(time.get_clock_info("perf_counter").resolution, 1e-9)

    def mark(self) -> float:
        """Note this moment."""
        return time.perf_counter()

    def intervals(self, marks: Sequence[float]) -> list[float]:
        """Return the times between neighbouring marks [s]."""
        return [after - before for before, after in itertools.pairwise(marks)]


def time_chain(stages: Sequence[Stage], value: Any, clock: Clock) -> list[float]:
    """Run stages one after another, each on what the one before returned, and time every one.

    Parameters
    ----------
    stages : sequence of callable
        Parts of one network, in order.
    value : object
        Input of the first.
    clock : Clock
        Where the time comes from.

    Returns
    -------
    list of float, as long as `stages`
        Time of every stage [s], never below the clock's resolution.
    """
    marks = [clock.mark()]
    for stage in stages:
        value = stage(value)
        marks.append(clock.mark())
    return [max(seconds, clock.resolution) for seconds in clock.intervals(marks)]
