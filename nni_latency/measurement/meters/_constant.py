"""`ConstantMeter`: time times a power that somebody assumes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from nni_latency.errors import InvalidValueError
from nni_latency.measurement._meter import Meter


class ConstantMeter(Meter):
    """Energy as time times an assumed power: what is left where nothing can be read.

    It ranks networks as their latency does. Every result that it takes part in says what was assumed.

    Parameters
    ----------
    watts : float
        The power [W].
    clock : callable, default=time.perf_counter
        Tells the time [s].

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
    def of(cls, device: str, argument: str) -> ConstantMeter:
        """Make it of ``constant:WATTS``."""
        try:
            watts = float(argument)
        except ValueError:
            raise _wrong(argument) from None
        return cls(watts)

    @property
    def description(self) -> str:
        """What it is."""
        return f"constant:{self.watts:g}"

    def start(self) -> None:
        """Begin a window."""
        self._begin = self.clock()

    def stop(self) -> float:
        """Return the time since `start` times the power [J]."""
        return self.watts * (self.clock() - self._begin)


def _wrong(given: object) -> InvalidValueError:
    return InvalidValueError(f"The meter 'constant' takes a positive power in watts, as in constant:15. Got {given!r}.")
