"""The picture of a validation: predicted against measured, and how the machine drifted meanwhile."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from nni_latency.plots._canvas import BLUE, GREY, VERMILION, draw_drift, draw_ideal, plain, save_png
from nni_latency.units import METRICS, format_percent, number_of
from nni_latency.validation import NetworkResult, Validation

#: Networks up to which each has room for its name, and letters in a line of the title.
_NAMED, _LINE = 60, 130


def draw_validation(validation: Validation, out: str | Path) -> Path:
    """Draw a validation as PNG: a scatter of all networks with the ideal diagonal, errors, and the drift.

    Parameters
    ----------
    validation : Validation
        What to draw.
    out : str or Path
        The file.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    figure = Figure(figsize=(12, 5.5), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 1), height_ratios=(2, 1))
    title = f"{validation.estimator}, {number_of(len(validation.results), 'network')}"
    figure.suptitle(textwrap.fill(title, _LINE), fontsize=11)
    draw_scatter(figure.add_subplot(grid[:, 0]), validation)
    _draw_errors(figure.add_subplot(grid[0, 1]), validation)
    draw_drift(figure.add_subplot(grid[1, 1]), validation.drift)
    return save_png(figure, out)


def _is_extreme(result: NetworkResult) -> bool:
    return result.name.startswith("all ")


def draw_scatter(axes: Any, validation: Validation) -> None:
    """Draw predicted against measured costs, with the ideal diagonal."""
    factor, unit = METRICS[validation.metric].shown
    ends = [number * factor for item in validation.results for number in (item.measured, item.predicted.value)]
    draw_ideal(axes, ends, [0.10, 0.05])
    for kind, colour, label in ((False, BLUE, "network"), (True, VERMILION, "one choice everywhere")):
        chosen = [item for item in validation.results if _is_extreme(item) is kind]
        if chosen:
            axes.errorbar(
                [item.measured * factor for item in chosen],
                [item.predicted.value * factor for item in chosen],
                xerr=[
                    [max(0.0, item.measured - item.low) * factor for item in chosen],
                    [max(0.0, item.high - item.measured) * factor for item in chosen],
                ],
                fmt="o",
                markersize=5,
                color=colour,
                label=label,
            )
    axes.set_xlabel(f"measured {validation.metric} [{unit}]")
    axes.set_ylabel(f"predicted {validation.metric} [{unit}]")
    scores = validation.scores
    axes.set_title(
        f"MAPE {format_percent(scores.mape)}, within 10 %: {format_percent(scores.within10)}, "
        f"Spearman {scores.spearman:.3f}\n"
        f"repeatability of the measurement {format_percent(validation.repeatability.mape)}",
        fontsize=10,
    )
    axes.legend(fontsize=8, loc="upper left", title="bands: 5 and 10 %", title_fontsize=8)
    plain(axes)


def _draw_errors(axes: Any, validation: Validation) -> None:
    ordered = sorted(validation.results, key=lambda item: item.measured)
    axes.bar(
        range(len(ordered)),
        [item.error * 100 for item in ordered],
        color=[VERMILION if _is_extreme(item) else BLUE for item in ordered],
    )
    named = len(ordered) <= _NAMED
    axes.set_xticks(range(len(ordered)) if named else [], [item.name for item in ordered] if named else [])
    axes.tick_params(axis="x", rotation=90, labelsize=6)
    axes.margins(x=0.01)
    axes.axhline(0, color=GREY, lw=1)
    axes.set_ylabel("error [%]")
    axes.set_title("Predicted over measured, less one; networks from light to heavy", fontsize=10)
    plain(axes)
