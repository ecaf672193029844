"""``lut.npy`` of NNI 2.x: a pickled array of dictionaries, one a layer, from candidate to latency."""

from __future__ import annotations

import io
import math
import tokenize
from typing import TYPE_CHECKING, Any

import nni_latency.tables as tables
from nni_latency.errors import FileFormatError
from nni_latency.tables.formats._names import foreign_name
from nni_latency.tables.formats._nni_text import record_row
from nni_latency.tables.formats._numbers import from_si, power_of, read_number
from nni_latency.tables.formats._plain_pickle import PlainArray, read_plain_pickle
from nni_latency.tables.formats._positions import fixed_remarks
from nni_latency.tables.formats._sheet import Row, Sheet, Written

if TYPE_CHECKING:
    import numpy as np


def is_numpy(data: bytes) -> bool:
    """Whether a file is one of numpy's."""
    return data.startswith(b"\x93NUMPY")


def read_numpy(data: bytes) -> Sheet:
    """Read such a table without unpickling: what is in the file is read, and nothing of it is run.

    An array of dictionaries as in ``lut.txt`` and a plain array, layers by candidates, are read too.

    Raises
    ------
    FileFormatError
        If it is cut off, asks for anything but plain values, or is of another form.
    """
    import numpy as np

    file = io.BytesIO(data)
    shape, kind = _header(file)
    if kind.hasobject:
        if kind != np.dtype(object):
            raise FileFormatError(f"it holds an array of {kind}, and not of dictionaries")
        return _dictionaries(read_plain_pickle(data[file.tell() :]))
    return _numbers(np.asarray(_plain(data, file.tell(), shape, kind)))


def _header(file: io.BytesIO) -> tuple[tuple[int, ...], np.dtype[Any]]:
    from numpy.lib import format as npy

    try:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, _, kind = read(file)
    except (ValueError, KeyError, TypeError, SyntaxError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise FileFormatError("its header is not one of numpy's; it may have been cut off") from error
    return shape, kind


def _plain(data: bytes, begin: int, shape: tuple[int, ...], kind: np.dtype[Any]) -> Any:
    """Load an array of numbers, once it is known that they are all there."""
    import numpy as np

    if kind.kind not in "fiu" or len(shape) != 2 or math.prod(shape) * kind.itemsize != len(data) - begin:
        raise FileFormatError(f"it must hold an array of numbers, layers by candidates, whole. Got {kind} of {shape}")
    return np.load(io.BytesIO(data), allow_pickle=False)


def _numbers(costs: Any) -> Sheet:
    rows = [
        Row(place, read_number(value, place), layer, choice)
        for layer, values in enumerate(costs.tolist())
        for choice, value in enumerate(values)
        for place in [f"layer {layer + 1}, candidate {choice + 1}"]
        if not math.isnan(value)
    ]
    return Sheet(tuple(rows), len(costs))


def _dictionaries(content: Any) -> Sheet:
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
    """Write the searched layers as NNI 2.x reads them."""
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
    # The reader on the other side takes nothing else; what is written is numbers and names alone.
    np.save(file, layers, allow_pickle=True)
    return Written(file.getvalue(), fixed_remarks(table))
