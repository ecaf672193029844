# SPDX-License-Identifier: Apache-2.0
"""`FarmRuntime`: client-side proxy of a runtime of a farm."""

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
    """Proxy of the runtime of a farm's workers. Its benches run on the workers, never in this process.

    Parameters
    ----------
    farm : JobRunner
        The farm.
    announcement : Announcement
        Announcement of the workers.
    outer : Announcement, optional
        As for `FarmBenches`.
    """

    portable = runs_here = False

    def __init__(self, farm: JobRunner, announcement: Announcement, outer: Announcement | None = None) -> None:
        self._farm, self._announcement, self._outer = farm, announcement, outer
        traits = announcement.traits
        self.name = announcement.platform.runtime
        self.supports_layer_timing, self.divides = traits.supports_layer_timing, traits.divides
        self.sees_calls, self.takes_onnx = traits.sees_calls, traits.takes_onnx
        self.least_runs = traits.least_runs

    @property
    def platform(self) -> Platform:
        """Platform of the measurements."""
        return self._announcement.platform

    def benches(self, meters: Sequence[Meter] = (), limits: Limits | None = None) -> Benches:
        """Return the benches of the workers.

        Raises
        ------
        MeasurementError
            If a meter is neither one of the workers (see `meter`) nor one that assumes a value.
        """
        for meter in meters:
            if not (isinstance(meter, FarmMeter) or meter.assumption):
                raise MeasurementError(
                    f"{meter.description} reads this machine, and the farm measures on others. Omit the meter, or "
                    "measure without the farm."
                )
        return FarmBenches(self._farm, self._announcement, self._outer, limits, meters)

    def meter(self, name: str = "") -> Meter:
        """Return a proxy of a meter of the workers.

        Parameters
        ----------
        name : str
            Name announced by the workers; by default the first meter that reads energy.

        Raises
        ------
        MeasurementError
            If not all workers of the platform have the meter.
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
        """Return the stand-in of the same workers that supports layer timing; None if there is none."""
        inner = self._announcement.stand_in
        return FarmRuntime(self._farm, inner, self._announcement) if inner is not None else None

    def conditions(self) -> Conditions:
        """Return the current conditions of one of the workers' machines."""
        return self.benches().conditions()

    @property
    def clock(self) -> Clock:
        """Raise: networks run on the workers."""
        self._refuse()

    def session(self) -> AbstractContextManager[None]:
        """Raise: networks run on the workers."""
        self._refuse()

    def prepare(self, subject: Subject, inputs: Any) -> Stage:
        """Raise: networks run on the workers."""
        self._refuse()

    def inputs(self, like: Any) -> Any:
        """Raise: networks run on the workers."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise MeasurementError(f"{self.platform.id} is a platform of a farm: networks run there, and not here.")
