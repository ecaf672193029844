# SPDX-License-Identifier: Apache-2.0
"""Latencies and architectures from users: CSV files, and validation with errors that name the row."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.errors import InvalidValueError, MismatchError, listed
from nni_latency.tables import LookupTable
from nni_latency.units import format_seconds, number_of, whole_number

#: Largest plausible factor between devices, or between networks of one device; beyond it, units probably differ.
_LARGEST_RATIO = 200.0

#: Factors between seconds, milliseconds, microseconds and nanoseconds.
_UNIT_FACTORS = (1e3, 1e6, 1e9)

#: Relative rounding step that is negligible.
_NOTICEABLE = 1e-3

#: Column with the network of a row.
INDEX = "index"

#: Units of latencies in files, in seconds.
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def check_series(name: str, latencies: Any, count: int) -> NDArray[np.float64]:
    """Check the latencies of one device.

    Parameters
    ----------
    name : str
        Name of the device, for messages.
    latencies : array-like of shape (count,)
        In seconds.
    count : int
        Number of architectures.

    Raises
    ------
    InvalidValueError
        If the lengths differ, or latencies are not numbers, not finite, not positive, or in different units.
    """
    try:
        values = np.asarray(latencies, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidValueError(f"The latencies of {name!r} must be numbers, in seconds: {error}.") from error
    if values.shape != (count,):
        raise InvalidValueError(
            f"The latencies of {name!r} must be as many as the architectures, {count}. Got shape {values.shape}."
        )
    for fault, wrong in (
        ("not finite", ~np.isfinite(values)),
        ("negative", values < 0),
        ("zero", values == 0),
    ):
        rows = np.flatnonzero(wrong)
        if len(rows):
            raise InvalidValueError(
                f"The latencies of {name!r} must be positive, finite numbers, in seconds: {len(rows)} of {count} are "
                f"{fault}, first that of row {rows[0]}, {values[rows[0]]}. Leave these architectures out."
            )
    _check_one_unit(name, values)
    return values


def check_units(series: Mapping[str, NDArray[np.float64]]) -> None:
    """Raise `InvalidValueError` if the latencies of a device are in another unit than the others."""
    typical = {name: float(np.median(values)) for name, values in series.items()}
    for name, value in typical.items():
        others = [other for key, other in typical.items() if key != name]
        if others:
            check_unit(name, value, float(np.median(others)), "the other devices")


def check_unit(name: str, value: float, usual: float, whose: str) -> None:
    """Raise `InvalidValueError` if a latency deviates so far that it is probably in another unit."""
    ratio = max(value / usual, usual / value)
    if ratio < _LARGEST_RATIO:
        return
    factor = min(_UNIT_FACTORS, key=lambda item: abs(math.log(ratio / item)))
    unit = {1e3: "milliseconds", 1e6: "microseconds", 1e9: "nanoseconds"}[factor]
    is_large = value >= usual
    direction = "large" if is_large else "small"
    hint = f"they look like {unit}" if is_large else f"the others may be in {unit}"
    raise InvalidValueError(
        f"The latencies of {name!r} look {factor:,.0f} times too {direction}: typical are {format_seconds(value)}, of "
        f"{whose} {format_seconds(usual)}. Give all of them in seconds; {hint}. If that is how they are, say "
        "check_units=False."
    )


def check_same_space(tables: Mapping[str, LookupTable], metric: str) -> None:
    """Raise `MismatchError` if tables are of different spaces or input shapes, or hold another metric."""
    first_name, first = next(iter(tables.items()))
    for name, table in tables.items():
        differences = first.space.differences(table.space)
        if table.input_shape != first.input_shape:
            differences.append(f"input {first.input_shape} against {table.input_shape}")
        choices, others = ({layer.name: layer.choices for layer in item.searched} for item in (first, table))
        if choices != others:
            differences.append("other layers or choices")
        if table.metric != metric:
            differences.append(f"{metric} against {table.metric}")
        if differences:
            raise MismatchError(
                f"The tables {first_name!r} and {name!r} do not belong together ({'; '.join(differences)})."
            )


def _check_one_unit(name: str, values: NDArray[np.float64]) -> None:
    """Raise if some rows are in a larger unit than the others; too small values are outliers handled by the fit."""
    usual = float(np.median(values))
    rows = np.flatnonzero(values > _LARGEST_RATIO * usual)
    if len(rows):
        raise InvalidValueError(
            f"The latencies of {name!r} are not of one unit: {len(rows)} of {len(values)} are more than "
            f"{_LARGEST_RATIO:g} times the typical {format_seconds(usual)}, first that of row {rows[0]}, "
            f"{format_seconds(float(values[rows[0]]))}."
        )


def resolution_of(latencies: NDArray[np.float64]) -> float:
    """Return the rounding step of latencies [s], such as whole milliseconds; 0 if none is detected.

    Examples
    --------
    >>> resolution_of(np.array([0.031, 0.029, 0.044, 0.029])), resolution_of(np.array([0.03123, 0.0291, 0.0443]))
    (0.001, 0.0)
    """
    unit = float(np.median(latencies))
    for step in (1.0, 0.1, 0.01, 1e-3, 1e-4):
        counts = latencies / step
        if step > _NOTICEABLE * unit and counts.min() >= 1 and np.abs(counts - counts.round()).max() < 1e-6:
            return step
    return 0.0


@dataclass(frozen=True)
class CsvColumns:
    """The columns of a file.

    Parameters
    ----------
    path : Path
        The file.
    index : tuple of str
        Network of each row; the row number if the file has no such column.
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
        reason = getattr(error, "strerror", None) or "it is not CSV text"
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
        If a label is missing, or there are extra columns.
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
    """Return the latencies of a file [s] by device, in the order of `index`; NaN for missing networks.

    Parameters
    ----------
    content : CsvColumns
        The file.
    index : sequence of str
        Networks to return.
    unit : str
        Unit of the numbers, of `UNITS`.
    devices : sequence of str, optional
        Columns to return; by default all.

    Raises
    ------
    InvalidValueError
        If there is no such column, a cell is not a number, or a network is unknown.
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
