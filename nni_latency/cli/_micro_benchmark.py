"""``nni-latency micro-benchmark``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from nni_latency.cli._console import remarks, results
from nni_latency.cli._options import Duration, ending_options, make_runtime, platform_options
from nni_latency.cli._progress import Measuring
from nni_latency.files import check_writable
from nni_latency.measurement import Protocol
from nni_latency.micro_benchmarks import BLOCKS, BenchmarkPoints, run_benchmarks
from nni_latency.tables import check_new
from nni_latency.units import format_percent, format_seconds

_DEFAULTS = Protocol()


@click.command("micro-benchmark")
@platform_options("blocks", "block")
@ending_options(
    "150s",
    "Most time spent measuring; it also decides how large batches may become.",
    _DEFAULTS.half_width,
    "A point is left alone when half the width of its interval is this share of its value; 0 for never.",
)
@click.option(
    "--timeout",
    type=Duration(),
    default=f"{_DEFAULTS.timeout:g}s",
    show_default=True,
    help="A block that takes longer hangs, and ends its series.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the order of the points.")
@click.option("--out", type=click.Path(path_type=Path), help="JSON file.  [default: named after the platform]")
@click.option("--overwrite", is_flag=True, help="Replace a finished file.")
def command(**options: Any) -> None:
    """Measure about a hundred blocks that tell what this device is like, for nni-latency fit acts.

    Every block is tried at larger and larger batch sizes, until memory or the budget end its series. It can be
    interrupted at any moment: the same command goes on where it was.
    """
    runtime = make_runtime(options["runtime"], options["device"], options["threads"], options["precision"])
    out = options["out"] or Path(f"micro-benchmark.{runtime.platform.id}.json")
    check_writable(out)
    check_new(out, overwrite=options["overwrite"])
    protocol = Protocol(
        # The feeder before every block makes each run as cold as the next.
        n_warmup=0,
        rounds=options["rounds"],
        threads=options["threads"],
        time_budget=options["budget"],
        half_width=options["half_width"],
        timeout=options["timeout"],
        seed=options["seed"],
    )
    with Measuring(
        f"{len(BLOCKS)} blocks at rising batch sizes", runtime, options["database"], fresh=options["fresh"]
    ) as measuring:
        points = run_benchmarks(
            runtime,
            protocol,
            out,
            overwrite=options["overwrite"],
            **measuring.how,
        )
    _report(points, out)


def _report(points: BenchmarkPoints, out: Path) -> None:
    console = results()
    console.print(f"Wrote {escape(str(out))}", soft_wrap=True)
    spreads = sorted((point.high - point.low) / (2 * point.value) for point in points.points)
    low, high = min(points.latencies), max(points.latencies)
    console.print(
        f"{len(points.points)} points of {len(set(points.blocks))} blocks, {format_seconds(low)} to "
        f"{format_seconds(high)}; {points.rounds} rounds in {format_seconds(points.duration)}, median half-width of "
        f"the intervals {format_percent(spreads[len(spreads) // 2])}"
    )
    for block, reason in points.failures.items():
        remarks().print(f"{escape(block)} ends before {escape(reason)}", soft_wrap=True)
    for remark in points.remarks:
        remarks().print(escape(remark), soft_wrap=True)
