"""``nni-latency merge``."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from typing import Literal

import click
from rich.markup import escape

import nni_latency.datasets as datasets
import nni_latency.tables as tables
from nni_latency.cli._console import results
from nni_latency.cli._option import grouped, option
from nni_latency.cli._output_options import OutputOptions, write_result
from nni_latency.cli._outputs import WritingCommand
from nni_latency.errors import InvalidValueError
from nni_latency.units import number_of


@dataclass(frozen=True)
class _MergeOptions(OutputOptions):
    """How files are merged."""

    conflict: Literal["error", "first", "last", "mean"] = option(
        "Which entry to keep where files disagree.", default="error"
    )
    align_speed: bool = option(
        "Bring each data set to the speed of those before it, by the networks that they share.", default=False
    )


@click.command("merge", cls=WritingCommand)
@click.argument("names", metavar="FILES...", nargs=-1, required=True)
@grouped(out={"required": True})
def command(names: tuple[str, ...], merge: _MergeOptions) -> None:
    """Merge tables of one space and platform, or data sets of networks.

    FILES are tables, files or names of tables that ship with the package; everything but the entries is taken from the
    first. Or they are data sets of 'nni-latency measure-networks', of any platforms.
    """
    out = merge.path()
    if any(map(zipfile.is_zipfile, names)):
        sets = [datasets.load_networks(name) for name in names]
        found = datasets.merge_networks(sets, out, conflict=merge.conflict, align_speed=merge.align_speed)
        platforms = number_of(len(found.platforms), "platform")
        results().print(escape(f"Wrote {out}: {number_of(len(found), 'latency', 'latencies')} on {platforms}"))
        return
    loaded = [tables.LookupTable.load(tables.find_table(name)) for name in names]
    if merge.align_speed:
        raise InvalidValueError("Only data sets of networks can be brought to one speed. Omit --align-speed.")
    known = tuple(remark for table in loaded for remark in table.remarks)
    write_result(tables.merge_tables(loaded, conflict=merge.conflict), out, known=known)
