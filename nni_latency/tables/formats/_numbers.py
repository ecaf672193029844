"""Units of files, and numbers moved between them by their decimal point alone, so that no digit is lost."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from nni_latency.errors import FileFormatError, InvalidValueError
from nni_latency.units import METRIC_UNITS, check_metric, with_article

#: By the SI unit of a metric, the units that a file may be in, each as a power of ten of it.
UNITS: dict[str, dict[str, int]] = {
    "s": {"s": 0, "ms": -3, "us": -6, "ns": -9},
    "J": {"J": 0, "mJ": -3, "uJ": -6},
    "byte": {"byte": 0, "kB": 3, "MB": 6},
    "1/s": {"1/s": 0},
}


def power_of(unit: str, metric: str) -> int:
    """Return a unit as a power of ten of the metric's SI unit.

    Raises
    ------
    InvalidValueError
        If the metric has no such unit.

    Examples
    --------
    >>> power_of("us", "latency")
    -6
    """
    known = UNITS[METRIC_UNITS[check_metric(metric)]]
    if unit not in known:
        raise InvalidValueError(
            f"The 'unit' of {with_article(metric)} must be one of {', '.join(known)}. Got {unit!r}."
        )
    return known[unit]


def read_number(value: Any, place: str) -> Decimal:
    """Return a number of a file to its last digit.

    Raises
    ------
    FileFormatError
        If it is no number; a NaN is one.

    Examples
    --------
    >>> read_number("0.25", "line 2"), read_number(3, "line 3")
    (Decimal('0.25'), Decimal('3'))
    """
    if isinstance(value, Decimal):
        return value
    if isinstance(value, str) and value.strip().lower().lstrip("+-").startswith("snan"):
        return Decimal("nan")
    try:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError(value)
        # The shortest text of a float, and not the binary fraction behind it, is what was written down.
        return Decimal(repr(value) if isinstance(value, float) else value)
    except (ValueError, ArithmeticError) as error:
        raise FileFormatError(f"{place}: a cost must be a number. Got {_shorten(value)!r}.") from error


def to_si(number: Decimal, power: int) -> float:
    """Return a number of a file in the SI unit; one that is too large is infinite.

    >>> to_si(Decimal("10430.441"), -6)
    0.010430441
    """
    try:
        return float(number if number.is_nan() else number.scaleb(power))
    except ArithmeticError:
        return 0.0 if number.is_finite() and number.adjusted() < 0 else float("inf")


def from_si(value: float, power: int) -> str:
    """Write a value in the unit of a file, so that `to_si` gives it back to the last bit.

    >>> from_si(0.010430441, -6), from_si(2e-09, -3)
    ('10430.441', '0.000002')
    """
    exact = Decimal(repr(value)).scaleb(-power)
    # Most often the nearest number of the other unit does too, and is what was read if the value came from a file.
    near = Decimal(repr(float(Decimal(value).scaleb(-power))))
    found = [near, exact] if to_si(near, power) == value else [exact]
    return f"{min(found, key=lambda number: len(number.as_tuple().digits)):f}"


def _shorten(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
