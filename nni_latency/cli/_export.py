"""``nni-latency export``."""

from __future__ import annotations

import click
from rich.markup import escape

import nni_latency.tables as tables
import nni_latency.tables.formats as formats
from nni_latency.cli._console import remarks, results
from nni_latency.cli._option import grouped
from nni_latency.cli._output_options import OutputOptions
from nni_latency.cli._outputs import WritingCommand


@click.command("export", cls=WritingCommand)
@click.argument("table")
@click.option("--format", "file_format", required=True, metavar="NAME", help=f"Format: {', '.join(formats.FORMATS)}.")
@click.option("--unit", required=True, metavar="UNIT", help="Unit of the numbers, such as ms.")
@grouped(out={"required": True})
def command(table: str, file_format: str, unit: str, output: OutputOptions) -> None:
    """Write a lookup table in the format of another project.

    TABLE is a file, or the name of a table that ships with the package. Prints what the
    format cannot hold.
    """
    loaded = tables.read_table(tables.find_table(table))
    out = output.path()
    for remark in formats.export_table(loaded, file_format, unit=unit, out=out):
        remarks().print(escape(remark))
    results().print(f"Wrote {escape(str(out))}")
