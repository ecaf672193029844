# SPDX-License-Identifier: Apache-2.0
"""``nni-latency serve keys``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click
from rich.markup import escape

import nni_latency_service as service
from nni_latency.cli import Column, Grid, Report, ReportingCommand, print_report, remarks, results


@click.group("keys")
def keys_command() -> None:
    """Manage the API keys of a service. A key is shown once; the file holds its digest."""


@keys_command.command("add")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["read", "measure", "admin"]),
    default="read",
    show_default=True,
    help="What the key allows: asking; measuring, too; or everything.",
)
def add(file: Path, name: str, role: Literal["read", "measure", "admin"]) -> None:
    """Add a key of NAME to FILE, which is made if it does not exist, and print the key."""
    with service.ApiKeys.changing(file, create=True) as keys:
        text = keys.add(name, role)
    remarks().print(f"The key of {escape(name)} is shown once. A service that runs takes it after a restart.")
    results().print(text)


@keys_command.command("list", cls=ReportingCommand)
@click.argument("file", type=click.Path(path_type=Path))
def list_(file: Path) -> None:
    """List the keys of FILE: names and roles."""
    print_report(keys_report(service.ApiKeys.load(file)))


@keys_command.command("remove")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("name")
def remove(file: Path, name: str) -> None:
    """Remove the key of NAME from FILE."""
    with service.ApiKeys.changing(file) as keys:
        keys.remove(name)
    results().print(f"Removed the key of {escape(name)}. A service that runs knows it until a restart.")


def keys_report(keys: service.ApiKeys) -> Report:
    """Report on the keys of a file: names and roles, and nothing that a key could be found by."""
    rows = [{"name": key.name, "role": key.role} for key in keys]
    return Report(Grid(rows, [Column("name", "name"), Column("role", "role")], nothing="There are no keys."))
