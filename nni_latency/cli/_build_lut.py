"""``nni-latency build-lut``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from nni_latency.cli._build_estimated import build_estimated
from nni_latency.cli._build_operators import build_operator_tables
from nni_latency.cli._console import print_doubts, remarks, results
from nni_latency.cli._options import (
    BatchSizes,
    Duration,
    ending_options,
    given_arguments,
    make_runtime,
    make_space,
    plan_for,
    platform_options,
    space_options,
)
from nni_latency.cli._progress import Measuring
from nni_latency.errors import InvalidValueError
from nni_latency.files import check_writable
from nni_latency.measurement import Protocol
from nni_latency.measurement.runtimes import Runtime
from nni_latency.platforms import Platform
from nni_latency.tables import (
    COUNTED_METRICS,
    LookupTable,
    MeasurePlan,
    build_table,
    check_new,
    count_table,
    write_table,
)
from nni_latency.units import format_percent, format_seconds

_DEFAULTS = Protocol()


@click.command("build-lut")
@space_options
@click.option(
    "--batch-size",
    "batch_sizes",
    type=BatchSizes(),
    default="1",
    show_default=True,
    help="Pictures per run; several, such as 1,8,32, build a table each.",
)
@click.option(
    "--metric",
    type=click.Choice(["latency", "throughput", *COUNTED_METRICS]),
    default="latency",
    show_default=True,
    help="What the table holds; memory is counted and not measured.",
)
@click.option(
    "--networks",
    type=click.IntRange(1),
    help="Networks that are measured of a space without a measure plan.  [default: 30]",
)
@platform_options("candidates", "network")
@ending_options(
    f"{_DEFAULTS.time_budget:g}s",
    half_width=_DEFAULTS.half_width,
    half_width_help="End earlier when half the width of every interval is this share of its value; "
    "0 spends the whole budget.",
)
@click.option(
    "--timeout",
    type=Duration(),
    default=f"{_DEFAULTS.timeout:g}s",
    show_default=True,
    help="A candidate that takes longer hangs, and is recorded as failed.",
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    default=_DEFAULTS.processes,
    show_default=True,
    help="Worker processes that share the rounds, each with its own places in memory.",
)
@click.option(
    "--n-warmup",
    type=click.IntRange(0),
    default=_DEFAULTS.n_warmup,
    show_default=True,
    help="Untimed runs per visit of a network.",
)
@click.option(
    "--n-run",
    type=click.IntRange(1),
    default=_DEFAULTS.n_run,
    show_default=True,
    help="Timed runs per visit of a network.",
)
@click.option(
    "--outlier", type=float, default=_DEFAULTS.outlier, show_default=True, help="Share of samples dropped at each end."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the order of the networks.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="File of the table.  [default: named after space and platform]"
)
@click.option(
    "--from",
    "source",
    metavar="FILE|NAME[:ARGUMENT]",
    help="Measure nothing: write what an estimator says, such as acts:FILE, for its platform.",
)
@click.option("--overwrite", is_flag=True, help="Replace a finished table.")
def command(**options: Any) -> None:
    """Measure the candidates of a space on this device and write a lookup table.

    Of a space without layers of a few candidates each, as most of NNI's hub are, a covering sample of networks is
    measured, and the table holds what their operators cost.

    It can be interrupted at any moment: the same command goes on where it was.
    """
    space = make_space(options["space"], given_arguments(options))
    if options["out"] and len(options["batch_sizes"]) > 1:
        raise InvalidValueError("--out names one file, --batch-size asks for several tables. Leave one of them out.")
    if options["source"] is not None:
        build_estimated(space, options, default_name)
        return
    runtime = make_runtime(options["runtime"], options["device"], options["threads"], options["precision"])
    if not hasattr(space, "measure_plan"):
        build_operator_tables(space, runtime, _protocol(options), options)
        return
    if options["networks"]:
        raise InvalidValueError(f"The candidates of {options['space']!r} are measured in rounds: leave out --networks.")
    plans = [plan_for(space, options["space"], batch_size) for batch_size in options["batch_sizes"]]
    outs = [options["out"] or Path(default_name(plan, runtime.platform, options["metric"])) for plan in plans]
    for out in outs:
        # All of them, before the first is measured.
        check_writable(out)
        check_new(out, overwrite=options["overwrite"])
    for plan, out in zip(plans, outs, strict=True):
        _report(_build(plan, runtime, out, options), out)


def _build(plan: MeasurePlan, runtime: Runtime, out: Path, options: dict[str, Any]) -> LookupTable:
    if options["metric"] in COUNTED_METRICS:
        return write_table(count_table(plan, options["metric"], runtime.platform), out, overwrite=options["overwrite"])
    protocol = _protocol(options)
    with Measuring(
        f"{sum(plan.sizes)} candidates of {plan.space}", runtime, options["database"], fresh=options["fresh"]
    ) as measuring:
        return build_table(
            plan,
            runtime,
            protocol,
            out,
            metric=options["metric"],
            overwrite=options["overwrite"],
            **measuring.how,
        )


def _protocol(options: dict[str, Any]) -> Protocol:
    return Protocol(
        n_warmup=options["n_warmup"],
        n_run=options["n_run"],
        outlier=options["outlier"],
        rounds=options["rounds"],
        threads=options["threads"],
        time_budget=options["budget"],
        half_width=options["half_width"],
        processes=options["processes"],
        timeout=options["timeout"],
        seed=options["seed"],
    )


def default_name(plan: MeasurePlan, platform: Platform, metric: str = "latency") -> str:
    """Name a table's file after its space, platform, and metric if it is not latency.

    Only arguments that differ from the space's usual ones are spelt out.
    """
    arguments = plan.space.arguments
    parts = [plan.space.name]
    parts += [f"{name[0]}{arguments[name]:g}" for name in ("width", "depth") if arguments.get(name, 1.0) != 1.0]
    parts += ["x".join(map(str, plan.input_shape[2:] or plan.input_shape)) + f"-b{plan.batch_size}"]
    return f"{'-'.join(parts)}.{platform.id}{'' if metric == 'latency' else f'.{metric}'}.json"


def _report(table: LookupTable, out: Path) -> None:
    console = results()
    console.print(f"Wrote {escape(str(out))}", soft_wrap=True)
    if table.protocol is None:
        console.print(f"Counted the {table.metric} of {sum(len(layer.entries) for layer in table.layers)} candidates")
        return
    spreads = sorted(entry.half_width / entry.value for layer in table.layers for entry in layer.entries.values())
    console.print(
        f"{table.rounds} rounds in {format_seconds(table.duration)}, coverage {format_percent(table.coverage)}, "
        f"median half-width of the {format_percent(table.protocol.confidence)} intervals "
        f"{format_percent(spreads[len(spreads) // 2])}"
    )
    print_doubts(table, remarks())
