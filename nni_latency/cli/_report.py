"""What a command reports: rows that it hands over once, printed as a table, as JSON or as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table

from nni_latency.cli._console import pairs_table, results
from nni_latency.cli._noise import is_verbose
from nni_latency.cli._outputs import WritingCommand
from nni_latency.cli._printable import printable
from nni_latency.units import format_percent

_FORMAT = "nni_latency.format"

#: A row: plain values in SI units, by the names that JSON and CSV have for them.
Row = Mapping[str, Any]

#: Letters that a column of text keeps where the screen is narrow.
_NARROW = 14

#: Different values side by side, at most.
_SIDE_BY_SIDE = 16


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
        Makes a text of the value; by default it is a text, to the left, which is folded where the screen is narrow.
    absent : str
        What is shown of a value that is None.
    """

    header: str
    key: str
    show: Callable[[Any], str] | None = None
    absent: str = ""

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
        What is shown. The first `keys` are shown again where a table is too wide and is divided.
    title : str
        What stands above.
    keys : int, default=1
        Columns that tell the rows apart.
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
    keys: int = 1
    most: int | None = None
    by: str = ""
    across: bool = False
    nothing: str = ""

    def cells(self) -> list[list[str]]:
        """Return the texts of the rows that are shown, and a last one that counts the others."""
        rows = sorted(self.rows, key=lambda row: -row[self.by]) if self.by else list(self.rows)
        most = None if is_verbose() else self.most
        cells = [[column.cell(row) for column in self.columns] for row in rows[:most]]
        rest = rows[len(cells) :]
        if rest:
            last = [f"and {len(rest)} more", *("" for _ in self.columns[1:])]
            for place, column in enumerate(self.columns):
                if column.key == self.by:
                    last[place] = format_percent(sum(row[self.by] for row in rest))
            cells.append(last)
        return cells

    def beside(self) -> Grid:
        """Return the grid with the values of its second column side by side, where that was asked and they are few."""
        if not self.across:
            return self
        first, second, third = self.columns
        names = list(dict.fromkeys(row[second.key] for row in self.rows))
        if len(names) > _SIDE_BY_SIDE:
            return self
        rows: dict[Any, dict[str, Any]] = {}
        for row in self.rows:
            rows.setdefault(row[first.key], {first.key: row[first.key]})[f"={row[second.key]}"] = third.cell(row)
        columns = [first, *(Column(str(name), f"={name}", str) for name in names)]
        return Grid(list(rows.values()), columns, self.title)


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
            click.Option(
                ["--json"], flag_value="json", help="The same as --format json.", expose_value=False, callback=_note
            ),
        ]


def _note(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None and ctx.meta.setdefault(_FORMAT, value) != value:
        raise click.UsageError("--json is short for --format json. Name one format.")


def report_format() -> str:
    """Return the format in which the running command prints: table, json or csv."""
    found: str = click.get_current_context().meta.get(_FORMAT, "table")
    return found


def print_report(report: Report) -> None:
    """Print a report in the format that was asked for."""
    how = report_format()
    rows = report.grid.rows if report.rows is None else report.rows
    if how == "json":
        content = list(rows) if report.content is None else report.content
        click.echo(json.dumps(content, indent=1))
    elif how == "csv":
        click.echo(printable(_csv(rows)), nl=False)
    else:
        for part in (*report.before, report.grid, *report.after):
            print_part(part)


def print_part(part: str | Pairs | Grid) -> None:
    """Print a line, or a table, for a person."""
    console = results()
    if isinstance(part, str):
        console.print(escape(part))
    elif isinstance(part, Pairs):
        console.print(pairs_table(part.title, part.values))
    elif part.rows:
        for table in _tables(part.beside(), console.width):
            console.print(table)
    elif part.nothing:
        console.print(escape(part.nothing))


def _csv(rows: Sequence[Row]) -> str:
    """Write rows as CSV; what is no number and no text is written as JSON."""
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_plain(row.get(name)) for name in names] for row in rows)
    return text.getvalue()


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, float)) else json.dumps(value)


def _tables(grid: Grid, width: int) -> Iterator[Table]:
    """Make the table of a grid: first headers are folded, then texts, and then it is divided by columns."""
    cells = grid.cells()
    headers = [column.header for column in grid.columns]
    whole = [_longest(texts) for texts in zip(headers, *cells, strict=True)]
    if _total(whole) <= width:
        yield _table(grid, headers, cells, whole, range(len(headers)))
        return
    headers = [header.replace(" ", "\n") for header in headers]
    whole = [_longest(texts) for texts in zip(headers, *cells, strict=True)]
    least = [
        min(size, max(_NARROW, _longest([header]))) if column.show is None else size
        for column, header, size in zip(grid.columns, headers, whole, strict=True)
    ]
    for title, places in zip(_titles(grid.title), _divided(least, grid.keys, width), strict=False):
        yield _table(grid, headers, cells, least, places, title)


def _titles(title: str) -> Iterator[str]:
    yield title
    while True:
        yield f"{title}, continued" if title else "continued"


def _divided(least: Sequence[int], keys: int, width: int) -> Iterator[list[int]]:
    """Divide columns into tables that fit, each with the columns that tell the rows apart."""
    first = list(range(keys))
    places = list(first)
    for place in range(keys, len(least)):
        if len(places) > keys and _total([least[item] for item in (*places, place)]) > width:
            yield places
            places = list(first)
        places.append(place)
    yield places


def _total(sizes: Sequence[int]) -> int:
    """Return how wide a table is: every column has a border and two blanks."""
    return sum(sizes) + 3 * len(sizes) + 1


def _longest(texts: Sequence[str]) -> int:
    return max(cell_len(line) for text in texts for line in (text.splitlines() or [""]))


def _table(
    grid: Grid,
    headers: Sequence[str],
    cells: Sequence[Sequence[str]],
    least: Sequence[int],
    places: Sequence[int],
    title: str | None = None,
) -> Table:
    table = Table(padding=(0, 1), title=escape(grid.title if title is None else title), title_justify="left")
    for place in places:
        text = grid.columns[place].show is None
        table.add_column(
            escape(headers[place]),
            justify="left" if text else "right",
            overflow="fold",
            no_wrap=not text,
            min_width=least[place] if text else None,
        )
    for row in cells:
        table.add_row(*(escape(row[place]) for place in places))
    return table
