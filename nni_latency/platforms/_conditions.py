# SPDX-License-Identifier: Apache-2.0
"""`Conditions`: what changes on a machine from minute to minute, and decides how steady a measurement is."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from nni_latency.errors import InvalidValueError, MeasurementError, UnknownNameError
from nni_latency.platforms._facts import Fact, affinity, nvml_index

_WORDS: dict[Any, str] = {
    float: "a finite number",
    int: "an int",
    bool: "a bool",
    str: "text",
    tuple[int, ...]: "a tuple of ints",
    tuple[str, ...]: "a tuple of texts",
}

Found = Iterator[tuple[str, Any]]

# Columns of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal. Waiting and stolen time is not work.
_WORK = (0, 1, 2, 5, 6)

_STEAL = 7

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


def _described(meaning: str) -> Any:
    """Make an optional field that carries its meaning, so that `CONDITIONS` and the class cannot disagree."""
    return field(default=None, metadata={"meaning": meaning})


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The state of a machine at one moment. Immutable.

    Every field is optional, and None where it could not be read; `CONDITIONS` has their meanings and units. Fields
    that count since some beginning, such as `steal`, say something only as a difference of two readings.

    Raises
    ------
    InvalidValueError
        If a field has a value of another type.

    Examples
    --------
    >>> Conditions(load=0.5, cpu_governor="performance").as_dict()
    {'load': 0.5, 'cpu_governor': 'performance'}
    """

    taken: float | None = _described("when it was read, by a clock that only the differences of mean something [s]")
    processors: int | None = _described("logical processors that this process may use")
    processors_online: int | None = _described("logical processors of the machine")
    load: float | None = _described("mean number of running processes on the machine over the last minute")
    busy: float | None = _described("time that the usable processors have worked, summed over them [s]")
    own_time: float | None = _described("time that processors have worked for this process and its children [s]")
    cpu_frequency: float | None = _described("current frequency, mean over the usable processors [Hz]")
    cpu_frequency_top: float | None = _described("current frequency of the fastest usable processor [Hz]")
    cpu_governor: str | None = _described("frequency governors of the usable processors")
    cpu_temperature: float | None = _described("temperature of the warmest zone [C]")
    cpu_slowed: bool | None = _described("whether the processors are slowed down because of their heat or supply")
    virtualised: bool | None = _described("whether the machine runs under a hypervisor")
    steal: float | None = _described("time that a hypervisor has taken from the usable processors, summed [s]")
    cpu_quota: float | None = _described("processors' worth of time that the control group grants")
    throttled: float | None = _described("time that the quota has stopped processors for, summed over them [s]")
    throttled_periods: int | None = _described("how often the quota has stopped the control group")
    memory_available: int | None = _described("main memory that can be had without swapping [byte]")
    swap_in: int | None = _described("memory that has been read back from swap since the machine started [byte]")
    gpu_clock: float | None = _described("current clock of the GPU's multiprocessors [Hz]")
    gpu_clock_max: float | None = _described("highest clock of the GPU's multiprocessors [Hz]")
    gpu_clock_reasons: tuple[str, ...] | None = _described("what keeps the GPU's clocks from being higher")
    gpu_memory_clock: float | None = _described("current clock of the GPU's memory [Hz]")
    gpu_temperature: float | None = _described("temperature of the GPU [C]")
    gpu_power: float | None = _described("power that the GPU draws [W]")
    gpu_power_limit: float | None = _described("power limit of the GPU [W]")
    gpu_utilisation: float | None = _described("share of the last moment in which the GPU worked, from 0 to 1")
    gpu_other_processes: tuple[int, ...] | None = _described("ids of other processes that use the GPU")
    meter: str | None = _described("what reads energy and power")
    meter_assumption: str | None = _described("what that assumes instead of measuring it")
    idle_power: float | None = _described("power that it reads without work [W]")

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            if not _fits(getattr(self, name), kind):
                raise InvalidValueError(
                    f"The {name!r} of Conditions must be {_WORDS[kind]} or None. Got {getattr(self, name)!r}."
                )

    def as_dict(self) -> dict[str, Any]:
        """Return what was read as plain values, in the order of `CONDITIONS`; what was not is left out."""
        known = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in known.items()
            if value is not None
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Conditions:
        """Make the conditions that `as_dict` returned; names that this version does not know are passed over.

        Raises
        ------
        InvalidValueError
            If a value has another type than its field.

        Examples
        --------
        >>> Conditions.from_dict({"load": 0.5, "phase_of_the_moon": "full"}) == Conditions(load=0.5)
        True
        """
        # JSON has no tuples.
        known: dict[str, Any] = {
            name: tuple(values[name]) if isinstance(values[name], list) else values[name]
            for name in _KINDS
            if name in values
        }
        return cls(**known)


#: Every field of `Conditions`, in the order in which it is shown.
CONDITIONS: tuple[Fact, ...] = tuple(Fact(item.name, item.metadata["meaning"]) for item in fields(Conditions))

# The first argument of each "kind | None".
_KINDS: dict[str, Any] = {name: get_args(hint)[0] for name, hint in get_type_hints(Conditions).items()}


def read_conditions(
    device: str = "cpu", *, root: Path = Path("/"), processors: Sequence[int] | None = None, nvml: Any = None
) -> Conditions:
    """Read the state of this machine now; what cannot be read is left out.

    The processors are read from the files of a Linux kernel, whatever the device: they feed a GPU as well.

    Parameters
    ----------
    device : str, default="cpu"
        ``cpu``, ``cuda`` or ``cuda:N``.
    root : Path, default=Path("/")
        The folder in which ``proc`` and ``sys`` lie.
    processors : sequence of int, optional
        Numbers of the processors to look at; by default those that this process may use.
    nvml : module, optional
        What speaks to the driver of the GPU; by default ``pynvml``, which is imported for a GPU alone.

    Raises
    ------
    UnknownNameError
        If `device` is not the name of a device. A GPU that is not there is left out instead.

    Examples
    --------
    >>> before = read_conditions()
    >>> after = read_conditions()
    >>> after.taken >= before.taken
    True
    """
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", device)
    if not match:
        raise UnknownNameError.of("device", device, ["cpu", "cuda:N"])
    taken = time.perf_counter()
    found = dict(kernel_conditions(root, affinity() if processors is None else processors))
    if device != "cpu":
        found.update(nvml_conditions(int(match[1] or 0), root, nvml))
    return Conditions(taken=taken, **found)


def _fits(value: object, kind: Any) -> bool:
    if value is None:
        return True
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        return isinstance(value, tuple) and all(each is not None and _fits(each, item) for each in value)
    if isinstance(value, bool):
        return kind is bool
    if kind is float:
        return isinstance(value, (int, float)) and -math.inf < value < math.inf
    return isinstance(value, kind)


def kernel_conditions(root: Path, processors: Sequence[int]) -> Found:
    """Yield the conditions, by their names, that can be read under `root`.

    Examples
    --------
    >>> dict(kernel_conditions(Path("/nowhere"), [0, 1]))
    {'processors': 2}
    """
    yield "processors", len(processors)
    yield from _load(root / "proc")
    yield from _times(root / "proc", processors)
    yield from _frequencies(root, processors)
    yield from _governors(root, processors)
    yield from _heat(root)
    yield from _hypervisor(root / "proc")
    yield from _quota(root)
    yield from _memory(root / "proc")


def _load(proc: Path) -> Found:
    match = re.match(r"[\d.]+", _text(proc / "loadavg"))
    if match:
        yield "load", float(match[0])


def _times(proc: Path, processors: Sequence[int]) -> Found:
    rows = re.findall(r"^cpu(\d+) ([\d ]+)$", _text(proc / "stat"), flags=re.MULTILINE)
    ticks = {int(number): [int(count) for count in counts.split()] for number, counts in rows}
    if ticks:
        yield "processors_online", len(ticks)
    mine = [ticks[number] for number in processors if len(ticks.get(number, ())) > _STEAL]
    if mine:
        yield "busy", sum(row[column] for row in mine for column in _WORK) * _tick()
        yield "steal", sum(row[_STEAL] for row in mine) * _tick()
    # The name of the program stands in brackets before the numbers and may hold anything, a bracket as well.
    own = _text(proc / "self/stat").rpartition(")")[2].split()[11:15]
    if len(own) == 4:
        yield "own_time", sum(int(count) for count in own) * _tick()


def _frequencies(root: Path, processors: Sequence[int]) -> Found:
    told = [_text(_cpufreq(root, number) / "scaling_cur_freq") for number in processors]
    found = [float(text) * 1e3 for text in told if text.isdigit()] or _cpuinfo_frequencies(root / "proc", processors)
    if found:
        yield "cpu_frequency", sum(found) / len(found)
        yield "cpu_frequency_top", max(found)


def _cpuinfo_frequencies(proc: Path, processors: Sequence[int]) -> list[float]:
    pattern = r"^processor\s*:\s*(\d+)$(?:\n.+)*?\ncpu MHz\s*:\s*([\d.]+)$"
    found = re.findall(pattern, _text(proc / "cpuinfo"), flags=re.MULTILINE)
    return [float(megahertz) * 1e6 for number, megahertz in found if int(number) in processors]


def _governors(root: Path, processors: Sequence[int]) -> Found:
    told = {_text(_cpufreq(root, number) / "scaling_governor") for number in processors} - {""}
    if told:
        yield "cpu_governor", ", ".join(sorted(told))


def _heat(root: Path) -> Found:
    degrees = [_text(path) for path in root.glob("sys/class/thermal/thermal_zone*/temp")]
    # A zone that does not work has a temperature that no machine has.
    known = [int(text) / 1000 for text in degrees if re.fullmatch(r"-?\d+", text) and -50_000 < int(text) < 150_000]
    if known:
        yield "cpu_temperature", max(known)
    cooling = [
        _text(path / "cur_state")
        for path in root.glob("sys/class/thermal/cooling_device*")
        if re.search("cpu|processor", _text(path / "type"), re.IGNORECASE)
    ]
    states = [int(text) for text in cooling if text.isdigit()]
    firmware = re.fullmatch(r"(?:0x)?([0-9a-f]+)", _text(root / "sys/devices/platform/soc/soc:firmware/get_throttled"))
    if states or firmware:
        yield "cpu_slowed", any(states) or bool(firmware and int(firmware[1], 16) & 0xF)


def _hypervisor(proc: Path) -> Found:
    # Processors other than those of Intel and AMD have no such flag, and no line of that name.
    match = re.search(r"^flags\s*:(.*)$", _text(proc / "cpuinfo"), flags=re.MULTILINE)
    if match:
        yield "virtualised", "hypervisor" in match[1].split()


def _quota(root: Path) -> Found:
    folders = list(_control_groups(root))
    granted = [share for folder in folders if (share := _granted(folder)) is not None]
    if granted:
        yield "cpu_quota", min(granted)
    told = [dict(re.findall(r"^(\w+) (\d+)$", _text(folder / "cpu.stat"), flags=re.MULTILINE)) for folder in folders]
    stopped = [stat for stat in told if "nr_throttled" in stat]
    if stopped:
        yield "throttled", sum(_throttled(stat) for stat in stopped)
        yield "throttled_periods", sum(int(stat["nr_throttled"]) for stat in stopped)


def _control_groups(root: Path) -> Iterator[Path]:
    """Find the folders of this process's control group and of those above it: each may have a quota."""
    rows = [line.split(":", 2) for line in _text(root / "proc/self/cgroup").splitlines() if line.count(":") >= 2]
    first = [(names, path) for _, names, path in rows if "cpu" in names.split(",")]
    second = [("", path) for _, names, path in rows if not names]
    # Version 1, where it rules the processors, mounts every controller apart, and version 2 all of them as one.
    names, path = (first or second or [("", "/")])[0]
    mounted = root / "sys/fs/cgroup"
    if names:
        mounted = mounted / names if (mounted / names).is_dir() else mounted / "cpu"
    # A path that leads outside of the container begins with dots; what can be seen of it begins where it is mounted.
    below = [part for part in path.split("/") if part not in {"", ".."}]
    for depth in range(len(below), -1, -1):
        folder = mounted.joinpath(*below[:depth])
        if folder.is_dir():
            yield folder


def _granted(folder: Path) -> float | None:
    """Read how many processors' worth of time a control group has; None if there is no limit."""
    both = _text(folder / "cpu.max") or " ".join(
        _text(folder / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    )
    # No limit is written "max" by version 2 and -1 by version 1.
    match = re.fullmatch(r"(\d+) (\d+)", both)
    return int(match[1]) / int(match[2]) if match else None


def _throttled(stat: dict[str, str]) -> float:
    """Return the throttled time [s]: version 2 counts microseconds and version 1 nanoseconds."""
    return int(stat.get("throttled_usec", 0)) * 1e-6 + int(stat.get("throttled_time", 0)) * 1e-9


def _memory(proc: Path) -> Found:
    available = re.search(r"^MemAvailable:\s*(\d+) kB", _text(proc / "meminfo"), flags=re.MULTILINE)
    if available:
        yield "memory_available", int(available[1]) * 1024
    pages = re.search(r"^pswpin (\d+)$", _text(proc / "vmstat"), flags=re.MULTILINE)
    if pages:
        yield "swap_in", int(pages[1]) * os.sysconf("SC_PAGE_SIZE")


def _cpufreq(root: Path, number: int) -> Path:
    return root / f"sys/devices/system/cpu/cpu{number}/cpufreq"


def _tick() -> float:
    """Return the length of the kernel's tick [s], the unit of its times."""
    return 1 / os.sysconf("SC_CLK_TCK")


def _text(path: Path) -> str:
    """Read a file; empty if it is not there or not for us."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


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
        raise MeasurementError(f"The driver has no GPU {device!r}: {error}") from error


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
    """Name what keeps the clocks down; a bit that is newer than this list is named by its number.

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
    # In a container the driver reports the ids of the host. This process is on the GPU, so one foreign id is its own;
    # of several it is unknown which, and the rest are other processes all the same.
    foreign = {each for each in ids if not (root / "proc" / str(each)).exists()}
    return ids - foreign if len(foreign) == 1 else ids


def _descends(process: int, root: Path) -> bool:
    """Say whether a process is this one, or one that it started, such as a worker that measures."""
    return process == os.getpid() or os.getpid() in ancestors(process, root)


def ancestors(process: int, root: Path) -> Iterator[int]:
    """Yield the processes that started a process, the nearest first, as far as they are known."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        while process > 1:
            # The second field, a name in brackets, may hold anything.
            process = int((root / "proc" / str(process) / "stat").read_text().rpartition(")")[2].split()[1])
            yield process
