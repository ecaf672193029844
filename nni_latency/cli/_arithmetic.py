"""What ``nni-latency merge``, ``scale`` and ``subset`` share: the file that they write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.markup import escape

from nni_latency.cli._console import remarks, results
from nni_latency.files import check_writable
from nni_latency.tables import LookupTable, OperatorTable, check_new
from nni_latency.units import format_percent

Command = TypeVar("Command", bound=Callable[..., Any])


def output_options(command: Command) -> Command:
    """Add the options for the table that is written."""
    command = click.option("--overwrite", is_flag=True, help="Replace the table.")(command)
    return click.option("--out", required=True, type=click.Path(path_type=Path), help="The table that is written.")(
        command
    )


def check_output(out: Path, overwrite: bool) -> None:
    """Raise an error of the package if the table cannot be written."""
    check_new(out, overwrite=overwrite)
    check_writable(out)


def write_result(table: LookupTable | OperatorTable, out: Path, *, known: tuple[str, ...] = ()) -> None:
    """Write the table, and say what is to be said about it that was not `known` before."""
    table.save(out)
    for remark in table.remarks:
        if remark not in known:
            remarks().print(escape(remark), soft_wrap=True)
    results().print(f"Wrote {escape(str(out))}, coverage {format_percent(table.coverage)}", soft_wrap=True)
