"""Pictures of tables: entries, networks, drift, two tables side by side, validations; and an object on given axes."""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from nni_latency.analysis import ModelAnalysis
from nni_latency.errors import InvalidValueError
from nni_latency.estimators import TableEstimator
from nni_latency.operators import family_of
from nni_latency.plots._canvas import BLUE, DARK, GREY, VERMILION, draw_drift, draw_ideal, logarithmic, plain, save_png
from nni_latency.tables import LookupTable, TableComparison
from nni_latency.units import METRICS, format_percent, number_of
from nni_latency.validation import NetworkResult, Validation

#: The costliest candidate over the cheapest that has its own colour.
_COLOURS = 50.0

#: Networks up to which each has room for its name, and letters in a line of the title.
_NAMED, _LINE = 60, 130


def draw_table(table: LookupTable, out: str | Path) -> Path:
    """Draw a table as PNG: its costs, how well they are known, and the drift.

    With layers, costs by layer and candidate and the half-widths of their intervals; of operators, the measured
    networks against the sums of their operators, and the operators by family.

    Parameters
    ----------
    table : LookupTable
        What to draw; numbers that were not measured have neither intervals nor a drift.
    out : str or Path
        The file.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    measured = bool(table.drift)
    height = 0.24 * len(table.searched) + 2.2 if table.layers else 5.5
    figure = Figure(figsize=(12 if measured else 7, height), layout="constrained")
    figure.suptitle(f"{table.metric} of {table.space.name} on {table.platform.id}", fontsize=11)
    if not measured:
        draw_costs(figure.subplots(), table)
        return save_png(figure, out)
    grid = figure.add_gridspec(2, 2, width_ratios=(3, 2))
    left, above, below = (figure.add_subplot(grid[place]) for place in ((slice(None), 0), (0, 1), (1, 1)))
    if table.layers:
        draw_costs(left, table)
        _draw_intervals(above, table)
    else:
        _draw_networks(left, table)
        _draw_families(above, table)
    draw_drift(below, table.drift)
    return save_png(figure, out)


def draw_costs(axes: Any, table: LookupTable) -> None:
    """Draw costs by layer and candidate; of operators by family."""
    if not table.layers:
        _draw_families(axes, table)
        return
    names = list(dict.fromkeys(choice for layer in table.searched for choice in layer.choices))
    factor, unit = METRICS[table.metric].shown
    costs = _costs(table, names) * factor
    positive = costs[np.nan_to_num(costs) > 0]
    # What does nothing takes a thousandth of the rest, and would leave the rest one colour.
    low = max(positive.min(), positive.max() / _COLOURS) if len(positive) else 0.0
    norm = LogNorm(low, positive.max(), clip=True) if len(positive) and low < positive.max() else None
    image = axes.imshow(np.where(np.nan_to_num(costs) > 0, costs, np.nan), aspect="auto", cmap="cividis", norm=norm)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=8)
    axes.set_yticks(range(len(table.searched)), [layer.name for layer in table.searched], fontsize=7)
    for row, column in np.ndindex(*costs.shape):
        if not np.isnan(costs[row, column]):
            dark = image.norm(costs[row, column]) < 0.6
            axes.text(
                column,
                row,
                f"{costs[row, column]:.3g}",
                ha="center",
                va="center",
                fontsize=6,
                color="white" if dark else "black",
            )
    axes.set_title(f"Cost of every candidate [{unit}]; white: none", fontsize=10)
    axes.figure.colorbar(image, ax=axes, shrink=0.8)


def _costs(table: LookupTable, names: list[str]) -> NDArray[np.float64]:
    costs = np.full((len(table.searched), len(names)), np.nan)
    for row, layer in enumerate(table.searched):
        for choice, entry in layer.entries.items():
            costs[row, names.index(choice)] = entry.value
    return costs


def _draw_intervals(axes: Any, table: LookupTable) -> None:
    entries = [entry for layer in table.layers for entry in layer.entries.values() if entry.value > 0]
    factor, unit = METRICS[table.metric].shown
    axes.scatter(
        [entry.value * factor for entry in entries],
        [entry.half_width / entry.value * 100 for entry in entries],
        s=12,
        color=BLUE,
    )
    if table.protocol is not None and table.protocol.half_width:
        axes.axhline(table.protocol.half_width * 100, color=DARK, linestyle="--", label="asked for")
        axes.legend(fontsize=8)
    logarithmic(axes, "x")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"cost [{unit}]")
    axes.set_ylabel("half-width [%]")
    axes.set_title("How well each entry is known", fontsize=10)
    plain(axes)


def _draw_networks(axes: Any, table: LookupTable) -> None:
    estimator = TableEstimator(table)
    factor, unit = METRICS[table.metric].shown
    measured = [network.value * factor for network in table.networks]
    summed = [estimator.of_sum(network.entries) * factor for network in table.networks]
    if measured:
        draw_ideal(axes, [*measured, *summed], [0.10])
    axes.plot(measured, summed, "o", color=BLUE, markersize=4)
    axes.set(xlabel=f"measured whole [{unit}]", ylabel=f"sum of its operators, calibrated [{unit}]")
    axes.set_title("Networks measured", fontsize=10)
    plain(axes)


def _draw_families(axes: Any, table: LookupTable) -> None:
    factor, unit = METRICS[table.metric].shown
    values: dict[str, list[float]] = defaultdict(list)
    for entry in table.operators:
        if entry.op:
            values[family_of(entry.op)].append(entry.value * factor)
    names = sorted(values, key=lambda name: max(values[name]))
    for row, name in enumerate(names):
        axes.plot(values[name], [row] * len(values[name]), "|", color=BLUE, markersize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    logarithmic(axes, "x")
    axes.set_xlabel(f"operator [{unit}]")
    plain(axes)


def draw_comparison(comparison: TableComparison, out: str | Path) -> Path:
    """Draw a comparison as PNG.

    Parameters
    ----------
    comparison : TableComparison
        What to draw.
    out : str or Path
        The file.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    height = 0.24 * len(comparison.ratios) + 2.4
    figure = Figure(figsize=(13, max(4.5, height)), layout="constrained")
    figure.suptitle(
        f"{comparison.first.metric}: {comparison.second.platform.id} over {comparison.first.platform.id}", fontsize=11
    )
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_ratios(figure, left, comparison)
    _draw_costs(right, comparison)
    return save_png(figure, out)


def _draw_ratios(figure: Figure, axes: Any, comparison: TableComparison) -> None:
    ratios = comparison.ratios
    names = list(dict.fromkeys(choice for row in ratios.values() for choice in row))
    logs = np.full((len(ratios), len(names)), np.nan)
    for index, row in enumerate(ratios.values()):
        for choice, ratio in row.items():
            logs[index, names.index(choice)] = math.log(ratio / comparison.ratio)
    limit = max(0.05, float(np.nanquantile(np.abs(logs), 0.85)) if np.isfinite(logs).any() else 0.05)
    image = axes.imshow(logs, aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=8 if len(names) < 20 else 4)
    axes.set_yticks(range(len(ratios)), list(ratios), fontsize=7)
    if len(names) < 20:
        for index, row in enumerate(ratios.values()):
            for choice, ratio in row.items():
                pale = abs(logs[index, names.index(choice)]) < 0.6 * limit
                colour = "black" if pale else "white"
                axes.text(
                    names.index(choice), index, f"{ratio:.3g}", ha="center", va="center", fontsize=6, color=colour
                )
    axes.set_title(f"Ratio of every candidate; white: the median, {comparison.ratio:.3g}", fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.8, label="log of the ratio over the median")


def _draw_costs(axes: Any, comparison: TableComparison) -> None:
    factor, unit = METRICS[comparison.first.metric].shown
    pairs = [pair for row in comparison.costs.values() for pair in row.values() if min(pair) > 0]
    firsts, seconds = ([pair[side] * factor for pair in pairs] for side in (0, 1))
    axes.scatter(firsts, seconds, s=10, color=BLUE)
    if pairs:
        ends = [min(firsts), max(firsts)]
        axes.plot(ends, [end * comparison.ratio for end in ends], color=DARK, linestyle="--", label="median ratio")
        axes.legend(fontsize=8)
        logarithmic(axes)
    axes.set_xlabel(f"first [{unit}]")
    axes.set_ylabel(f"second [{unit}]")
    axes.set_title(f"Every candidate; Spearman {comparison.spearman:.3f}", fontsize=10)
    plain(axes)


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
    InvalidValueError
        If the validation has scores alone.
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
    """Draw predicted against measured costs, with the ideal diagonal; `InvalidValueError` if there are no networks."""
    if not validation.results:
        raise InvalidValueError(
            f"The validation of {validation.estimator} has scores alone. There are no networks to plot."
        )
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
    scores, halves = validation.scores, validation.repeatability
    axes.set_title(
        f"MAPE {format_percent(scores.mape)}, within 10 %: {format_percent(scores.within10)}, "
        f"Spearman {scores.spearman:.3f}"
        + (f"\nrepeatability of the measurement {format_percent(halves.mape)}" if halves is not None else ""),
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


def plot(thing: Any, axes: Any = None) -> Any:
    """Draw a table, an analysis or a validation, and return the axes.

    Parameters
    ----------
    thing : LookupTable, ModelAnalysis or Validation
        What to draw.
    axes : matplotlib.axes.Axes, optional
        Where to; by default those of a new figure of `matplotlib.pyplot`, which a notebook shows.

    Raises
    ------
    InvalidValueError
        If it is something else.
    """
    draw = next((draw for kind, draw in _DRAWN.items() if isinstance(thing, kind)), None)
    if draw is None:
        raise InvalidValueError(
            f"A table, an analysis or a validation can be drawn on axes. Got {type(thing).__name__}."
        )
    if axes is None:
        # Imported on use: it chooses what shows pictures on this machine.
        from matplotlib import pyplot

        _, axes = pyplot.subplots(layout="constrained")
    draw(axes, thing)
    return axes


def _draw_blocks(axes: Any, analysis: ModelAnalysis) -> None:
    places = range(len(analysis.blocks))
    axes.bar(places, [block.share * 100 for block in analysis.blocks], color=BLUE)
    axes.set_xticks(places, [block.name for block in analysis.blocks], rotation=90, fontsize=7)
    timed = any(block.latency is not None for block in analysis.blocks)
    axes.set_ylabel(f"share of the {'latency' if timed else 'FLOPs'} [%]")
    axes.set_title(repr(analysis), fontsize=10)
    plain(axes, "y")


_DRAWN: dict[type, Callable[[Any, Any], None]] = {
    LookupTable: draw_costs,
    ModelAnalysis: _draw_blocks,
    Validation: draw_scatter,
}
