"""`FarmRuntime`: a runtime of a farm, for everything that takes a runtime."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from nni_latency.errors import MeasurementError, listed
from nni_latency.measurement import Benches, Clock, Limits, Meter, Stage, Subject
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import Conditions, Platform
from nni_latency_farm._announcement import Announcement
from nni_latency_farm._bench import FarmBenches, JobRunner
from nni_latency_farm._meter import FarmMeter


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
            If a meter is neither one of the workers, see `meter`, nor one that assumes something instead of reading it.
        """
        for meter in meters:
            if not (isinstance(meter, FarmMeter) or meter.assumption):
                raise MeasurementError(
                    f"{meter.description} reads this machine, and the farm measures on others. Omit the meter, or "
                    "measure without the farm."
                )
        return FarmBenches(self._farm, self._announcement, self._outer, limits, meters)

    def meter(self, name: str = "") -> Meter:
        """Return what stands for a meter of the workers.

        Parameters
        ----------
        name : str
            As the workers have announced it; by default the first one that reads energy.

        Raises
        ------
        MeasurementError
            If not all workers of the platform have it.
        """
        known = (self._outer or self._announcement).meters
        energy = next((meter for meter, metric in known.items() if metric == "energy"), None)
        wanted = name or energy
        if wanted is None or wanted not in known:
            lack = f"cannot read {name!r}" if name else "read no energy"
            raise MeasurementError(
                f"The workers of {self.platform.id} {lack}. They read: {listed(known) or 'nothing'}. A power can be "
                "assumed instead, as in constant:15."
            )
        return FarmMeter(wanted, known[wanted])

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
