"""`ZeusMeter`: boards whose energy the library Zeus reads, such as Jetson and Apple silicon."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from nni_latency.errors import MeasurementError
from nni_latency.imports import require
from nni_latency.measurement.meters._counter import CounterMeter

#: Parts of a chip that add up to it, by the names that Zeus has for them [mJ]; a total stands for all of them.
_TOTAL = "total_energy_mj"
_PARTS = ("cpu_total_mj", "dram_mj", "gpu_mj", "gpu_sram_mj", "ane_mj", "cpu_energy_mj", "gpu_energy_mj")


class ZeusMeter(CounterMeter):
    """Reads the energy of a whole chip through Zeus [1]_: Jetson boards and Apple silicon.

    Parameters
    ----------
    chip : object, optional
        What ``zeus.device.soc.get_soc()`` returns.
    **options
        As for `CounterMeter`.

    References
    ----------
    .. [1] J. You, J.-W. Chung, M. Chowdhury, "Zeus: Understanding and Optimizing GPU Energy Consumption of DNN
       Training", NSDI 2023. https://ml.energy/zeus
    """

    resolution = 1e-3

    def __init__(self, chip: Any = None, **options: Callable[..., Any]) -> None:
        super().__init__(**options)
        self._given = self._chip = chip

    @classmethod
    def of(cls, device: str, argument: str) -> ZeusMeter:
        """Make it of ``zeus``."""
        return cls()

    @property
    def description(self) -> str:
        """What it is."""
        return "zeus"

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Find the chip.

        Raises
        ------
        MissingDependencyError
            If Zeus is not installed.
        MeasurementError
            If it knows no chip here.
        """
        if self._given is None:
            library = require("zeus.device.soc", "The meter 'zeus'", "nni_latency[zeus]")
            try:
                self._chip = library.get_soc()
            except Exception as error:  # Zeus has a class of errors for every kind of chip
                raise MeasurementError(
                    f"Zeus reads no chip here ({error}). Name another meter, or assume a power: constant:WATTS"
                ) from error
        try:
            yield
        finally:
            # It may hold a process of its own, which does not travel to workers.
            self._chip = self._given

    def read(self) -> float:
        """Return the energy since some beginning [J]."""
        try:
            found = dataclasses.asdict(self._chip.get_total_energy_consumption())
        except Exception as error:  # as above
            raise MeasurementError(f"Zeus stopped answering ({type(error).__name__}: {error}).") from error
        parts = [found[_TOTAL]] if found.get(_TOTAL) is not None else [found.get(name) for name in _PARTS]
        known = [float(part) for part in parts if part is not None]
        if not known:
            raise MeasurementError(f"Zeus tells nothing that adds up to a chip. It tells: {', '.join(found)}.")
        return sum(known) * 1e-3
