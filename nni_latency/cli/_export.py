"""``nni-latency export``."""

from __future__ import annotations

import click
from rich.markup import escape

import nni_latency.datasets as datasets
import nni_latency.graphs as graphs
import nni_latency.tables as tables
import nni_latency.tables.formats as formats
from nni_latency.cli._console import print_lines, remarks, results
from nni_latency.cli._option import grouped
from nni_latency.cli._output_options import OutputOptions
from nni_latency.cli._outputs import WritingCommand
from nni_latency.errors import InvalidValueError
from nni_latency.units import number_of


@click.command("export", cls=WritingCommand)
@click.argument("table")
@click.option(
    "--format", "file_format", required=True, metavar="NAME", help=f"Format: {', '.join((*formats.FORMATS, 'nnlqp'))}."
)
@click.option("--unit", metavar="UNIT", help="Unit of the numbers, such as ms; nnlqp has one of its own.")
@grouped(out={"required": True})
def command(table: str, file_format: str, unit: str | None, output: OutputOptions) -> None:
    """Write a lookup table, or a data set of networks, in the format of another project.

    TABLE is a file, or the name of a table that ships with the package. Prints what the
    format cannot hold. A data set becomes a folder in NNLQP's layout: name its gt.txt with --out.
    """
    if file_format == graphs.NNLQP:
        _export_networks(table, unit, output)
        return
    if unit is None:
        raise click.UsageError("Missing option '--unit': a table is written in the unit that it names, such as ms.")
    loaded = tables.read_table(tables.find_table(table))
    out = output.path()
    print_lines(remarks(), formats.export_table(loaded, file_format, unit=unit, out=out))
    results().print(f"Wrote {escape(str(out))}")


def _export_networks(path: str, unit: str | None, output: OutputOptions) -> None:
    out = output.path()
    if unit not in (None, "ms"):
        raise InvalidValueError(f"NNLQP's layout has milliseconds. Got --unit {unit}.")
    if out.name != graphs.GROUND_TRUTH:
        raise InvalidValueError(
            f"NNLQP's layout is a folder with the file {graphs.GROUND_TRUTH} in it: give --out FOLDER/"
            f"{graphs.GROUND_TRUTH}. Got {str(out)!r}."
        )
    networks = datasets.load_networks(path)
    datasets.export_nnlqp(networks, out.parent)
    results().print(
        f"Wrote {escape(str(out))}, {number_of(len(networks), 'latency', 'latencies')}, and the ONNX files beside it"
    )
