# SPDX-License-Identifier: Apache-2.0
"""`check_devices`: whether devices are reached and ready to measure, and what to do where they are not."""

from __future__ import annotations

import json
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nni_latency.devices import _agent, _probe
from nni_latency.devices._connection import MEASURE_BY_BINARY, Connection, DeviceError
from nni_latency.devices._session import install_command
from nni_latency.devices._shell_facts import ShellFacts, parse_cores
from nni_latency.errors import LatencyError
from nni_latency.platforms import Conditions, Remark, remarks_on
from nni_latency.units import format_seconds

#: Packages by which runtimes measure on a device, by the modules that they bring.
_RUNTIMES = {
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "ncnn": "ncnn",
    "ai_edge_litert": "ai-edge-litert",
    "tensorrt": "tensorrt",
}

#: Packages that come with the system of a device, and do not run on others.
_OF_THE_SYSTEM = ("tensorrt",)

#: A clock with a larger resolution is too coarse for a layer [s].
_COARSE = 2e-6

#: How long a device may take to answer [s].
PATIENCE = 30.0

#: Codes of a shell for a program that is absent, or cannot be run.
_ABSENT = (126, 127)

_PROGRAM = """\
import sys
sys.version_info >= (3, 8) or sys.exit("this is Python " + sys.version.split()[0])
import json
agent, probe, modules = json.loads(sys.stdin.buffer.read().decode())
space = {"__name__": "nni_latency_probe", "AGENT": agent, "MODULES": modules}
exec(compile(probe, "nni_latency_probe", "exec"), space)
"""


@dataclass(frozen=True)
class DeviceCheck:
    """What was found on a device. Immutable.

    Parameters
    ----------
    device : str
        How the device is reached, such as ``ssh:pi@raspberrypi``; its name if it is not.
    failure : str
        Why it is not reached; empty if it is.
    facts : mapping
        What it is, under the names of `nni_latency.platforms.FACTS`.
    conditions : Conditions
        What it is like at this moment.
    packages : mapping of str to str
        Versions of numpy and of the packages of runtimes that its Python has.
    absent : tuple of str
        Packages of runtimes that its Python has not.
    install : str
        Command of the device that installs those.
    clock_resolution : float, optional
        Resolution of the clock by which runs are timed [s].
    remarks : tuple of Remark
        What is wrong, each with what to do.
    """

    device: str
    failure: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    conditions: Conditions = field(default_factory=Conditions)
    packages: Mapping[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    install: str = ""
    clock_resolution: float | None = None
    remarks: tuple[Remark, ...] = ()


def check_devices(
    connections: Mapping[str, Callable[[], Connection]], patience: float = PATIENCE
) -> Iterator[tuple[str, DeviceCheck]]:
    """Check devices side by side, and yield each with its name as it answers."""
    answers: queue.Queue[tuple[str, DeviceCheck]] = queue.Queue()
    waiting = dict.fromkeys(connections)
    limit = time.monotonic() + patience
    for name, connect in connections.items():
        threading.Thread(
            target=lambda name=name, connect=connect: answers.put((name, _checked(name, connect, patience))),
            daemon=True,
        ).start()
    while waiting:
        try:
            name, found = answers.get(timeout=max(0.0, limit - time.monotonic()))
        except queue.Empty:
            for name in waiting:
                yield name, _hanging(name, patience)
            return
        del waiting[name]
        yield name, found


def _hanging(name: str, patience: float) -> DeviceCheck:
    return DeviceCheck(name, f"{name} did not answer within {format_seconds(patience)}. Restart it if it hangs.")


def _checked(name: str, connect: Callable[[], Connection], patience: float) -> DeviceCheck:
    try:
        with connect() as connection:
            return check_device(connection, patience)
    except LatencyError as error:
        return DeviceCheck(name, str(error))


def check_device(connection: Connection, patience: float = PATIENCE) -> DeviceCheck:
    """Check one device.

    Raises
    ------
    DeviceError
        If it cannot be reached.

    Examples
    --------
    >>> import sys
    >>> from nni_latency.devices import PythonConnection
    >>> found = check_device(PythonConnection(sys.executable))
    >>> "numpy" in found.packages, found.clock_resolution < 2e-6
    (True, True)
    """
    sources = [Path(str(module.__file__)).read_text(encoding="utf-8") for module in (_agent, _probe)]
    data = json.dumps([*sources, ["numpy", *_RUNTIMES]]).encode()
    done = connection.run([connection.python, "-c", _PROGRAM], data=data, timeout=patience)
    if done.code:
        return _without_python(connection, _python_remark(connection, done.code, done.reason))
    try:
        found = json.loads(done.out.splitlines()[-1])
        facts, conditions, packages = found["facts"], Conditions.from_dict(found["conditions"]), found["packages"]
        clock, environment = found["clock"], f"{found['home']}/nni" if found["is_managed"] else ""
    except (ValueError, TypeError, LookupError, LatencyError) as error:
        raise DeviceError(
            f"{connection.description} does not answer as {connection.python!r} should. Check that it is a Python."
        ) from error
    absent = [package for name, package in _RUNTIMES.items() if name not in packages]
    wanted = [package for package in absent if package not in _OF_THE_SYSTEM]
    python = f"{environment}/bin/python" if environment else connection.python
    begin = f"{connection.python} -m venv {environment} && " if environment else ""

    def install(names: Sequence[str]) -> str:
        return begin + install_command(python, names)

    remarks = [
        *_package_remarks(connection, packages, install, python),
        *_clock_remarks(clock),
        *_core_remarks(connection, facts),
        *remarks_on(conditions),
    ]
    return DeviceCheck(
        connection.reached_as or connection.description,
        facts=facts,
        conditions=conditions,
        packages={_RUNTIMES.get(name, name): version for name, version in packages.items()},
        absent=tuple(absent),
        install=install(wanted) if wanted else "",
        clock_resolution=float(clock["resolution"]),
        remarks=tuple(remarks),
    )


def _python_remark(connection: Connection, code: int, reason: str) -> Remark:
    python = connection.python
    if code in _ABSENT:
        return Remark(f"There is no Python {python!r}.", f"{connection.python_advice}.")
    otherwise = f"or {MEASURE_BY_BINARY}."
    if reason.startswith("this is Python"):
        return Remark(f"{python!r} is too old: {reason}.", f"Install Python 3.8 or later, {otherwise}")
    return Remark(f"{python!r} does not run: {reason[:120]}.", f"Check that it is a Python 3.8 or later, {otherwise}")


def _without_python(connection: Connection, remark: Remark) -> DeviceCheck:
    """Return what a shell reads of a device on which benchmark binaries measure."""
    shell = ShellFacts(connection)
    conditions = shell.conditions()
    remarks = (remark, *remarks_on(conditions))
    reached_as = connection.reached_as or connection.description
    return DeviceCheck(reached_as, facts=shell.facts(), conditions=conditions, remarks=remarks)


def _package_remarks(
    connection: Connection, packages: Mapping[str, str], install: Callable[[Sequence[str]], str], python: str
) -> Iterator[Remark]:
    has_runtime = any(name in packages for name in _RUNTIMES)
    lacking = [*([] if "numpy" in packages else ["numpy"]), *([] if has_runtime else ["onnxruntime"])]
    if lacking:
        what = "There is no numpy" if has_runtime else "There is no runtime"
        name = f"; then name python = {python!r} in devices.toml" if python != connection.python else ""
        yield Remark(f"{what} in {connection.python!r}.", f"Install it there: {install(lacking)}{name}")


def _clock_remarks(clock: Mapping[str, Any]) -> Iterator[Remark]:
    advice = "Choose another in /sys/devices/system/clocksource/clocksource0/current_clocksource."
    if not clock["is_monotonic"]:
        yield Remark("Its clock goes back.", advice)
    elif clock["resolution"] > _COARSE:
        yield Remark(f"Its clock resolves {format_seconds(clock['resolution'])} only.", advice)


def _core_remarks(connection: Connection, facts: Mapping[str, Any]) -> Iterator[Remark]:
    usable = facts.get("cpu_affinity", "")
    missing = sorted(set(connection.cores) - set(parse_cores(usable or None)))
    if missing and re.match(r"\d", usable):
        numbers = ", ".join(map(str, missing))
        yield Remark(f"There is no core {numbers}: it has {usable}.", "Correct 'cores' in devices.toml.")
