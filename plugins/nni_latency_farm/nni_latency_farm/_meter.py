# SPDX-License-Identifier: Apache-2.0
"""`FarmMeter`: client-side proxy of a meter of the workers."""

from __future__ import annotations

from typing import NoReturn

from nni_latency.errors import MeasurementError
from nni_latency.measurement import Meter


class FarmMeter(Meter):
    """Proxy of a meter of a farm's workers. The meter is read on the worker."""

    resolution = 0.0

    def __init__(self, name: str, metric: str) -> None:
        self.name, self.metric = name, metric

    @property
    def description(self) -> str:
        """Name of the meter."""
        return self.name

    def start(self) -> NoReturn:
        """Raise: the meter is read on the worker."""
        raise MeasurementError(f"The meter {self.name!r} is one of a farm: it is read there, and not here.")

    stop = start
