# SPDX-License-Identifier: Apache-2.0
"""What can be read about a device and its software, as one described list."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nni_latency.version import __version__

FactValue = str | int | float | bool

#: Files of the first processor, below the root.
_PROCESSOR = Path("sys/devices/system/cpu/cpu0")

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class Fact:
    """One described fact of a platform.

    Parameters
    ----------
    name : str
        Key in files.
    meaning : str
        One line for a person, with the unit.
    identity : bool
        Whether numbers taken under different values of it may not be mixed.
    """

    name: str
    meaning: str
    identity: bool = False


#: Every fact that is collected, in the order in which it is shown. CPU and GPU facts stand only where they apply.
FACTS: tuple[Fact, ...] = (
    Fact("device_name", "name of the processor or GPU as its maker or driver reports it", identity=True),
    Fact("device_kind", "cpu or cuda", identity=True),
    Fact("cpu_signature", "family, model and stepping of the processor", identity=True),
    Fact("cpu_count", "logical processors that this process may use"),
    Fact("cpu_affinity", "numbers of the logical processors that this process may use"),
    Fact("cpu_governor", "frequency governor of the first processor"),
    Fact("cpu_frequency_max", "highest frequency of the first processor [Hz]"),
    Fact("cache", "largest cache of the device [byte]"),
    Fact("peak_flops", "operations per second of a large product of matrices in fp32, measured [FLOP/s]"),
    Fact("memory_bandwidth", "bytes read and written per second by a large copy, measured [byte/s]"),
    Fact("reference", "time of the reference operator in eager torch when a predictor learned the platform [s]"),
    Fact("predictor", "digest of the shipped predictor to which the platform was added"),
    Fact("memory", "main memory [byte]"),
    Fact("virtualised", "whether the machine runs under a hypervisor"),
    Fact("load", "mean number of running processes over the last minute, when it began"),
    Fact("gpu_name", "name of the GPU of a device on whose processor was measured"),
    Fact("gpu_memory", "memory of the GPU [byte]", identity=True),
    Fact("gpu_driver", "version of the GPU driver"),
    Fact("gpu_power_limit", "power limit of the GPU [W]"),
    Fact("gpu_clock_max", "highest clock of the GPU's multiprocessors [Hz]"),
    Fact("system", "operating system and its release"),
    Fact("machine", "instruction set", identity=True),
    Fact("python", "version of Python"),
    Fact("torch", "version of torch", identity=True),
    Fact("cuda", "version of CUDA that torch was built with", identity=True),
    Fact("cudnn", "version of cuDNN"),
    Fact("nni_latency", "version of this package"),
    Fact("source", "who published the numbers, and of what they are"),
    Fact("paper", "where they are described"),
    Fact("repository", "where they were published"),
    Fact("licence", "licence of the publication, with its copyright"),
    Fact("unpublished", "parts of the platform that are assumed"),
)


def collect_facts(device: str = "cpu", *, root: Path = Path("/")) -> dict[str, FactValue]:
    """Read the facts of a device of this machine; what cannot be read is left out.

    Parameters
    ----------
    device : str, default="cpu"
        ``cpu`` or ``cuda:N``.
    root : Path, default=Path("/")
        The folder that holds ``proc`` and ``sys``.

    Returns
    -------
    dict
        Fact name to value, in the order of `FACTS`.
    """
    found = dict(_machine_facts())
    found.update(_gpu_facts(int(device.partition(":")[2] or 0)) if device.startswith("cuda") else _cpu_facts(root))
    found.update(_software_facts())
    return {fact.name: found[fact.name] for fact in FACTS if fact.name in found}


def _machine_facts() -> Iterator[tuple[str, FactValue]]:
    yield "system", f"{platform.system()} {platform.release()}"
    yield "machine", platform.machine()
    yield "python", platform.python_version()
    yield "cpu_count", usable_processors()
    yield "cpu_affinity", format_processors(affinity())
    if hasattr(os, "getloadavg"):
        yield "load", round(os.getloadavg()[0], 2)
    if hasattr(os, "sysconf"):
        yield "memory", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_processors() -> int:
    """Count the logical processors that this process may run on."""
    return len(affinity())


def affinity() -> list[int]:
    """List the logical processors that this process may run on, by their numbers."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def format_processors(numbers: Iterable[int]) -> str:
    """Write numbers of processors the way ``taskset --cpu-list`` takes them.

    Examples
    --------
    >>> format_processors([1, 0]), format_processors([0, 1, 2, 3, 8])
    ('0,1', '0-3,8')
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


def _cpu_facts(root: Path) -> Iterator[tuple[str, FactValue]]:
    info = _proc_cpuinfo(root)
    yield "device_kind", "cpu"
    yield "device_name", info.get("model name") or platform.processor() or platform.machine()
    signature = [info.get(key) for key in ("cpu family", "model", "stepping")]
    if all(signature):
        yield "cpu_signature", "-".join(part for part in signature if part)
    if info:
        yield "virtualised", "hypervisor" in info.get("flags", "").split()
    largest = max((size for _, size in cache_sizes(root)), default=0)
    if largest:
        yield "cache", largest
    frequency = root / _PROCESSOR / "cpufreq"
    governor, top = _read(frequency / "scaling_governor"), _read(frequency / "cpuinfo_max_freq")
    if governor:
        yield "cpu_governor", governor
    if top:
        yield "cpu_frequency_max", int(top) * 1000


def _gpu_facts(index: int) -> Iterator[tuple[str, FactValue]]:
    import torch

    properties = torch.cuda.get_device_properties(index)
    yield "device_kind", "cuda"
    yield "device_name", properties.name
    yield "gpu_memory", properties.total_memory
    yield "cache", properties.L2_cache_size
    if torch.version.cuda:
        yield "cuda", torch.version.cuda
    if torch.backends.cudnn.version() is not None:
        yield "cudnn", str(torch.backends.cudnn.version())
    yield from _nvml_facts(index)


def nvml_index(index: int) -> int:
    """Return the number that the driver gives to torch's GPU `index`: CUDA_VISIBLE_DEVICES may hide or reorder GPUs."""
    import torch

    return torch.cuda._get_nvml_device_index(index)


def _nvml_facts(index: int) -> Iterator[tuple[str, FactValue]]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(nvml_index(index))
        yield "gpu_driver", pynvml.nvmlSystemGetDriverVersion()
        yield "gpu_power_limit", pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3
        yield "gpu_clock_max", pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM) * 1_000_000
    except (pynvml.NVMLError, RuntimeError):
        # torch answers with a RuntimeError where it does not know which of the driver's GPUs this is, such as a part of
        # one.
        return
    finally:
        pynvml.nvmlShutdown()


def _software_facts() -> Iterator[tuple[str, FactValue]]:
    import torch

    yield "torch", torch.__version__.partition("+")[0]
    yield "nni_latency", __version__


def _proc_cpuinfo(root: Path) -> dict[str, str]:
    """Read the first processor's block of /proc/cpuinfo; empty where there is none."""
    block = _read(root / "proc/cpuinfo").partition("\n\n")[0]
    return dict(re.findall(r"^([^\t:]+?)\s*:[ \t]*(.*)$", block, flags=re.MULTILINE))


def cache_sizes(root: Path = Path("/")) -> list[tuple[str, int]]:
    """Return level and size [byte] of every cache of the first processor, shared ones included.

    Parameters
    ----------
    root : Path, default=Path("/")
        The folder that holds ``sys``.

    Returns
    -------
    list of tuple of (str, int)
        Empty where they cannot be read.
    """
    return [(_read(path / "level"), _read_size(path / "size")) for path in (root / _PROCESSOR / "cache").glob("index*")]


def _read_size(path: Path) -> int:
    """Return a size that is written like ``32768K`` [byte]; 0 if it cannot be read."""
    match = re.fullmatch(r"(\d+)([KMG]?)", _read(path))
    return int(match[1]) * _UNITS[match[2]] if match else 0


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
