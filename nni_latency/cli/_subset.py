"""``nni-latency subset``."""

from __future__ import annotations

from pathlib import Path

import click

from nni_latency.cli._arithmetic import check_output, output_options, write_result
from nni_latency.errors import InvalidValueError
from nni_latency.tables import LookupTable, find_table, subset_table


@click.command("subset")
@click.argument("table")
@click.option("--layers", metavar="NAME,...", help="Layers whose entries are kept.  [default: all]")
@click.option("--choices", metavar="NAME,...", help="Candidates whose entries are kept.  [default: all]")
@output_options
def command(table: str, layers: str | None, choices: str | None, out: Path, overwrite: bool) -> None:
    """Keep some entries of a table; the rest is missing afterwards.

    TABLE is a file, or the name of a table that ships with the package. Fixed layers are always kept.
    """
    if layers is None and choices is None:
        raise InvalidValueError("Say what to keep, with --layers or --choices.")
    check_output(out, overwrite)
    loaded = LookupTable.load(find_table(table))
    write_result(subset_table(loaded, layers=_names(layers), choices=_names(choices)), out, known=loaded.remarks)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]
