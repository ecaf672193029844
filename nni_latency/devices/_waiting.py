"""What is waited for before a device is measured: the other process that measures there, and heat."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from nni_latency.devices._connection import Connection, DeviceError
from nni_latency.units import format_seconds

#: Pause between two attempts to take the lock of a device [s].
_PAUSE = 0.5

#: How long a device is waited for whose processors are slowed down, and the pause between two looks [s].
_COOLING, _COOLING_PAUSE = 600.0, 3.0

#: A round that begins so soon after a look needs no other one [s]: looking takes a round trip.
_FRESH = 5.0


def take_turn(
    connection: Connection, take: Callable[[], bool], on_wait: Callable[[str], None], patience: float = 600.0
) -> None:
    """Take the lock by which one process measures on a device at a time; wait for it where another one has it.

    Parameters
    ----------
    connection : Connection
        How the device is reached.
    take : callable
        Tries to take the lock, and returns whether that worked.
    on_wait : callable
        Called with a sentence when another process has it.
    patience : float, default=600.0
        How long to wait [s].

    Raises
    ------
    DeviceError
        If the other process has it for longer, or the connection is lost.
    """
    limit, is_told = time.monotonic() + patience, False
    while not take():
        if time.monotonic() > limit:
            raise DeviceError(
                f"Another process has measured on {connection.description} for the last {format_seconds(patience)}. "
                "Try again when it has ended."
            )
        if not is_told:
            on_wait(f"Waiting for {connection.description}: another process measures there")
            is_told = True
        time.sleep(_PAUSE)


class Cooling:
    """Waits for a device whose processors are slowed down because of their heat.

    Some devices are slowed down for good, by a limit of their maker or in a warm room. Such a device is waited for
    once: measuring goes on then, and it is waited for again after it was seen at full speed. A device that does not
    show whether it is slowed down is never waited for.

    Parameters
    ----------
    connection : Connection
        How the device is reached.
    look : callable
        Reads ``cpu_hot`` and ``cpu_temperature`` on the device.
    on_wait : callable
        Called with a sentence when the device is waited for, and when that was in vain.
    """

    def __init__(
        self, connection: Connection, look: Callable[[], Mapping[str, Any]], on_wait: Callable[[str], None]
    ) -> None:
        self._where, self._look, self._on_wait = connection.description, look, on_wait
        self._is_hot, self._shows = False, True
        self._looked = -_FRESH

    def wait(self) -> bool:
        """Wait until the device is not slowed down, ten minutes at most; return whether it is not."""
        if not self._shows or time.monotonic() - self._looked < _FRESH:
            return not self._is_hot
        limit, is_told = time.monotonic() + _COOLING, self._is_hot
        while True:
            found = self._look()
            self._looked, self._shows = time.monotonic(), "cpu_hot" in found
            if not found.get("cpu_hot"):
                self._is_hot = False
                return True
            if self._is_hot:
                return False
            if not is_told:
                degrees = f"{found['cpu_temperature']:.0f} C, " if "cpu_temperature" in found else ""
                self._on_wait(f"Waiting for {self._where} to cool down: {degrees}its processors are slowed down")
                is_told = True
            if time.monotonic() > limit:
                self._is_hot = True
                self._on_wait(
                    f"{self._where} has not cooled down within {format_seconds(_COOLING)}. Measuring goes on."
                )
                return False
            time.sleep(_COOLING_PAUSE)
