"""``nni-latency import``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from nni_latency.cli._console import print_names, remarks, results
from nni_latency.cli._options import SPACE_OPTIONS, given_arguments, make_space, plan_for, space_options
from nni_latency.errors import InvalidValueError
from nni_latency.files import check_writable
from nni_latency.platforms import Platform
from nni_latency.tables import LookupTable, MeasurePlan, check_new
from nni_latency.tables.formats import FORMATS, Imported, import_table
from nni_latency.units import METRIC_UNITS, format_percent


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "file_format",
    metavar="NAME",
    help=f"Format: {', '.join(FORMATS)}.  [default: what the file looks like]",
)
@space_options
@click.option("--unit", metavar="UNIT", help="Unit of the numbers, such as ms; needed where the file does not say it.")
@click.option("--metric", type=click.Choice(list(METRIC_UNITS)), default="latency", show_default=True, help="Quantity.")
@click.option("--platform", metavar="DEVICE|ID", help="Where they were taken, such as raspberry-pi-4.")
@click.option("--batch-size", type=click.IntRange(1), default=1, show_default=True, help="Inputs of a run.")
@click.option("--choices", metavar="NAME,...", help="Candidates in order, for files without names.")
@click.option(
    "--invalid",
    type=click.Choice(["error", "leave-out"]),
    default="error",
    show_default=True,
    help="What to do about costs that are no positive numbers.",
)
@click.option("--strict", is_flag=True, help="Fail where a row belongs to no candidate of the space.")
@click.option("--check-unit/--no-check-unit", default=True, show_default=True, help="Refuse impossible latencies.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The table that is written.")
@click.option("--overwrite", is_flag=True, help="Replace the table.")
def command(**options: Any) -> None:
    """Read a table of another project, and write it as a lookup table.

    FILE may be of any of the formats that 'nni-latency export' writes. Without a space (--space none), operator keys
    make a table that is looked up by operators.
    """
    out = options["out"]
    check_new(out, overwrite=options["overwrite"])
    check_writable(out)
    imported = import_table(
        options["file"],
        _plan(options),
        file_format=options["file_format"],
        unit=options["unit"],
        metric=options["metric"],
        platform=Platform.parse(options["platform"]) if options["platform"] else None,
        choices=[name.strip() for name in options["choices"].split(",")] if options["choices"] else (),
        batch_size=options["batch_size"],
        invalid=options["invalid"],
        check_unit=options["check_unit"],
    )
    if options["strict"] and imported.unmatched:
        raise InvalidValueError(
            f"{len(imported.unmatched)} rows belong to no candidate of the space: {'; '.join(imported.unmatched)}. "
            "Nothing was written."
        )
    imported.table.save(out)
    _report(imported, options["file"])
    results().print(f"Wrote {escape(str(out))}", soft_wrap=True)


def _plan(options: dict[str, Any]) -> MeasurePlan | None:
    if options["space"] == "none":
        given = [name for name in (*SPACE_OPTIONS, "space_args") if options.get(name) is not None]
        if given:
            raise InvalidValueError(f"Without a space there is nothing that {', '.join(given)} could be of.")
        return None
    return plan_for(make_space(options["space"], given_arguments(options)), options["space"], options["batch_size"])


def _report(imported: Imported, source: Path) -> None:
    table = imported.table
    entries = len(list(table.places()))
    results().print(
        f"{escape(source.name)}: format {imported.format}, unit {imported.unit}; {entries} entries of {table.space}, "
        f"coverage {format_percent(table.coverage)}",
        soft_wrap=True,
    )
    console = remarks()
    print_names(console, "rows belong to no candidate of the space", imported.unmatched)
    print_names(console, "costs are no positive numbers and were left out", imported.left_out)
    if isinstance(table, LookupTable):
        print_names(console, "candidates have no entry", [f"{layer}:{choice}" for layer, choice in table.missing])
