"""`RaplMeter`: the energy counters of processors from Intel and AMD, as Linux tells them in powercap."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError, MeasurementError, UnknownNameError
from nni_latency.measurement.meters._counter import CounterMeter

#: What may be asked for, and the beginning of the names of its zones. Cores are a part of their package.
DOMAINS: dict[str, tuple[str, ...]] = {
    "all": ("package", "dram"),
    "package": ("package",),
    "cores": ("core",),
    "dram": ("dram",),
}

_FOLDER = Path("sys/class/powercap")


@dataclass(frozen=True)
class Zone:
    """One counter: its name, such as ``package-0``, its file, and the number after which it begins anew [uJ]."""

    name: str
    counter: Path
    largest: int


class RaplMeter(CounterMeter):
    """Reads the energy of packages and memory from powercap: all that runs on the machine, not this process alone.

    Parameters
    ----------
    domain : {"all", "package", "cores", "dram"}, default="all"
        What is counted; ``all`` is packages and memory.
    root : Path, default=Path("/")
        The folder in which ``sys`` lies.
    **options
        As for `CounterMeter`.

    Raises
    ------
    UnknownNameError
        If there is no such domain.

    References
    ----------
    .. [1] Linux kernel documentation, "Power Capping Framework".
       https://docs.kernel.org/power/powercap/powercap.html
    """

    resolution = 1e-4

    def __init__(self, domain: str = "all", *, root: Path = Path("/"), **options: Callable[..., Any]) -> None:
        super().__init__(**options)
        if domain not in DOMAINS:
            raise UnknownNameError.of("domain of RAPL", domain, list(DOMAINS))
        self.domain, self.root = domain, root
        self._zones: tuple[Zone, ...] = ()
        self._last: dict[str, int] = {}
        self._counted = 0

    @classmethod
    def of(cls, device: str, argument: str) -> RaplMeter:
        """Make it of ``rapl`` or ``rapl:DOMAIN``.

        Raises
        ------
        InvalidValueError
            If the device is a GPU.
        """
        if device != "cpu":
            raise InvalidValueError(f"The meter 'rapl' reads processors, not {device!r}. Take the meter 'nvml'.")
        return cls(argument or "all")

    @property
    def description(self) -> str:
        """What it is."""
        return "rapl" if self.domain == "all" else f"rapl:{self.domain}"

    def zones(self) -> tuple[Zone, ...]:
        """Return the counters that are read.

        Raises
        ------
        MeasurementError
            If there are none, or they may not be read; the message has the line that grants it.
        """
        folder = self.root / _FOLDER
        # The same counters have a second set of names, 'intel-rapl-mmio', which must not count twice.
        paths = sorted(folder.glob("intel-rapl:*")) if folder.is_dir() else []
        named = [(path, (path / "name").read_text().strip()) for path in paths if (path / "name").is_file()]
        wanted = [(path, name) for path, name in named if name.startswith(DOMAINS[self.domain])]
        if not wanted:
            there = ", ".join(sorted({name for _, name in named}))
            which, only = (f" of {self.domain!r}", f", only of {there}") if there else ("", "")
            raise MeasurementError(
                f"There is no energy counter{which} in {folder}{only}. Virtual machines seldom have one. Name another "
                "meter, such as csv:FILE of an external one, or assume a power: constant:WATTS"
            )
        return tuple(self._zone(path, name) for path, name in wanted)

    def _zone(self, path: Path, name: str) -> Zone:
        counter = path / "energy_uj"
        self._read_file(counter)
        return Zone(f"{path.name} {name}", counter, int(self._read_file(path / "max_energy_range_uj")))

    def _read_file(self, path: Path) -> int:
        try:
            return int(path.read_text())
        except PermissionError as error:
            raise MeasurementError(
                f"{path} may be read by root only. Grant it until the next start with: "
                f"sudo chmod a+r {self.root / _FOLDER}/intel-rapl:*/energy_uj"
            ) from error
        except (OSError, ValueError) as error:
            raise MeasurementError(f"{path} cannot be read ({error}): the meter 'rapl' does not answer.") from error

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Find the counters."""
        self._zones = self.zones()
        self._last = {zone.name: self._read_file(zone.counter) for zone in self._zones}
        yield

    def read(self) -> float:
        """Return the energy since it was opened first [J], over all zones; counters that begin anew go on."""
        for zone in self._zones:
            now = self._read_file(zone.counter)
            step = now - self._last[zone.name]
            # It wraps once at most: a package at 1 kW takes minutes for its range.
            self._counted += step if step >= 0 else step + zone.largest + 1
            self._last[zone.name] = now
        return self._counted * 1e-6
