"""`FarmMeter`: a meter of the workers, for whoever asks for measurements."""

from __future__ import annotations

from typing import NoReturn

from nni_latency.errors import MeasurementError
from nni_latency.measurement import Meter


class FarmMeter(Meter):
    """Stands for a meter of a farm's workers. It is read there, and nothing of it is here.

    Parameters
    ----------
    name : str
        What the workers have announced it as.
    metric : str
        What it reads.
    """

    resolution = 0.0

    def __init__(self, name: str, metric: str) -> None:
        self.name, self.metric = name, metric

    @property
    def description(self) -> str:
        """Its name."""
        return self.name

    def start(self) -> NoReturn:
        """Not here."""
        raise MeasurementError(f"The meter {self.name!r} is one of a farm: it is read there, and not here.")

    stop = start
