# SPDX-License-Identifier: Apache-2.0
"""`FakeDevice` and `FakeMeter`: a device of a given speed, and what reads its energy, for tests."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence

from nni_latency.errors import MeasurementError
from nni_latency.measurement import Meter
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.testing._runtime import FakeClock, FakeRuntime


class FakeDevice(FakeRuntime):
    """A runtime that claims to be a device of a given speed; its times are computed, the same in every process.

    Parameters
    ----------
    device : str, default="fake-device"
        Name of the device in its platform.
    speed : float, default=1.0
        How fast it is: operators take 0.12 to 0.24 ms at 1. Powers of two leave all times exact.
    pace : float, default=0.0
        Seconds that really pass for each second of its clock.
    threads : int, default=1
        Threads of its platform.

    Examples
    --------
    >>> slow, fast = FakeDevice("slow"), FakeDevice("fast", speed=4)
    >>> op = OpSpec.of("relu", [(1, 8)])
    >>> slow.latency_of(op) / fast.latency_of(op)
    4.0
    """

    def __init__(self, device: str = "fake-device", *, speed: float = 1.0, pace: float = 0.0, threads: int = 1) -> None:
        self.speed = speed
        super().__init__(self._seconds, clock=_PacedClock(pace), platform=Platform(device, self.name, threads=threads))

    def _seconds(self, op: OpSpec) -> float:
        # Multiples of a power of two, so that adding and taking off changes no time.
        return (128 + zlib.crc32(op.op_key.encode()) % 128) * 2.0**-20 / self.speed


class _PacedClock(FakeClock):
    """A clock that makes the process wait as well."""

    def __init__(self, pace: float) -> None:
        super().__init__()
        self.pace = pace

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        if self.pace:
            time.sleep(seconds * self.pace)


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
