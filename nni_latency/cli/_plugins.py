"""``nni-latency plugins``."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.markup import escape
from rich.table import Table

from nni_latency.cli._console import results
from nni_latency.cli._outputs import WritingCommand
from nni_latency.plugins import Registry, load_registry

_KINDS = ("estimators", "runtimes", "meters", "spaces")


@click.command("plugins", cls=WritingCommand)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """List registered estimators, runtimes, meters and spaces, each with its plugin and distribution."""
    registry = load_registry()
    if as_json:
        click.echo(json.dumps([asdict(plugin) for plugin in registry.plugins], indent=1))
        return
    console = results()
    console.print(_registrations(registry))
    for plugin in registry.plugins:
        if plugin.error:
            console.print(f"[red]{plugin.name} of {plugin.distribution} did not load:[/] {escape(plugin.error)}")


def _registrations(registry: Registry) -> Table:
    grid = Table(padding=(0, 1))
    for name in ("kind", "name", "plugin", "distribution"):
        grid.add_column(name)
    owners = {plugin.name: plugin for plugin in registry.plugins}
    for kind in _KINDS:
        for registration in getattr(registry, kind).values():
            owner = owners[registration.owner]
            grid.add_row(kind.removesuffix("s"), registration.name, owner.name, f"{owner.distribution} {owner.version}")
    return grid
