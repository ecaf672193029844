"""Checks of latencies given by a user; errors name the row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.tables import LookupTable
from nni_latency.units import format_seconds

#: By what factor devices, or networks of one device, may differ before another unit is the likelier reason.
_LARGEST_RATIO = 200.0

#: Factors between seconds, milliseconds, microseconds and nanoseconds.
_UNIT_FACTORS = (1e3, 1e6, 1e9)

#: Rounding finer than this share of a latency does not matter.
_NOTICEABLE = 1e-3


def check_series(name: str, latencies: Any, count: int) -> NDArray[np.float64]:
    """Check the latencies of one device.

    Parameters
    ----------
    name : str
        Of the device, for messages.
    latencies : array-like of shape (count,)
        In seconds.
    count : int
        Architectures that they belong to.

    Raises
    ------
    InvalidValueError
        If they are not as many, not numbers, not finite or not positive, or in different units.
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
    """Raise `InvalidValueError` if one device's latencies are in another unit than the others'."""
    typical = {name: float(np.median(values)) for name, values in series.items()}
    for name, value in typical.items():
        others = [other for key, other in typical.items() if key != name]
        if others:
            check_unit(name, value, float(np.median(others)), "the other devices")


def check_unit(name: str, value: float, usual: float, whose: str) -> None:
    """Raise `InvalidValueError` if a latency is so far from the usual that another unit is the likelier reason."""
    ratio = max(value / usual, usual / value)
    if ratio < _LARGEST_RATIO:
        return
    factor = min(_UNIT_FACTORS, key=lambda item: abs(math.log(ratio / item)))
    direction, unit = ("large", {1e3: "milliseconds", 1e6: "microseconds", 1e9: "nanoseconds"}[factor])
    if value < usual:
        direction = "small"
    hint = f"they look like {unit}" if direction == "large" else f"the others may be in {unit}"
    raise InvalidValueError(
        f"The latencies of {name!r} look {factor:,.0f} times too {direction}: typical are {format_seconds(value)}, of "
        f"{whose} {format_seconds(usual)}. Give all of them in seconds; {hint}. If that is how they are, say "
        "check_units=False."
    )


def check_alike(tables: Mapping[str, LookupTable], metric: str) -> None:
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
    """Raise if some rows are in a larger unit than the others; far too small ones are outliers, and left to the fit."""
    usual = float(np.median(values))
    rows = np.flatnonzero(values > _LARGEST_RATIO * usual)
    if len(rows):
        raise InvalidValueError(
            f"The latencies of {name!r} are not of one unit: {len(rows)} of {len(values)} are more than "
            f"{_LARGEST_RATIO:g} times the typical {format_seconds(usual)}, first that of row {rows[0]}, "
            f"{format_seconds(float(values[rows[0]]))}."
        )


def resolution_of(latencies: NDArray[np.float64]) -> float:
    """Return the step [s] to which latencies were rounded, such as whole milliseconds; 0 if it cannot be seen.

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
