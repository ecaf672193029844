"""``lut.txt`` of NNI 2.x: a Python dictionary a line, with operator, shape, element type and latency."""

from __future__ import annotations

import ast
import re
from typing import Any

import nni_latency.tables as tables
from nni_latency.errors import FileFormatError
from nni_latency.operators import OpSpec
from nni_latency.tables.formats._names import foreign_name, own_name
from nni_latency.tables.formats._numbers import from_si, power_of, read_number
from nni_latency.tables.formats._shared import shared_entries
from nni_latency.tables.formats._sheet import Row, Sheet, Written
from nni_latency.tables.formats._text import decode

FIELDS = ("op_name", "op_data_shape", "op_dtype", "op_latency")

#: Longest line that is read; theirs have about a hundred characters.
_LONGEST = 2000

_BLOCK = re.compile(r"k(?P<kernel_size>\d{1,3})_e(?P<expansion>\d{1,3})(?:_g(?P<groups>\d{1,3}))?")
_PLACE = re.compile(r"(\d+)x(\d+)x(\d+)-(\d+)-s(\d+)")
_DTYPES = {"float": "float32", "float32": "float32", "half": "float16", "float16": "float16", "int8": "int8"}


def is_nni_text(data: bytes) -> bool:
    """Whether a file looks like such a table."""
    return data.lstrip()[:1] == b"{" and b"op_data_shape" in data[:_LONGEST]


def read_nni_text(data: bytes) -> Sheet:
    """Read such a table.

    Raises
    ------
    FileFormatError
        If a line is not such a dictionary. Nothing in it is executed.
    """
    lines = [(number, line.strip()) for number, line in enumerate(decode(data).splitlines(), 1) if line.strip()]
    return Sheet(tuple(_row(f"line {number}", line) for number, line in lines), keyed=True)


def _row(place: str, line: str) -> Row:
    try:
        if len(line) > _LONGEST:
            raise ValueError(len(line))
        record = ast.literal_eval(line)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise FileFormatError(f"{place} is no dictionary of plain values; it may have been cut off") from error
    return record_row(place, record)


def record_row(place: str, record: Any) -> Row:
    """Return the row of one such dictionary.

    Raises
    ------
    FileFormatError
        If it has other fields, or a shape that is not of five whole numbers.
    """
    if not isinstance(record, dict) or set(record) != set(FIELDS):
        got = sorted(map(str, record)) if isinstance(record, dict) else type(record).__name__
        raise FileFormatError(f"{place} must be a dictionary of {', '.join(FIELDS)}. Got {got}")
    name, shape, dtype = record["op_name"], record["op_data_shape"], record["op_dtype"]
    good = isinstance(shape, (tuple, list)) and len(shape) == 5
    if not (good and all(type(size) is int and 0 < size < 10**6 for size in shape)):
        raise FileFormatError(
            f"{place}: 'op_data_shape' must be (width, height, channels, channels out, stride). Got {shape}"
        )
    if not (isinstance(name, str) and isinstance(dtype, str) and name):
        raise FileFormatError(f"{place}: 'op_name' and 'op_dtype' must be text. Got {name!r} and {dtype!r}")
    width, height, channels, out, stride = shape
    plain = dtype == "float"
    return Row(
        place,
        read_number(record["op_latency"], place),
        f"{width}x{height}x{channels}-{out}-s{stride}",
        name if plain else f"{name}:{dtype}",
        _operator(own_name(name), tuple(shape), _DTYPES.get(dtype, dtype)),
    )


def _operator(name: str, shape: tuple[int, ...], dtype: str) -> OpSpec | None:
    """Return the operator of one of FBNet's candidates; None for any other name."""
    width, height, channels, out, stride = shape
    shapes = [(1, channels, height, width)]
    if name == "skip":
        if stride == 1 and channels == out:
            return OpSpec.of("identity", shapes, dtype=dtype)
        return OpSpec.of("conv_block", shapes, dtype=dtype, out_channels=out, kernel_size=1, stride=stride, relu=True)
    match = _BLOCK.fullmatch(name)
    if match is None:
        return None
    numbers = {part: int(text or 1) for part, text in match.groupdict().items()}
    if not all(numbers.values()) or channels % numbers["groups"] or out % numbers["groups"]:
        return None
    return OpSpec.of("inverted_residual", shapes, dtype=dtype, out_channels=out, stride=stride, **numbers)


def write_nni_text(table: tables.LookupTable | tables.OperatorTable, unit: str) -> Written:
    """Write a dictionary a line."""
    power = power_of(unit, table.metric)
    entries, remarks = shared_entries(table, _key_of)
    lines = [f"{key[:-1]}, 'op_latency': {from_si(entry.value, power)}}}\n" for key, entry in entries.items()]
    return Written("".join(lines).encode(), remarks)


def _key_of(name: str, op: OpSpec | None) -> str | None:
    """Return the dictionary without the latency: the one it came with, or that of the operator."""
    layer, _, choice = name.partition(":")
    match = _PLACE.fullmatch(layer)
    if match is not None:
        name, _, dtype = choice.partition(":")
        return _record(name, tuple(map(int, match.groups())), dtype or "float")
    if op is None or op.kind not in ("identity", "inverted_residual", "conv_block"):
        return None
    _, channels, height, width = op.input_shapes[0]
    shape = (width, height, channels, op.get("out_channels", channels), op.get("stride", 1))
    name = foreign_name(choice)
    # Only names that stand for this very operator: a reader of the file has nothing else to go by.
    told = _operator(own_name(name), shape, op.dtype)
    if told is None or (told.kind, told.attributes) != (op.kind, op.attributes):
        return None
    return _record(name, shape, "float" if op.dtype == "float32" else op.dtype)


def _record(name: str, shape: tuple[int, ...], dtype: str) -> str:
    return repr(dict(zip(FIELDS[:3], (name, shape, dtype), strict=True)))
