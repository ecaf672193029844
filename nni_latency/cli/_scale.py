"""``nni-latency scale``."""

from __future__ import annotations

from pathlib import Path

import click

from nni_latency.cli._arithmetic import check_output, output_options, write_result
from nni_latency.tables import find_table, read_table, scale_table


@click.command("scale")
@click.argument("table")
@click.option("--factor", required=True, type=float, help="By how much every cost is multiplied, such as 0.001.")
@output_options
def command(table: str, factor: float, out: Path, overwrite: bool) -> None:
    """Multiply every cost of a table by a factor.

    TABLE is a file, or the name of a table that ships with the package.
    """
    check_output(out, overwrite)
    loaded = read_table(find_table(table))
    write_result(scale_table(loaded, factor), out, known=loaded.remarks)
