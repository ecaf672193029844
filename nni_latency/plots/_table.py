"""The picture of a table: what every candidate costs, how well that is known, and how the machine drifted meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray

from nni_latency.plots._canvas import BLUE, DARK, draw_drift, logarithmic, plain, save_png
from nni_latency.tables import LookupTable
from nni_latency.units import METRICS

#: The costliest candidate over the cheapest that has a colour of its own.
_COLOURS = 50.0


def draw_table(table: LookupTable, out: str | Path) -> Path:
    """Draw a table as PNG: costs by layer and candidate, half-widths of the intervals, and the drift.

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
    figure = Figure(figsize=(12 if measured else 7, 0.24 * len(table.searched) + 2.2), layout="constrained")
    figure.suptitle(f"{table.metric} of {table.space.name} on {table.platform.id}", fontsize=11)
    if measured:
        grid = figure.add_gridspec(2, 2, width_ratios=(3, 2))
        draw_costs(figure.add_subplot(grid[:, 0]), table)
        _draw_intervals(figure.add_subplot(grid[0, 1]), table)
        draw_drift(figure.add_subplot(grid[1, 1]), table.drift)
    else:
        draw_costs(figure.subplots(), table)
    return save_png(figure, out)


def draw_costs(axes: Any, table: LookupTable) -> None:
    """Draw costs by layer and candidate."""
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
