# SPDX-License-Identifier: Apache-2.0
"""Formats by layer and candidate: CSV, a text table with one line per layer, and lists in JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import nni_latency.tables as tables
from nni_latency.errors import FileFormatError, InvalidValueError
from nni_latency.tables.formats._sheet import Row, Sheet, Written, common_choices, fixed_remarks, foreign_name
from nni_latency.tables.formats._text import UNITS, decode, from_si, load_json, power_of, read_number
from nni_latency.units import METRIC_UNITS, number_of

_UNIT_NAMES = sorted({name.replace("1/s", "per_s") for units in UNITS.values() for name in units})
_COST_COLUMN = re.compile(
    rf"(?P<name>value|low|high|{'|'.join(METRIC_UNITS)})(?:[ _]\[?(?P<unit>{'|'.join(_UNIT_NAMES)})\]?)?"
)

#: Optional columns next to the cost.
_EXTRA_COLUMNS = ("low", "high", "n_samples", "n_dropped")

#: Marks a candidate that was not measured.
_NOT_MEASURED = "-"


def is_csv(data: bytes) -> bool:
    """Whether a file looks like CSV with the column of layers first."""
    return re.match(rb"(\xef\xbb\xbf)?\"?layer\"?\s*[,;\t]", data) is not None


def read_csv(data: bytes) -> Sheet:
    """Read CSV, separated by commas, semicolons or tabs.

    Raises
    ------
    FileFormatError
        If a line has another number of cells than the first, a column is missing or unknown, or two columns are in
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
    duplicates = sorted({name for name in header if header.count(name) > 1})
    if duplicates:
        raise FileFormatError(f"line 1 names a column twice: {', '.join(duplicates)}")
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
        match = _COST_COLUMN.fullmatch(name)
        plain = match["name"] if match else name
        plain = plain if plain in _EXTRA_COLUMNS or match is None else "value"
        if plain in columns or (match is None and plain not in _EXTRA_COLUMNS):
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


def write_csv(table: tables.LookupTable, unit: str) -> Written:
    """Write one line per entry: layer, choice, cost, interval, samples."""
    power = power_of(unit, table.metric)
    suffix = unit.replace("1/s", "per_s")
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        ["layer", "choice", f"{table.metric}_{suffix}", f"low_{suffix}", f"high_{suffix}", *_EXTRA_COLUMNS[2:]]
    )
    for place, entry in table.places():
        numbers = [from_si(number, power) for number in (entry.value, entry.low, entry.high)]
        writer.writerow([*place, *numbers, entry.n_samples, getattr(entry, "n_dropped", 0)])
    return Written(file.getvalue().encode())


def is_grid(data: bytes) -> bool:
    """Whether a file looks like a text table: its second line consists of numbers."""
    lines = [line for line in data[:65536].decode("utf-8", "replace").splitlines() if line.strip()]
    return len(lines) > 1 and all(_is_number(word) for word in lines[1].split())


def read_grid(data: bytes) -> Sheet:
    """Read a text table; without a line of names, the candidates are those of the space in order.

    Raises
    ------
    FileFormatError
        If a line has another length than the first.
    """
    lines = [(number, line.split()) for number, line in enumerate(decode(data).splitlines(), 1) if line.strip()]
    names: list[str] | None = None
    if not all(_is_number(word) for word in lines[0][1]):
        names = lines.pop(0)[1]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise FileFormatError(f"line 1 names a candidate twice: {', '.join(duplicates)}")
    if not lines:
        raise FileFormatError("it has a line of names and no line of numbers; it may have been cut off")
    width = len(names) if names else len(lines[0][1])
    rows = []
    for layer, (line, words) in enumerate(lines):
        if len(words) != width:
            raise FileFormatError(
                f"line {line} must hold {number_of(width, 'number')}, as the first line does. Got {len(words)}; it "
                "may have been cut off"
            )
        for choice, word in enumerate(words):
            place = f"line {line}, column {choice + 1}"
            if word != _NOT_MEASURED:
                rows.append(Row(place, read_number(word, place), layer, names[choice] if names else choice))
    return Sheet(tuple(rows), len(lines))


def write_grid(table: tables.LookupTable, unit: str) -> Written:
    """Write the searched layers, one line of numbers each.

    Raises
    ------
    InvalidValueError
        If the name of a candidate contains whitespace or is a number.
    """
    power = power_of(unit, table.metric)
    choices = common_choices(table)
    names = [foreign_name(choice) for choice in choices]
    blank = [name for name in names if len(name.split()) != 1 or _is_number(name)]
    if blank:
        raise InvalidValueError(
            f"The format 'text' has no names like {blank[0]!r}, with a blank or as a number. Use the format 'csv'."
        )
    lines = [" ".join(names)]
    for layer in table.searched:
        entries = [layer.entries.get(choice) for choice in choices]
        lines.append(" ".join(_NOT_MEASURED if entry is None else from_si(entry.value, power) for entry in entries))
    return Written(("\n".join(lines) + "\n").encode(), fixed_remarks(table))


def _is_number(word: str) -> bool:
    if word == _NOT_MEASURED:
        return True
    try:
        Decimal(word)
    except ArithmeticError:
        return False
    return True


def is_lists(data: bytes) -> bool:
    """Whether a file looks like lists in JSON."""
    return data.lstrip()[:1] == b"["


def read_lists(data: bytes) -> Sheet:
    """Read lists in JSON.

    Nulls at the beginning and end are fixed layers.

    Raises
    ------
    FileFormatError
        If it is truncated or of another form.
    """
    content = load_json(decode(data))
    if not isinstance(content, list) or not all(item is None or isinstance(item, list) for item in content):
        raise FileFormatError("it must be a list by layer of lists by candidate, or null for a layer")
    chosen = [index for index, item in enumerate(content) if item is not None]
    if not chosen:
        raise FileFormatError("it holds no costs: every layer is null")
    layers = content[chosen[0] : chosen[-1] + 1]
    rows = [
        Row(place, read_number(value, place), layer, choice)
        for layer, values in enumerate(layers)
        for choice, value in enumerate(values or [])
        if value is not None
        for place in [f"list {chosen[0] + layer + 1}, number {choice + 1}"]
    ]
    return Sheet(tuple(rows), len(layers))


def write_lists(table: tables.LookupTable, unit: str) -> Written:
    """Write the searched layers as lists by candidate, and the fixed ones as null."""
    power = power_of(unit, table.metric)
    lines = [f" {_list_of_layer(layer, power)}" for layer in table.layers]
    return Written(("[\n" + ",\n".join(lines) + "\n]\n").encode(), fixed_remarks(table))


def _list_of_layer(layer: tables.TableLayer, power: int) -> str:
    if not layer.searched:
        return json.dumps(None)
    numbers: list[Any] = [layer.entries.get(choice) for choice in layer.choices]
    return f"[{', '.join('null' if entry is None else from_si(entry.value, power) for entry in numbers)}]"
