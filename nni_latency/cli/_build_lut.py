# SPDX-License-Identifier: Apache-2.0
"""``nni-latency build-lut``."""

from __future__ import annotations

import click

import nni_latency.measurement as measurement
import nni_latency.tables as tables
from nni_latency.cli._build_tables import (
    TableJob,
    TableOptions,
    build_adapted,
    build_candidate_tables,
    build_estimated,
    build_operator_tables,
)
from nni_latency.cli._measuring import MeterOptions, PlatformOptions, ProtocolOptions, StoreOptions
from nni_latency.cli._option import OutputOptions, grouped, refuse_given
from nni_latency.cli._outputs import WritingCommand
from nni_latency.cli._remote_options import RemoteOptions
from nni_latency.cli._space_options import SpaceOptions
from nni_latency.errors import InvalidValueError

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
    build = build_candidate_tables if hasattr(space, "measure_plan") else build_operator_tables
    if build is build_operator_tables:
        tables.check_operators(runtime, wanted.metric)
    elif wanted.networks:
        raise InvalidValueError(f"The candidates of {asked.name!r} are measured in rounds: omit --networks.")
    build(space, runtime, protocol, job, where.meters(metered, wanted.metric, platform.device, runtime))
