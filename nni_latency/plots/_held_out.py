"""Predictions against measurements by group, and their errors beside the intervals that the predictions have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.plots._canvas import DARK, GREY, PALETTE, draw_ideal, logarithmic, plain

Array = NDArray[np.float64]

#: Groups that have a colour of their own in a legend.
_MOST_GROUPS = 9


@dataclass(frozen=True)
class HeldOut:
    """What was measured, and what a model said of it that had not seen it.

    Parameters
    ----------
    measured, predicted : ndarray of shape (n,)
        In the unit in which they are drawn.
    low, high : ndarray of shape (n,), optional
        Interval of what was measured.
    factor : float, optional
        By what factor a prediction may be off, up or down, by its interval.
    """

    measured: Array
    predicted: Array
    low: Array | None = None
    high: Array | None = None
    factor: float | None = None

    @property
    def ratios(self) -> Array:
        """Predicted over measured."""
        return self.predicted / self.measured


def draw_held_out(axes: Any, groups: Mapping[str, HeldOut], what: str) -> None:
    """Draw predicted against measured by group, with error bars of the measurements and bands of 5 and 10 %."""
    every = np.concatenate([values for item in groups.values() for values in (item.measured, item.predicted)])
    for place, (name, item) in enumerate(groups.items()):
        colour = PALETTE[place] if place < _MOST_GROUPS else GREY
        label = name if place < _MOST_GROUPS else ("others" if place == _MOST_GROUPS else None)
        if item.low is not None and item.high is not None:
            ends = np.maximum(0.0, [item.measured - item.low, item.high - item.measured])
            axes.errorbar(
                item.measured, item.predicted, xerr=ends, fmt="none", ecolor=colour, elinewidth=0.7, alpha=0.5
            )
        axes.scatter(item.measured, item.predicted, s=9, color=colour, label=label, alpha=0.6, lw=0)
    draw_ideal(axes, every.tolist(), [0.1, 0.05])
    logarithmic(axes)
    axes.set_xlabel(f"measured {what}")
    axes.set_ylabel(f"predicted {what}")
    axes.legend(fontsize=7, loc="upper left", title="bands: 5 and 10 %", title_fontsize=7)
    plain(axes)


def draw_ratios(axes: Any, groups: Mapping[str, HeldOut]) -> None:
    """Draw predicted over measured by group, as boxes and points, beside the interval of each group's predictions."""
    values = [item.ratios for item in groups.values()]
    axes.boxplot(values, orientation="vertical", showfliers=False, widths=0.6, medianprops={"color": "black"})
    for place, group in enumerate(values, start=1):
        spread = np.linspace(-0.18, 0.18, len(group)) if len(group) > 1 else np.zeros(1)
        colour = PALETTE[place - 1] if place <= _MOST_GROUPS else GREY
        axes.scatter(place + spread, group, s=8, color=colour, alpha=0.6, lw=0)
    known = [(place, item.factor) for place, item in enumerate(groups.values(), start=1) if item.factor is not None]
    if known:
        _draw_intervals(axes, known)
    axes.axhline(1, color=GREY, lw=1)
    axes.set_xticks(range(1, len(values) + 1), list(groups), rotation=30, ha="right", fontsize=8)
    logarithmic(axes, "y")
    axes.set_ylabel("predicted over measured")
    plain(axes, "y")


def _draw_intervals(axes: Any, factors: Sequence[tuple[int, float]]) -> None:
    """Draw by what ratios the intervals of predictions allow them to be off, a bar at each place."""
    axes.errorbar(
        [place + 0.4 for place, _ in factors],
        np.ones(len(factors)),
        yerr=np.array([[1 - 1 / factor, factor - 1] for _, factor in factors]).T,
        fmt="none",
        ecolor=DARK,
        elinewidth=1.5,
        capsize=4,
        label="interval of a prediction",
    )
    axes.legend(fontsize=7, loc="best")
