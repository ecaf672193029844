"""How a table fits a screen: in one piece, whatever its width."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table

#: A table is laid out by texts: the headers first, then a list a row.
Cells = Sequence[Sequence[str]]

#: Letters of a header that is broken inside of a word.
_BROKEN = 6


@dataclass(frozen=True)
class _Layout:
    """How closely a table is set.

    Parameters
    ----------
    least : int or None
        Letters that a column of text keeps; None folds none.
    framed : bool
        Whether there are lines between the columns.
    broken : bool
        Whether headers are broken inside of words.
    """

    least: int | None
    framed: bool = True
    broken: bool = False

    def total(self, sizes: Sequence[int]) -> int:
        """Return how wide a table is."""
        return sum(sizes) + (3 * len(sizes) + 1 if self.framed else 2 * (len(sizes) - 1))

    def headers(self, cells: Cells) -> list[str]:
        """Return the headers, folded to the width of what stands below them."""
        if self.least is None:
            return list(cells[0])
        return [_folded(header, _longest(column), broken=self.broken) for header, *column in zip(*cells, strict=True)]


#: From roomy to close; what fits first is taken.
_LAYOUTS = (
    _Layout(None),
    _Layout(24),
    _Layout(24, framed=False),
    _Layout(14, framed=False),
    _Layout(8, framed=False, broken=True),
)


def fits(cells: Cells, texts: Sequence[bool], width: int) -> bool:
    """Whether a table fits a screen as rows and columns.

    Parameters
    ----------
    cells : sequence of sequence of str
        The headers, and the rows.
    texts : sequence of bool
        Which columns hold texts, which may be folded.
    width : int
        Width of the screen [letters].
    """
    return any(_sizes(layout, cells, texts, width) for layout in _LAYOUTS)


def table_of(cells: Cells, texts: Sequence[bool], title: str, width: int) -> Table:
    """Lay out a table in one piece; what does not fit as rows and columns is a list, with a line for each value.

    Parameters
    ----------
    cells : sequence of sequence of str
        The headers, and the rows.
    texts : sequence of bool
        Which columns hold texts, which may be folded.
    title : str
        What stands above.
    width : int
        Width of the screen [letters].

    Returns
    -------
    rich.table.Table
    """
    for layout in _LAYOUTS:
        sizes = _sizes(layout, cells, texts, width)
        if sizes:
            return _table(layout, cells, texts, title, sizes)
    return _list(cells, title)


def _sizes(layout: _Layout, cells: Cells, texts: Sequence[bool], width: int) -> list[int]:
    """Return the widths of the columns; none if the table is too wide so."""
    columns = list(zip(layout.headers(cells), *cells[1:], strict=True))
    sizes = [_longest(column) for column in columns]
    least = [
        min(size, max(layout.least, _longest(column[:1]))) if text and layout.least is not None else size
        for size, column, text in zip(sizes, columns, texts, strict=True)
    ]
    if layout.total(least) > width:
        return []
    while layout.total(sizes) > width:
        widest = max((place for place in range(len(sizes)) if sizes[place] > least[place]), key=sizes.__getitem__)
        sizes[widest] -= 1
    return sizes


def _table(layout: _Layout, cells: Cells, texts: Sequence[bool], title: str, sizes: Sequence[int]) -> Table:
    table = Table(
        title=escape(title),
        title_justify="left",
        show_edge=layout.framed,
        pad_edge=layout.framed,
        box=box.HEAVY_HEAD if layout.framed else box.SIMPLE_HEAD,
        padding=(0, 1) if layout.framed else (0, 1, 0, 0),
    )
    for header, text, size in zip(layout.headers(cells), texts, sizes, strict=True):
        table.add_column(escape(header), justify="left" if text else "right", overflow="fold", width=size)
    for row in cells[1:]:
        table.add_row(*map(escape, row))
    return table


def _list(cells: Cells, title: str) -> Table:
    """Write the values of every row below each other."""
    table = Table(title=escape(title), title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for number, row in enumerate(cells[1:]):
        if number:
            table.add_row("", "")
        for header, value in zip(cells[0], row, strict=True):
            if value:
                table.add_row(escape(header), escape(value))
    return table


def _folded(header: str, width: int = 1, *, broken: bool = False) -> str:
    """Fold a header to the width of its numbers, at blanks alone unless it is `broken`."""
    lines = textwrap.wrap(
        header.replace("_", "_ ").replace("-", "- ") if broken else header,
        max(width, _BROKEN),
        break_long_words=broken,
        break_on_hyphens=False,
    )
    if broken:
        lines = [line.replace("_ ", "_").replace("- ", "-") for line in lines]
    return "\n".join(lines)


def _longest(texts: Sequence[str]) -> int:
    return max(cell_len(line) for text in texts for line in (text.splitlines() or [""]))
