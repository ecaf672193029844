"""Pictures of predictors: ACTS fits, kernels, graphs, portable models of energy, and predictors that evolve."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
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
    plain,
    save_png,
)
from nni_latency.units import format_percent, format_seconds, number_of

if TYPE_CHECKING:
    from nni_latency.database import PredictorVersion
    from nni_latency.energy import HeldOutOperator, PortableModel
    from nni_latency.graphs import GraphPredictor
    from nni_latency.kernels import Kernel, KernelPredictor, KernelPredictors, MeasuredKernel
    from nni_latency.micro_benchmarks import BenchmarkPoints

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h", "d")

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Shares of the errors that an axis leaves out at both ends.
_OUTSIDE = 0.01

#: Operators that a group needs to have its own box.
_FEWEST = 3


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


def draw_kernels(predictors: KernelPredictors, out: str | Path) -> Path:
    """Draw what predictors say of kernels that they had not seen as PNG: against measurements, and errors by group.

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
    figure = Figure(figsize=(12.5, 5.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    figure.suptitle(
        f"{number_of(scores.n, 'kernel')} on {predictors.platform.id}, predicted by models that had not seen them: "
        f"{format_percent(scores.within10)} within 10 %, RMSPE {format_percent(scores.rmspe)}",
        fontsize=11,
    )
    draw_held_out(left, groups, "latency [ms]")
    draw_ratios(right, groups)
    right.set_title("Errors by group of kernels", fontsize=10)
    return save_png(figure, out)


def draw_sizes(
    predictors: KernelPredictors,
    kernel: Kernel,
    name: str,
    measured: Sequence[MeasuredKernel],
    out: str | Path,
    *,
    baseline: KernelPredictor | None = None,
) -> Path:
    """Draw the latency of a kernel over one of its sizes, predicted and measured, as PNG: staircases show.

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
    figure = Figure(figsize=(9.6, 5.0), layout="constrained")
    axes = figure.subplots()
    axes.plot(line, predictors.predict(kernels) * 1e3, color=BLUE, lw=1.5, label="predicted")
    if baseline is not None:
        axes.plot(line, baseline.predict(kernels) * 1e3, color=GREY, lw=1, label=f"predicted by a {baseline.chosen_}")
    values = np.array([item.value for item in measured]) * 1e3
    ends = np.array([[item.value - item.low, item.high - item.value] for item in measured]).T * 1e3
    across = [item.kernel[name] for item in measured]
    axes.errorbar(across, values, yerr=ends, fmt="o", ms=3.5, color=VERMILION, lw=0.8, label="measured")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(name)
    axes.set_ylabel("latency [ms]")
    others = ", ".join(f"{key} {size}" for key, size in kernel.configuration if key != name)
    axes.set_title(f"{kernel.kind} on {predictors.platform.id}, {others}", fontsize=10)
    axes.legend(fontsize=8, loc="upper left")
    plain(axes)
    return save_png(figure, out)


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
    """Draw what a graph predictor says of networks of families that it had not seen, as PNG.

    Left: predicted against measured, by platform. Right: errors by platform, beside the intervals of predictions.

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
    figure = Figure(figsize=(12.5, 6.0), layout="constrained")
    figure.suptitle(_graph_title(predictor, known), fontsize=11)
    left, right = figure.subplots(1, 2)
    draw_held_out(left, known, "latency [ms]")
    draw_ratios(right, known)
    right.set_title("Errors by platform", fontsize=10)
    return save_png(figure, out)


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
    return found


def _device(predictor: GraphPredictor) -> str | None:
    """Return the device of the platforms where all have the same."""
    names = {platform.device for platform in predictor.platforms_}
    return names.pop() if len(names) == 1 else None


def _graph_title(predictor: GraphPredictor, known: dict[str, HeldOut]) -> str:
    errors = np.abs(np.concatenate([item.ratios for item in known.values()]) - 1)
    device = _device(predictor)
    where = f" on {device}" if device is not None else ""
    return (
        f"{number_of(len(errors), 'latency', 'latencies')}{where} of networks that a graph network had not seen:\n"
        f"median error {format_percent(float(np.median(errors)))}, {format_percent(float((errors <= 0.1).mean()))} "
        "within 10 %"
    )


def draw_portable(model: PortableModel, out: str | Path) -> Path:
    """Draw what a portable model says of the energy of operators that it had not seen, as PNG.

    A row is of operators that were held out, and a second one, where there are several devices, of whole devices. Left:
    predicted against measured. Right: predicted over measured by group of operators, beside the same time, times a
    constant power.

    Parameters
    ----------
    model : PortableModel
        Any with `PortableModel.held_out_`.
    out : str or Path
        The file.

    Raises
    ------
    InvalidValueError
        If it does not know what was predicted of operators that it had not seen.
    OutputError
        If it cannot be written.
    """
    rows = {
        f"operators that were held out, {_devices(model)}": [item for item in model.held_out_ if not item.whole_device],
        "devices that were held out": [item for item in model.held_out_ if item.whole_device],
    }
    rows = {title: items for title, items in rows.items() if items}
    if not rows:
        raise InvalidValueError(
            "The portable model does not say what was predicted of operators that it had not seen. Fit it again with "
            "'nni-latency learn energy'."
        )
    figure = Figure(figsize=(12.5, 5.8 * len(rows)), layout="constrained")
    pairs = figure.subplots(len(rows), 2, squeeze=False, width_ratios=(2, 3))
    for (left, right), (title, items) in zip(pairs, rows.items(), strict=True):
        draw_held_out(left, _by_device(items), "energy [mJ]")
        left.set_title(f"{len(items)} {title}", fontsize=10)
        _draw_groups(right, items, model.bounds_.get("energy"))
    return save_png(figure, out)


def _devices(model: PortableModel) -> str:
    names = ", ".join(model.devices_)
    return f"on {names}" if len(names) < 40 else f"on {number_of(len(model.devices_), 'device')}"


def _by_device(items: Sequence[HeldOutOperator]) -> dict[str, HeldOut]:
    found = {}
    for name in dict.fromkeys(item.device for item in items):
        mine = [item for item in items if item.device == name]
        found[name] = HeldOut(
            np.array([item.joules for item in mine]) * 1e3, np.array([item.predicted_joules for item in mine]) * 1e3
        )
    return found


def _draw_groups(axes: Any, items: Sequence[HeldOutOperator], bound: float | None) -> None:
    """Draw predicted over measured energy by group of operators: by the model, and by a constant power."""
    sizes = {name: sum(item.group == name for item in items) for name in dict.fromkeys(item.group for item in items)}
    names = sorted((name for name in sizes if sizes[name] >= _FEWEST), key=lambda name: -sizes[name])
    names = names or list(sizes)
    ratios = {
        BLUE: [[item.predicted_joules / item.joules for item in items if item.group == name] for name in names],
        GREY: [[item.constant_joules / item.joules for item in items if item.group == name] for name in names],
    }
    for shift, (colour, boxes) in zip((-0.2, 0.2), ratios.items(), strict=True):
        axes.boxplot(
            boxes,
            positions=np.arange(len(names)) + shift,
            widths=0.34,
            patch_artist=True,
            manage_ticks=False,
            flierprops={"marker": ".", "markersize": 3, "markeredgecolor": colour},
            medianprops={"color": "black"},
            boxprops={"facecolor": colour, "alpha": 0.6, "lw": 0},
        )
    every = np.array([ratio for boxes in ratios.values() for box in boxes for ratio in box])
    low, high = np.quantile(every, [_OUTSIDE, 1 - _OUTSIDE])
    axes.set_ylim(min(low, 0.8) / 1.1, max(high, 1.25) * 1.1)
    axes.axhline(1, color=GREY, lw=1)
    logarithmic(axes, "y")
    axes.set_xticks(
        range(len(names)), [f"{name}\n{sizes[name]}" for name in names], rotation=30, ha="right", fontsize=8
    )
    axes.set_ylabel("predicted energy over measured")
    model, constant = (_median(items, name) for name in ("predicted_joules", "constant_joules"))
    handles = [
        Patch(color=BLUE, alpha=0.6, label=f"power times time, as predicted: median error {model}"),
        Patch(color=GREY, alpha=0.6, label=f"the same time, times a constant power: {constant}"),
    ]
    if bound is not None:
        axes.axhspan(1 / (1 + bound), 1 + bound, color=BLUE, alpha=0.08, lw=0)
        handles.append(Patch(color=BLUE, alpha=0.08, label="interval of a prediction"))
    axes.legend(handles=handles, fontsize=8, loc="lower right")
    axes.set_title("By group of operators, and how many they are", fontsize=10)
    plain(axes, "y")


def _median(items: Sequence[HeldOutOperator], name: str) -> str:
    errors = [abs(getattr(item, name) / item.joules - 1) for item in items]
    return format_percent(float(np.median(errors)))


def draw_evolution(versions: Sequence[PredictorVersion], out: str | Path) -> Path:
    """Draw the errors of the versions of predictors against records and over time, as PNG, each predictor in a row.

    Networks and kernels that are held out become more, so a ring shows the version before on the same ones.

    Parameters
    ----------
    versions : sequence of PredictorVersion
        At least one.
    out : str or Path
        The file.

    Raises
    ------
    InvalidValueError
        If there is no version.
    OutputError
        If it cannot be written.
    """
    if not versions:
        raise InvalidValueError("There is no version of the predictor to draw.")
    by_name: dict[str, list[PredictorVersion]] = {}
    for version in versions:
        by_name.setdefault(version.name, []).append(version)
    figure = Figure(figsize=(7.5, 0.5 + 3.1 * len(by_name)), layout="constrained")
    rows = figure.subplots(len(by_name), 2, squeeze=False, sharey="row")
    for pair, (name, found) in zip(rows, by_name.items(), strict=True):
        _draw_row(pair[0], pair[1], name, found)
    figure.suptitle("The blue version answers; rings are the version before, held to the same", fontsize=9)
    return save_png(figure, out)


def _draw_row(records: Axes, moments: Axes, name: str, versions: Sequence[PredictorVersion]) -> None:
    errors = [100 * version.errors["all"] for version in versions]
    places: tuple[list[Any], list[Any]] = (
        [version.n_records for version in versions],
        [datetime.fromtimestamp(version.at, UTC) for version in versions],
    )
    for axes, at, label in ((records, places[0], "records in the database"), (moments, places[1], "time (UTC)")):
        axes.plot(at, errors, color=GREY, lw=1)
        for x, error, version in zip(at, errors, versions, strict=True):
            axes.scatter([x], [error], color=BLUE if version.is_current else GREY, zorder=3)
            if "before" in version.errors:
                axes.scatter([x], [100 * version.errors["before"]], facecolors="none", edgecolors=GREY, zorder=3)
        axes.set_xlabel(label)
        plain(axes)
    moments.tick_params("x", labelrotation=30)
    records.set_ylabel("error on what is held out [%]")
    records.set_title(name, fontsize=9, loc="left")
    highest = max([*errors, *(100 * version.errors.get("before", 0.0) for version in versions)])
    records.set_ylim(0, 1.1 * highest or 1.0)
