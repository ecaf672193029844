# SPDX-License-Identifier: Apache-2.0
"""What is waited for on a device: its return, the other process that measures there, and heat."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from nni_latency.devices._connection import Connection, DeviceError
from nni_latency.units import format_seconds

#: Pauses between attempts to reach a device again [s].
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0

#: Pause between two attempts to take the lock of a device [s].
_PAUSE = 0.5

#: How long a device is waited for whose processors are slowed down, and the pause between two looks [s].
_COOLING, _COOLING_PAUSE = 600.0, 3.0

#: A round that begins so soon after a look needs no other one [s]: looking takes a round trip.
_FRESH = 5.0


class Patience:
    """Pauses between attempts until a limit, and says once why.

    Parameters
    ----------
    on_wait : callable
        Called with a sentence before a pause, unless it was called with the same one before.
    seconds : float
        How long to wait in all [s].
    pause : float
        The first pause [s]; every other one is twice as long as the one before.
    longest : float, optional
        The longest pause [s]; by default all are as long as the first.
    """

    def __init__(
        self, on_wait: Callable[[str], None], seconds: float, pause: float, longest: float | None = None
    ) -> None:
        self.seconds, self._until = seconds, time.monotonic() + seconds
        self._on_wait, self._pause, self._longest = on_wait, pause, pause if longest is None else longest
        self._said: set[str] = set()

    def wait(self, sentence: str) -> bool:
        """Pause for `sentence`; False without a pause where that would take too long."""
        if time.monotonic() + self._pause > self._until:
            return False
        if sentence not in self._said:
            self._said.add(sentence)
            self._on_wait(sentence)
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, self._longest)
        return True


class Comeback:
    """Waits for a device that was lost.

    Parameters
    ----------
    on_wait : callable
        Called with a sentence for every reason for which the device is not reached.
    patience : float
        How long to wait [s].
    """

    def __init__(self, on_wait: Callable[[str], None], patience: float) -> None:
        self._patience = Patience(on_wait, patience, _FIRST_PAUSE, _LONGEST_PAUSE)

    def wait(self, error: DeviceError) -> None:
        """Pause after an attempt that failed, or raise `DeviceError` where there were enough."""
        # It names the device.
        reason = str(error).rstrip(".")
        if not self._patience.wait(f"Waiting for the device: {reason}"):
            raise DeviceError(
                f"The device did not come back within {format_seconds(self._patience.seconds)} ({reason}). Run the "
                "same command again to resume."
            ) from error


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
    turn = Patience(on_wait, patience, _PAUSE)
    while not take():
        if not turn.wait(f"Waiting for {connection.description}: another process measures there"):
            raise DeviceError(
                f"Another process has measured on {connection.description} for the last {format_seconds(patience)}. "
                "Try again when it has ended."
            )


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
        cooling, sentence = Patience(self._on_wait, _COOLING, _COOLING_PAUSE), ""
        while True:
            found = self._look()
            self._looked, self._shows = time.monotonic(), "cpu_hot" in found
            if not found.get("cpu_hot"):
                self._is_hot = False
                return True
            if self._is_hot:
                return False
            degrees = f"{found['cpu_temperature']:.0f} C, " if "cpu_temperature" in found else ""
            # With the temperature of the first look.
            sentence = sentence or (f"Waiting for {self._where} to cool down: {degrees}its processors are slowed down")
            if not cooling.wait(sentence):
                self._is_hot = True
                self._on_wait(
                    f"{self._where} has not cooled down within {format_seconds(_COOLING)}. Measuring goes on."
                )
                return False
