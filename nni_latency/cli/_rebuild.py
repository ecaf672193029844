"""``nni-latency rebuild``."""

from __future__ import annotations

import click

import nni_latency.spaces as spaces
import nni_latency.tables as tables
from nni_latency.cli._option import grouped
from nni_latency.cli._output_options import OutputOptions, write_result
from nni_latency.cli._outputs import WritingCommand
from nni_latency.cli._space_options import name_space, plan_for


@click.command("rebuild", cls=WritingCommand)
@click.argument("table")
@click.option("--database", metavar="URL|FILE", envvar="NNI_LATENCY_DATABASE", help="Where the raw samples are kept.")
@click.option("--space", help="Model space; required if the table names a class of your own.")
@grouped(out={"help": "Output file.  [default: TABLE with the ending .rebuilt.json]"})
def command(table: str, database: str | None, space: str | None, output: OutputOptions) -> None:
    """Derive a table again from its raw samples, with today's statistics.

    Measures nothing. TABLE names the measuring campaign, and the database has its raw samples.
    """
    path = tables.find_table(table)
    out = output.path(f"{path.name.removesuffix('.json')}.rebuilt.json")
    loaded = tables.read_table(path)

    def plan() -> tables.MeasurePlan:
        name = name_space(loaded, space)
        return plan_for(spaces.make_space(name, loaded.space.arguments), name, loaded.batch_size)

    write_result(tables.rebuild_table(loaded, plan, tables.as_store(database)), out, known=loaded.remarks)
