# SPDX-License-Identifier: Apache-2.0
"""``nni-latency learn device``: operators of a device from blocks that characterise it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
from rich.markup import escape

import nni_latency.estimators.acts as acts
import nni_latency.measurement as measurement
import nni_latency.measurement.runtimes as runtimes
import nni_latency.micro_benchmarks as micro_benchmarks
import nni_latency.plots as plots
from nni_latency.cli._console import named, print_lines, remarks
from nni_latency.cli._estimator_report import acts_formula
from nni_latency.cli._measuring import Measuring, PlatformOptions, ProtocolOptions, StoreOptions, make_runtime
from nni_latency.cli._messages import is_verbose
from nni_latency.cli._option import OutputOptions, grouped, option, output_option
from nni_latency.cli._outputs import outputs
from nni_latency.cli._report import Column, Grid, Report, ReportingCommand, print_report
from nni_latency.errors import InvalidValueError
from nni_latency.platforms import check_same_platform
from nni_latency.units import format_percent, format_seconds, number_of

#: Blocks whose end is explained without ``--verbose``.
_SHOWN = 3


@dataclass(frozen=True)
class _ActsOptions:
    """How a fit is made, and what is shown of it."""

    variant: Literal["refined", "published"] = option(
        "A refined fit by operator, or the published formula.", default="refined"
    )
    tests: tuple[Path, ...] = option(
        "Points held out from the fit, to score it on; repeat for several files.", "--test", multiple=True, rare=True
    )
    save_points: Path | None = output_option(
        "File of the measured points.  [default: points.<platform>.json]", "--points", rare=True
    )
    plot: Path | None = output_option(
        "PNG file of the fit and its residuals; with --test, of predicted against measured latency.", rare=True
    )


@click.command("device", cls=ReportingCommand)
@click.argument("files", metavar="[POINTS]...", nargs=-1, type=click.Path(path_type=Path))
@grouped(budget={"default": "150s"}, out={"help": "JSON file of the fit.  [default: acts.<platform>.json]"})
def learn_device(
    files: tuple[Path, ...],
    fit: _ActsOptions,
    platform: PlatformOptions,
    ending: ProtocolOptions,
    output: OutputOptions,
    store: StoreOptions,
) -> None:
    """Learn the operators of a device from 56 blocks.

    Each block is measured at growing batch sizes, until memory or the budget ends its series. Latency is then fitted to
    activations (ACTS), inputs (INP) and FLOPs. With files of POINTS of one platform, nothing is measured.

    An interrupted run can be resumed: run the same command again.
    """
    if files:
        if fit.save_points is not None:
            raise InvalidValueError("--points names the file of points that are measured. Omit it, or the POINTS.")
        known, before = _load(files), list[str]()
        out = output.path(f"acts.{known.platform.id}.json")
    else:
        runtime = make_runtime(platform)
        # Before anything is measured, so that a file that exists is reported at once.
        out = output.path(f"acts.{runtime.platform.id}.json")
        known, before = _measure(runtime, fit, ending, store)
    unknown = _load(fit.tests) if fit.tests else None
    if unknown is not None:
        check_same_platform(known.platform, unknown.platform, "Scoring a fit on these points")
    estimator = acts.ActsEstimator(variant=fit.variant)
    estimator.fit(known.workloads, known.latencies, groups=known.blocks, platform=known.platform)
    estimator.save(out)
    if fit.plot:
        _draw(estimator, known, unknown, fit.plot)
    print_report(_report(estimator, known, unknown, before, [out, *([fit.plot] if fit.plot else [])]))
    _print_doubts(estimator, known)


def _load(paths: tuple[Path, ...]) -> micro_benchmarks.BenchmarkPoints:
    return micro_benchmarks.BenchmarkPoints.merge([micro_benchmarks.BenchmarkPoints.load(path) for path in paths])


def _measure(
    runtime: runtimes.Runtime, fit: _ActsOptions, ending: ProtocolOptions, store: StoreOptions
) -> tuple[micro_benchmarks.BenchmarkPoints, list[str]]:
    """Measure the blocks, write their points, and say in lines what was measured."""
    out = fit.save_points or outputs().claim(Path(f"points.{runtime.platform.id}.json"))
    # The feeder before every block makes each run as cold as the next, so no warm-up is needed.
    usual = measurement.Protocol(n_warmup=0)
    with Measuring(
        f"{number_of(len(micro_benchmarks.BLOCKS), 'block')} at growing batch sizes", runtime, store
    ) as measuring:
        points = micro_benchmarks.run_benchmarks(
            runtime,
            ending.of(usual, runtime.platform.threads),
            out,
            overwrite=outputs().overwrite,
            **measuring.how,
        )
    ends = [f"{block} ends before {reason}" for block, reason in points.failures.items()]
    shown = ends if is_verbose() else ends[:_SHOWN]
    print_lines(remarks(), shown)
    if len(ends) > len(shown):
        remarks().print(f"{number_of(len(ends), 'series', 'series')} ended early in all; --verbose lists them")
    print_lines(remarks(), points.remarks)
    spreads = sorted((point.high - point.low) / (2 * point.value) for point in points.points)
    low, high = min(points.latencies), max(points.latencies)
    measured = (
        f"{number_of(len(points.points), 'point')} of {number_of(len(set(points.blocks)), 'block')}, "
        f"{format_seconds(low)} to {format_seconds(high)}; {number_of(points.rounds, 'round')} in "
        f"{format_seconds(points.duration)}, median half-width of the intervals "
        f"{format_percent(spreads[len(spreads) // 2])}"
    )
    return points, [f"Wrote {out}", measured]


def _draw(
    estimator: acts.ActsEstimator,
    known: micro_benchmarks.BenchmarkPoints,
    unknown: micro_benchmarks.BenchmarkPoints | None,
    path: Path,
) -> None:
    if unknown is None:
        plots.draw_fit(estimator, known, path)
    else:
        plots.draw_predictions(estimator, unknown, path)


def _report(
    estimator: acts.ActsEstimator,
    known: micro_benchmarks.BenchmarkPoints,
    unknown: micro_benchmarks.BenchmarkPoints | None,
    before: list[str],
    written: list[Path],
) -> Report:
    scores = None if unknown is None else acts.score_blocks(estimator.predict(unknown.workloads), unknown.latencies)
    held_out = {"held out": estimator.held_out_scores(known.latencies), **({"test points": scores} if scores else {})}
    rows = [{"points": name, **_plain(item)} for name, item in held_out.items()]
    level = f"{format_percent(estimator.confidence)} of the estimates are within a factor of "
    after = [
        "Held out: each point predicted by a fit without its block.",
        f"{level}{estimator.interval_factor_:.3f}.",
        f"Wrote {', '.join(map(str, written))}",
    ]
    content = _content(estimator, known, scores)
    return Report(Grid(rows, _COLUMNS), content, before=[*before, *acts_formula(estimator)], after=after)


def _content(
    estimator: acts.ActsEstimator, points: micro_benchmarks.BenchmarkPoints, scores: acts.BlockScores | None
) -> dict[str, Any]:
    names = ("a_", "b_", "c_", "d_", "breakpoint_", "slope_", "offset_", "shares_", "bound_", "correction_")
    return {
        "platform": estimator.platform.id,
        "points": len(points.points),
        "variant": estimator.variant,
        **{name.rstrip("_"): getattr(estimator, name) for name in names},
        "interval_factor": estimator.interval_factor_,
        "held_out": _plain(estimator.held_out_scores(points.latencies)),
        "test": scores and _plain(scores),
    }


def _plain(scores: acts.BlockScores) -> dict[str, float | None]:
    # NaN, which JSON lacks, is the only number that differs from itself.
    return {name: value if value == value else None for name, value in vars(scores).items()}


_COLUMNS = [
    Column("", "points"),
    Column("blocks", "n", str),
    *(
        Column(header, key, format_percent)
        for header, key in (("median error", "median"), ("below 2 ms", "median_short"), ("above", "median_long"))
    ),
    Column("corr.", "correlation", "{:.4f}".format),
    Column("R2", "r2", "{:.4f}".format),
]


def _print_doubts(estimator: acts.ActsEstimator, points: micro_benchmarks.BenchmarkPoints) -> None:
    doubts = [
        f"{point.name}: {', '.join(names)}"
        for point, names in zip(points.points, estimator.uncounted(points.workloads), strict=True)
        if names
    ]
    if doubts:
        remarks().print(f"Not counted: {escape(named(doubts))}")
