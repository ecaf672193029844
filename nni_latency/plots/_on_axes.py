"""The main picture of an object, on one pair of axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nni_latency.analysis import ModelAnalysis
from nni_latency.errors import InvalidValueError
from nni_latency.plots._canvas import BLUE, plain
from nni_latency.plots._operator_table import draw_families
from nni_latency.plots._table import draw_costs
from nni_latency.plots._validation import draw_scatter
from nni_latency.tables import LookupTable, OperatorTable
from nni_latency.validation import Validation


def plot(thing: Any, axes: Any = None) -> Any:
    """Draw a table, an analysis or a validation, and return the axes.

    Parameters
    ----------
    thing : LookupTable, OperatorTable, ModelAnalysis or Validation
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
    OperatorTable: draw_families,
    ModelAnalysis: _draw_blocks,
    Validation: draw_scatter,
}
