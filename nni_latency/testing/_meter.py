"""`FakeMeter`: a meter that reads a power of the test's own, on the test's clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from nni_latency.errors import MeasurementError
from nni_latency.measurement import Meter
from nni_latency.testing._clock import FakeClock


class FakeMeter(Meter):
    """A meter for tests: energy is the clock's time, times a power.

    Parameters
    ----------
    clock : FakeClock
        The clock of the runtime.
    watts : float or callable, default=10.0
        The power [W]; or what is called for it at the end of every window.
    resolution : float, default=1e-9
        Readings are multiples of it [J].
    period : float, default=0.0
        How often it claims to be updated [s].
    idle : float, default=0.0
        Power without work [W].
    windows : int, optional
        After so many windows it dies.
    observed : mapping of str to sequence of float, optional
        What else it reads in every window.

    Examples
    --------
    >>> clock = FakeClock()
    >>> meter = FakeMeter(clock, 20.0)
    >>> meter.start()
    >>> clock.advance(0.5)
    >>> meter.stop()
    10.0
    """

    metric = "energy"

    def __init__(
        self,
        clock: FakeClock,
        watts: float | Callable[[], float] = 10.0,
        *,
        resolution: float = 1e-9,
        period: float = 0.0,
        idle: float = 0.0,
        windows: int | None = None,
        observed: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self.clock, self.watts, self.resolution, self.period = clock, watts, resolution, period
        self._idle, self._left, self._observed = idle, windows, observed or {}
        self._begin = 0.0

    @property
    def description(self) -> str:
        """What it is."""
        return "simulated"

    def start(self) -> None:
        """Begin a window."""
        self._begin = self.clock.now

    def stop(self) -> float:
        """End the window and return its energy [J].

        Raises
        ------
        MeasurementError
            If it is to have died.
        """
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise MeasurementError("The meter simulated died while it was measured.")
        watts = self.watts() if callable(self.watts) else self.watts
        energy = watts * (self.clock.now - self._begin)
        return energy if self.resolution < 1e-6 else math.floor(energy / self.resolution) * self.resolution

    def idle(self) -> float:
        """Return the power without work [W]."""
        return self._idle

    def observations(self) -> Mapping[str, Sequence[float]]:
        """Return what else it reads."""
        return self._observed
