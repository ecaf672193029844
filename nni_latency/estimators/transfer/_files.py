"""Architectures and latencies of many networks as CSV files."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.errors import InvalidValueError, listed
from nni_latency.units import number_of, whole_number

#: Column that says which network a row is about.
INDEX = "index"

#: Units of latencies in files, in seconds.
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True)
class CsvColumns:
    """The columns of a file.

    Parameters
    ----------
    path : Path
        The file.
    index : tuple of str
        By row, which network it is about; the number of the row where the file has no column of that name.
    columns : mapping of str to tuple of str
        All other columns.
    """

    path: Path
    index: tuple[str, ...]
    columns: dict[str, tuple[str, ...]]


def read_columns(path: str | Path) -> CsvColumns:
    """Read a CSV file with a header.

    Raises
    ------
    InvalidValueError
        If it cannot be read, is empty, has a row of another length than the header, or names a network twice.
    """
    source = Path(path)
    try:
        with source.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or "it is no CSV text"
        raise InvalidValueError(f"Cannot read {str(source)!r}: {reason}.") from error
    if len(rows) < 2:
        raise InvalidValueError(
            f"The file {str(source)!r} must have a header and at least one row. Got {number_of(len(rows), 'row')}."
        )
    header = [name.strip() for name in rows[0]]
    if len(set(header)) != len(header) or not all(header):
        raise InvalidValueError(f"The columns of {str(source)!r} must have different names. Got {', '.join(header)}.")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise InvalidValueError(
                f"Row {number} of {str(source)!r} must have {number_of(len(header), 'cell')}, as the header has. Got "
                f"{len(row)}."
            )
    columns = {name: tuple(row[place].strip() for row in rows[1:]) for place, name in enumerate(header)}
    index = columns.pop(INDEX, tuple(map(str, range(len(rows) - 1))))
    if len(set(index)) != len(index):
        twice = next(name for place, name in enumerate(index) if name in index[:place])
        raise InvalidValueError(f"The file {str(source)!r} has more than one row for the network {twice!r}.")
    return CsvColumns(source, index, columns)


def architectures_of(content: CsvColumns, labels: Sequence[str] | None = None) -> Any:
    """Return the architectures of a file: strings of one column, or indices or names of the choices, by label.

    Parameters
    ----------
    content : CsvColumns
        The file.
    labels : sequence of str, optional
        Labels of the space; the file must have them all.

    Raises
    ------
    InvalidValueError
        If a label is missing, or there are columns that are none.
    """
    if len(content.columns) == 1 and (labels is None or not set(labels) <= set(content.columns)):
        (values,) = content.columns.values()
        if not all(value.isdecimal() for value in values):
            return np.array(values)
    names = list(content.columns) if labels is None else list(labels)
    if set(names) != set(content.columns):
        missing, extra = sorted(set(names) - set(content.columns)), sorted(set(content.columns) - set(names))
        raise InvalidValueError(
            f"The columns of {str(content.path)!r} must be those of the space"
            + (f"; missing: {listed(missing)}" if missing else "")
            + (f"; unknown: {listed(extra)}" if extra else "")
            + "."
        )
    table = [content.columns[name] for name in names]
    numbers = [[whole_number(value) for value in column] for column in table]
    if all(number is not None for column in numbers for number in column):
        return np.array(numbers, dtype=np.int64).T
    return [dict(zip(names, row, strict=True)) for row in zip(*table, strict=True)]


def latencies_of(
    content: CsvColumns, index: Sequence[str], unit: str, devices: Sequence[str] = ()
) -> dict[str, NDArray[np.float64]]:
    """Return the latencies of a file [s] by device, in the order of `index`; NaN for a network that it has not.

    Parameters
    ----------
    content : CsvColumns
        The file.
    index : sequence of str
        Networks that are wanted.
    unit : str
        Unit of the numbers, of `UNITS`.
    devices : sequence of str, optional
        Columns that are wanted; by default all.

    Raises
    ------
    InvalidValueError
        If there is no such column, a cell is no number, or a network is unknown.
    """
    unknown = [name for name in devices if name not in content.columns]
    if unknown:
        raise InvalidValueError(
            f"The file {str(content.path)!r} has no series {unknown[0]!r}. Available: {', '.join(content.columns)}."
        )
    places = {name: place for place, name in enumerate(index)}
    unknown = [name for name in content.index if name not in places]
    if unknown:
        raise InvalidValueError(
            f"The file {str(content.path)!r} has latencies of networks that are not among the architectures, first "
            f"{unknown[0]!r}."
        )
    rows = [places[name] for name in content.index]
    found = {}
    for name in devices or content.columns:
        values = np.full(len(index), np.nan)
        values[rows] = [
            _number(content, name, row, cell) * UNITS[unit] for row, cell in enumerate(content.columns[name])
        ]
        found[name] = values
    return found


def _number(content: CsvColumns, name: str, row: int, cell: str) -> float:
    if not cell:
        return float("nan")
    try:
        return float(cell)
    except ValueError as error:
        raise InvalidValueError(
            f"The latency of {name!r} for the network {content.index[row]!r} in {str(content.path)!r} must be a "
            f"number. Got {cell!r}."
        ) from error
