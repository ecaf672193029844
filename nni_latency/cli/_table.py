# SPDX-License-Identifier: Apache-2.0
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
from nni_latency.cli._console import print_lines, print_names, remarks, results
from nni_latency.cli._option import OutputOptions, grouped, option
from nni_latency.cli._outputs import WritingCommand
from nni_latency.cli._space_options import SpaceOptions, name_space, plan_for
from nni_latency.errors import InvalidValueError, listed
from nni_latency.platforms import Platform
from nni_latency.units import METRIC_UNITS, format_percent, number_of


@click.group("table")
def command() -> None:
    """Convert lookup tables, and make tables of others.

    TABLE is a file, or the name of a table that ships with the package. Nothing is measured.
    """


@dataclass(frozen=True)
class _SourceOptions:
    """What a file holds."""

    file_format: str | None = option(
        f"Format: {', '.join(formats.FORMATS)}.  [default: detected from the file]",
        "--format",
        metavar="NAME",
    )
    unit: str | None = option(
        "Unit of the numbers, such as ms; required if the file does not state it.", metavar="UNIT"
    )
    metric: str = option("Metric of the numbers.", type=click.Choice(list(METRIC_UNITS)), default="latency")
    platform: str | None = option("Where the numbers were measured, such as raspberry-pi-4.", metavar="DEVICE|ID")
    batch_size: int = option("Images per run.", type=click.IntRange(1), default=1)
    choices: str | None = option("Candidates in order, for files that do not name them.", metavar="NAME,...")
    invalid: Literal["error", "leave-out"] = option(
        "How to treat costs that are not positive numbers.", default="error", rare=True
    )
    strict: bool = option("Fail if a row belongs to no candidate of the space.", default=False, rare=True)
    check_unit: bool = option("Refuse implausible latencies, or accept them.", default=True, rare=True)


@command.command("import", cls=WritingCommand)
@click.argument("file", type=click.Path(path_type=Path))
@grouped(out={"required": True})
def import_table(file: Path, source: _SourceOptions, asked: SpaceOptions, output: OutputOptions) -> None:
    """Convert a table of another project into a lookup table.

    FILE may have any format that 'nni-latency table export' writes. With --space none, a file of operator keys becomes
    a table that is looked up by operator.
    """
    out = output.path()
    imported = formats.import_table(
        file,
        _plan_of_space(asked, source.batch_size),
        file_format=source.file_format,
        unit=source.unit,
        metric=source.metric,
        platform=Platform.parse(source.platform) if source.platform else None,
        choices=[name.strip() for name in source.choices.split(",")] if source.choices else (),
        batch_size=source.batch_size,
        invalid=source.invalid,
        check_unit=source.check_unit,
    )
    if source.strict and imported.unmatched:
        raise InvalidValueError(
            f"{number_of(len(imported.unmatched), 'row')} without a candidate in the space: "
            f"{listed(imported.unmatched, separator='; ')}. Nothing was written."
        )
    imported.table.save(out)
    _report_imported(imported, file)
    results().print(f"Wrote {escape(str(out))}")


def _plan_of_space(asked: SpaceOptions, batch_size: int) -> tables.MeasurePlan | None:
    if asked.space != "none":
        return plan_for(asked.make(), asked.name, batch_size)
    if asked.given:
        raise InvalidValueError("--space none takes no arguments of a space. Omit --space-args and --input-size.")
    return None


def _report_imported(imported: formats.Imported, source: Path) -> None:
    table = imported.table
    entries = len(list(table.places()))
    results().print(
        f"{escape(source.name)}: format {imported.format}, unit {imported.unit}; "
        f"{number_of(entries, 'entry', 'entries')} of {table.space}, coverage {format_percent(table.coverage)}",
    )
    console = remarks()
    print_names(console, "row", "without a candidate in the space", imported.unmatched)
    print_names(console, "cost", "left out as not positive", imported.left_out)
    print_names(console, "candidate", "without an entry", [f"{layer}:{choice}" for layer, choice in table.missing])


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
    loaded = [loading.load_table(tables.find_table(name)) for name in names]
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
    loaded = loading.load_table(tables.find_table(table))
    _write(tables.subset_table(loaded, layers=_names(kept.layers), choices=_names(kept.choices)), out, [loaded])


@dataclass(frozen=True)
class _RebuildOptions:
    """Where the samples are, and of what space they are."""

    database: str | None = option(
        "Where the raw samples are kept.  [default: the user's own database]",
        metavar="URL|FILE",
        envvar="NNI_LATENCY_DATABASE",
        rare=True,
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
    table: tables.LookupTable,
    out: Path,
    sources: list[tables.LookupTable],
) -> None:
    """Write a table made from others; print the remarks that these did not have."""
    known = {remark for source in sources for remark in source.remarks}
    table.save(out)
    print_lines(remarks(), (remark for remark in table.remarks if remark not in known))
    results().print(f"Wrote {escape(str(out))}, coverage {format_percent(table.coverage)}")
