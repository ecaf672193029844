"""`NvmlMeter`: the energy of an NVIDIA GPU, as its driver tells it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.imports import require
from nni_latency.measurement._meter import Meter
from nni_latency.measurement.meters._counter import CounterMeter
from nni_latency.measurement.meters._sampled import SampledMeter
from nni_latency.platforms import gpu_handle, read_conditions

#: What may be asked for: the counter of energy, the power now, or the first of them that the GPU has.
_WAYS = ("", "energy", "power")

#: How often clocks are looked at within a window [s].
_LOOK_EVERY = 0.1

#: What is kept of the conditions at both ends of a window.
_KEPT = ("gpu_temperature", "gpu_power_limit")


class NvmlMeter(Meter):
    """Reads the whole board's energy: its total-energy counter where there is one (Volta and later), else its power.

    The power is sampled faster than it is updated, which is found by test. Clocks [Hz], temperature [C] and power limit
    [W] of every window are kept in the record.

    Parameters
    ----------
    device : str, default="cuda:0"
        The GPU, as torch counts.
    way : {"", "energy", "power"}, default=""
        The counter, the power, or the first of them that the GPU has.
    nvml : module, optional
        ``pynvml`` or what stands in for it.
    root : Path, default=Path("/")
        The folder in which ``proc`` lies.

    Raises
    ------
    InvalidValueError
        If the device is no GPU, or there is no such way.

    References
    ----------
    .. [1] NVIDIA, "NVML API Reference Guide", nvmlDeviceGetTotalEnergyConsumption and nvmlDeviceGetPowerUsage.
       https://docs.nvidia.com/deploy/nvml-api
    """

    metric = "energy"
    resolution = 1e-3

    def __init__(self, device: str = "cuda:0", way: str = "", *, nvml: Any = None, root: Path = Path("/")) -> None:
        if not device.startswith("cuda"):
            raise InvalidValueError(f"The meter 'nvml' reads NVIDIA GPUs, not {device!r}. Take the meter 'rapl'.")
        if way not in _WAYS:
            raise InvalidValueError(f"The meter 'nvml' takes 'energy' or 'power', as in nvml:power. Got {way!r}.")
        self.device, self.way, self.root = device, way, root
        self._given = nvml
        self._inner: CounterMeter | SampledMeter | None = None
        self._watch: _Watch | None = None
        self._seen: dict[str, list[float]] = {}

    @classmethod
    def of(cls, device: str, argument: str) -> NvmlMeter:
        """Make it of ``nvml``, ``nvml:energy`` or ``nvml:power``."""
        return cls(device, argument)

    @property
    def description(self) -> str:
        """What it is, with what it reads once that is known."""
        return f"nvml:{self.way}" if self.way else "nvml"

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Open the driver, choose what is read, and find how often that is updated.

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
                self._inner, self._watch = inner, _Watch(nvml, handle)
                yield
        finally:
            # Handles and threads do not travel to worker processes.
            self._inner = self._watch = None
            nvml.nvmlShutdown()

    def _choose(self, nvml: Any, handle: Any) -> CounterMeter | SampledMeter:
        ways: dict[str, tuple[str, Any]] = {
            "energy": ("nvmlDeviceGetTotalEnergyConsumption", EnergyCounter),
            "power": ("nvmlDeviceGetPowerUsage", PowerSamples),
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
            f"The GPU {self.device} tells nothing that {self.description} reads ({'; '.join(reasons)}). "
            "Name another meter, or assume a power: constant:WATTS"
        )

    def _check_alone(self) -> dict[str, float]:
        """Raise `MeasurementError` if another process uses the GPU; return temperature and power limit."""
        found = read_conditions(self.device, root=self.root, nvml=self._given)
        # Of what a container cannot see nobody can say whose it is; the conditions of the campaign remark on it.
        seen = [each for each in found.gpu_other_processes or () if (self.root / "proc" / str(each)).exists()]
        others = sorted(set(seen) - _ancestors(self.root))
        if others:
            ids = ", ".join(map(str, others))
            raise MeasurementError(
                f"Another process uses the GPU {self.device} (process {ids}), and its energy cannot be told from that "
                "of the network. End it, or measure on another GPU."
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
            If the driver stopped answering, the reading stalled or began anew, or another process came to the GPU.
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

    resolution = 1e-3

    def __init__(self, nvml: Any, handle: Any) -> None:
        super().__init__()
        self._nvml, self._handle = nvml, handle

    @property
    def description(self) -> str:
        """What it is."""
        return "The energy counter of the GPU"

    def read(self) -> float:
        """Return what it says [J]."""
        with _answering(self._nvml):
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) * 1e-3


class PowerSamples(SampledMeter):
    """The power of a GPU, which some drivers average over up to a second."""

    settling = 1.0

    def __init__(self, nvml: Any, handle: Any) -> None:
        super().__init__()
        self._nvml, self._handle = nvml, handle

    @property
    def description(self) -> str:
        """What it is."""
        return "The power reading of the GPU"

    def readings(self) -> Sequence[tuple[float, float]]:
        """Return the power now."""
        with _answering(self._nvml):
            return [(time.perf_counter(), float(self._nvml.nvmlDeviceGetPowerUsage(self._handle)) * 1e-3)]


class _Watch:
    """Looks at the clock of a GPU's multiprocessors within a window."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._over, self._clocks = threading.Event(), list[float]()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._over, self._clocks = threading.Event(), []
        self._thread = threading.Thread(target=self._follow, args=(self._over,), name="clocks", daemon=True)
        self._thread.start()

    def _follow(self, over: threading.Event) -> None:
        # Not at once: the clocks of the moment before the window are not its own.
        while not over.wait(_LOOK_EVERY):
            with contextlib.suppress(self._nvml.NVMLError):
                self._clocks.append(self._nvml.nvmlDeviceGetClockInfo(self._handle, self._nvml.NVML_CLOCK_SM) * 1e6)

    def stop(self) -> list[float]:
        """Return the first, lowest, highest and last clock that was seen [Hz]; none in a short window."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        seen = self._clocks
        return [seen[0], min(seen), max(seen), seen[-1]] if seen else []


def _ancestors(root: Path) -> set[int]:
    """Return the processes that started this one: a worker measures for one that may hold memory of the GPU itself."""
    process, found = os.getpid(), {os.getppid()}
    with contextlib.suppress(OSError, ValueError, IndexError):
        while process > 1:
            # The second field, a name in brackets, may hold anything.
            process = int((root / "proc" / str(process) / "stat").read_text().rpartition(")")[2].split()[1])
            found.add(process)
    return found


@contextlib.contextmanager
def _answering(nvml: Any) -> Iterator[None]:
    try:
        yield
    except nvml.NVMLError as error:
        raise MeasurementError(
            f"The driver of the GPU stopped answering ({error}): the GPU may have fallen off the bus. See 'nvidia-smi'."
        ) from error
