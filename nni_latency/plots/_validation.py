"""The picture of a validation: predicted against measured, and how the machine drifted meanwhile."""

from __future__ import annotations

import io
import textwrap
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from nni_latency.files import write_atomically
from nni_latency.units import format_percent
from nni_latency.validation import NetworkResult, Validation

# Blue, orange and grey of the Okabe-Ito palette, which colour-blind people tell apart.
_POINT, _EXTREME, _BAND = "#0072B2", "#D55E00", "#999999"

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
        If it can not be written.
    """
    figure = Figure(figsize=(12, 5.5), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 1), height_ratios=(2, 1))
    title = f"{validation.estimator}, {len(validation.results)} networks"
    figure.suptitle(textwrap.fill(title, _LINE), fontsize=11)
    _draw_scatter(figure.add_subplot(grid[:, 0]), validation)
    _draw_errors(figure.add_subplot(grid[0, 1]), validation)
    _draw_drift(figure.add_subplot(grid[1, 1]), validation)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    target = Path(out)
    write_atomically(target, buffer.getvalue())
    return target


def _is_extreme(result: NetworkResult) -> bool:
    return result.name.startswith("all ")


def _draw_scatter(axes: Any, validation: Validation) -> None:
    ends = [number * 1e3 for item in validation.results for number in (item.measured, item.predicted.value)]
    low, high = min(ends) * 0.95, max(ends) * 1.05
    axes.plot([low, high], [low, high], color=_BAND, label="ideal")
    axes.fill_between([low, high], [low * 0.9, high * 0.9], [low * 1.1, high * 1.1], color=_BAND, alpha=0.15, lw=0)
    axes.fill_between([low, high], [low * 0.95, high * 0.95], [low * 1.05, high * 1.05], color=_BAND, alpha=0.2, lw=0)
    for kind, colour, label in ((False, _POINT, "network"), (True, _EXTREME, "one choice everywhere")):
        chosen = [item for item in validation.results if _is_extreme(item) is kind]
        if chosen:
            axes.errorbar(
                [item.measured * 1e3 for item in chosen],
                [item.predicted.value * 1e3 for item in chosen],
                xerr=[
                    [max(0.0, item.measured - item.low) * 1e3 for item in chosen],
                    [max(0.0, item.high - item.measured) * 1e3 for item in chosen],
                ],
                fmt="o",
                markersize=5,
                color=colour,
                label=label,
            )
    axes.set_xlabel("measured latency [ms]")
    axes.set_ylabel("predicted latency [ms]")
    scores = validation.scores
    axes.set_title(
        f"MAPE {format_percent(scores.mape)}, within 10 %: {format_percent(scores.within10)}, "
        f"Spearman {scores.spearman:.3f}\n"
        f"repeatability of the measurement {format_percent(validation.repeatability.mape)}",
        fontsize=10,
    )
    axes.legend(fontsize=8, loc="upper left", title="bands: 5 and 10 %", title_fontsize=8)
    _plain(axes)


def _draw_errors(axes: Any, validation: Validation) -> None:
    ordered = sorted(validation.results, key=lambda item: item.measured)
    axes.bar(
        range(len(ordered)),
        [item.error * 100 for item in ordered],
        color=[_EXTREME if _is_extreme(item) else _POINT for item in ordered],
    )
    named = len(ordered) <= _NAMED
    axes.set_xticks(range(len(ordered)) if named else [], [item.name for item in ordered] if named else [])
    axes.tick_params(axis="x", rotation=90, labelsize=6)
    axes.margins(x=0.01)
    axes.axhline(0, color=_BAND, lw=1)
    axes.set_ylabel("error [%]")
    axes.set_title("Predicted over measured, less one; networks from light to heavy", fontsize=10)
    _plain(axes)


def _draw_drift(axes: Any, validation: Validation) -> None:
    axes.plot(range(1, len(validation.drift) + 1), [seconds * 1e3 for seconds in validation.drift], color=_POINT, lw=1)
    axes.set_xlabel("round")
    axes.set_ylabel("reference [ms]")
    axes.set_title("Drift of the machine: the reference operator in every round", fontsize=10)
    _plain(axes)


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
