"""`FakeDevice`: a device of a given speed for a farm of workers that all run on one machine."""

from __future__ import annotations

import time
import zlib

from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.testing._clock import FakeClock
from nni_latency.testing._runtime import FakeRuntime


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
