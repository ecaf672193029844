# SPDX-License-Identifier: Apache-2.0
"""`TableFormat`: the formats of other projects by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from nni_latency.errors import FileFormatError, InvalidValueError, UnknownNameError
from nni_latency.tables.formats._by_layer import (
    is_csv,
    is_grid,
    is_lists,
    read_csv,
    read_grid,
    read_lists,
    write_csv,
    write_grid,
    write_lists,
)
from nni_latency.tables.formats._nni import (
    is_nni_text,
    is_numpy,
    read_nni_text,
    read_numpy,
    write_nni_text,
    write_numpy,
)
from nni_latency.tables.formats._ofa import is_ofa, read_ofa, write_ofa, write_ofa_yaml
from nni_latency.tables.formats._sheet import Sheet, Written


@dataclass(frozen=True)
class TableFormat:
    """One format of another project. Immutable.

    Parameters
    ----------
    name : str
        Name on the command line.
    meaning : str
        One-line description.
    usual_unit : str
        Unit of published files, which do not state it.
    recognise : callable
        Takes the bytes of a file; returns whether they look like this format.
    read : callable
        Converts the bytes of a file to a `Sheet`.
    write : callable
        Converts a table, in a unit, to a file.
    """

    name: str
    meaning: str
    usual_unit: str
    recognise: Callable[[bytes], bool]
    read: Callable[[bytes], Sheet]
    write: Callable[[Any, str], Written]

    @property
    def takes_operators(self) -> bool:
        """Whether it can hold a table of operators."""
        return self.name in _FOR_OPERATORS


def _never(_data: bytes) -> bool:
    return False


#: All formats; to add one, add a line.
_ALL = (
    TableFormat("ofa", "Once-for-All and ProxylessNAS: operator keys, JSON", "ms", is_ofa, read_ofa, write_ofa),
    TableFormat("ofa-yaml", "the same as YAML", "ms", _never, read_ofa, write_ofa_yaml),
    TableFormat("lists", "JSON: a list by layer of lists by candidate", "us", is_lists, read_lists, write_lists),
    TableFormat("nni", "lut.txt of NNI 2.x: a dictionary a line", "us", is_nni_text, read_nni_text, write_nni_text),
    TableFormat("npy", "lut.npy of NNI 2.x: dictionaries by layer", "us", is_numpy, read_numpy, write_numpy),
    TableFormat("csv", "CSV: a line an entry, or layers by candidates", "ms", is_csv, read_csv, write_csv),
    TableFormat("text", "text: a line of candidates, then a line a layer", "us", is_grid, read_grid, write_grid),
)

#: Formats that can hold a table of operators.
_FOR_OPERATORS = ("ofa", "ofa-yaml", "nni", "csv")

#: The formats by name.
FORMATS: Mapping[str, TableFormat] = MappingProxyType({item.name: item for item in _ALL})


def find_format(name: str) -> TableFormat:
    """Return a format by its name; raise `UnknownNameError` if there is none."""
    if name not in FORMATS:
        raise UnknownNameError.of("format", name, list(FORMATS))
    return FORMATS[name]


def recognise_format(data: bytes, origin: str) -> TableFormat:
    """Return the format that matches a file.

    Raises
    ------
    FileFormatError
        If no format matches.
    """
    for item in (FORMATS["npy"], *_ALL):
        if item.recognise(data):
            return item
    raise FileFormatError(f"The file {origin!r} looks like none of the formats {', '.join(FORMATS)}. Name its format.")


def read_sheet(data: bytes, kind: TableFormat, origin: str) -> Sheet:
    """Parse the bytes of a file.

    Raises
    ------
    FileFormatError
        If it is truncated, or of another form; the message names the position.
    """
    try:
        sheet = kind.read(data)
    except (InvalidValueError, FileFormatError) as error:
        reason = str(error).removesuffix(".")
        raise FileFormatError(f"The file {origin!r} cannot be read as {kind.name!r}: {reason}.") from error
    if not sheet.rows:
        unread = f" Not understood: {'; '.join(sheet.unread[:3])}." if sheet.unread else ""
        raise FileFormatError(f"The file {origin!r} holds no costs, read as {kind.name!r}.{unread}")
    return sheet
