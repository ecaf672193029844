"""The picture of two tables side by side: their ratio by layer and candidate, and one against the other."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nni_latency.plots._canvas import BLUE, DARK, logarithmic, plain, save_png
from nni_latency.tables import TableComparison
from nni_latency.units import METRICS


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
