"""Pictures of an ACTS fit: the formula over the points it was learned from, predictions, residuals by kind of block."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from nni_latency.estimators.acts import ActsEstimator, convolving, score_blocks
from nni_latency.micro_benchmarks import BenchmarkPoints
from nni_latency.plots._canvas import GREY, PALETTE, logarithmic, plain, save_png
from nni_latency.units import format_percent, format_seconds, number_of

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h", "d")

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def draw_fit(estimator: ActsEstimator, points: BenchmarkPoints, out: str | Path) -> Path:
    """Draw a fit as PNG: both lines of the formula over the points with convolutions, and all held-out residuals.

    Parameters
    ----------
    estimator : ActsEstimator
        Fitted on these very points.
    points : BenchmarkPoints
        What it was fitted on.
    out : str or Path
        The file.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    figure = _figure(_title(estimator, len(points.points)))
    left, right = figure.subplots(1, 2, width_ratios=(1, 1))
    kinds = [point.kind for point in points.points]
    _draw_lines(left, estimator, points, kinds)
    _draw_residuals(right, np.expm1(-estimator.held_out_errors_), kinds)
    right.set_title("Predicted over measured, less one, of points that a fit had not seen", fontsize=10)
    return save_png(figure, out)


def draw_predictions(estimator: ActsEstimator, points: BenchmarkPoints, out: str | Path) -> Path:
    """Draw predictions as PNG: against measurements, with the ideal diagonal, and residuals by kind of block.

    Parameters
    ----------
    estimator : ActsEstimator
        Any that is fitted.
    points : BenchmarkPoints
        Blocks that it was not fitted on.
    out : str or Path
        The file.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    predicted, measured = estimator.predict(points.workloads), points.latencies
    figure = _figure(
        f"{estimator.variant} ACTS fit of {estimator.platform.id}, {number_of(len(measured), 'block')} it never saw"
    )
    left, right = figure.subplots(1, 2, width_ratios=(1, 1))
    kinds = [point.kind for point in points.points]
    _draw_scatter(left, predicted, measured, kinds, estimator.interval_factor_)
    _draw_residuals(right, predicted / measured - 1, kinds)
    right.set_title("Predicted over measured, less one, by kind of block", fontsize=10)
    return save_png(figure, out)


def _figure(title: str) -> Figure:
    figure = Figure(figsize=(12.5, 5.8), layout="constrained")
    figure.suptitle(title, fontsize=11)
    return figure


def _title(estimator: ActsEstimator, count: int) -> str:
    shares = estimator.shares_
    parts = ", ".join(
        f"{label} {format_percent(shares[name])}"
        for name, label in (("acts", "ACTS"), ("inp", "INP"), ("flops", "FLOPs"), ("constant", "constant"))
    )
    what = f"{estimator.variant} ACTS fit of {estimator.platform.id} on {number_of(count, 'point')}"
    return f"{what}\nbound by {estimator.bound_}: {parts}"


def _draw_lines(axes: Any, estimator: ActsEstimator, points: BenchmarkPoints, kinds: Sequence[str]) -> None:
    line, about = estimator.line_, convolving(points.totals)
    plane, measured = line.plane(points.totals) * 1e3, points.latencies * 1e3
    _draw_kinds(axes, plane, measured, kinds, about)
    plane, measured = plane[about], measured[about]
    low, high = min(plane.min(), measured.min()) * 0.8, max(plane.max(), measured.max()) * 1.25
    limit, lowest = line.breakpoint * 1e3, line.d * 1e3
    axes.plot([max(limit, low), high], [max(limit, low), high], color="black", lw=1.5, label="first line")
    if limit > 0:
        reach = np.geomspace(max(lowest, low), limit, 60)
        heights = line.slope * reach + line.offset * 1e3
        label = f"second line, below {format_seconds(line.breakpoint)}"
        axes.plot(reach[heights > 0], heights[heights > 0], color="black", lw=1.5, ls="--", label=label)
        axes.axvline(limit, color=GREY, lw=1, ls=":")
    axes.set(xlim=(low, high), ylim=(low, high))
    logarithmic(axes)
    axes.set_xlabel("a ACTS + b INP + c FLOPs + d [ms]")
    axes.set_ylabel("measured latency [ms]")
    axes.set_title(
        f"a {line.a:.3g} s, b {line.b:.3g} s, c {line.c:.3g} s (two FLOPs a multiply-add), d {format_seconds(line.d)}",
        fontsize=10,
    )
    axes.legend(fontsize=7, loc="upper left")
    plain(axes)


def _draw_scatter(axes: Any, predicted: Array, measured: Array, kinds: Sequence[str], factor: float) -> None:
    ends = np.concatenate([predicted, measured]) * 1e3
    reach = np.array([ends.min() * 0.8, ends.max() * 1.25])
    axes.plot(reach, reach, color="black", lw=1, label="ideal")
    axes.fill_between(reach, reach / factor, reach * factor, color=GREY, alpha=0.2, lw=0, label="interval")
    _draw_kinds(axes, measured * 1e3, predicted * 1e3, kinds)
    axes.set(xlim=tuple(reach), ylim=tuple(reach))
    logarithmic(axes)
    axes.set_xlabel("measured latency [ms]")
    axes.set_ylabel("predicted latency [ms]")
    scores = score_blocks(predicted, measured)
    axes.set_title(
        f"median error {format_percent(scores.median_short)} below 2 ms, {format_percent(scores.median_long)} above; "
        f"correlation {scores.correlation:.3f}, R2 {scores.r2:.3f}",
        fontsize=10,
    )
    axes.legend(fontsize=7, loc="upper left")
    plain(axes)


def _draw_kinds(axes: Any, across: Array, up: Array, kinds: Sequence[str], shown: Mask | None = None) -> None:
    """Draw points by kind; a kind has the same colour whichever points of it are shown."""
    for index, kind in enumerate(dict.fromkeys(kinds)):
        chosen = np.array([other == kind for other in kinds]) & (True if shown is None else shown)
        if not chosen.any():
            continue
        axes.scatter(
            across[chosen],
            up[chosen],
            s=18,
            alpha=0.8,
            color=PALETTE[index % len(PALETTE)],
            marker=_MARKERS[index % len(_MARKERS)],
            label=kind,
            lw=0,
        )


def _draw_residuals(axes: Any, residuals: Array, kinds: Sequence[str]) -> None:
    names = list(dict.fromkeys(kinds))
    groups = [residuals[[other == kind for other in kinds]] * 100 for kind in names]
    axes.boxplot(groups, orientation="vertical", showfliers=False, widths=0.6, medianprops={"color": "black"})
    for place, (values, colour) in enumerate(zip(groups, PALETTE * len(names), strict=False), start=1):
        spread = np.linspace(-0.18, 0.18, len(values)) if len(values) > 1 else np.zeros(1)
        axes.scatter(place + spread, values, s=10, color=colour, alpha=0.7, lw=0)
    axes.set_xticks(range(1, len(names) + 1), names, rotation=30, ha="right", fontsize=8)
    axes.axhline(0, color=GREY, lw=1)
    axes.set_ylabel("residual [%]")
    plain(axes)
