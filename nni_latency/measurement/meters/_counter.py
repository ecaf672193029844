"""`CounterMeter`: a meter whose device counts energy since some beginning."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence

from nni_latency.errors import MeasurementError
from nni_latency.measurement._meter import Meter
from nni_latency.units import format_seconds

#: Steps of a counter from which its period is told, and how long they are waited for [s].
_STEPS, _PATIENCE = 8, 3.0

#: A counter that stands still for so many periods has stopped.
_STALLED = 20

#: How long the machine is watched without work [s].
IDLE_SECONDS = 1.0


class CounterMeter(Meter):
    """Reads a counter of energy at both ends of a window. How often it is updated is found when the session opens.

    Parameters
    ----------
    clock, sleep : callable
        Tell and spend time [s].
    """

    metric = "energy"

    #: Both ends of a window are uncertain by up to a period.
    least_steps = 50

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self.clock, self.sleep = clock, sleep
        self._begin = (0.0, 0.0)

    @abstractmethod
    def read(self) -> float:
        """Return what the counter says [J]; it must not fall, see `between`.

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
            If the counter began anew in between.
        """
        if last < first:
            raise MeasurementError(
                f"The counter of {self.description} fell from {first:.6g} to {last:.6g} J while it was read: the "
                "driver was loaded again, or the device reset. Run the command again."
            )
        return last - first

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Open the device and find how often the counter is updated.

        Raises
        ------
        MeasurementError
            If it does not count.
        """
        with self.opened():
            self.period = self._find_period()
            yield

    def opened(self) -> contextlib.AbstractContextManager[None]:
        """Open the device; nothing by default."""
        return contextlib.nullcontext()

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
            If the counter stood still or began anew.
        """
        begin, first = self._begin
        energy, took = self.between(first, self.read()), self.clock() - begin
        if not energy and took > _STALLED * self.period > 0:
            raise MeasurementError(
                f"{self.description} has not counted for {format_seconds(took)}, while it usually does so every "
                f"{format_seconds(self.period)}: it has stalled."
            )
        return energy

    def idle(self) -> float:
        """Return the power without work [W], over a second or as long as the counter needs."""
        self.start()
        begin = self.clock()
        self.sleep(max(IDLE_SECONDS, self.shortest))
        return self.stop() / (self.clock() - begin)


def update_period(times: Sequence[float], values: Sequence[float]) -> float | None:
    """Return the median time between changes of a reading [s]; None where there are fewer than two changes.

    The first change is the beginning of the first whole period.

    Parameters
    ----------
    times : sequence of float
        When it was read [s].
    values : sequence of float
        What it said.

    Examples
    --------
    >>> update_period([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [5, 5, 7, 7, 8, 8, 9])
    0.2
    """
    pairs = itertools.pairwise(zip(times, values, strict=True))
    changes = [after for (_, before), (after, now) in pairs if now != before]
    steps = [after - before for before, after in itertools.pairwise(changes)]
    return round(statistics.median(steps), 9) if steps else None
