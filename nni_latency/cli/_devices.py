# SPDX-License-Identifier: Apache-2.0
"""``nni-latency devices``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import click

import nni_latency.devices as devices
import nni_latency.loading as loading
from nni_latency.cli._console import progress, remarks
from nni_latency.cli._report import Column, Grid, Report, ReportingCommand, print_report
from nni_latency.units import number_of

#: Exit code if a device is not reached.
_NOT_REACHED = 1


@click.command("devices", cls=ReportingCommand)
@click.argument("names", nargs=-1, metavar="[DEVICE]...")
def command(names: tuple[str, ...]) -> None:
    """Check devices, by default all that devices.toml names: reached, ready to measure, and what to do if not.

    A DEVICE is a name of that file, ssh:USER@HOST, adb, adb:SERIAL or python:PATH. The exit code is 1 if one is not
    reached.
    """
    known = devices.read_devices()
    # What the file says of a device is a finding; a name that it does not have is a mistake of the command line.
    connections = {
        name: partial(loading.load_connection, name) if name in known else _made(name)
        for name in dict.fromkeys(names or known)
    }
    checks = _checks(connections) if connections else {}
    rows = [_row(name, checks[name]) for name in connections]
    columns = [
        Column("device", "name"),
        Column("processor", "processor"),
        Column("software", "software"),
        Column("now", "now"),
        Column("check", "check"),
    ]
    nothing = (
        f"There is no device in {str(devices.devices_file())!r}. Write one, a line each, such as: "
        'pi = "ssh:pi@raspberrypi"'
    )
    lines = [line for name in connections for line in _lines(name, checks[name])]
    content = [_content(name, checks[name]) for name in connections]
    print_report(Report(Grid(rows, columns, nothing=nothing), content, content, after=lines))
    if any(found.failure for found in checks.values()):
        raise click.exceptions.Exit(_NOT_REACHED)


def _made(name: str) -> Callable[[], devices.Connection]:
    connection = loading.load_connection(name)
    return lambda: connection


def _checks(connections: Mapping[str, Callable[[], devices.Connection]]) -> dict[str, devices.DeviceCheck]:
    """Check devices behind a bar that moves as they answer."""
    found: dict[str, devices.DeviceCheck] = {}
    with progress(remarks()) as bar:
        task = bar.add_task(f"asking {number_of(len(connections), 'device')}", total=len(connections), left="")
        for name, check in devices.check_devices(connections):
            found[name] = check
            waiting = [other for other in connections if other not in found]
            bar.update(task, advance=1, left=f"waiting for {', '.join(waiting)[:40]}" if waiting else "")
    return found


def _row(name: str, check: devices.DeviceCheck) -> dict[str, Any]:
    """Return what a person sees."""
    if check.failure:
        return {"name": name, "processor": "", "software": "", "now": "", "check": "not reached"}
    facts, now = check.facts, check.conditions
    python = [f"Python {facts['python']}"] if "python" in facts else []
    shown = [
        f"load {now.load:.1f}" if now.load is not None else "",
        f"{now.cpu_frequency / 1e9:.2f} GHz" if now.cpu_frequency else "",
        now.cpu_governor or "",
        f"{now.cpu_temperature:.0f} C" if now.cpu_temperature is not None else "",
        "slowed down" if now.cpu_slowed else "",
    ]
    return {
        "name": name,
        "processor": f"{facts.get('device_name', '?')}, {number_of(facts.get('cpu_count', 1), 'core')}",
        "software": ", ".join([*python, *(f"{package} {version}" for package, version in check.packages.items())]),
        "now": ", ".join(filter(None, shown)),
        "check": number_of(len(check.remarks), "remark") if check.remarks else "good",
    }


def _lines(name: str, check: devices.DeviceCheck) -> list[str]:
    """Return what to do, a line each."""
    if check.failure:
        return [check.failure if check.failure.startswith(name) else f"{name}: {check.failure}"]
    lines = [f"{name}: {remark}" for remark in check.remarks]
    if check.install and len(check.packages) > 1:
        lines.append(f"{name}: Other runtimes, if you want them: {check.install}")
    return lines


def _content(name: str, check: devices.DeviceCheck) -> dict[str, Any]:
    return {
        "name": name,
        "device": check.device,
        "reached": not check.failure,
        "failure": check.failure or None,
        "facts": dict(check.facts),
        "conditions": check.conditions.as_dict(),
        "packages": dict(check.packages),
        "absent": list(check.absent),
        "install": check.install or None,
        "clock_resolution_s": check.clock_resolution,
        "remarks": [{"condition": item.condition, "advice": item.advice} for item in check.remarks],
    }
