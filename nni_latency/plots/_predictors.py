# SPDX-License-Identifier: Apache-2.0
"""Pictures of predictors: ACTS fits, kernels and graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.errors import InvalidValueError
from nni_latency.estimators.acts import ActsEstimator, convolving, score_blocks
from nni_latency.plots._canvas import (
    BLUE,
    GREY,
    PALETTE,
    VERMILION,
    HeldOut,
    draw_held_out,
    draw_ratios,
    logarithmic,
    picture,
    plain,
)
from nni_latency.units import format_percent, format_seconds, number_of

if TYPE_CHECKING:
    from nni_latency.graphs import GraphPredictor
    from nni_latency.kernels import Kernel, KernelPredictor, KernelPredictors, MeasuredKernel
    from nni_latency.micro_benchmarks import BenchmarkPoints

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h", "d")

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def draw_fit(estimator: ActsEstimator, points: BenchmarkPoints, out: str | Path) -> Path:
    """Draw a fit: both lines of the formula over the points with convolutions, and all held-out residuals.

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
    kinds, residuals = [point.kind for point in points.points], np.expm1(-estimator.held_out_errors_)
    count = number_of(len(points.points), "point")
    title = (
        f"{count} of {number_of(len(set(kinds)), 'kind')} held out in turn: median error "
        f"{format_percent(float(np.median(np.abs(residuals))))}\n{_title(estimator)}"
    )
    with picture(out, title, height=7.4) as figure:
        above, below = figure.subplots(2, 1, height_ratios=(3, 2))
        _draw_lines(above, estimator, points, kinds)
        _draw_residuals(below, residuals, kinds)
        below.set_title("Predicted over measured, less one, of points that a fit had not seen")
    return Path(out)


def draw_predictions(estimator: ActsEstimator, points: BenchmarkPoints, out: str | Path) -> Path:
    """Draw predictions: against measurements, with the ideal diagonal, and residuals by kind of block.

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
    kinds = [point.kind for point in points.points]
    error = format_percent(float(np.median(np.abs(predicted / measured - 1))))
    title = f"{number_of(len(measured), 'block')} that the fit never saw: median error {error}\n{_title(estimator)}"
    with picture(out, title, height=7.4) as figure:
        above, below = figure.subplots(2, 1, height_ratios=(3, 2))
        _draw_scatter(above, predicted, measured, kinds, estimator.interval_factor_)
        _draw_residuals(below, predicted / measured - 1, kinds)
        below.set_title("Predicted over measured, less one, by kind of block")
    return Path(out)


def _title(estimator: ActsEstimator) -> str:
    shares = estimator.shares_
    parts = ", ".join(
        f"{label} {format_percent(shares[name])}"
        for name, label in (("acts", "ACTS"), ("inp", "INP"), ("flops", "FLOPs"), ("constant", "constant"))
    )
    return f"{estimator.variant} ACTS fit of {estimator.platform.id}, bound by {estimator.bound_}: {parts}"


def _draw_lines(axes: Any, estimator: ActsEstimator, points: BenchmarkPoints, kinds: Sequence[str]) -> None:
    line, about = estimator.line_, convolving(points.totals)
    plane, measured = line.plane(points.totals) * 1e3, points.latencies * 1e3
    _draw_kinds(axes, plane, measured, kinds, about)
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
        f"a {line.a:.3g} s, b {line.b:.3g} s, c {line.c:.3g} s (two FLOPs a multiply-add), d {format_seconds(line.d)}"
    )
    _beside(axes, "" if about.all() else "hollow: no convolution,\nnot part of the line")
    plain(axes)


def _beside(axes: Any, title: str) -> None:
    """Put the legend beside the axes, where it covers nothing."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), title=title or None, alignment="left")


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
        f"Median error {format_percent(scores.median_short)} below 2 ms, {format_percent(scores.median_long)} above; "
        f"correlation {scores.correlation:.3f}, R2 {scores.r2:.3f}"
    )
    _beside(axes, "")
    plain(axes)


def _draw_kinds(axes: Any, across: Array, up: Array, kinds: Sequence[str], filled: Mask | None = None) -> None:
    """Draw all points by kind, hollow where they are not `filled`."""
    for index, kind in enumerate(dict.fromkeys(kinds)):
        mine = np.array([other == kind for other in kinds])
        full = mine if filled is None else mine & filled
        colour, marker = PALETTE[index % len(PALETTE)], _MARKERS[index % len(_MARKERS)]
        look: dict[str, Any] = {"s": 16, "alpha": 0.85, "marker": marker}
        if full.any():
            axes.scatter(across[full], up[full], color=colour, lw=0.7, label=kind, **look)
        hollow = mine & ~full
        if hollow.any():
            label = None if full.any() else kind
            axes.scatter(across[hollow], up[hollow], facecolors="none", edgecolors=colour, lw=1, label=label, **look)


def _draw_residuals(axes: Any, residuals: Array, kinds: Sequence[str]) -> None:
    names = list(dict.fromkeys(kinds))
    groups = [residuals[[other == kind for other in kinds]] * 100 for kind in names]
    axes.boxplot(groups, orientation="vertical", showfliers=False, widths=0.6, medianprops={"color": "black"})
    for place, (values, colour) in enumerate(zip(groups, PALETTE * len(names), strict=False), start=1):
        spread = np.linspace(-0.18, 0.18, len(values)) if len(values) > 1 else np.zeros(1)
        axes.scatter(place + spread, values, s=10, color=colour, alpha=0.7, lw=0)
    axes.set_xticks(range(1, len(names) + 1), names, rotation=35, ha="right", rotation_mode="anchor")
    axes.axhline(0, color=GREY, lw=1)
    axes.set_ylabel("residual [%]")
    plain(axes)


def draw_kernels(predictors: KernelPredictors, out: str | Path) -> Path:
    """Draw what predictors say of kernels that they had not seen: against measurements, and errors by group.

    Parameters
    ----------
    predictors : KernelPredictors
        Any that know what was predicted in cross-validation.
    out : str or Path
        The file.

    Raises
    ------
    InvalidValueError
        If there are none, or they do not say it.
    OutputError
        If it cannot be written.
    """
    if not predictors.predictors:
        raise InvalidValueError("There are no predictors to draw: no kernel could be measured.")
    order = sorted(predictors.predictors, key=lambda group: -predictors.predictors[group].cross_validation.n)
    groups = {group: _held_out_kernels(predictors, group) for group in order}
    scores = predictors.scores()
    assert scores is not None
    title = (
        f"{number_of(scores.n, 'kernel')} that models had not seen: {format_percent(scores.within10)} within 10 %, "
        f"RMSPE {format_percent(scores.rmspe)}\nKernels on {predictors.platform.id}"
    )
    return _draw_held_out(groups, title, "Errors by group of kernels", out)


def draw_sizes(
    predictors: KernelPredictors,
    kernel: Kernel,
    name: str,
    measured: Sequence[MeasuredKernel],
    out: str | Path,
    *,
    baseline: KernelPredictor | None = None,
) -> Path:
    """Draw the latency of a kernel over one of its sizes, predicted and measured: staircases show.

    Parameters
    ----------
    predictors : KernelPredictors
        What predicts.
    kernel : Kernel
        The other sizes are its.
    name : str
        The size that varies, such as ``COUT``.
    measured : sequence of MeasuredKernel
        The kernel at several of these sizes; see `nni_latency.kernels.measure_kernels`.
    out : str or Path
        The file.
    baseline : KernelPredictor, optional
        Another predictor that is drawn beside.

    Raises
    ------
    InvalidValueError
        If nothing was measured.
    OutputError
        If it cannot be written.
    """
    if not measured:
        raise InvalidValueError("There is no measured kernel to draw.")
    sizes = sorted(item.kernel[name] for item in measured)
    line = list(range(sizes[0], sizes[-1] + 1))
    kernels = [kernel.replace(**{name: size}) for size in line]
    across = [item.kernel[name] for item in measured]
    values = np.array([item.value for item in measured])
    said = predictors.predict([kernel.replace(**{name: size}) for size in across])
    error = format_percent(float(np.median(np.abs(said / values - 1))))
    others = ", ".join(f"{key} {size}" for key, size in kernel.configuration if key != name)
    title = (
        f"{kernel.kind} at {number_of(len(measured), 'size')} of {name}: predicted with a median error of {error}\n"
        f"{predictors.platform.id}, {others}"
    )
    with picture(out, title, height=3.9) as figure:
        axes = figure.subplots()
        axes.plot(line, predictors.predict(kernels) * 1e3, color=BLUE, lw=1.5, label="predicted")
        if baseline is not None:
            label = f"predicted by a {baseline.chosen_}"
            axes.plot(line, baseline.predict(kernels) * 1e3, color=GREY, lw=1, label=label)
        ends = np.array([[item.value - item.low, item.high - item.value] for item in measured]).T * 1e3
        axes.errorbar(across, values * 1e3, yerr=ends, fmt="o", ms=3.5, color=VERMILION, lw=0.8, label="measured")
        axes.set_ylim(bottom=0)
        axes.set_xlabel(name)
        axes.set_ylabel("latency [ms]")
        axes.legend(loc="upper left")
        plain(axes)
    return Path(out)


def _held_out_kernels(predictors: KernelPredictors, group: str) -> HeldOut:
    known = predictors.held_out(group)
    if not known:
        raise InvalidValueError(
            "These predictors do not say what was predicted in cross-validation. Build them again with "
            "'nni-latency learn kernels': what was measured is not measured again."
        )
    columns = (np.array([(item.value, said, item.low, item.high) for item, said in known]) * 1e3).T
    measured, predicted, low, high = columns
    return HeldOut(measured, predicted, low, high, predictors.predictors[group].interval_factor_)


def draw_graph_predictor(predictor: GraphPredictor, out: str | Path) -> Path:
    """Draw what a graph predictor says of networks of families that it had not seen.

    Above: predicted against measured, by platform. Below: errors by platform, beside the intervals of predictions.

    Parameters
    ----------
    predictor : GraphPredictor
        Any that is fitted.
    out : str or Path
        The file.

    Raises
    ------
    InvalidValueError
        If it has no held-out networks.
    OutputError
        If it cannot be written.
    """
    known = _held_out_networks(predictor)
    if not known:
        raise InvalidValueError("The graph predictor has no held-out networks, so there is nothing to draw.")
    return _draw_held_out(known, _graph_title(predictor, known), "Errors by platform", out)


def _draw_held_out(groups: Mapping[str, HeldOut], title: str, rows: str, out: str | Path) -> Path:
    """Draw predicted against measured latencies, and below them the errors of every group, in the same colours."""
    heights = [2.8, 0.5 + 0.2 * len(groups)]
    with picture(out, title, height=1.6 + sum(heights)) as figure:
        above, below = figure.subplots(2, 1, height_ratios=heights)
        draw_held_out(above, groups, "latency [ms]", named=False)
        draw_ratios(below, groups)
        below.set_title(rows)
    return Path(out)


def _held_out_networks(predictor: GraphPredictor) -> dict[str, HeldOut]:
    """Return what was measured and predicted by platform [ms]."""
    found = {}
    for place, platform in enumerate(predictor.platforms_):
        errors = predictor.held_out_[:, place]
        known = ~np.isnan(errors)
        if known.any():
            measured = predictor.latencies_[known, place] * 1e3
            name = platform.id if _device(predictor) is None else platform.id.removeprefix(f"{platform.device}.")
            factor = float(np.exp(np.median(predictor.widths_[known, place])))
            found[name] = HeldOut(measured, measured * np.exp(errors[known]), factor=factor)
    # Those with the most networks have colours of their own.
    return dict(sorted(found.items(), key=lambda item: -len(item[1].measured)))


def _device(predictor: GraphPredictor) -> str | None:
    """Return the device of the platforms where all have the same."""
    names = {platform.device for platform in predictor.platforms_}
    return names.pop() if len(names) == 1 else None


def _graph_title(predictor: GraphPredictor, known: dict[str, HeldOut]) -> str:
    errors = np.abs(np.concatenate([item.ratios for item in known.values()]) - 1)
    device = _device(predictor)
    where = f" on {device}" if device is not None else ""
    return (
        f"Networks never seen: median error {format_percent(float(np.median(errors)))}, "
        f"{format_percent(float((errors <= 0.1).mean()))} within 10 %\n"
        f"{number_of(len(errors), 'latency', 'latencies')}{where} of networks that were held out"
    )
