# SPDX-License-Identifier: Apache-2.0
"""Pictures of tables: entries, networks, drift, two tables side by side, validations; and an object on given axes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, StrMethodFormatter
from numpy.typing import NDArray

from nni_latency.analysis import ModelAnalysis
from nni_latency.errors import InvalidValueError
from nni_latency.estimators import TableEstimator
from nni_latency.operators import family_of
from nni_latency.plots._canvas import (
    BLUE,
    DARK,
    GREY,
    SMALL,
    VERMILION,
    draw_drift,
    draw_ideal,
    logarithmic,
    name_columns,
    picture,
    plain,
)
from nni_latency.tables import LookupTable, TableComparison
from nni_latency.units import METRICS, format_percent, format_rank_correlation, number_of
from nni_latency.validation import NetworkResult, Validation

#: The costliest candidate over the cheapest that has its own colour.
_COLOURS = 50.0

#: Colour of candidates that cost less.
_SMALL_COST = "#DDDDDD"

#: Height of a row [inch], and columns up to which the numbers of a heat map have room.
_ROW, _NUMBERED = 0.185, 12

#: The costliest candidate over the cheapest that is drawn against another table's; skips cost next to nothing.
_REACH = 500.0

#: Rows of families that a panel of one height has room for.
_FAMILIES = 14

#: Networks up to which each has room for its name.
_NAMED = 56


def draw_table(table: LookupTable, out: str | Path) -> Path:
    """Draw a table: its costs, how well they are known, and the drift.

    With layers, costs by layer and candidate and the half-widths of their intervals; of operators, the measured
    networks against the sums of their operators, and the operators by family.

    Parameters
    ----------
    table : LookupTable
        What to draw; numbers that were not measured have neither intervals nor a drift.
    out : str or Path
        The file: SVG if its name ends in ``.svg``, otherwise PNG.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    measured = bool(table.drift)
    if table.layers:
        height = 1.3 + _ROW * len(table.searched)
    else:
        height = max(3.0, 0.8 + 0.13 * max(_FAMILIES, len(_families(table))))
    below = 2.4 if measured else 0.0
    title = f"{_table_conclusion(table)}\n{table.metric} of {table.space.name} on {table.platform.id}"
    with picture(out, title, height=height + below + 0.4) as figure:
        if not measured:
            draw_costs(figure.subplots(), table)
            return Path(out)
        grid = figure.add_gridspec(2, 2, height_ratios=(height, below))
        if table.layers:
            draw_costs(figure.add_subplot(grid[0, :]), table)
            _draw_intervals(figure.add_subplot(grid[1, 0]), table)
        else:
            _draw_families(figure.add_subplot(grid[0, :]), table)
            _draw_networks(figure.add_subplot(grid[1, 0]), table)
        draw_drift(figure.add_subplot(grid[1, 1]), table.drift)
    return Path(out)


def _table_conclusion(table: LookupTable) -> str:
    """Say how well the costs of a table are known, or how far they reach."""
    if not table.layers:
        count = number_of(len(table.operators), "operator")
        errors = _network_errors(table)
        if not errors:
            return f"Costs of {count}"
        networks = number_of(len(errors), "network")
        return f"Sums of {count} are {format_percent(float(np.median(errors)))} off {networks} that were measured whole"
    entries = [entry for layer in table.searched for entry in layer.entries.values() if entry.value > 0]
    count = f"{number_of(len(entries), 'candidate')} in {number_of(len(table.searched), 'layer')}"
    if not entries:
        return count
    if table.drift:
        width = float(np.median([entry.half_width / entry.value for entry in entries]))
        return f"{count}: half of the costs are known to {format_percent(width)} or better"
    factor, unit = METRICS[table.metric].shown
    costs = [entry.value * factor for entry in entries]
    return f"{count} cost from {min(costs):.3g} to {max(costs):.3g} {unit}"


def _network_errors(table: LookupTable) -> list[float]:
    """Return how far sums of operators are off the networks that were measured whole."""
    estimator = TableEstimator(table)
    return [abs(estimator.of_sum(network.entries) / network.value - 1) for network in table.networks]


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
    norm = LogNorm(low, positive.max()) if len(positive) and low < positive.max() else None
    colours = matplotlib.colormaps["cividis"].with_extremes(under=_SMALL_COST, bad="white")
    image = axes.imshow(np.where(np.nan_to_num(costs) > 0, costs, np.nan), aspect="auto", cmap=colours, norm=norm)
    _name_cells(axes, image, costs, [layer.name for layer in table.searched], names)
    below = norm is not None and bool((positive < low).any())
    less = f"; grey: less than {low:.2g}" if below else ""
    axes.set_title(f"Cost of every candidate [{unit}]; white: none{less}")
    bar = axes.figure.colorbar(image, ax=axes, extend="min" if below else "neither", pad=0.02, aspect=30)
    if norm is not None:
        bar.ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        bar.ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        bar.ax.yaxis.set_minor_formatter(NullFormatter())
    bar.ax.grid(visible=False)


def _name_cells(
    axes: Any, image: Any, numbers: NDArray[np.float64], rows: Sequence[str], columns: Sequence[str]
) -> None:
    """Name the rows and columns of a heat map, and write its numbers where they have room."""
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    name_columns(axes, columns)
    axes.set_yticks(range(len(rows)), list(rows), fontsize=SMALL)
    axes.tick_params(length=0)
    if len(columns) > _NUMBERED:
        return
    for row, column in np.ndindex(*numbers.shape):
        number = numbers[row, column]
        if np.isnan(number):
            continue
        red, green, blue, _ = image.cmap(image.norm(number))
        colour = "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.5 or number <= 0 else "white"
        # With three digits also where the last ones are zeros.
        text = f"{number:#.3g}".rstrip(".")
        axes.text(column, row, text, ha="center", va="center", fontsize=SMALL, color=colour)


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
        axes.legend()
    logarithmic(axes, "x")
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"cost [{unit}]")
    axes.set_ylabel("half-width [%]")
    axes.set_title("How well each entry is known")
    plain(axes)


def _draw_networks(axes: Any, table: LookupTable) -> None:
    estimator = TableEstimator(table)
    factor, unit = METRICS[table.metric].shown
    measured = [network.value * factor for network in table.networks]
    summed = [estimator.of_sum(network.entries) * factor for network in table.networks]
    if measured:
        draw_ideal(axes, [*measured, *summed], [0.10])
    axes.plot(measured, summed, "o", color=BLUE, markersize=4)
    axes.set(xlabel=f"measured whole [{unit}]", ylabel=f"sum, calibrated [{unit}]")
    axes.set_title("Sums against networks measured whole; band: 10 %")
    plain(axes)


def _families(table: LookupTable) -> dict[str, list[float]]:
    """Return the costs of operators by family, as they are shown."""
    factor, _ = METRICS[table.metric].shown
    values: dict[str, list[float]] = defaultdict(list)
    for entry in table.operators:
        if entry.op:
            values[family_of(entry.op)].append(entry.value * factor)
    return values


def _draw_families(axes: Any, table: LookupTable) -> None:
    _, unit = METRICS[table.metric].shown
    values = _families(table)
    names = sorted(values, key=lambda name: max(values[name]))
    for row, name in enumerate(names):
        axes.plot(values[name], [row] * len(values[name]), "|", color=BLUE, markersize=7)
    axes.set_yticks(range(len(names)), names, fontsize=SMALL)
    logarithmic(axes, "x")
    axes.set_title("Every operator, by family")
    axes.set_xlabel(f"{table.metric} of the operator [{unit}]")
    plain(axes)


def draw_comparison(comparison: TableComparison, out: str | Path) -> Path:
    """Draw a comparison: the ratio of every candidate, and one table against the other.

    Parameters
    ----------
    comparison : TableComparison
        What to draw.
    out : str or Path
        The file: SVG if its name ends in ``.svg``, otherwise PNG.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    first, second = comparison.first.platform.id, comparison.second.platform.id
    ratios = [ratio for row in comparison.ratios.values() for ratio in row.values()]
    title = f"{second} over {first}"
    if ratios:
        low, high = np.quantile(ratios, [0.25, 0.75])
        title = (
            f"{number_of(len(ratios), 'candidate')}: the median ratio of {comparison.first.metric} is "
            f"{comparison.ratio:.3g}, half of them are from {low:.3g} to {high:.3g}\n{title}"
        )
    height = 1.2 + _ROW * len(comparison.ratios)
    with picture(out, title, height=height + 3.2) as figure:
        above, below = figure.subplots(2, 1, height_ratios=(height, 2.8))
        _draw_ratios(above, comparison)
        _draw_costs(below, comparison)
    return Path(out)


def _draw_ratios(axes: Any, comparison: TableComparison) -> None:
    ratios = comparison.ratios
    names = list(dict.fromkeys(choice for row in ratios.values() for choice in row))
    numbers = np.full((len(ratios), len(names)), np.nan)
    for index, row in enumerate(ratios.values()):
        for choice, ratio in row.items():
            numbers[index, names.index(choice)] = ratio
    known = numbers[np.isfinite(numbers)]
    middle = comparison.ratio if len(known) else 1.0
    most = max(0.05, float(np.quantile(np.abs(np.log(known / middle)), 0.85)) if len(known) else 0.05)
    ends = middle * np.exp(-most), middle * np.exp(most)
    norm: Normalize = LogNorm(*ends)
    image = axes.imshow(
        numbers, aspect="auto", cmap=matplotlib.colormaps["RdBu_r"].with_extremes(bad="0.93"), norm=norm
    )
    _name_cells(axes, image, numbers, list(ratios), names)
    axes.set_title(f"Ratio of every candidate; white: the median, {comparison.ratio:.3g}; grey: not in both")
    beyond = bool((known < ends[0]).any()), bool((known > ends[1]).any())
    extend = {(True, True): "both", (True, False): "min", (False, True): "max", (False, False): "neither"}[beyond]
    bar = axes.figure.colorbar(image, ax=axes, extend=extend, pad=0.02, aspect=30)
    bar.ax.yaxis.set_major_locator(FixedLocator(np.geomspace(*ends, 5).tolist()))
    bar.ax.yaxis.set_major_formatter(StrMethodFormatter("{x:.3g}"))
    bar.ax.yaxis.set_minor_locator(FixedLocator([]))
    bar.ax.grid(visible=False)


def _draw_costs(axes: Any, comparison: TableComparison) -> None:
    factor, unit = METRICS[comparison.first.metric].shown
    pairs = np.array([pair for row in comparison.costs.values() for pair in row.values() if min(pair) > 0])
    pairs = pairs.reshape(-1, 2)
    shown = (pairs * _REACH >= pairs.max(axis=0, initial=0.0)).all(axis=1)
    firsts, seconds = (pairs[shown] * factor).T.tolist()
    axes.scatter(firsts, seconds, s=10, color=BLUE)
    if firsts:
        ends = [min(firsts), max(firsts)]
        axes.plot(ends, [end * comparison.ratio for end in ends], color=DARK, linestyle="--", label="median ratio")
        axes.legend()
        logarithmic(axes)
    axes.set_xlabel(f"{comparison.first.platform.id} [{unit}]")
    axes.set_ylabel(f"{comparison.second.platform.id} [{unit}]")
    some = "" if shown.all() else f", without those below 1/{_REACH:.0f} of the costliest"
    ranks = format_rank_correlation(comparison.spearman)
    axes.set_title(f"Every candidate{some}; rank correlation (Spearman) {ranks}")
    plain(axes)


def draw_validation(validation: Validation, out: str | Path) -> Path:
    """Draw a validation: all networks with the ideal diagonal, their errors, and the drift.

    Parameters
    ----------
    validation : Validation
        What to draw.
    out : str or Path
        The file: SVG if its name ends in ``.svg``, otherwise PNG.

    Raises
    ------
    InvalidValueError
        If the validation has scores alone.
    OutputError
        If it cannot be written.
    """
    _check_networks(validation)
    halves = validation.repeatability
    repeats = "" if halves is None else f" (repeatability {format_percent(halves.mape)})"
    title = (
        f"{number_of(len(validation.results), 'network')} never measured before: "
        f"{format_percent(validation.scores.mape)} off on average{repeats}\n"
        f"{validation.metric} on {validation.platform.id}, predicted by {_short(validation.estimator)}"
    )
    with picture(out, title, height=6.6) as figure:
        grid = figure.add_gridspec(2, 2, width_ratios=(3, 2), height_ratios=(3, 2))
        draw_scatter(figure.add_subplot(grid[0, 0]), validation)
        draw_drift(figure.add_subplot(grid[0, 1]), validation.drift)
        _draw_errors(figure.add_subplot(grid[1, :]), validation)
    return Path(out)


def _short(estimator: str) -> str:
    """Describe an estimator without the arguments of its space.

    >>> _short("TableEstimator(fbnet(width=1.0, depth=1.0), latency on pi.torch.fp32.t1)")
    'a table of fbnet'
    >>> _short("another")
    'another'
    """
    of_table = re.match(r"TableEstimator\((\w+)\b", estimator)
    if of_table:
        return f"a table of {of_table[1]}"
    named = re.match(r"\w+", estimator)
    return named[0] if named else "an estimator"


def _check_networks(validation: Validation) -> None:
    if not validation.results:
        raise InvalidValueError(
            f"The validation of {validation.estimator} has scores alone. There are no networks to plot."
        )


def _is_extreme(result: NetworkResult) -> bool:
    return result.name.startswith("all ")


def draw_scatter(axes: Any, validation: Validation) -> None:
    """Draw predicted against measured costs, with the ideal diagonal; `InvalidValueError` if there are no networks."""
    _check_networks(validation)
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
                markersize=4,
                elinewidth=1,
                color=colour,
                label=label,
            )
    axes.set_xlabel(f"measured {validation.metric} [{unit}]")
    axes.set_ylabel(f"predicted {validation.metric} [{unit}]")
    scores = validation.scores
    ranks = format_rank_correlation(scores.spearman)
    axes.set_title(f"{format_percent(scores.within10)} within 10 %; rank correlation (Spearman) {ranks}")
    axes.legend(loc="upper left", title="bands: 5 and 10 %")
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
    axes.tick_params(axis="x", rotation=90, labelsize=SMALL)
    axes.margins(x=0.01)
    axes.axhline(0, color=GREY, lw=1)
    axes.set_ylabel("error [%]")
    axes.set_title("Predicted over measured, less one; networks from light to heavy")
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
    axes.set_xticks(places, [block.name for block in analysis.blocks], rotation=90, fontsize=SMALL)
    timed = any(block.latency is not None for block in analysis.blocks)
    what = "latency" if timed else "FLOPs"
    axes.set_ylabel(f"share of the {what} [%]")
    most = max(analysis.blocks, key=lambda block: block.share)
    axes.set_title(
        f"{most.name} takes {format_percent(most.share)} of the {what} of {number_of(len(analysis.blocks), 'block')}"
    )
    plain(axes, "y")


_DRAWN: dict[type, Callable[[Any, Any], None]] = {
    LookupTable: draw_costs,
    ModelAnalysis: _draw_blocks,
    Validation: draw_scatter,
}
