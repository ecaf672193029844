"""A list by layer of a list by candidate, as JSON; null where a layer is fixed or a candidate was not measured."""

from __future__ import annotations

import json
from typing import Any

import nni_latency.tables as tables
from nni_latency.errors import FileFormatError
from nni_latency.tables.formats._numbers import from_si, power_of, read_number
from nni_latency.tables.formats._positions import fixed_remarks
from nni_latency.tables.formats._sheet import Row, Sheet, Written
from nni_latency.tables.formats._text import decode, load_json


def is_lists(data: bytes) -> bool:
    """Whether a file looks like such a table."""
    return data.lstrip()[:1] == b"["


def read_lists(data: bytes) -> Sheet:
    """Read such a table.

    Nulls at the beginning and the end are layers that the space does not choose.

    Raises
    ------
    FileFormatError
        If it is not whole or not of this form.
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
    """Write the searched layers as lists by candidate, and fixed ones as null."""
    power = power_of(unit, table.metric)
    lines = [f" {_line(layer, power)}" for layer in table.layers]
    return Written(("[\n" + ",\n".join(lines) + "\n]\n").encode(), fixed_remarks(table))


def _line(layer: tables.TableLayer, power: int) -> str:
    if not layer.searched:
        return json.dumps(None)
    numbers: list[Any] = [layer.entries.get(choice) for choice in layer.choices]
    return f"[{', '.join('null' if entry is None else from_si(entry.value, power) for entry in numbers)}]"
