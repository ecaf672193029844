"""Pictures of kernel predictors: against measurements by group, and along one size of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from nni_latency.errors import InvalidValueError
from nni_latency.kernels import Kernel, KernelPredictor, KernelPredictors, MeasuredKernel
from nni_latency.plots._canvas import BLUE, GREY, VERMILION, plain, save_png
from nni_latency.plots._held_out import HeldOut, draw_held_out, draw_ratios
from nni_latency.units import format_percent, number_of


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
    groups = {group: _held_out(predictors, group) for group in order}
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


def _held_out(predictors: KernelPredictors, group: str) -> HeldOut:
    known = predictors.held_out(group)
    if not known:
        raise InvalidValueError(
            "These predictors do not say what was predicted in cross-validation. Build them again with "
            "'nni-latency learn kernels': what was measured is not measured again."
        )
    columns = (np.array([(item.value, said, item.low, item.high) for item, said in known]) * 1e3).T
    measured, predicted, low, high = columns
    return HeldOut(measured, predicted, low, high, predictors.predictors[group].interval_factor_)
