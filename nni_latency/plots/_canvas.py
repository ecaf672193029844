# SPDX-License-Identifier: Apache-2.0
"""What all pictures share: size, style, colours, axes, bands of error, drift, the file, held-out predictions."""

from __future__ import annotations

import contextlib
import io
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from numpy.typing import NDArray

from nni_latency.files import write_atomically
from nni_latency.units import format_percent

# Of the palette of Okabe and Ito, which colour-blind people can distinguish, and greys.
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
GREY, DARK = "#999999", "#666666"

#: Colours for as many kinds of things, the ones that differ most first.
PALETTE = (BLUE, VERMILION, GREEN, "#CC79A7", ORANGE, "#56B4E9", "#000000", "#F0E442", GREY)

#: Width of a picture [inch]: the documentation shows it with 736 px, 96 of them an inch.
WIDTH = 736 / 96

#: Pixels of a PNG for an inch: two for each that is shown.
_DPI = 192

#: Height of letters [pt]. As shown, a point is 4/3 px, so that no letter is of less than 9 px.
TITLE, TEXT, SMALL = 9.5, 8.0, 7.0

#: Letters in a line of a title.
_LINE = 102

#: A space at which no line is broken.
_NO_BREAK = "\N{NO-BREAK SPACE}"

#: How every picture looks.
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": TEXT,
    "figure.titlesize": TITLE,
    "axes.titlesize": TEXT,
    "axes.titlelocation": "left",
    "axes.labelsize": TEXT,
    "axes.prop_cycle": cycler(color=PALETTE),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.title_fontsize": SMALL,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    # So that the same picture is the same file.
    "svg.hashsalt": "nni_latency",
}

#: Axes are short up to this ratio of their ends.
_SHORT = 200

Array = NDArray[np.float64]

#: Groups that have their own colour in a legend.
_MOST_GROUPS = 8

#: Groups whose legend has room inside of the axes.
_INSIDE = 3

#: How far beside the middle of a group its interval stands, in groups.
_BESIDE = 0.4

#: Names that stand upright side by side, and letters of names that have room to be slanted.
_COLUMNS, _SLANTED = 56, 400


def plain(axes: Any, grid: Literal["both", "x", "y"] = "both") -> None:
    """Leave axes two sides of their frame, and a pale grid behind everything."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, alpha=0.3)
    axes.set_axisbelow(True)


def logarithmic(axes: Any, which: Literal["both", "x", "y"] = "both") -> None:
    """Make axes logarithmic that were drawn on, with ticks written as a person writes numbers.

    They are at powers of ten, and at twice and five times these where axes are short.
    """
    for name in "xy" if which == "both" else which:
        getattr(axes, f"set_{name}scale")("log")
        low, high = getattr(axes, f"get_{name}lim")()
        axis = getattr(axes, f"{name}axis")
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < _SHORT else (1.0,)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())


def draw_ideal(axes: Any, values: Sequence[float], bands: Sequence[float]) -> None:
    """Draw the diagonal where both axes agree, as far as the values go, and a band for each ratio of error."""
    low, high = min(values) * 0.95, max(values) * 1.05
    axes.plot([low, high], [low, high], color=GREY, label="ideal")
    for off in bands:
        lower, upper = ([end * factor for end in (low, high)] for factor in (1 - off, 1 + off))
        axes.fill_between([low, high], lower, upper, color=GREY, alpha=0.15, lw=0)


def draw_drift(axes: Any, drift: Sequence[float]) -> None:
    """Draw the time of the reference operator by round; `drift` holds its median in each [s]."""
    axes.plot(range(1, len(drift) + 1), [seconds * 1e3 for seconds in drift], color=BLUE, lw=1)
    axes.set_xlabel("round")
    axes.set_ylabel("reference [ms]")
    swing = max(drift) / min(drift) - 1 if len(drift) and min(drift) > 0 else 0.0
    axes.set_title(f"A reference operator varies by {format_percent(swing)}")
    plain(axes)


@contextlib.contextmanager
def picture(
    out: str | Path, title: str, *, height: float, layout: Literal["constrained"] | None = "constrained"
) -> Iterator[Figure]:
    """Make a figure in the style of all pictures, as wide as the documentation shows it, and save it at the end.

    Parameters
    ----------
    out : str or Path
        The file: SVG if its name ends in ``.svg``, otherwise PNG.
    title : str
        What the picture shows, with its number; lines are wrapped.
    height : float
        Of the figure [inch]; its width is 7.67 inches.
    layout : "constrained" or None, default="constrained"
        Layout engine of matplotlib; None places the title at the top and leaves the rest to the caller.

    Yields
    ------
    matplotlib.figure.Figure
        What to draw on.

    Raises
    ------
    OutputError
        If the file cannot be written.

    Examples
    --------
    >>> with picture("squares.svg", "The square of 3 is 9", height=3) as figure:  # doctest: +SKIP
    ...     figure.subplots().plot(range(4), [x * x for x in range(4)])
    """
    with matplotlib.rc_context(STYLE):
        figure: Any = Figure(figsize=(WIDTH, height), layout=layout)
        place: dict[str, float] = {"y": 1 - 0.08 / height} if layout is None else {}
        figure.suptitle(wrapped(title), x=0.012, ha="left", **place)
        yield figure
        save(figure, out)


def wrapped(title: str) -> str:
    """Break the lines of a title so that they fit into a picture: not behind a number, nor before a percentage."""
    joined = re.sub(r"(?<=\d) (?=\S)| (?=[\d.]+ %)", _NO_BREAK, title)
    return "\n".join(textwrap.fill(line, _LINE) for line in joined.splitlines()).replace(_NO_BREAK, " ")


def save(figure: Figure, out: str | Path) -> Path:
    """Write a picture as SVG or PNG, by its name, whole or not at all, and return where it is.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    buffer, target = io.BytesIO(), Path(out)
    if target.suffix.lower() == ".svg":
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    else:
        figure.savefig(buffer, format="png", dpi=_DPI)
    write_atomically(target, buffer.getvalue())
    return target


def name_columns(axes: Any, names: Sequence[str]) -> None:
    """Name what stands side by side across axes as wide as the picture: slanted, upright where many, else every nth."""
    step = -(-len(names) // _COLUMNS)
    slanted = len(names) * max(map(len, names), default=0) <= _SLANTED
    turned = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if slanted else {"rotation": 90}
    axes.set_xticks(range(0, len(names), step), list(names)[::step], fontsize=SMALL, **turned)


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


def draw_held_out(axes: Any, groups: Mapping[str, HeldOut], what: str, *, named: bool = True) -> None:
    """Draw predicted against measured by group, with error bars of the measurements and bands of 5 and 10 %.

    Unless the groups are named, something else in the picture tells what colour each has.
    """
    every = np.concatenate([values for item in groups.values() for values in (item.measured, item.predicted)])
    for place, (name, item) in enumerate(groups.items()):
        colour = PALETTE[place] if place < _MOST_GROUPS else GREY
        label = name if place < _MOST_GROUPS else ("others" if place == _MOST_GROUPS else None)
        label = label if named else None
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
    if named and len(groups) > _INSIDE:
        beside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.02), "alignment": "left"}
    else:
        beside = {"loc": "upper left"}
    axes.legend(title="bands: 5 and 10 %", markerscale=1.5, **beside)
    plain(axes)


def draw_ratios(axes: Any, groups: Mapping[str, HeldOut]) -> None:
    """Draw predicted over measured by group, a row each of a box and points, below the interval of its predictions."""
    values = [item.ratios for item in groups.values()]
    places = range(len(values))
    axes.boxplot(
        values,
        positions=places,
        orientation="horizontal",
        showfliers=False,
        widths=0.5,
        medianprops={"color": "black"},
    )
    for place, group in enumerate(values):
        spread = np.linspace(-0.18, 0.18, len(group)) if len(group) > 1 else np.zeros(1)
        colour = PALETTE[place] if place < _MOST_GROUPS else GREY
        axes.scatter(group, place + spread, s=8, color=colour, alpha=0.6, lw=0)
    known = [(place, item.factor) for place, item in enumerate(groups.values()) if item.factor is not None]
    if known:
        _draw_intervals(axes, known)
    axes.axvline(1, color=GREY, lw=1)
    # The first row is on top.
    axes.set_ylim(len(values) - 0.5, -0.6)
    axes.set_yticks(places, list(groups), fontsize=SMALL)
    logarithmic(axes, "x")
    axes.set_xlabel("predicted over measured")
    plain(axes, "x")


def _draw_intervals(axes: Any, factors: Sequence[tuple[int, float]]) -> None:
    """Draw by what ratios the intervals of predictions allow them to be off, a bar at each place."""
    axes.errorbar(
        np.ones(len(factors)),
        [place - _BESIDE for place, _ in factors],
        xerr=np.array([[1 - 1 / factor, factor - 1] for _, factor in factors]).T,
        fmt="none",
        ecolor=DARK,
        elinewidth=1.5,
        capsize=4,
        label="interval of a prediction",
    )
    # Above the axes, where it covers nothing.
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False)
