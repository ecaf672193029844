"""``nni-latency fit``: one command for each kind of estimator."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
from rich.markup import escape

import nni_latency.estimators.acts as acts
import nni_latency.micro_benchmarks as micro_benchmarks
import nni_latency.plots as plots
from nni_latency.cli._acts_formula import acts_formula
from nni_latency.cli._console import named, remarks
from nni_latency.cli._fit_energy import fit_energy
from nni_latency.cli._fit_graph import fit_graph
from nni_latency.cli._fit_kernels import fit_kernels
from nni_latency.cli._option import grouped, option, output_option
from nni_latency.cli._output_options import OutputOptions
from nni_latency.cli._report import Column, Grid, Report, ReportingCommand, print_report
from nni_latency.errors import InvalidValueError
from nni_latency.platforms import check_same_platform
from nni_latency.units import format_percent


@click.group("fit")
def command() -> None:
    """Fit an estimator to measurements."""


command.add_command(fit_energy)
command.add_command(fit_graph)
command.add_command(fit_kernels)


@dataclass(frozen=True)
class _ActsOptions:
    """How a fit is made, and what is shown of it."""

    variant: Literal["refined", "published"] = option(
        "A refined fit by operator, or the published formula.", default="refined"
    )
    confidence: float = option(
        "Confidence level of the intervals.", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.9
    )
    tests: tuple[Path, ...] = option(
        "Points held out from the fit, to score it on; repeat for several files.", "--test", multiple=True
    )
    plot: Path | None = output_option("PNG file of the fit and its residuals.")
    test_plot: Path | None = output_option("PNG file of predicted against measured latency.")


@command.command("acts", cls=ReportingCommand)
@click.argument("points", nargs=-1, required=True, type=click.Path(path_type=Path))
@grouped(out={"help": "JSON file of the fit.  [default: acts.<platform>.json]"})
def fit_acts(points: tuple[Path, ...], fit: _ActsOptions, output: OutputOptions) -> None:
    """Fit latency to activations (ACTS), inputs (INP) and FLOPs.

    POINTS are files written by 'nni-latency micro-benchmark' on one platform.
    """
    known = micro_benchmarks.BenchmarkPoints.merge([micro_benchmarks.BenchmarkPoints.load(path) for path in points])
    unknown = (
        micro_benchmarks.BenchmarkPoints.merge([micro_benchmarks.BenchmarkPoints.load(path) for path in fit.tests])
        if fit.tests
        else None
    )
    out = output.path(f"acts.{known.platform.id}.json")
    pictures = [path for path in (fit.plot, fit.test_plot) if path]
    if unknown is not None:
        check_same_platform(known.platform, unknown.platform, "Scoring a fit on these points")
    elif fit.test_plot:
        raise InvalidValueError("--test-plot needs points to predict. Name a file of them with --test.")
    estimator = acts.ActsEstimator(variant=fit.variant, confidence=fit.confidence)
    estimator.fit(known.workloads, known.latencies, groups=known.blocks, platform=known.platform)
    scores = None if unknown is None else acts.score_blocks(estimator.predict(unknown.workloads), unknown.latencies)
    estimator.save(out)
    if fit.plot:
        plots.draw_fit(estimator, known, fit.plot)
    if fit.test_plot and unknown is not None:
        plots.draw_predictions(estimator, unknown, fit.test_plot)
    wrote = f"Wrote {', '.join(map(str, [out, *pictures]))}"
    held_out = {"held out": estimator.held_out_scores(known.latencies), **({"test points": scores} if scores else {})}
    rows = [{"points": name, **_plain(item)} for name, item in held_out.items()]
    level = f"{format_percent(estimator.confidence)} of the estimates are within a factor of "
    after = [
        "Held out: each point predicted by a fit without its block.",
        f"{level}{estimator.interval_factor_:.3f}.",
        wrote,
    ]
    print_report(
        Report(Grid(rows, _COLUMNS), _content(estimator, known, scores), before=acts_formula(estimator), after=after)
    )
    _print_doubts(estimator, known)


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
