# SPDX-License-Identifier: Apache-2.0
"""Pictures of predictors: ACTS fits, kernels, graphs, portable models of energy, and predictors that evolve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from nni_latency.errors import InvalidValueError
from nni_latency.estimators.acts import ActsEstimator, convolving, score_blocks
from nni_latency.plots._canvas import (
    BLUE,
    DARK,
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

#: Units of the time between versions, and their seconds.
_TIME_UNITS = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))

#: Height of a row of pictures of energy [inch].
_ROW_OF_ENERGY = 4.6

#: Operators that a group needs to have its own box.
_FEWEST = 3


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
    with picture(out, title, height=6.4) as figure:
        above, below = figure.subplots(2, 1)
        draw_held_out(above, groups, "latency [ms]")
        draw_ratios(below, groups)
        below.set_title("Errors by group of kernels")
    return Path(out)


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
    with picture(out, _graph_title(predictor, known), height=6.8) as figure:
        above, below = figure.subplots(2, 1)
        draw_held_out(above, known, "latency [ms]")
        draw_ratios(below, known)
        below.set_title("Errors by platform")
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
        f"Families never seen: median error {format_percent(float(np.median(errors)))}, "
        f"{format_percent(float((errors <= 0.1).mean()))} within 10 %\n"
        f"{number_of(len(errors), 'latency', 'latencies')}{where} of networks of families that were held out"
    )


def draw_portable(model: PortableModel, out: str | Path) -> Path:
    """Draw what a portable model says of the energy of operators that it had not seen.

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
    height = _ROW_OF_ENERGY * len(rows)
    with picture(out, _energy_conclusion(rows), height=height) as figure:
        pairs = figure.subplots(len(rows), 2, squeeze=False, width_ratios=(2, 3))
        for (left, right), items in zip(pairs, rows.values(), strict=True):
            draw_held_out(left, _by_device(items), "energy [mJ]")
            left.set_title("Predicted against measured")
            _draw_groups(right, items, model.bounds_.get("energy"))
    return Path(out)


def _energy_conclusion(rows: Mapping[str, Sequence[HeldOutOperator]]) -> str:
    """Say, row by row, how far off the energy is, and what a constant power would say."""
    return "\n".join(
        f"{len(items)} {what}: median error {_median(items, 'predicted_joules')}; at a constant power "
        f"{_median(items, 'constant_joules')}"
        for what, items in rows.items()
    )


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
        range(len(names)), [f"{name}, {sizes[name]}" for name in names], rotation=45, ha="right", rotation_mode="anchor"
    )
    axes.set_ylabel("predicted energy over measured")
    handles = [
        Patch(color=BLUE, alpha=0.6, label="power times time, as predicted"),
        Patch(color=GREY, alpha=0.6, label="the same time, times a constant power"),
    ]
    if bound is not None:
        axes.axhspan(1 / (1 + bound), 1 + bound, color=BLUE, alpha=0.08, lw=0)
        handles.append(Patch(color=BLUE, alpha=0.08, label="interval of a prediction"))
    axes.legend(handles=handles, loc="best")
    axes.set_title("By group of operators, and how many they are")
    plain(axes, "y")


def _median(items: Sequence[HeldOutOperator], name: str) -> str:
    errors = [abs(getattr(item, name) / item.joules - 1) for item in items]
    return format_percent(float(np.median(errors)))


def draw_evolution(versions: Sequence[PredictorVersion], out: str | Path) -> Path:
    """Draw the errors of the versions of predictors against records and over time, each predictor in a row.

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
    with picture(out, _evolution_conclusion(versions), height=0.5 + 2.1 * len(by_name)) as figure:
        rows = figure.subplots(len(by_name), 2, squeeze=False, sharey="row")
        for pair, (name, found) in zip(rows, by_name.items(), strict=True):
            _draw_row(pair[0], pair[1], name, found)
    return Path(out)


def _evolution_conclusion(versions: Sequence[PredictorVersion]) -> str:
    """Say how many versions are better than the one before them."""
    later = [version for version in versions if "before" in version.errors]
    better = sum(version.errors["all"] < version.errors["before"] for version in later)
    legend = "blue: the version that answers; rings: the version before it, on the same held-out records"
    if not later:
        return f"{number_of(len(versions), 'version')} of predictors, none to compare yet\n{legend}"
    return f"{better} of {number_of(len(later), 'later version')} are better than the version before\n{legend}"


def _draw_row(records: Axes, moments: Axes, name: str, versions: Sequence[PredictorVersion]) -> None:
    errors = [100 * version.errors["all"] for version in versions]
    unit, seconds = _time_unit(versions[-1].at - versions[0].at)
    places: tuple[list[float], list[float]] = (
        [version.n_records for version in versions],
        [(version.at - versions[0].at) / seconds for version in versions],
    )
    for axes, at, label in (
        (records, places[0], "records in the database"),
        (moments, places[1], f"{unit} since the first version"),
    ):
        axes.plot(at, errors, color=GREY, lw=1)
        for x, error, version in zip(at, errors, versions, strict=True):
            axes.scatter([x], [error], s=30, color=BLUE if version.is_current else GREY, zorder=3)
            if "before" in version.errors:
                before = 100 * version.errors["before"]
                axes.scatter([x], [before], s=30, facecolors="none", edgecolors=DARK, zorder=3)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.margins(x=0.08)
        axes.set_xlabel(label)
        plain(axes)
    records.set_ylabel("held-out error [%]")
    last = versions[-1]
    earlier = f"; the version before {format_percent(last.errors['before'])}" if "before" in last.errors else ""
    records.set_title(f"{name}: {format_percent(last.errors['all'])}{earlier}")
    highest = max([*errors, *(100 * version.errors.get("before", 0.0) for version in versions)])
    records.set_ylim(0, 1.1 * highest or 1.0)


def _time_unit(span: float) -> tuple[str, float]:
    """Return the name of the largest unit of which a span has two, and its seconds."""
    return next((unit for unit in _TIME_UNITS if span >= 2 * unit[1]), _TIME_UNITS[-1])
