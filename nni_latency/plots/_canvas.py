"""What all pictures share: colours, plain axes, the units a person reads, bands of error, drift, and the file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from nni_latency.files import write_atomically

# Of the palette of Okabe and Ito, which colour-blind people tell apart, and greys.
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
GREY, DARK = "#999999", "#666666"

#: Colours for as many kinds of things, the ones that differ most first.
PALETTE = (BLUE, VERMILION, GREEN, "#CC79A7", ORANGE, "#56B4E9", "#000000", "#F0E442", GREY)

#: Axes are short up to this ratio of their ends.
_SHORT = 200


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
    axes.set_title("Drift of the machine: the reference operator", fontsize=10)
    plain(axes)


def save_png(figure: Figure, out: str | Path) -> Path:
    """Write a picture as PNG, whole or not at all, and return where it is.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    target = Path(out)
    write_atomically(target, buffer.getvalue())
    return target
