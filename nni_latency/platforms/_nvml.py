"""What the driver of an NVIDIA GPU tells about it at this moment."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nni_latency.errors import MeasurementError
from nni_latency.platforms._facts import nvml_index

# The bits of the driver's answer; the interface fixes them, and older releases of pynvml have no names for some.
REASONS: dict[int, str] = {
    0x001: "idle",
    0x002: "application clocks",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}


def nvml_conditions(index: int, root: Path, nvml: Any = None) -> Iterator[tuple[str, Any]]:
    """Yield the conditions, by their names, of torch's GPU `index`; none where the driver does not answer.

    Parameters
    ----------
    index : int
        Number of the GPU as torch counts.
    root : Path
        The folder in which ``proc`` lies.
    nvml : module, optional
        ``pynvml`` or what stands in for it.
    """
    nvml = importlib.import_module("pynvml") if nvml is None else nvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return
    try:
        yield from _asked(nvml, nvml.nvmlDeviceGetHandleByIndex(nvml_index(index)), root)
    except (nvml.NVMLError, RuntimeError):
        # torch answers with a RuntimeError if the GPU is hidden from this process or not there.
        return
    finally:
        nvml.nvmlShutdown()


def gpu_handle(device: str, nvml: Any) -> Any:
    """Return what the open driver calls the GPU ``cuda`` or ``cuda:N`` of torch.

    Raises
    ------
    MeasurementError
        If it is hidden from this process or not there.
    """
    try:
        return nvml.nvmlDeviceGetHandleByIndex(nvml_index(int(device.partition(":")[2] or 0)))
    except (nvml.NVMLError, RuntimeError) as error:
        raise MeasurementError(f"The driver knows no GPU {device!r}: {error}") from error


def _asked(nvml: Any, handle: Any, root: Path) -> Iterator[tuple[str, Any]]:
    questions = {
        "gpu_clock": (1e6, ("ClockInfo",), (nvml.NVML_CLOCK_SM,)),
        "gpu_clock_max": (1e6, ("MaxClockInfo",), (nvml.NVML_CLOCK_SM,)),
        "gpu_memory_clock": (1e6, ("ClockInfo",), (nvml.NVML_CLOCK_MEM,)),
        # The newer name comes first: the older one goes away with CUDA 14.
        "gpu_temperature": (1.0, ("TemperatureV", "Temperature"), (nvml.NVML_TEMPERATURE_GPU,)),
        "gpu_power": (1e-3, ("PowerUsage",), ()),
        "gpu_power_limit": (1e-3, ("EnforcedPowerLimit",), ()),
    }
    for name, (unit, calls, arguments) in questions.items():
        answer = _ask(nvml, calls, handle, *arguments)
        if answer is not None:
            yield name, answer * unit
    bits = _ask(nvml, ("CurrentClocksEventReasons", "CurrentClocksThrottleReasons"), handle)
    if bits is not None:
        yield "gpu_clock_reasons", reasons_in_words(bits)
    rates = _ask(nvml, ("UtilizationRates",), handle)
    if rates is not None:
        yield "gpu_utilisation", rates.gpu / 100
    lists = [_ask(nvml, (f"{kind}RunningProcesses",), handle) for kind in ("Compute", "Graphics")]
    if lists != [None, None]:
        ids = {process.pid for processes in lists for process in processes or ()}
        yield "gpu_other_processes", tuple(sorted(_others(ids, root)))


def _ask(nvml: Any, calls: tuple[str, ...], handle: Any, *arguments: Any) -> Any:
    """Return the answer to the first call that pynvml and the driver know; None if this GPU answers none."""
    for call in calls:
        try:
            return getattr(nvml, f"nvmlDeviceGet{call}")(handle, *arguments)
        except (nvml.NVMLError, AttributeError):
            continue
    return None


def reasons_in_words(bits: int) -> tuple[str, ...]:
    """Name what keeps the clocks down; a bit that is newer than this list is told by its number.

    Examples
    --------
    >>> reasons_in_words(0x44), reasons_in_words(0x1000)
    (('power cap', 'hardware thermal slowdown'), ('reason 0x1000',))
    """
    single = [1 << place for place in range(bits.bit_length()) if bits >> place & 1]
    return tuple(REASONS.get(bit, f"reason {bit:#x}") for bit in single)


def _others(ids: set[int], root: Path) -> set[int]:
    """Take this process and those that it started out of those on the GPU."""
    import torch

    own = {each for each in ids if _descends(each, root)}
    if own or not torch.cuda.is_initialized():
        return ids - own
    # In a container the driver tells the ids of the host. This process is on the GPU, so one foreign id is its own;
    # of several nobody can say which, and they are others all the same.
    foreign = {each for each in ids if not (root / "proc" / str(each)).exists()}
    return ids - foreign if len(foreign) == 1 else ids


def _descends(process: int, root: Path) -> bool:
    """Say whether a process is this one, or one that it started, such as a worker that measures."""
    while process > 1 and process != os.getpid():
        try:
            # The second field, a name in brackets, may hold anything.
            process = int((root / "proc" / str(process) / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return process == os.getpid()
