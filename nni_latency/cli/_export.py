"""``nni-latency export``."""

from __future__ import annotations

from pathlib import Path

import click
from rich.markup import escape

from nni_latency.cli._console import remarks, results
from nni_latency.files import check_writable
from nni_latency.tables import check_new, find_table, read_table
from nni_latency.tables.formats import FORMATS, export_table


@click.command("export")
@click.argument("table")
@click.option("--format", "file_format", required=True, metavar="NAME", help=f"Format: {', '.join(FORMATS)}.")
@click.option("--unit", required=True, metavar="UNIT", help="Unit of the numbers in the file: s, ms, us, ...")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The file that is written.")
@click.option("--overwrite", is_flag=True, help="Replace the file.")
def command(table: str, file_format: str, unit: str, out: Path, overwrite: bool) -> None:
    """Write a lookup table in the format of another project.

    TABLE is a file, or the name of a table that ships with the package. What the format has no place for is said.
    """
    loaded = read_table(find_table(table))
    check_new(out, overwrite=overwrite)
    check_writable(out)
    for remark in export_table(loaded, file_format, unit=unit, out=out):
        remarks().print(escape(remark), soft_wrap=True)
    results().print(f"Wrote {escape(str(out))}", soft_wrap=True)
