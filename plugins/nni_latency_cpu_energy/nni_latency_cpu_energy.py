# SPDX-License-Identifier: Apache-2.0
"""A meter of energy, as a plugin for nni_latency: processor time times an assumed power."""

from __future__ import annotations

import time
from typing import Any

from nni_latency import hookimpl
from nni_latency.errors import InvalidValueError
from nni_latency.measurement import Meter

#: Power of one busy processor, unless another is given [W].
_WATTS = 10.0


class CpuTimeMeter(Meter):
    """Energy as the time that processors have worked for this process, times an assumed power.

    Parameters
    ----------
    watts : float, default=10.0
        Power of one busy processor [W].

    Raises
    ------
    InvalidValueError
        If the power is not a positive number.
    """

    metric = "energy"

    def __init__(self, watts: float = _WATTS) -> None:
        if not 0 < watts < float("inf"):
            raise InvalidValueError(f"The power of a processor must be a positive number of watts. Got {watts!r}.")
        self.watts = watts
        self.resolution = watts * max(time.get_clock_info("process_time").resolution, 1e-6)
        self._begin = 0.0

    def start(self) -> None:
        """Begin a window."""
        self._begin = time.process_time()

    def stop(self) -> float:
        """Return the energy since `start` [J]."""
        return self.watts * (time.process_time() - self._begin)


@hookimpl
def register_meters(register: Any) -> None:
    """Register the meter."""
    register("cpu-energy", lambda device: CpuTimeMeter())
