"""CSV: a line an entry (``layer,choice,latency_ms``), or a line a layer with a column a candidate."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator

import nni_latency.tables as tables
from nni_latency.errors import FileFormatError
from nni_latency.tables.formats._numbers import UNITS, from_si, power_of, read_number
from nni_latency.tables.formats._sheet import Row, Sheet, Written
from nni_latency.tables.formats._text import decode
from nni_latency.units import METRIC_UNITS, number_of

_UNIT_NAMES = sorted({name.replace("1/s", "per_s") for units in UNITS.values() for name in units})
_COST = re.compile(
    rf"(?P<name>value|low|high|{'|'.join(METRIC_UNITS)})(?:[ _]\[?(?P<unit>{'|'.join(_UNIT_NAMES)})\]?)?"
)

#: Columns that may stand beside the cost.
_EXTRA = ("low", "high", "n_samples", "n_dropped")


def is_csv(data: bytes) -> bool:
    """Whether a file looks like such a table: its first line begins with the column of layers."""
    return re.match(rb"(\xef\xbb\xbf)?\"?layer\"?\s*[,;\t]", data) is not None


def read_csv(data: bytes) -> Sheet:
    """Read such a table, separated by commas, semicolons or tabs.

    Raises
    ------
    FileFormatError
        If a line has another number of cells than the first, a column is missing or not known, or two columns are in
        different units.
    """
    text = decode(data)
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    try:
        lines = [
            cells for cells in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True) if cells
        ]
    except csv.Error as error:
        raise FileFormatError(f"it is not whole CSV ({error}); it may have been cut off") from error
    header = [cell.strip() for cell in lines[0]]
    if header[0] != "layer" or len(header) < 2 or len(lines) < 2:
        raise FileFormatError("it must begin with a line of names, the first of which is 'layer', and go on with costs")
    double = sorted({name for name in header if header.count(name) > 1})
    if double:
        raise FileFormatError(f"line 1 names a column twice: {', '.join(double)}")
    for number, cells in enumerate(lines[1:], 2):
        if len(cells) != len(header):
            raise FileFormatError(
                f"line {number} must have {number_of(len(header), 'cell')}, as line 1 has. Got {len(cells)}"
            )
    if header[1] == "choice":
        return _long(header, lines[1:])
    return Sheet(tuple(_wide(header, lines[1:])))


def _wide(header: list[str], lines: list[list[str]]) -> Iterator[Row]:
    for number, (layer, *cells) in enumerate(lines, 2):
        for choice, cell in zip(header[1:], cells, strict=True):
            place = f"line {number}, column {choice!r}"
            if cell.strip():
                yield Row(place, read_number(cell.strip(), place), layer.strip(), choice)


def _long(header: list[str], lines: list[list[str]]) -> Sheet:
    columns: dict[str, int] = {}
    units = set()
    for index, name in enumerate(header[2:], 2):
        match = _COST.fullmatch(name)
        plain = match["name"] if match else name
        plain = plain if plain in _EXTRA or match is None else "value"
        if plain in columns or (match is None and plain not in _EXTRA):
            raise FileFormatError(f"line 1: the column {name!r} is not known, or stands for what another one does")
        columns[plain] = index
        units |= {match["unit"].replace("per_s", "1/s")} if match and match["unit"] else set()
    if "value" not in columns or len(units) > 1:
        raise FileFormatError(
            f"line 1 must name the column of costs, such as 'latency_ms', and all in one unit. Got {', '.join(header)}"
        )
    rows = (_entry_row(number, cells, columns) for number, cells in enumerate(lines, 2))
    return Sheet(tuple(row for row in rows if row is not None), unit=units.pop() if units else None)


def _entry_row(number: int, cells: list[str], columns: dict[str, int]) -> Row | None:
    place = f"line {number}"
    given = {name: cells[index].strip() for name, index in columns.items() if cells[index].strip()}
    if "value" not in given:
        return None
    numbers = {name: read_number(given[name], f"{place}, {name}") for name in ("value", "low", "high") if name in given}
    return Row(
        place,
        numbers["value"],
        cells[0].strip(),
        cells[1].strip(),
        low=numbers.get("low"),
        high=numbers.get("high"),
        n_samples=_count(given, "n_samples", place),
        n_dropped=_count(given, "n_dropped", place),
    )


def _count(given: dict[str, str], name: str, place: str) -> int:
    text = given.get(name, "0")
    if not (text.isdecimal() and text.isascii() and len(text) < 13):
        raise FileFormatError(f"{place}: {name!r} must be a whole number >= 0. Got {text!r}")
    return int(text)


def write_csv(table: tables.LookupTable | tables.OperatorTable, unit: str) -> Written:
    """Write every entry as a line: layer, choice, cost, interval, samples."""
    power = power_of(unit, table.metric)
    suffix = unit.replace("1/s", "per_s")
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["layer", "choice", f"{table.metric}_{suffix}", f"low_{suffix}", f"high_{suffix}", *_EXTRA[2:]])
    for place, entry in table.places():
        numbers = [from_si(number, power) for number in (entry.value, entry.low, entry.high)]
        writer.writerow([*place, *numbers, entry.n_samples, getattr(entry, "n_dropped", 0)])
    return Written(file.getvalue().encode())
