# SPDX-License-Identifier: Apache-2.0
"""``lut.txt`` and ``lut.npy`` of NNI 2.x: dictionaries by line, and a pickled array of dictionaries by layer."""

from __future__ import annotations

import ast
import io
import math
import re
import tokenize
from typing import TYPE_CHECKING, Any

import nni_latency.tables as tables
from nni_latency.errors import FileFormatError
from nni_latency.operators import OpSpec
from nni_latency.tables.formats._plain_pickle import PlainArray, read_plain_pickle
from nni_latency.tables.formats._sheet import Row, Sheet, Written, fixed_remarks, foreign_name, own_name, shared_entries
from nni_latency.tables.formats._text import decode, from_si, power_of, read_number

if TYPE_CHECKING:
    import numpy as np

FIELDS = ("op_name", "op_data_shape", "op_dtype", "op_latency")

#: Longest accepted line; typical ones have about a hundred characters.
_LONGEST = 2000

_BLOCK = re.compile(r"k(?P<kernel_size>\d{1,3})_e(?P<expansion>\d{1,3})(?:_g(?P<groups>\d{1,3}))?")
_PLACE = re.compile(r"(\d+)x(\d+)x(\d+)-(\d+)-s(\d+)")
_DTYPES = {"float": "float32", "float32": "float32", "half": "float16", "float16": "float16", "int8": "int8"}


def is_nni_text(data: bytes) -> bool:
    """Whether a file looks like ``lut.txt``."""
    return data.lstrip()[:1] == b"{" and b"op_data_shape" in data[:_LONGEST]


def read_nni_text(data: bytes) -> Sheet:
    """Read ``lut.txt``.

    Raises
    ------
    FileFormatError
        If a line is not a dictionary of this form. Nothing in it is executed.
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
    """Convert one dictionary to a row.

    Raises
    ------
    FileFormatError
        If it has other fields, or a shape that is not five integers.
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


def write_nni_text(table: tables.LookupTable, unit: str) -> Written:
    """Write one dictionary per line."""
    power = power_of(unit, table.metric)
    entries, remarks = shared_entries(table, _key_of)
    lines = [f"{key[:-1]}, 'op_latency': {from_si(entry.value, power)}}}\n" for key, entry in entries.items()]
    return Written("".join(lines).encode(), remarks)


def _key_of(name: str, op: OpSpec | None) -> str | None:
    """Return the dictionary without the latency: the imported one, or that of the operator."""
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
    # Only names that imply exactly this operator: a reader of the file has no other information.
    implied = _operator(own_name(name), shape, op.dtype)
    if implied is None or (implied.kind, implied.attributes) != (op.kind, op.attributes):
        return None
    return _record(name, shape, "float" if op.dtype == "float32" else op.dtype)


def _record(name: str, shape: tuple[int, ...], dtype: str) -> str:
    return repr(dict(zip(FIELDS[:3], (name, shape, dtype), strict=True)))


def is_numpy(data: bytes) -> bool:
    """Whether a file is in the ``.npy`` format."""
    return data.startswith(b"\x93NUMPY")


def read_numpy(data: bytes) -> Sheet:
    """Read ``lut.npy`` without unpickling: nothing in the file is executed.

    An array of dictionaries as in ``lut.txt``, and a plain array, layers by candidates, are accepted too.

    Raises
    ------
    FileFormatError
        If it is truncated, contains anything but plain values, or has another form.
    """
    import numpy as np

    file = io.BytesIO(data)
    shape, kind = _array_header(file)
    if kind.hasobject:
        if kind != np.dtype(object):
            raise FileFormatError(f"it holds an array of {kind}, and not of dictionaries")
        return _sheet_of_dictionaries(read_plain_pickle(data[file.tell() :]))
    return _sheet_of_numbers(np.asarray(_plain_array(data, file.tell(), shape, kind)))


def _array_header(file: io.BytesIO) -> tuple[tuple[int, ...], np.dtype[Any]]:
    from numpy.lib import format as npy

    try:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, _, kind = read(file)
    except (ValueError, KeyError, TypeError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise FileFormatError("its header is not one of numpy's; it may have been cut off") from error
    return shape, kind


def _plain_array(data: bytes, begin: int, shape: tuple[int, ...], kind: np.dtype[Any]) -> Any:
    """Load an array of numbers, after checking that it is complete."""
    import numpy as np

    if kind.kind not in "fiu" or len(shape) != 2 or math.prod(shape) * kind.itemsize != len(data) - begin:
        raise FileFormatError(f"it must hold an array of numbers, layers by candidates, whole. Got {kind} of {shape}")
    return np.load(io.BytesIO(data), allow_pickle=False)


def _sheet_of_numbers(costs: Any) -> Sheet:
    rows = [
        Row(place, read_number(value, place), layer, choice)
        for layer, values in enumerate(costs.tolist())
        for choice, value in enumerate(values)
        for place in [f"layer {layer + 1}, candidate {choice + 1}"]
        if not math.isnan(value)
    ]
    return Sheet(tuple(rows), len(costs))


def _sheet_of_dictionaries(content: Any) -> Sheet:
    items = content.items if isinstance(content, PlainArray) else content
    if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
        raise FileFormatError("it must hold an array of dictionaries, one a layer")
    if all("op_name" in item for item in items):
        return Sheet(tuple(record_row(f"item {index}", item) for index, item in enumerate(items, 1)), keyed=True)
    rows = []
    for layer, item in enumerate(items):
        for choice, value in item.items():
            place = f"layer {layer + 1}, {choice}"
            if not isinstance(choice, str):
                raise FileFormatError(f"{place}: a candidate must be a text")
            rows.append(Row(place, read_number(value, place), layer, choice))
    return Sheet(tuple(rows), len(items))


def write_numpy(table: tables.LookupTable, unit: str) -> Written:
    """Write the searched layers in the form that NNI 2.x reads."""
    import numpy as np

    power = power_of(unit, table.metric)
    layers = np.empty(len(table.searched), dtype=object)
    for index, layer in enumerate(table.searched):
        layers[index] = {
            foreign_name(choice): float(from_si(layer.entries[choice].value, power))
            for choice in layer.choices
            if choice in layer.entries
        }
    file = io.BytesIO()
    # NNI reads only pickled arrays; the content is plain numbers and names.
    np.save(file, layers, allow_pickle=True)
    return Written(file.getvalue(), fixed_remarks(table))
