"""``nni-latency rebuild``."""

from __future__ import annotations

from pathlib import Path

import click

import nni_latency.spaces as spaces
from nni_latency.cli._option import grouped
from nni_latency.cli._output_options import OutputOptions, write_result
from nni_latency.cli._space_options import plan_for
from nni_latency.tables import MeasurePlan, as_store, find_table, read_table, rebuild_table


@click.command("rebuild")
@click.argument("table")
@click.option("--database", metavar="URL|FILE", envvar="NNI_LATENCY_DATABASE", help="Where the raw samples are kept.")
@grouped(out={"help": "Output file.  [default: TABLE itself, with --overwrite]"})
def command(table: str, database: str | None, output: OutputOptions) -> None:
    """Derive a table again from its raw samples, with today's statistics.

    Measures nothing. TABLE names the measuring campaign, and the database has its raw samples.
    """
    path = find_table(table)
    out = output.path(str(path))
    loaded = read_table(path)

    def plan() -> MeasurePlan:
        space = spaces.make_space(loaded.space.name, dict(loaded.space.arguments))
        return plan_for(space, loaded.space.name, loaded.batch_size)

    write_result(rebuild_table(loaded, plan, as_store(database)), Path(out), known=loaded.remarks)
