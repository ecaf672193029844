"""``nni-latency table``: files of tables made into others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
from rich.markup import escape

import nni_latency.loading as loading
import nni_latency.spaces as spaces
import nni_latency.tables as tables
import nni_latency.tables.formats as formats
from nni_latency.cli._console import print_lines, remarks, results
from nni_latency.cli._option import grouped, option
from nni_latency.cli._output_options import OutputOptions
from nni_latency.cli._outputs import WritingCommand
from nni_latency.cli._space_options import name_space, plan_for
from nni_latency.cli._table_import import import_table
from nni_latency.errors import InvalidValueError
from nni_latency.units import format_percent


@click.group("table")
def command() -> None:
    """Convert lookup tables, and make tables of others.

    TABLE is a file, or the name of a table that ships with the package. Nothing is measured.
    """


command.add_command(import_table)


@dataclass(frozen=True)
class _ExportOptions:
    """What is written."""

    file_format: str = option(f"Format: {', '.join(formats.FORMATS)}.", "--format", required=True, metavar="NAME")
    unit: str = option("Unit of the numbers, such as ms.", required=True, metavar="UNIT")


@command.command("export", cls=WritingCommand)
@click.argument("table")
@grouped(out={"required": True})
def export(table: str, wanted: _ExportOptions, output: OutputOptions) -> None:
    """Write a table in the format of another project.

    Prints what the format cannot hold.
    """
    loaded = loading.load_table(tables.find_table(table))
    out = output.path()
    print_lines(remarks(), formats.export_table(loaded, wanted.file_format, unit=wanted.unit, out=out))
    results().print(f"Wrote {escape(str(out))}")


@dataclass(frozen=True)
class _MergeOptions:
    """How tables are merged."""

    conflict: Literal["error", "first", "last", "mean"] = option(
        "Which entry to keep where tables disagree.", default="error"
    )


@command.command("merge", cls=WritingCommand)
@click.argument("names", metavar="TABLE...", nargs=-1, required=True)
@grouped(out={"required": True})
def merge(names: tuple[str, ...], merging: _MergeOptions, output: OutputOptions) -> None:
    """Merge tables of one space and platform.

    Everything but the entries is taken from the first.
    """
    out = output.path()
    loaded = [tables.LookupTable.load(tables.find_table(name)) for name in names]
    _write(tables.merge_tables(loaded, conflict=merging.conflict), out, loaded)


@command.command("scale", cls=WritingCommand)
@click.argument("table")
@click.option("--factor", required=True, type=float, help="Factor, such as 0.001.")
@grouped(out={"required": True})
def scale(table: str, factor: float, output: OutputOptions) -> None:
    """Multiply every cost of a table by a factor."""
    out = output.path()
    loaded = loading.load_table(tables.find_table(table))
    _write(tables.scale_table(loaded, factor), out, [loaded])


@dataclass(frozen=True)
class _SubsetOptions:
    """What is kept."""

    layers: str | None = option("Layers to keep.  [default: all]", metavar="NAME,...")
    choices: str | None = option("Candidates to keep.  [default: all]", metavar="NAME,...")


@command.command("subset", cls=WritingCommand)
@click.argument("table")
@grouped(out={"required": True})
def subset(table: str, kept: _SubsetOptions, output: OutputOptions) -> None:
    """Keep some entries of a table.

    The others become missing. Fixed layers are always kept.
    """
    if kept.layers is None and kept.choices is None:
        raise InvalidValueError("Say what to keep, with --layers or --choices.")
    out = output.path()
    loaded = tables.LookupTable.load(tables.find_table(table))
    _write(tables.subset_table(loaded, layers=_names(kept.layers), choices=_names(kept.choices)), out, [loaded])


@dataclass(frozen=True)
class _RebuildOptions:
    """Where the samples are, and of what space they are."""

    database: str | None = option(
        "Where the raw samples are kept.  [default: the user's own database]",
        metavar="URL|FILE",
        envvar="NNI_LATENCY_DATABASE",
    )
    space: str | None = option("Model space; required if the table names a class of your own.")


@command.command("rebuild", cls=WritingCommand)
@click.argument("table")
@grouped(out={"help": "Output file.  [default: TABLE with the ending .rebuilt.json]"})
def rebuild(table: str, samples: _RebuildOptions, output: OutputOptions) -> None:
    """Derive a table again from its raw samples.

    Uses today's statistics. TABLE names the measuring campaign, and the database has its raw samples.
    """
    path = tables.find_table(table)
    out = output.path(f"{path.name.removesuffix('.json')}.rebuilt.json")
    loaded = loading.load_table(path)

    def plan() -> tables.MeasurePlan:
        name = name_space(loaded, samples.space)
        return plan_for(spaces.make_space(name, loaded.space.arguments), name, loaded.batch_size)

    _write(tables.rebuild_table(loaded, plan, tables.as_store(samples.database)), out, [loaded])


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _write(
    table: tables.LookupTable | tables.OperatorTable,
    out: Path,
    sources: list[tables.LookupTable] | list[tables.LookupTable | tables.OperatorTable],
) -> None:
    """Write a table made from others; print the remarks that these did not have."""
    known = {remark for source in sources for remark in source.remarks}
    table.save(out)
    print_lines(remarks(), (remark for remark in table.remarks if remark not in known))
    results().print(f"Wrote {escape(str(out))}, coverage {format_percent(table.coverage)}")
