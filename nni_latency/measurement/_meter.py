# SPDX-License-Identifier: Apache-2.0
"""`Meter`: the interface to readings of energy, power or another quantity besides time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from nni_latency.errors import MeasurementError
from nni_latency.hook_checks import CONTEXT, COUNT, NOT_NEGATIVE, TEXT, Check, Guard, Pluggable, is_number
from nni_latency.units import METRICS, format_seconds


class WindowLostError(MeasurementError):
    """Raised by `Meter.stop` when readings are missing from a window. The next window may be whole."""


class CoarseMeterError(MeasurementError):
    """Raised if no permitted window is long enough for a meter.

    Attributes
    ----------
    needed : float
        Shortest window that it needs [s].
    """

    needed = 0.0

    @classmethod
    def of(cls, meter: Meter, needed: float, longest: float) -> CoarseMeterError:
        """Return the error of a meter that needs a longer window than `longest` [s]."""
        found = cls(
            f"{meter.description} is too coarse for this: it needs a window of {format_seconds(needed)}, and a visit "
            f"may take {format_seconds(longest)}. Allow longer windows ('max_measure_execution_time' of the "
            "protocol), or take a larger batch or a finer meter."
        )
        found.needed = needed
        return found


class Meter(Pluggable, ABC):
    """Reads the cost of runs in one metric. Not thread-safe; used in the process that measures.

    A bench reads it over a window of repeated runs, because most meters are updated less often than a network runs.
    Errors of the device are raised as `MeasurementError`. A meter is sent to worker processes by cloudpickle; anything
    that cannot be sent is opened in `session`, which may also determine `period` and `resolution`.
    """

    _kind = "meter"
    _guards: ClassVar[Mapping[str, Guard]] = {
        "session": Guard(CONTEXT, opens=True),
        "start": Guard(),
        "stop": Guard(("a number", is_number)),
        "idle": Guard(NOT_NEGATIVE),
        "observations": Guard(("a mapping", lambda answer: isinstance(answer, Mapping))),
        "runs": Guard(COUNT),
    }
    _attributes: ClassVar[Mapping[str, Check]] = {
        "metric": (f"one of {', '.join(METRICS)}", lambda value: isinstance(value, str) and value in METRICS),
        "description": TEXT,
        "assumption": ("a text", lambda value: isinstance(value, str)),
        "least_steps": COUNT,
    }
    #: Attributes that may be known only within a session.
    _opened_attributes: ClassVar[Mapping[str, Check]] = dict.fromkeys(
        ("resolution", "period", "settling"), NOT_NEGATIVE
    )

    #: Metric that it reads, such as ``energy``.
    metric: str

    #: Smallest difference that it can resolve, in the metric's SI unit.
    resolution: float

    #: Time between updates of its reading [s].
    period: float = 0.0

    #: A window is at least this many times as long as the period, and as costly as the resolution.
    least_steps: int = 20

    #: Time at the beginning of a window whose readings do not count [s].
    settling: float = 0.0

    #: Assumption that replaces a measurement, such as "a constant power of 10 W"; every result states it.
    assumption: str = ""

    @property
    def description(self) -> str:
        """Its description in results and messages."""
        return type(self).__name__

    def session(self) -> AbstractContextManager[None]:
        """Open the device for as long as a bench is open; nothing by default."""
        return nullcontext()

    def check_opened(self) -> None:
        """Raise `PluginError` if a plugin's meter lacks an attribute that must be known within a session."""
        if self._origin:
            self.check_attributes(which=self._opened_attributes)

    @abstractmethod
    def start(self) -> None:
        """Begin a window."""

    @abstractmethod
    def stop(self) -> float:
        """End the window and return its cost, in the metric's SI unit.

        Raises
        ------
        WindowLostError
            If readings are missing; the bench then measures another window.
        MeasurementError
            If the device does not answer.
        """

    def idle(self) -> float:
        """Return the cost of a second without work [unit/s]; 0 if it is unknown. It may take some seconds."""
        return 0.0

    def observations(self) -> Mapping[str, Sequence[float]]:
        """Return other readings of the last window, such as clocks [Hz], for the record."""
        return {}

    @property
    def shortest(self) -> float:
        """Shortest useful window, by the period alone [s]."""
        return self.settling + self.least_steps * self.period

    def runs(self, seconds: float) -> int:
        """Return the number of runs of a network in a window.

        Parameters
        ----------
        seconds : float
            Time of one run [s].
        """
        return max(1, math.ceil(self.shortest / max(seconds, 1e-9)))
