"""The picture of a table of operators: networks against their sums, the families, and the drift."""

from __future__ import annotations

import io
from collections import defaultdict
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from nni_latency.estimators import OperatorTableEstimator, family_of
from nni_latency.files import write_atomically
from nni_latency.tables import OperatorTable

_POINT, _BAND = "#0072B2", "#999999"


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
        If it can not be written.
    """
    figure = Figure(figsize=(12, 5.5), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(2, 1))
    figure.suptitle(f"{table.space.name}: {len(table.entries)} operators on {table.platform.id}", fontsize=11)
    _draw_networks(figure.add_subplot(grid[:, 0]), table)
    _draw_families(figure.add_subplot(grid[0, 1]), table)
    _draw_drift(figure.add_subplot(grid[1, 1]), table)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    target = Path(out)
    write_atomically(target, buffer.getvalue())
    return target


def _draw_networks(axes: Any, table: OperatorTable) -> None:
    estimator = OperatorTableEstimator(table)
    measured = [network.value * 1e3 for network in table.networks]
    summed = [estimator.of_sum(network.entries) * 1e3 for network in table.networks]
    if measured:
        low, high = min(*measured, *summed) * 0.95, max(*measured, *summed) * 1.05
        axes.plot([low, high], [low, high], color=_BAND)
        axes.fill_between([low, high], [low * 0.9, high * 0.9], [low * 1.1, high * 1.1], color=_BAND, alpha=0.15, lw=0)
    axes.plot(measured, summed, "o", color=_POINT, markersize=4)
    axes.set(xlabel="measured whole [ms]", ylabel="sum of its operators, calibrated [ms]", title="networks measured")


def _draw_families(axes: Any, table: OperatorTable) -> None:
    values: dict[str, list[float]] = defaultdict(list)
    for entry in table.entries:
        values[family_of(entry.op)].append(entry.value * 1e3)
    names = sorted(values, key=lambda name: max(values[name]))
    for row, name in enumerate(names):
        axes.plot(values[name], [row] * len(values[name]), "|", color=_POINT, markersize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set(xscale="log", xlabel="operator [ms]")


def _draw_drift(axes: Any, table: OperatorTable) -> None:
    axes.plot([seconds * 1e3 for seconds in table.drift], color=_POINT, linewidth=1)
    axes.set(xlabel="round", ylabel="reference [ms]")
