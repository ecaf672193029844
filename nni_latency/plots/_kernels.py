"""Pictures of kernel predictors: against measurements by group, and along one size of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nni_latency.errors import InvalidValueError
from nni_latency.kernels import Kernel, KernelPredictor, KernelPredictors, MeasuredKernel
from nni_latency.plots._canvas import BLUE, GREY, PALETTE, VERMILION, draw_ideal, logarithmic, plain, save_png
from nni_latency.units import format_percent

#: Groups that have a colour of their own.
_MOST_GROUPS = 8


def draw_kernels(predictors: KernelPredictors, out: str | Path) -> Path:
    """Draw what predictors say of kernels that they had not seen against what was measured, as PNG.

    Parameters
    ----------
    predictors : KernelPredictors
        Just built: what was predicted in cross-validation is in no file.
    out : str or Path
        The file.

    Raises
    ------
    InvalidValueError
        If they come from a file.
    OutputError
        If it cannot be written.
    """
    figure = Figure(figsize=(6.6, 6.2), layout="constrained")
    axes = figure.subplots()
    groups = sorted(predictors.predictors.items(), key=lambda item: -item[1].cross_validation.n)
    every: list[float] = []
    for place, (group, predictor) in enumerate(groups):
        measured = np.array([item.value for item in _members(predictors, predictor)]) * 1e3
        predicted = _held_out(predictor) * 1e3
        every += [*measured, *predicted]
        colour = PALETTE[place] if place < _MOST_GROUPS else GREY
        label = group if place < _MOST_GROUPS else ("others" if place == _MOST_GROUPS else None)
        axes.scatter(measured, predicted, s=8, color=colour, label=label, alpha=0.6, lw=0)
    draw_ideal(axes, every, [0.1])
    logarithmic(axes)
    axes.set_xlabel("measured latency [ms]")
    axes.set_ylabel("predicted latency [ms]")
    scores = predictors.scores()
    assert scores is not None
    axes.set_title(
        f"{scores.n} kernels on {predictors.platform.id}\npredicted by models that had not seen them: "
        f"{format_percent(scores.within10)} within 10 %, RMSPE {format_percent(scores.rmspe)}",
        fontsize=9,
    )
    axes.legend(fontsize=7, loc="upper left")
    plain(axes)
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


def _members(predictors: KernelPredictors, predictor: KernelPredictor) -> list[MeasuredKernel]:
    return [item for item in predictors.kernels if item.kernel.kind in predictor.kinds_]


def _held_out(predictor: KernelPredictor) -> Any:
    if not hasattr(predictor, "held_out_"):
        raise InvalidValueError("The predictors come from a file, which does not say what cross-validation predicted.")
    return predictor.held_out_
