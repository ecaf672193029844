"""``nni-latency table import``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
from rich.markup import escape

import nni_latency.tables as tables
import nni_latency.tables.formats as formats
from nni_latency.cli._console import print_names, remarks, results
from nni_latency.cli._option import grouped, option
from nni_latency.cli._output_options import OutputOptions
from nni_latency.cli._outputs import WritingCommand
from nni_latency.cli._space_options import SpaceOptions, plan_for
from nni_latency.errors import InvalidValueError, listed
from nni_latency.platforms import Platform
from nni_latency.units import METRIC_UNITS, format_percent, number_of


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
        "How to treat costs that are not positive numbers.", default="error"
    )
    strict: bool = option("Fail if a row belongs to no candidate of the space.", default=False)
    check_unit: bool = option("Refuse implausible latencies, or accept them.", default=True)


@click.command("import", cls=WritingCommand)
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
        _plan(asked, source.batch_size),
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
    _report(imported, file)
    results().print(f"Wrote {escape(str(out))}")


def _plan(asked: SpaceOptions, batch_size: int) -> tables.MeasurePlan | None:
    if asked.space != "none":
        return plan_for(asked.make(), asked.name, batch_size)
    if asked.given:
        raise InvalidValueError(f"--space none takes no arguments of a space. Got {', '.join(asked.given)}.")
    return None


def _report(imported: formats.Imported, source: Path) -> None:
    table = imported.table
    entries = len(list(table.places()))
    results().print(
        f"{escape(source.name)}: format {imported.format}, unit {imported.unit}; "
        f"{number_of(entries, 'entry', 'entries')} of {table.space}, coverage {format_percent(table.coverage)}",
    )
    console = remarks()
    print_names(console, "row", "without a candidate in the space", imported.unmatched)
    print_names(console, "cost", "left out as not positive", imported.left_out)
    if isinstance(table, tables.LookupTable):
        print_names(console, "candidate", "without an entry", [f"{layer}:{choice}" for layer, choice in table.missing])
