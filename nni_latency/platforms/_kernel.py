"""What the files of a Linux kernel tell about processors, memory and control groups at this moment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Found = Iterator[tuple[str, Any]]

# Columns of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal. Waiting and stolen time is no work.
_WORK = (0, 1, 2, 5, 6)
_STEAL = 7


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
    """Find the folders of this process's control group and of those above it: each may have a quota of its own."""
    rows = [line.split(":", 2) for line in _text(root / "proc/self/cgroup").splitlines() if line.count(":") >= 2]
    first = [(names, path) for _, names, path in rows if "cpu" in names.split(",")]
    second = [("", path) for _, names, path in rows if not names]
    # Version 1, where it rules the processors, mounts every controller apart, and version 2 all of them as one.
    names, path = (first or second or [("", "/")])[0]
    mounted = root / "sys/fs/cgroup"
    if names:
        mounted = mounted / names if (mounted / names).is_dir() else mounted / "cpu"
    # A path that leads outside of the container is told with dots; what can be seen of it begins where it is mounted.
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
