# SPDX-License-Identifier: Apache-2.0
"""What a command reports: rows that it hands over once, printed as a table that fits the screen, as JSON or as CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click
from rich import box
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table

from nni_latency.cli._console import pairs_table, results
from nni_latency.cli._messages import is_verbose, printable
from nni_latency.cli._outputs import WritingCommand
from nni_latency.documents import json_text
from nni_latency.units import METRIC_UNITS, format_column, format_percent

_FORMAT = "nni_latency.format"

#: A row: plain values in SI units, by the names that JSON and CSV have for them.
Row = Mapping[str, Any]

#: What every column has a unit of its own for, with the SI unit.
_OWN_UNITS = {"duration": "s", "count": ""}

#: Different values side by side, at most.
_SIDE_BY_SIDE = 16

#: A table is laid out by texts: the headers first, then a list a row.
Cells = Sequence[Sequence[str]]

#: Letters of a header that is broken inside of a word.
_BROKEN = 6


@dataclass(frozen=True)
class Column:
    """A column of a printed table.

    Parameters
    ----------
    header : str
        What stands above it.
    key : str
        Which value of a row it shows.
    show : callable, optional
        Makes a text of the value. Without it and without `metric` the value is a text, to the left, which is folded
        where the screen is narrow.
    absent : str
        What is shown of a value that is None.
    metric : str
        A metric, ``duration`` or ``count``: all values are shown in one unit, which stands in the header. Columns of
        one metric share it; every column of durations or counts has its own.
    """

    header: str
    key: str
    show: Callable[[Any], str] | None = None
    absent: str = ""
    metric: str = ""

    @property
    def is_text(self) -> bool:
        """Whether the values are texts."""
        return self.show is None and not self.metric

    def cell(self, row: Row) -> str:
        """Return the text of a row."""
        value = row.get(self.key)
        if value is None:
            return self.absent if self.key in row else ""
        return str(value) if self.show is None else self.show(value)


@dataclass(frozen=True)
class Grid:
    """Rows and how a person sees them.

    Parameters
    ----------
    rows : sequence of mapping
        All of them, in order.
    columns : sequence of Column
        What is shown.
    title : str
        What stands above.
    most : int, optional
        Rows that are shown; all with ``--verbose``.
    by : str
        Show the rows with the largest of this value first; it is a share, and summed up for those not shown.
    across : bool, default=False
        There are three columns, and the values of the second one are shown side by side where they are few.
    nothing : str
        What is said where there are no rows.
    """

    rows: Sequence[Row]
    columns: Sequence[Column]
    title: str = ""
    most: int | None = None
    by: str = ""
    across: bool = False
    nothing: str = ""

    def cells(self) -> list[list[str]]:
        """Return the headers, the texts of the rows that are shown, and a last one that counts the others."""
        rows = sorted(self.rows, key=lambda row: -row[self.by]) if self.by else list(self.rows)
        shown = rows[: None if is_verbose() else self.most]
        headers = [column.header for column in self.columns]
        cells = [[column.cell(row) for column in self.columns] for row in shown]
        for places in self._alike():
            known = [
                (line, place, row[self.columns[place].key])
                for line, row in zip(cells, shown, strict=True)
                for place in places
                if row.get(self.columns[place].key) is not None
            ]
            metric = self.columns[places[0]].metric
            unit = _OWN_UNITS.get(metric, METRIC_UNITS.get(metric, ""))
            texts, unit = format_column([value for _, _, value in known], unit)
            for (line, place, _), text in zip(known, texts, strict=True):
                line[place] = text
            for place in places:
                headers[place] += f" [{unit}]" if unit else ""
        rest = rows[len(shown) :]
        if rest:
            last = [f"and {len(rest)} more", *("" for _ in self.columns[1:])]
            for place, column in enumerate(self.columns):
                if column.key == self.by:
                    last[place] = format_percent(sum(row[self.by] for row in rest))
            cells.append(last)
        return [headers, *cells]

    def _alike(self) -> list[list[int]]:
        """Return the places of the columns that share a unit."""
        groups: dict[str, list[int]] = {}
        for place, column in enumerate(self.columns):
            if column.metric:
                alone = column.metric in _OWN_UNITS
                groups.setdefault(f"{column.metric} {place}" if alone else column.metric, []).append(place)
        return list(groups.values())

    def beside(self, width: int) -> Grid:
        """Return the grid with the values of its second column side by side, where that was asked and there is room."""
        if not self.across:
            return self
        first, second, third = self.columns
        names = list(dict.fromkeys(row[second.key] for row in self.rows))
        (header, *_), *cells = replace(self, columns=[third], most=None).cells()
        rows: dict[Any, dict[str, Any]] = {}
        for row, (text,) in zip(self.rows, cells, strict=True):
            rows.setdefault(row[first.key], {first.key: row[first.key]})[f"={row[second.key]}"] = text
        columns = [first, *(Column(str(name), f"={name}", str) for name in names)]
        made = Grid(list(rows.values()), columns, header if third.metric else self.title)
        return made if len(names) <= _SIDE_BY_SIDE and fits(made.cells(), made.texts, width) else self

    @property
    def texts(self) -> list[bool]:
        """Which columns hold texts."""
        return [column.is_text for column in self.columns]


@dataclass(frozen=True)
class Pairs:
    """Names and values under a title."""

    title: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Report:
    """What a command found.

    Parameters
    ----------
    grid : Grid
        What a person sees.
    content : Any, optional
        What JSON holds; by default the rows.
    rows : sequence of mapping, optional
        What CSV holds; by default the rows of the grid.
    before, after : sequence of str, Pairs or Grid
        What a person reads around the grid.
    """

    grid: Grid
    content: Any = None
    rows: Sequence[Row] | None = None
    before: Sequence[str | Pairs | Grid] = ()
    after: Sequence[str | Pairs | Grid] = ()


class ReportingCommand(WritingCommand):
    """A command that prints a report, in the format that ``--format`` names."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params += [
            click.Option(
                ["--format"],
                type=click.Choice(["table", "json", "csv"]),
                help="Print a table for a person, JSON, or the rows as CSV.  [default: table]",
                expose_value=False,
                callback=_note,
            ),
        ]


def _note(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[_FORMAT] = value


def report_format() -> str:
    """Return the format in which the running command prints: table, json or csv."""
    found: str = click.get_current_context().meta.get(_FORMAT, "table")
    return found


def print_report(report: Report) -> None:
    """Print a report in the format that was asked for.

    Parameters
    ----------
    report : Report
        What the running `ReportingCommand` found.
    """
    how = report_format()
    rows = report.grid.rows if report.rows is None else report.rows
    if how == "json":
        content = list(rows) if report.content is None else report.content
        click.echo(json_text(content, indent=1))
    elif how == "csv":
        click.echo(printable(_csv(rows)), nl=False)
    else:
        parts = [*report.before, report.grid, *report.after]
        for place, part in enumerate(parts):
            if not isinstance(part, str) or part not in parts[:place]:
                print_part(part)


def print_part(part: str | Pairs | Grid) -> None:
    """Print a line, or a table, for a person."""
    console = results()
    if isinstance(part, str):
        console.print(part, markup=False)
    elif isinstance(part, Pairs):
        console.print(pairs_table(part.title, part.values))
    elif part.rows:
        grid = part.beside(console.width)
        console.print(table_of(grid.cells(), grid.texts, grid.title, console.width))
    elif part.nothing:
        console.print(part.nothing, markup=False)


def _csv(rows: Sequence[Row]) -> str:
    """Write rows as CSV; what is no number and no text is written as JSON."""
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_plain(row.get(name)) for name in names] for row in rows)
    return text.getvalue()


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float)) else json_text(value)


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
        return [
            _folded_header(header, _longest(column), broken=self.broken) for header, *column in zip(*cells, strict=True)
        ]


#: Longer than any text: headers are folded, and texts are not.
_WHOLE = 10**9

#: From roomy to close; what fits first is taken. Lines go before a name is broken, so that names can be copied.
_LAYOUTS = (
    _Layout(None),
    _Layout(_WHOLE),
    _Layout(_WHOLE, framed=False),
    _Layout(24),
    _Layout(24, framed=False),
    _Layout(14, framed=False),
    _Layout(8, framed=False, broken=True),
)


def fits(cells: Cells, texts: Sequence[bool], width: int) -> bool:
    """Whether a table fits a screen as rows and columns."""
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
    """
    for layout in _LAYOUTS:
        sizes = _sizes(layout, cells, texts, width)
        if sizes:
            return _grid_table(layout, cells, texts, title, sizes)
    return _list_table(cells, title)


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


def _grid_table(layout: _Layout, cells: Cells, texts: Sequence[bool], title: str, sizes: Sequence[int]) -> Table:
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


def _list_table(cells: Cells, title: str) -> Table:
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


def _folded_header(header: str, width: int = 1, *, broken: bool = False) -> str:
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
