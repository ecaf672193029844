"""A text table: a line with the names of the candidates, then a line of numbers per searched layer."""

from __future__ import annotations

from decimal import Decimal

import nni_latency.tables as tables
from nni_latency.errors import FileFormatError, InvalidValueError
from nni_latency.tables.formats._names import foreign_name
from nni_latency.tables.formats._numbers import from_si, power_of, read_number
from nni_latency.tables.formats._positions import common_choices, fixed_remarks
from nni_latency.tables.formats._sheet import Row, Sheet, Written
from nni_latency.tables.formats._text import decode
from nni_latency.units import number_of

#: What stands for a candidate that was not measured.
_MISSING = "-"


def is_grid(data: bytes) -> bool:
    """Whether a file looks like such a table: its second line is numbers."""
    lines = [line for line in data[:65536].decode("utf-8", "replace").splitlines() if line.strip()]
    return len(lines) > 1 and all(_is_number(word) for word in lines[1].split())


def read_grid(data: bytes) -> Sheet:
    """Read such a table; without a line of names, the candidates are those of the space in its order.

    Raises
    ------
    FileFormatError
        If a line has another number of numbers than the first has names.
    """
    lines = [(number, line.split()) for number, line in enumerate(decode(data).splitlines(), 1) if line.strip()]
    names: list[str] | None = None
    if not all(_is_number(word) for word in lines[0][1]):
        names = lines.pop(0)[1]
        double = sorted({name for name in names if names.count(name) > 1})
        if double:
            raise FileFormatError(f"line 1 names a candidate twice: {', '.join(double)}")
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
            if word != _MISSING:
                rows.append(Row(place, read_number(word, place), layer, names[choice] if names else choice))
    return Sheet(tuple(rows), len(lines))


def write_grid(table: tables.LookupTable, unit: str) -> Written:
    """Write the searched layers as lines of numbers.

    Raises
    ------
    InvalidValueError
        If a candidate has a blank in its name.
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
        lines.append(" ".join(_MISSING if entry is None else from_si(entry.value, power) for entry in entries))
    return Written(("\n".join(lines) + "\n").encode(), fixed_remarks(table))


def _is_number(word: str) -> bool:
    if word == _MISSING:
        return True
    try:
        Decimal(word)
    except ArithmeticError:
        return False
    return True
