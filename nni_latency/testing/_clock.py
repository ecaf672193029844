"""`FakeClock`: time that passes only when a test advances it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from nni_latency.errors import InvalidValueError


class FakeClock:
    """A clock for tests; it satisfies `nni_latency.measurement.Clock`. Not thread-safe.

    Parameters
    ----------
    now : float, default=0.0
        What it shows at first [s].
    resolution : float, default=1e-9
        The shortest time that it can resolve [s].

    Examples
    --------
    >>> clock = FakeClock()
    >>> begin = clock.mark()
    >>> clock.advance(0.25)
    >>> clock.intervals([begin, clock.mark()])
    [0.25]
    """

    def __init__(self, now: float = 0.0, *, resolution: float = 1e-9) -> None:
        self.now = now
        self.resolution = resolution

    def advance(self, seconds: float) -> None:
        """Let time pass.

        Raises
        ------
        InvalidValueError
            If the time is negative or not a number.
        """
        if not seconds >= 0:
            raise InvalidValueError(f"The 'seconds' that a FakeClock advances must be >= 0. Got {seconds!r}.")
        self.now += seconds

    def mark(self) -> float:
        """Note this moment."""
        return self.now

    def intervals(self, marks: Sequence[float]) -> list[float]:
        """Return the times between neighbouring marks [s]."""
        return [after - before for before, after in itertools.pairwise(marks)]
