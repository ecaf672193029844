# SPDX-License-Identifier: Apache-2.0
"""What objects look like where a person explores them: a line, a picture in a notebook, axes, a frame."""

from __future__ import annotations

import html
import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from nni_latency.imports import require

#: The largest value over the smallest that has a colour of its own.
_COLOURS = 50.0

#: The blue of Okabe and Ito, which colour-blind people tell from others.
_BLUE = "0, 114, 178"


class Drawn:
    """Something that can be drawn on matplotlib axes."""

    def plot(self, axes: Any = None) -> Any:
        """Draw it, and return the axes; see `nni_latency.plots` for whole pictures.

        Parameters
        ----------
        axes : matplotlib.axes.Axes, optional
            Where to; by default new ones.
        """
        # The pictures know what they draw, and stand above it; so they are looked up by name.
        return importlib.import_module("nni_latency.plots").plot(self, axes)


class Tabular(Drawn):
    """Something that has rows."""

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows as plain values, in SI units."""
        raise NotImplementedError

    def to_frame(self) -> Any:
        """Return the rows as a `pandas.DataFrame`.

        Raises
        ------
        MissingDependencyError
            If pandas is not installed.
        """
        return require("pandas", f"{type(self).__name__}.to_frame", "pandas").DataFrame(self.rows())


def heat_map(title: str, cells: Mapping[str, Mapping[str, float | None]], unit: str) -> str:
    """Return HTML of a heat map.

    Parameters
    ----------
    title : str
        What stands above.
    cells : mapping of str to mapping
        Numbers by row and column; None for one that is not known.
    unit : str
        Of the numbers.
    """
    columns = list(dict.fromkeys(name for row in cells.values() for name in row))
    largest = max((value or 0.0 for row in cells.values() for value in row.values()), default=0.0)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ["", *columns])
    lines = (
        f"<tr><th>{html.escape(name)}</th>"
        + "".join(_cell(row.get(column), largest, column in row) for column in columns)
        + "</tr>"
        for name, row in cells.items()
    )
    return f"<div><b>{html.escape(title)}</b> [{html.escape(unit)}]<table><tr>{head}</tr>{''.join(lines)}</table></div>"


def _cell(value: float | None, largest: float, known: bool) -> str:
    if value is None:
        return "<td>missing</td>" if known else "<td></td>"
    depth = 0.0
    if value > 0 and largest > 0:
        depth = max(0.0, 1 + math.log(value / largest) / math.log(_COLOURS))
    colour = "; color: white" if depth > 0.6 else ""
    return f'<td style="background: rgba({_BLUE}, {depth:.2f}){colour}">{value:.3g}</td>'


def bar_chart(title: str, bars: Sequence[tuple[str, float, str]]) -> str:
    """Return HTML of horizontal bars.

    Parameters
    ----------
    title : str
        What stands above.
    bars : sequence of (str, float, str)
        Name, length and text of each.
    """
    longest = max((length for _, length, _ in bars), default=0.0) or 1.0
    lines = (
        f"<tr><td>{html.escape(name)}</td>"
        f'<td style="width: 20em; text-align: left"><div style="background: rgb({_BLUE}); height: 0.8em; '
        f'width: {100 * length / longest:.1f}%"></div></td><td>{html.escape(text)}</td></tr>'
        for name, length, text in bars
    )
    return f"<div><b>{html.escape(title)}</b><table>{''.join(lines)}</table></div>"
