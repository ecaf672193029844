"""`FarmRuntime`: a runtime of a farm, for everything that takes a runtime."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from nni_latency.errors import MeasurementError
from nni_latency.farm._announcement import Announcement
from nni_latency.farm._bench import FarmBenches, JobRunner
from nni_latency.measurement import Benches, Clock, Limits, Meter, Stage, Subject
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import Conditions, Platform


class FarmRuntime(Runtime):
    """Stands for the runtime of a farm's workers: its benches lie there, and nothing of it runs in this process.

    Parameters
    ----------
    farm : JobRunner
        The farm.
    announcement : Announcement
        What the workers have announced.
    outer : Announcement, optional
        As for `FarmBenches`.
    """

    portable = False

    def __init__(self, farm: JobRunner, announcement: Announcement, outer: Announcement | None = None) -> None:
        self._farm, self._announcement, self._outer = farm, announcement, outer
        traits = announcement.traits
        self.name = announcement.platform.runtime
        self.supports_layer_timing, self.divides = traits.supports_layer_timing, traits.divides
        self.sees_calls, self.takes_onnx = traits.sees_calls, traits.takes_onnx
        self.least_runs = traits.least_runs

    @property
    def platform(self) -> Platform:
        """Where its numbers are taken."""
        return self._announcement.platform

    def benches(self, meters: Sequence[Meter] = (), limits: Limits | None = None) -> Benches:
        """Return what opens benches on the workers.

        Raises
        ------
        MeasurementError
            If a meter is given: meters of this machine do not read another one.
        """
        if meters:
            raise MeasurementError(
                f"{meters[0].description} reads this machine, and the farm measures on others. Omit the meter, or "
                "measure without the farm."
            )
        return FarmBenches(self._farm, self._announcement, self._outer, limits)

    def stand_in(self) -> Runtime | None:
        """Return the runtime of the same workers that can be timed inside, where there is one."""
        inner = self._announcement.stand_in
        return FarmRuntime(self._farm, inner, self._announcement) if inner is not None else None

    def conditions(self) -> Conditions:
        """Say what the machine of one of the workers is like at this moment."""
        return self.benches().conditions()

    @property
    def clock(self) -> Clock:
        """Not here."""
        self._refuse()

    def session(self) -> AbstractContextManager[None]:
        """Not here."""
        self._refuse()

    def prepare(self, subject: Subject, inputs: Any) -> Stage:
        """Not here."""
        self._refuse()

    def inputs(self, like: Any) -> Any:
        """Not here."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise MeasurementError(f"{self.platform.id} is a platform of a farm: networks run there, and not here.")
