# SPDX-License-Identifier: Apache-2.0
"""Meters on the board: NVIDIA's driver, RAPL counters of Linux, and boards that Zeus reads."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError, MeasurementError, UnknownNameError
from nni_latency.imports import require
from nni_latency.measurement._meter import Meter
from nni_latency.measurement.meters._base import CounterMeter, SampledMeter
from nni_latency.platforms import ancestors, gpu_handle, read_conditions

#: What to read: the first of both that the GPU supports, the energy counter, or the current power.
_WAYS = ("", "energy", "power")

#: Conditions that are recorded at both ends of a window.
_KEPT = ("gpu_temperature", "gpu_power_limit")

#: Domains, with the prefixes of the names of their zones. Cores are a part of their package.
DOMAINS: dict[str, tuple[str, ...]] = {
    "all": ("package", "dram"),
    "package": ("package",),
    "cores": ("core",),
    "dram": ("dram",),
}

#: Parts that add up to a chip, by their names in Zeus [mJ]; a total replaces all of them.
_TOTAL = "total_energy_mj"

_PARTS = ("cpu_total_mj", "dram_mj", "gpu_mj", "gpu_sram_mj", "ane_mj", "cpu_energy_mj", "gpu_energy_mj")


class NvmlMeter(Meter):
    """Reads the energy of the whole board: by its total-energy counter (Volta and later), otherwise by its power.

    The power is sampled faster than it is updated; its period is measured. Clocks [Hz], temperature [C] and power limit
    [W] of every window are stored in the record.

    Parameters
    ----------
    device : str, default="cuda:0"
        The GPU, as torch counts.
    way : {"", "energy", "power"}, default=""
        The counter, the power, or by default the first of them that the GPU supports.
    nvml : module, optional
        ``pynvml`` or a substitute.
    root : Path, default=Path("/")
        The folder that contains ``proc``.

    Raises
    ------
    InvalidValueError
        If the device is not a GPU, or the way is unknown.

    References
    ----------
    .. [1] NVIDIA, "NVML API Reference Guide", nvmlDeviceGetTotalEnergyConsumption and nvmlDeviceGetPowerUsage.
       https://docs.nvidia.com/deploy/nvml-api
    """

    metric = "energy"
    resolution = 1e-3

    #: Time between readings of the clocks within a window [s].
    look_every = 0.1

    #: Some drivers average the power over up to a second, so the beginning of a window reflects the time before [s].
    power_settling = 1.0

    def __init__(self, device: str = "cuda:0", way: str = "", *, nvml: Any = None, root: Path = Path("/")) -> None:
        if not device.startswith("cuda"):
            raise InvalidValueError(f"The meter 'nvml' reads NVIDIA GPUs, not {device!r}. Use the meter 'rapl'.")
        if way not in _WAYS:
            raise InvalidValueError(f"The meter 'nvml' takes 'energy' or 'power', as in nvml:power. Got {way!r}.")
        self.device, self.way, self.root = device, way, root
        self._given = nvml
        self._inner: CounterMeter | SampledMeter | None = None
        self._watch: _Watch | None = None
        self._seen: dict[str, list[float]] = {}

    @classmethod
    def of(cls, device: str, argument: str = "") -> NvmlMeter:
        """Make the meter from ``nvml``, ``nvml:energy`` or ``nvml:power``."""
        return cls(device, argument)

    @property
    def description(self) -> str:
        """Its description in results and messages."""
        return f"nvml:{self.way}" if self.way else "nvml"

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Open the driver, choose a reading, and determine its period.

        Raises
        ------
        MeasurementError
            If no driver answers, the GPU has neither reading, or another process uses it.
        """
        nvml = self._given or require("pynvml", "The meter 'nvml'", "nvidia-ml-py")
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise MeasurementError(f"No NVIDIA driver answers ({error}): the meter 'nvml' reads nothing.") from error
        try:
            handle = gpu_handle(self.device, nvml)
            self._check_alone()
            inner = self._choose(nvml, handle)
            with inner.session():
                self.period, self.resolution = inner.period, inner.resolution
                self.least_steps, self.settling = inner.least_steps, inner.settling
                self._inner, self._watch = inner, _Watch(nvml, handle, self.look_every)
                yield
        finally:
            # Handles and threads cannot be sent to worker processes.
            self._inner = self._watch = None
            nvml.nvmlShutdown()

    def _choose(self, nvml: Any, handle: Any) -> CounterMeter | SampledMeter:
        ways: dict[str, tuple[str, Any]] = {
            "energy": ("nvmlDeviceGetTotalEnergyConsumption", EnergyCounter),
            "power": ("nvmlDeviceGetPowerUsage", partial(PowerSamples, settling=self.power_settling)),
        }
        reasons = []
        for way, (call, kind) in ways.items():
            if self.way in ("", way):
                try:
                    getattr(nvml, call)(handle)
                except (nvml.NVMLError, AttributeError) as error:
                    reasons.append(f"{way}: {error}")
                    continue
                made: CounterMeter | SampledMeter = kind(nvml, handle)
                return made
        raise MeasurementError(
            f"The GPU {self.device} has nothing that {self.description} can read ({'; '.join(reasons)}). "
            "Name another meter, or assume a power: constant:WATTS"
        )

    def _check_alone(self) -> dict[str, float]:
        """Raise `MeasurementError` if another process uses the GPU; return temperature and power limit."""
        found = read_conditions(self.device, root=self.root, nvml=self._given)
        # Processes outside of the container are unknown here; the conditions of the campaign mention them.
        seen = [each for each in found.gpu_other_processes or () if (self.root / "proc" / str(each)).exists()]
        # The parent process of a worker may hold memory of the GPU itself.
        others = sorted(set(seen) - {os.getppid(), *ancestors(os.getpid(), self.root)})
        if others:
            ids = ", ".join(map(str, others))
            raise MeasurementError(
                f"Another process uses the GPU {self.device} (process {ids}), and its energy cannot be separated from "
                "that of the network. End it, or measure on another GPU."
            )
        return {name: value for name in _KEPT if (value := getattr(found, name)) is not None}

    def start(self) -> None:
        """Begin a window."""
        assert self._inner is not None, "outside of a session"
        assert self._watch is not None
        self._seen = {name: [value] for name, value in self._check_alone().items()}
        self._watch.start()
        self._inner.start()

    def stop(self) -> float:
        """End the window and return its energy [J].

        Raises
        ------
        MeasurementError
            If the driver stopped answering, the reading stalled or was reset, or another process uses the GPU.
        """
        assert self._inner is not None, "outside of a session"
        assert self._watch is not None
        try:
            energy = self._inner.stop()
        finally:
            clocks = self._watch.stop()
        for name, value in self._check_alone().items():
            self._seen.setdefault(name, []).append(value)
        self._seen["gpu_clock"] = clocks
        return energy

    def observations(self) -> Mapping[str, Sequence[float]]:
        """Return clocks [Hz] within the last window, and temperature [C] and power limit [W] at its ends."""
        return {name: values for name, values in self._seen.items() if values}

    def idle(self) -> float:
        """Return the power of the board without work [W]."""
        assert self._inner is not None, "outside of a session"
        return self._inner.idle()


class EnergyCounter(CounterMeter):
    """The total-energy counter of a GPU, which counts millijoules since the driver was loaded."""

    description = "The energy counter of the GPU"
    resolution = 1e-3

    def __init__(self, nvml: Any, handle: Any) -> None:
        super().__init__()
        self._nvml, self._handle = nvml, handle

    def read(self) -> float:
        """Return the reading of the counter [J]."""
        with _answering(self._nvml):
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) * 1e-3


class PowerSamples(SampledMeter):
    """The power of a GPU, which some drivers average over up to a second."""

    description = "The power reading of the GPU"

    def __init__(self, nvml: Any, handle: Any, *, settling: float) -> None:
        super().__init__()
        self.settling = settling
        self._nvml, self._handle = nvml, handle

    def readings(self) -> Sequence[tuple[float, float]]:
        """Return the current power."""
        with _answering(self._nvml):
            return [(time.perf_counter(), float(self._nvml.nvmlDeviceGetPowerUsage(self._handle)) * 1e-3)]


class _Watch:
    """Reads the clock of a GPU's multiprocessors within a window."""

    def __init__(self, nvml: Any, handle: Any, every: float) -> None:
        self._nvml, self._handle, self._every = nvml, handle, every
        self._over, self._clocks = threading.Event(), list[float]()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._over, self._clocks = threading.Event(), []
        self._thread = threading.Thread(target=self._follow, args=(self._over,), name="clocks", daemon=True)
        self._thread.start()

    def _follow(self, over: threading.Event) -> None:
        # Not immediately: the first clocks would be those before the window.
        while not over.wait(self._every):
            with contextlib.suppress(self._nvml.NVMLError):
                self._clocks.append(self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM) * 1e6)

    def stop(self) -> list[float]:
        """Return the first, lowest, highest and last clock that was seen [Hz]; none in a short window."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        seen = self._clocks
        return [seen[0], min(seen), max(seen), seen[-1]] if seen else []


@contextlib.contextmanager
def _answering(nvml: Any) -> Iterator[None]:
    try:
        yield
    except nvml.NVMLError as error:
        raise MeasurementError(
            f"The driver of the GPU stopped answering ({error}): the GPU may have fallen off the bus. See 'nvidia-smi'."
        ) from error


@dataclass(frozen=True)
class Zone:
    """One counter: its name, such as ``package-0``, its file, and the number after which it wraps around [uJ]."""

    name: str
    counter: Path
    largest: int


class RaplMeter(CounterMeter):
    """Reads the energy of packages and memory from powercap, which includes all processes of the machine.

    Parameters
    ----------
    domain : {"all", "package", "cores", "dram"}, default="all"
        Domain to count; ``all`` is packages and memory.
    root : Path, default=Path("/")
        The folder that contains ``sys``.
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

    #: The counters, below `root`.
    folder = Path("sys/class/powercap")

    def __init__(self, domain: str = "all", *, root: Path = Path("/"), **options: Callable[..., Any]) -> None:
        super().__init__(**options)
        if domain not in DOMAINS:
            raise UnknownNameError.of("domain of RAPL", domain, list(DOMAINS))
        self.domain, self.root = domain, root
        self._zones: tuple[Zone, ...] = ()
        self._last: dict[str, int] = {}
        self._counted = 0

    @classmethod
    def of(cls, device: str, argument: str = "") -> RaplMeter:
        """Make the meter from ``rapl`` or ``rapl:DOMAIN``.

        Raises
        ------
        InvalidValueError
            If the device is a GPU.
        """
        if device != "cpu":
            raise InvalidValueError(f"The meter 'rapl' reads processors, not {device!r}. Use the meter 'nvml'.")
        return cls(argument or "all")

    @property
    def description(self) -> str:
        """Its description in results and messages."""
        return "rapl" if self.domain == "all" else f"rapl:{self.domain}"

    def zones(self) -> tuple[Zone, ...]:
        """Return the counters that are read.

        Raises
        ------
        MeasurementError
            If there are none, or they may not be read; the message has the command that permits it.
        """
        folder = self.root / self.folder
        # 'intel-rapl-mmio' is a second set of names of the same counters, which must not count twice.
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
                f"sudo chmod a+r {self.root / self.folder}/intel-rapl:*/energy_uj"
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
        """Return the energy since the first session [J], over all zones; counters that wrap around continue."""
        for zone in self._zones:
            now = self._read_file(zone.counter)
            step = now - self._last[zone.name]
            # It wraps around at most once: a package at 1 kW takes minutes for its range.
            self._counted += step if step >= 0 else step + zone.largest + 1
            self._last[zone.name] = now
        return self._counted * 1e-6


class ZeusMeter(CounterMeter):
    """Reads the energy of a whole chip through Zeus [1]_: Jetson boards and Apple silicon.

    Parameters
    ----------
    chip : object, optional
        Result of ``zeus.device.soc.get_soc()``.
    **options
        As for `CounterMeter`.

    References
    ----------
    .. [1] J. You, J.-W. Chung, M. Chowdhury, "Zeus: Understanding and Optimizing GPU Energy Consumption of DNN
       Training", NSDI 2023. https://ml.energy/zeus
    """

    description = "zeus"
    resolution = 1e-3

    def __init__(self, chip: Any = None, **options: Callable[..., Any]) -> None:
        super().__init__(**options)
        self._given = self._chip = chip

    @classmethod
    def of(cls, device: str, argument: str = "") -> ZeusMeter:
        """Make the meter from ``zeus``."""
        return cls()

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Find the chip.

        Raises
        ------
        MissingDependencyError
            If Zeus is not installed.
        MeasurementError
            If it supports no chip of this machine.
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
            # It may hold a process, which cannot be sent to workers.
            self._chip = self._given

    def read(self) -> float:
        """Return the energy since an unspecified time [J]."""
        try:
            found = dataclasses.asdict(self._chip.get_total_energy_consumption())
        except Exception as error:  # as above
            raise MeasurementError(f"Zeus stopped answering ({type(error).__name__}: {error}).") from error
        parts = [found[_TOTAL]] if found.get(_TOTAL) is not None else [found.get(name) for name in _PARTS]
        known = [float(part) for part in parts if part is not None]
        if not known:
            raise MeasurementError(f"Zeus reports nothing that adds up to a chip. It reports: {', '.join(found)}.")
        return sum(known) * 1e-3
