"""``nni-latency merge``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import click

import nni_latency.tables as tables
from nni_latency.cli._option import grouped, option
from nni_latency.cli._output_options import OutputOptions, write_result
from nni_latency.cli._outputs import WritingCommand


@dataclass(frozen=True)
class _MergeOptions(OutputOptions):
    """How tables are merged."""

    conflict: Literal["error", "first", "last", "mean"] = option(
        "Which entry to keep where tables disagree.", default="error"
    )


@click.command("merge", cls=WritingCommand)
@click.argument("names", metavar="TABLES...", nargs=-1, required=True)
@grouped(out={"required": True})
def command(names: tuple[str, ...], merge: _MergeOptions) -> None:
    """Merge tables of one space and platform.

    TABLES are files, or names of tables that ship with the package. Everything but the entries is taken from the first.
    """
    out = merge.path()
    loaded = [tables.LookupTable.load(tables.find_table(name)) for name in names]
    known = tuple(remark for table in loaded for remark in table.remarks)
    write_result(tables.merge_tables(loaded, conflict=merge.conflict), out, known=known)
