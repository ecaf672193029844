"""``nni-latency micro-benchmark``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.markup import escape

import nni_latency.measurement as measurement
import nni_latency.micro_benchmarks as micro_benchmarks
from nni_latency.cli._console import print_lines, remarks, results
from nni_latency.cli._measuring_options import EndingOptions, PlatformOptions, StoreOptions, make_runtime
from nni_latency.cli._option import DURATION, grouped, option
from nni_latency.cli._output_options import OutputOptions
from nni_latency.cli._outputs import WritingCommand
from nni_latency.cli._progress import Measuring
from nni_latency.units import format_percent, format_seconds, number_of

_DEFAULTS = measurement.Protocol()


@dataclass(frozen=True)
class _BlockOptions:
    """How blocks are measured."""

    timeout: float = option(
        "Time limit per block; a slower one ends its series.", type=DURATION, default=f"{_DEFAULTS.timeout:g}s"
    )
    seed: int = option("Random seed for the order of the points.", type=click.IntRange(0), default=0)


@click.command("micro-benchmark", cls=WritingCommand)
@grouped(
    budget={"default": "150s"},
    half_width={
        "default": _DEFAULTS.half_width,
        "help": "Stop measuring a point once the half-width of its interval is at most this share of its value; "
        "0 uses the whole budget.",
    },
    out={"help": "JSON file of the points.  [default: named after the platform]"},
)
def command(
    platform: PlatformOptions,
    ending: EndingOptions,
    blocks: _BlockOptions,
    output: OutputOptions,
    store: StoreOptions,
) -> None:
    """Measure 56 blocks that characterise this device, for 'nni-latency fit acts'.

    Each block is measured at growing batch sizes, until memory or the budget ends its series.

    An interrupted run can be resumed: run the same command again.
    """
    runtime = make_runtime(platform)
    out = output.path(f"micro-benchmark.{runtime.platform.id}.json")
    # The feeder before every block makes each run as cold as the next, so no warm-up is needed.
    protocol = replace(ending.protocol(platform.threads, blocks.seed), n_warmup=0, timeout=blocks.timeout)
    with Measuring(
        f"{number_of(len(micro_benchmarks.BLOCKS), 'block')} at growing batch sizes", runtime, store
    ) as measuring:
        points = micro_benchmarks.run_benchmarks(runtime, protocol, out, overwrite=output.overwrite, **measuring.how)
    _report(points, out)


def _report(points: micro_benchmarks.BenchmarkPoints, out: Path) -> None:
    console = results()
    console.print(f"Wrote {escape(str(out))}")
    spreads = sorted((point.high - point.low) / (2 * point.value) for point in points.points)
    low, high = min(points.latencies), max(points.latencies)
    console.print(
        f"{number_of(len(points.points), 'point')} of {number_of(len(set(points.blocks)), 'block')}, "
        f"{format_seconds(low)} to {format_seconds(high)}; {number_of(points.rounds, 'round')} in "
        f"{format_seconds(points.duration)}, median half-width of the intervals "
        f"{format_percent(spreads[len(spreads) // 2])}"
    )
    for block, reason in points.failures.items():
        remarks().print(f"{escape(block)} ends before {escape(reason)}")
    print_lines(remarks(), points.remarks)
