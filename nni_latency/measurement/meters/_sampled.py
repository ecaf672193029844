"""`SampledMeter`: a meter whose device tells its power now, read again and again by a thread."""

from __future__ import annotations

import contextlib
import threading
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence

from nni_latency.errors import LatencyError, MeasurementError
from nni_latency.measurement._meter import Meter
from nni_latency.measurement.meters._counter import IDLE_SECONDS
from nni_latency.measurement.meters._power_log import PowerLog
from nni_latency.units import format_seconds

#: The period that is assumed where readings never change [s].
_USUAL_PERIOD = 0.1

#: How long the thread may take to give the first reading, and the one behind a window [s].
_PATIENCE = 10.0

#: Readings that are kept.
_KEPT = 200_000


class SampledMeter(Meter):
    """Reads power in a thread of its own and integrates it. How often it is updated is found when the session opens.

    Parameters
    ----------
    every : float, default=0.005
        Time between readings [s].
    """

    metric = "energy"
    resolution = 1e-3

    #: Drivers and external meters average over some tenths of a second, so the beginning of a window shows what was
    #: before. Runs of a window are all alike: its power is that of the rest of it.
    settling = 0.5

    #: How long readings are watched to find their period [s].
    watch = 1.5

    #: What it means that there are no readings, behind a comma.
    silence = ""

    def __init__(self, every: float = 0.005) -> None:
        self.every = every
        self._readings: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        self._begin = 0.0
        self._failure: LatencyError | None = None

    @abstractmethod
    def readings(self) -> Sequence[tuple[float, float]]:
        """Read; return what is new: when that was, by `time.perf_counter` [s], and the power [W]. A thread calls it.

        Raises
        ------
        MeasurementError
            If the device does not answer.
        """

    def opened(self) -> contextlib.AbstractContextManager[None]:
        """Open the device; nothing by default."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Open the device, begin to read, and find how often it is updated.

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
                thread.join(_PATIENCE)
                self._readings.clear()

    def _follow(self, over: threading.Event) -> None:
        while not over.is_set():
            try:
                self._readings.extend(self.readings())
            except LatencyError as error:
                self._failure = error
                return
            over.wait(self.every)

    def _log(self) -> PowerLog:
        return PowerLog.of(list(self._readings))

    def _await(self, moment: float, what: str) -> None:
        """Wait for a reading after a moment."""
        until = time.perf_counter() + max(_PATIENCE, 5 * self.period)
        while not (self._readings and self._readings[-1][0] >= moment):
            if self._failure is not None:
                raise MeasurementError(f"{self.description} {what}: {self._failure}") from self._failure
            if time.perf_counter() > until:
                raise MeasurementError(
                    f"{self.description} {what}: there was no reading for {format_seconds(_PATIENCE)}{self.silence}."
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
        return self._energy(self._begin, end)

    def _energy(self, begin: float, end: float) -> float:
        settled = min(begin + self.settling, begin + 0.5 * (end - begin))
        log = self._log().within(settled, end)
        log.check(settled, end, self.period, self.description)
        return log.energy(settled, end) / (end - settled) * (end - begin)

    def idle(self) -> float:
        """Return the power without work [W], over a second or as long as the meter needs."""
        self.start()
        time.sleep(max(IDLE_SECONDS, self.shortest))
        end = time.perf_counter()
        return self.stop() / (end - self._begin)
