# SPDX-License-Identifier: Apache-2.0
"""``nni-latency plugins``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from nni_latency.cli._report import Column, Grid, Report, ReportingCommand, print_report
from nni_latency.plugins import Registry, load_registry

_KINDS = ("estimators", "runtimes", "meters", "spaces", "kernels", "remotes", "connections", "commands")


@click.command("plugins", cls=ReportingCommand)
def command() -> None:
    """List what plugins registered: estimators, runtimes, meters, spaces, kernels, machines, connections, commands.

    Runtimes marked 'on devices' also measure on other devices, such as --device ssh:pi@raspberrypi.
    """
    registry = load_registry()
    columns = [Column(name, name) for name in ("kind", "name", "plugin", "distribution")]
    columns.append(Column("on devices", "on_devices", lambda value: "yes" if value else ""))
    broken = [
        f"{plugin.name} of {plugin.distribution} did not load: {plugin.error}"
        for plugin in registry.plugins
        if plugin.error
    ]
    grid = Grid(_registrations(registry), columns)
    print_report(Report(grid, [asdict(plugin) for plugin in registry.plugins], after=broken))


def _registrations(registry: Registry) -> list[dict[str, Any]]:
    owners = {plugin.name: plugin for plugin in registry.plugins}
    rows = [
        {
            "kind": kind.removesuffix("s"),
            "name": registration.name,
            "plugin": registration.owner,
            "on_devices": registration.on_devices if kind == "runtimes" else None,
            "distribution": f"{owners[registration.owner].distribution} {owners[registration.owner].version}",
        }
        for kind in _KINDS
        for registration in getattr(registry, kind).values()
    ]
    # What was installed comes last, where a screen ends.
    return sorted(rows, key=lambda row: row["plugin"] != "builtin")
