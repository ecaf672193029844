# SPDX-License-Identifier: Apache-2.0
"""What a device is and what it is like, read by a POSIX shell alone."""

from __future__ import annotations

import contextlib
import re
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nni_latency.devices import _agent
from nni_latency.devices._connection import Connection, DeviceError
from nni_latency.errors import InvalidValueError
from nni_latency.platforms import Conditions

#: Files that say what a device is, and those that say what it is like at the moment.
_FIXED = (
    "/proc/cpuinfo /proc/meminfo /proc/device-tree/model /sys/devices/system/cpu/cpu0/cache/index*/level "
    "/sys/devices/system/cpu/cpu0/cache/index*/size /sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq "
    "/etc/nv_tegra_release /sys/class/kgsl/kgsl-3d0/gpu_model /sys/class/misc/mali0/device/gpuinfo"
)
_HEAT = (
    "/sys/class/thermal/thermal_zone*/temp /sys/class/thermal/cooling_device*/type "
    "/sys/class/thermal/cooling_device*/cur_state /sys/devices/platform/soc/soc:firmware/get_throttled"
)
_CHANGING = (
    "/proc/loadavg /sys/devices/system/cpu/online /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor "
    f"/sys/devices/system/cpu/cpu*/cpufreq/scaling_cur_freq {_HEAT}"
)

#: Programs that are used where a device has them.
_PROGRAMS = "taskset timeout gzip flock"

_MARK = "=== nni_latency "

_SHOW = f'''show() {{ for f in "$@"; do [ -r "$f" ] && echo "{_MARK}$f" && cat "$f" 2>/dev/null && echo; done; true; }}
say() {{ command -v "$1" >/dev/null 2>&1 && echo "{_MARK}$1" && "$@" 2>/dev/null </dev/null; true; }}
'''

_PRINT_HEAT = "".join(f"say {shlex.join(command)}\n" for command in _agent.HEAT_PROGRAMS.values())

_FACTS = f"""{_SHOW}
for n in s r m; do echo "{_MARK}uname-$n"; uname -$n; done
for p in {_PROGRAMS}; do command -v $p >/dev/null 2>&1 && echo "{_MARK}has-$p"; done
for p in ro.product.model ro.soc.model; do
    command -v getprop >/dev/null 2>&1 && echo "{_MARK}$p" && getprop $p
done
say {shlex.join(_agent.GPU_PROGRAM)}
show {_FIXED} {_CHANGING}"""


def parse_cores(cores: object) -> tuple[int, ...]:
    """Return the numbers of processors in an option such as ``4-7`` or ``0,2``; none for None.

    Raises
    ------
    InvalidValueError
        If it is of another form.

    Examples
    --------
    >>> parse_cores("4-7"), parse_cores(2), parse_cores(None)
    ((4, 5, 6, 7), (2,), ())
    """
    if cores is None:
        return ()
    found = _numbers(str(cores))
    if not found:
        raise InvalidValueError(f"The option 'cores' must be numbers of processors, such as 4-7 or 0,2. Got {cores!r}.")
    return found


class ShellFacts:
    """Facts of a device, which are read once, and its conditions.

    Raises
    ------
    DeviceError
        If it cannot be reached, or has no shell.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._found = self._read(_FACTS)
        machine = self._found.get("uname-m", "")
        if not machine:
            raise DeviceError(f"{connection.description} has no POSIX shell with uname, which is needed there.")
        #: Its instruction set.
        self.machine = machine

    def has(self, program: str) -> bool:
        """Whether the device has one of the programs that are used where they are."""
        return f"has-{program}" in self._found

    @property
    def processors(self) -> tuple[int, ...]:
        """Numbers of its processors that are online."""
        found = _numbers(self._found.get("/sys/devices/system/cpu/online", ""))
        return found or tuple(
            range(len(re.findall(r"^processor\s*:", self._found.get("/proc/cpuinfo", ""), re.M)) or 1)
        )

    def facts(self, *, on_gpu: bool = False) -> dict[str, Any]:
        """Return what the device is, under the names of `nni_latency.platforms.FACTS`.

        Parameters
        ----------
        on_gpu : bool, default=False
            Whether its GPU computes, which is named by nvidia-smi where that is; a board with a GPU names itself.
        """
        with _as_files(self._found) as root:
            found = {**_agent.facts(root), **_agent.gpu(root, self._found.get(_agent.GPU_PROGRAM[0], ""))}
            described = "flags" in self._found.get("/proc/cpuinfo", "") and found["device_name"]
        model = self._found.get("ro.product.model", "")
        board = self._found.get("/proc/device-tree/model", "").strip("\0 \n")
        lines = dict(
            line.partition(":")[::2] for line in self._found.get("/proc/cpuinfo", "").replace("\t", "").splitlines()
        )
        named = [model, board, *(lines.get(name, "").strip() for name in ("Model", "Hardware", "model name"))]
        found["device_name"] = described or next(filter(None, named), self.machine)
        # What the agent's reader knows of this machine's system, and not of files.
        for name in ("python", "cpu_affinity"):
            found.pop(name, None)
        found |= {
            "system": f"{self._found.get('uname-s', '')} {self._found.get('uname-r', '')}".strip(),
            "machine": self.machine,
            "cpu_count": len(self.processors),
        }
        if on_gpu:
            found["device_kind"] = "cuda"
            if "gpu_name" in found:
                found["device_name"] = found["gpu_name"]
                found.pop("cpu_signature", None)
        return found

    def conditions(self) -> Conditions:
        """Read what the device is like at this moment."""
        found = self._read(f"{_SHOW}{_PRINT_HEAT}show {_CHANGING}")
        online = _numbers(found.get("/sys/devices/system/cpu/online", "")) or self.processors
        with _as_files(found) as root:
            known = _agent.conditions(root, online, _printed(found))
        return Conditions.from_dict({**known, "processors_online": len(online)})

    def heat(self) -> Mapping[str, Any]:
        """Read how warm the device is, as the agent does."""
        found = self._read(f"{_SHOW}{_PRINT_HEAT}show {_HEAT}")
        with _as_files(found) as root:
            return _agent.heat(root, _printed(found))

    def _read(self, script: str) -> Mapping[str, str]:
        """Run a script that prints texts behind their names."""
        done = self._connection.run(["sh", "-c", script])
        found: dict[str, str] = {}
        name = ""
        for line in done.out.decode(errors="replace").splitlines():
            if line.startswith(_MARK):
                name = line.removeprefix(_MARK).strip()
                found[name] = ""
            elif name:
                found[name] += f"{line}\n" if found[name] or line else ""
        return {name: text.rstrip("\n") for name, text in found.items()}


def _printed(found: Mapping[str, str]) -> dict[str, str]:
    return {name: found.get(name, "") for name in _agent.HEAT_PROGRAMS}


@contextlib.contextmanager
def _as_files(found: Mapping[str, str]) -> Any:
    """Write what was read into a folder that looks like the device's; yield its name with a slash behind it."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in found.items():
            if path.startswith(("/etc/", "/proc/", "/sys/")) and ".." not in path:
                place = Path(folder + path)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text, encoding="utf-8")
        yield f"{folder}/"


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as ``0-3,6``; none if it is not one.

    >>> _numbers("0-2,6"), _numbers("all")
    ((0, 1, 2, 6), ())
    """
    found: set[int] = set()
    for part in text.strip().split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None or int(match[2] or match[1]) >= 10**4:
            return ()
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))
