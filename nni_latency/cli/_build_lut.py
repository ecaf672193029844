# SPDX-License-Identifier: Apache-2.0
"""``nni-latency build-lut``."""

from __future__ import annotations

from pathlib import Path

import click
from rich.markup import escape

import nni_latency.measurement as measurement
import nni_latency.measurement.runtimes as runtimes
import nni_latency.tables as tables
from nni_latency.cli._build_tables import TableJob, TableOptions, build_adapted, build_estimated, build_operator_tables
from nni_latency.cli._console import doubts, print_lines, remarks, results
from nni_latency.cli._measuring import Measuring, MeterOptions, PlatformOptions, ProtocolOptions, StoreOptions
from nni_latency.cli._option import OutputOptions, grouped, refuse_given
from nni_latency.cli._outputs import WritingCommand
from nni_latency.cli._remote_options import RemoteOptions
from nni_latency.cli._space_options import SpaceOptions, plan_for, table_name
from nni_latency.errors import InvalidValueError
from nni_latency.units import COUNTED_METRICS, format_percent, format_seconds, number_of

_USUAL = measurement.Protocol()

#: Fields of options that tables of known devices answer.
_OF_TABLES = (
    *("space_args", "input_size", "batch_sizes", "metric"),
    *("networks", "meter"),
)


@click.command("build-lut", cls=WritingCommand)
@grouped(
    budget={"default": f"{_USUAL.time_budget:g}s"},
    out={"help": "File of the table.  [default: named after space and platform]"},
)
def command(
    asked: SpaceOptions,
    wanted: TableOptions,
    platform: PlatformOptions,
    ending: ProtocolOptions,
    metered: MeterOptions,
    output: OutputOptions,
    store: StoreOptions,
    where: RemoteOptions,
) -> None:
    """Measure the candidates of a space on this device and write a lookup table.

    Most spaces of NNI's hub have no layers with a few candidates each. For these, a sample of networks is measured, and
    the table holds the cost of each operator. With --from and --samples, a few networks are measured, and tables of
    other devices show which costs are typical.

    An interrupted build can be resumed: run the same command again.
    """
    job = TableJob(asked, wanted, output, store)
    if wanted.sources and wanted.samples is not None:
        refuse_given(_OF_TABLES, "with --from and --samples: the tables are of a space and its inputs")
        runtime = where.runtime(platform)
        build_adapted(job, wanted.samples, runtime, ending.of(_USUAL, runtime.platform.threads, wanted.seed))
        return
    refuse_given(("samples",), "without --from")
    space = asked.make()
    if output.out and len(wanted.batch_sizes) > 1:
        raise InvalidValueError("--out names one file, but --batch-size asks for several tables. Omit one of them.")
    if wanted.sources:
        if len(wanted.sources) > 1:
            raise InvalidValueError(
                "The estimates of one estimator are tabulated. Give one --from, or --samples as well."
            )
        build_estimated(space, wanted.sources[0], job)
        return
    runtime = where.runtime(platform)
    protocol = ending.of(_USUAL, runtime.platform.threads, wanted.seed)
    if not hasattr(space, "measure_plan"):
        tables.check_operators(runtime, wanted.metric)
        meters = where.meters(metered, wanted.metric, platform.device, runtime)
        build_operator_tables(space, runtime, protocol, job, meters)
        return
    if wanted.networks:
        raise InvalidValueError(f"The candidates of {asked.name!r} are measured in rounds: omit --networks.")
    meters = where.meters(metered, wanted.metric, platform.device, runtime)
    plans = [plan_for(space, asked.name, batch_size) for batch_size in wanted.batch_sizes]
    # All files are checked before the first table is measured.
    outs = [output.path(table_name(plan, runtime.platform, wanted.metric)) for plan in plans]
    for plan, out in zip(plans, outs, strict=True):
        _report(_build(plan, runtime, protocol, out, job, meters), out)


def _build(
    plan: tables.MeasurePlan,
    runtime: runtimes.Runtime,
    protocol: measurement.Protocol,
    out: Path,
    job: TableJob,
    meters: tuple[measurement.Meter, ...] = (),
) -> tables.LookupTable:
    metric, overwrite = job.wanted.metric, job.output.overwrite
    if metric in COUNTED_METRICS:
        return tables.write_table(tables.count_table(plan, metric, runtime.platform), out, overwrite=overwrite)
    with Measuring(
        f"{number_of(sum(plan.sizes), 'candidate')} of {plan.space}", runtime, job.store, meters
    ) as measuring:
        return tables.build_table(
            plan,
            runtime,
            protocol,
            out,
            metric=metric,
            overwrite=overwrite,
            **measuring.how,
        )


def _report(table: tables.LookupTable, out: Path) -> None:
    console = results()
    console.print(f"Wrote {escape(str(out))}")
    if table.protocol is None:
        console.print(
            f"Computed the {table.metric} of "
            f"{number_of(sum(len(layer.entries) for layer in table.layers), 'candidate')}"
        )
        return
    spreads = sorted(entry.half_width / entry.value for layer in table.layers for entry in layer.entries.values())
    console.print(
        f"{number_of(table.rounds, 'round')} in {format_seconds(table.duration)}, coverage "
        f"{format_percent(table.coverage)}, median half-width of the {format_percent(table.protocol.confidence)} "
        f"intervals {format_percent(spreads[len(spreads) // 2])}"
    )
    print_lines(remarks(), doubts(table))
