"""``nni-latency scale``."""

from __future__ import annotations

import click

import nni_latency.tables as tables
from nni_latency.cli._option import grouped
from nni_latency.cli._output_options import OutputOptions, write_result
from nni_latency.cli._outputs import WritingCommand


@click.command("scale", cls=WritingCommand)
@click.argument("table")
@click.option("--factor", required=True, type=float, help="Factor, such as 0.001.")
@grouped(out={"required": True})
def command(table: str, factor: float, output: OutputOptions) -> None:
    """Multiply every cost of a table by a factor.

    TABLE is a file, or the name of a table that ships with the package.
    """
    out = output.path()
    loaded = tables.read_table(tables.find_table(table))
    write_result(tables.scale_table(loaded, factor), out, known=loaded.remarks)
