"""``nni-latency subset``."""

from __future__ import annotations

import click

import nni_latency.tables as tables
from nni_latency.cli._option import grouped
from nni_latency.cli._output_options import OutputOptions, write_result
from nni_latency.cli._outputs import WritingCommand
from nni_latency.errors import InvalidValueError


@click.command("subset", cls=WritingCommand)
@click.argument("table")
@click.option("--layers", metavar="NAME,...", help="Layers to keep.  [default: all]")
@click.option("--choices", metavar="NAME,...", help="Candidates to keep.  [default: all]")
@grouped(out={"required": True})
def command(table: str, layers: str | None, choices: str | None, output: OutputOptions) -> None:
    """Keep some entries of a table; the others become missing.

    TABLE is a file, or the name of a table that ships with the package. Fixed layers are always kept.
    """
    if layers is None and choices is None:
        raise InvalidValueError("Say what to keep, with --layers or --choices.")
    out = output.path()
    loaded = tables.LookupTable.load(tables.find_table(table))
    write_result(tables.subset_table(loaded, layers=_names(layers), choices=_names(choices)), out, known=loaded.remarks)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]
