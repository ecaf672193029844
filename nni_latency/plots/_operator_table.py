"""The picture of a table of operators: networks against their sums, the families, and the drift."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from nni_latency.estimators import OperatorTableEstimator
from nni_latency.operators import family_of
from nni_latency.plots._canvas import BLUE, draw_drift, draw_ideal, logarithmic, plain, save_png
from nni_latency.tables import OperatorTable
from nni_latency.units import METRICS, number_of


def draw_operator_table(table: OperatorTable, out: str | Path) -> Path:
    """Draw a table of operators as PNG: measured networks against what their entries add up to, families, drift.

    Parameters
    ----------
    table : OperatorTable
        What to draw.
    out : str or Path
        The file.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    figure = Figure(figsize=(12, 5.5), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(2, 1))
    figure.suptitle(
        f"{table.space.name}: {number_of(len(table.entries), 'operator')} on {table.platform.id}", fontsize=11
    )
    _draw_networks(figure.add_subplot(grid[:, 0]), table)
    draw_families(figure.add_subplot(grid[0, 1]), table)
    draw_drift(figure.add_subplot(grid[1, 1]), table.drift)
    return save_png(figure, out)


def _draw_networks(axes: Any, table: OperatorTable) -> None:
    estimator = OperatorTableEstimator(table)
    factor, unit = METRICS[table.metric].shown
    measured = [network.value * factor for network in table.networks]
    summed = [estimator.of_sum(network.entries) * factor for network in table.networks]
    if measured:
        draw_ideal(axes, [*measured, *summed], [0.10])
    axes.plot(measured, summed, "o", color=BLUE, markersize=4)
    axes.set(xlabel=f"measured whole [{unit}]", ylabel=f"sum of its operators, calibrated [{unit}]")
    axes.set_title("Networks measured", fontsize=10)
    plain(axes)


def draw_families(axes: Any, table: OperatorTable) -> None:
    """Draw the costs of all operators, a line a family."""
    factor, unit = METRICS[table.metric].shown
    values: dict[str, list[float]] = defaultdict(list)
    for entry in table.entries:
        values[family_of(entry.op)].append(entry.value * factor)
    names = sorted(values, key=lambda name: max(values[name]))
    for row, name in enumerate(names):
        axes.plot(values[name], [row] * len(values[name]), "|", color=BLUE, markersize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    logarithmic(axes, "x")
    axes.set_xlabel(f"operator [{unit}]")
    plain(axes)
