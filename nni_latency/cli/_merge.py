"""``nni-latency merge``."""

from __future__ import annotations

from pathlib import Path

import click

from nni_latency.cli._arithmetic import check_output, output_options, write_result
from nni_latency.tables import CONFLICTS, LookupTable, find_table, merge_tables


@click.command("merge")
@click.argument("tables", nargs=-1, required=True)
@click.option(
    "--conflict",
    type=click.Choice(CONFLICTS),
    default="error",
    show_default=True,
    help="Which entry counts where tables disagree.",
)
@output_options
def command(tables: tuple[str, ...], conflict: str, out: Path, overwrite: bool) -> None:
    """Put tables of one space and platform together.

    TABLES are files, or names of tables that ship with the package. The first gives everything but entries.
    """
    check_output(out, overwrite)
    loaded = [LookupTable.load(find_table(name)) for name in tables]
    known = tuple(remark for table in loaded for remark in table.remarks)
    write_result(merge_tables(loaded, conflict=conflict), out, known=known)  # type: ignore[arg-type]
