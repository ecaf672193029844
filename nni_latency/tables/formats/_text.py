# SPDX-License-Identifier: Apache-2.0
"""Defensive reading of foreign files: limits of size and depth, no duplicate keys, and numbers with units."""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from nni_latency.errors import FileFormatError, InvalidValueError, first_line
from nni_latency.units import METRIC_UNITS, check_metric, with_article

#: Size limit of a file [byte]; published tables have some hundred kilobytes.
LARGEST = 32 * 2**20

#: Maximum nesting of collections.
_DEEPEST = 12

#: Accepted units of a file by the SI unit of the metric, each as a power of ten of it.
UNITS: dict[str, dict[str, int]] = {
    "s": {"s": 0, "ms": -3, "us": -6, "ns": -9},
    "J": {"J": 0, "mJ": -3, "uJ": -6},
    "W": {"W": 0, "mW": -3},
    "byte": {"byte": 0, "kB": 3, "MB": 6},
    "1/s": {"1/s": 0},
    "1": {"1": 0},
}


def read_bytes(path: Path) -> bytes:
    """Read a whole file.

    Raises
    ------
    FileFormatError
        If it is absent, empty or larger than `LARGEST`.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise FileFormatError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from error
    if not data.strip():
        raise FileFormatError(f"The file {str(path)!r} is empty: there are no costs in it.")
    if len(data) > LARGEST:
        raise FileFormatError(f"The file {str(path)!r} is larger than {LARGEST >> 20} MiB, too large for a table.")
    return data


def decode(data: bytes) -> str:
    """Return the text of a file, which must be UTF-8; a byte order mark is dropped."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"it is not text in UTF-8 (byte {error.start})") from error


def load_json(text: str) -> Any:
    """Parse JSON: numbers become `Decimal`, and duplicate keys must have equal values.

    Raises
    ------
    FileFormatError
        If it is truncated or invalid, or a key has two values.
    """
    try:
        return json.loads(
            text,
            parse_float=Decimal,
            parse_int=Decimal,
            parse_constant=Decimal,
            object_pairs_hook=_without_duplicates,
        )
    except json.JSONDecodeError as error:
        raise FileFormatError(
            f"it is not whole JSON (line {error.lineno}: {error.msg}); it may have been cut off while it was copied"
        ) from error
    except (RecursionError, ArithmeticError) as error:
        raise FileFormatError("it is JSON that cannot be read: nested too deeply, or a number without end") from error


def load_yaml(text: str) -> Any:
    """Parse plain YAML: no tags, no aliases, numbers as `Decimal`, no key with two values.

    Raises
    ------
    FileFormatError
        If it is truncated or invalid, or uses other features.
    """
    try:
        _check_events(yaml.parse(text, Loader=_BASE))
        return yaml.load(text, Loader=_PlainLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        problem = getattr(error, "problem", None) or first_line(error)
        raise FileFormatError(f"it is not whole YAML ({where}{problem})") from error
    except (RecursionError, ValueError, ArithmeticError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError("it is YAML that cannot be read") from error


#: The C parser reads a megabyte almost at once, the Python parser in ten seconds.
_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _PlainLoader(_BASE):
    """A safe loader that keeps all digits and rejects a key with two values."""


def _construct_number(loader: Any, node: Any) -> Decimal:
    text = str(node.value).replace("_", "").lower()
    return Decimal({".nan": "nan", ".inf": "inf", "+.inf": "inf", "-.inf": "-inf"}.get(text, text))


def _construct_mapping(loader: Any, node: Any) -> dict[Any, Any]:
    pairs = []
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, (str, Decimal)):
            raise FileFormatError(f"line {key_node.start_mark.line + 1}: a key must be text or a number")
        pairs.append((str(key), loader.construct_object(value_node, deep=True)))
    return _without_duplicates(pairs)


_PlainLoader.add_constructor("tag:yaml.org,2002:float", _construct_number)
_PlainLoader.add_constructor("tag:yaml.org,2002:int", _construct_number)
_PlainLoader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)


def _check_events(events: Iterable[Any]) -> None:
    """Reject features that are expensive or unneeded in a table: aliases, tags, several documents, deep nesting."""
    depth = documents = 0
    for event in events:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise FileFormatError(f"line {line}: YAML aliases (*{event.anchor}) are not read in tables; write it out")
        if getattr(event, "tag", None) is not None:
            raise FileFormatError(f"line {line}: YAML tags ({event.tag}) are not read in tables; nothing was executed")
        documents += isinstance(event, yaml.DocumentStartEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise FileFormatError(f"line {line}: it is nested more than {_DEEPEST} deep")
        if documents > 1:
            raise FileFormatError(f"line {line}: it holds more than one document")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found and found[key] != value:
            raise FileFormatError(
                f"the key {key!r} stands twice and disagrees: {_plain(found[key])} against {_plain(value)}"
            )
        found[key] = value
    return found


def _plain(value: Any) -> str:
    """Return a short text of a value: the mean, where it is an object with one."""
    text = str(value.get("mean", value) if isinstance(value, dict) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


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
    """Convert a number of a file without loss of digits.

    Raises
    ------
    FileFormatError
        If it is not a number; NaN is accepted.

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
        # The shortest repr of a float is the number as written, unlike its binary expansion.
        return Decimal(repr(value) if isinstance(value, float) else value)
    except (ValueError, ArithmeticError) as error:
        raise FileFormatError(f"{place}: a cost must be a number. Got {_shorten(value)!r}.") from error


def to_si(number: Decimal, power: int) -> float:
    """Convert a number of a file to the SI unit; infinite on overflow.

    >>> to_si(Decimal("10430.441"), -6)
    0.010430441
    """
    try:
        return float(number if number.is_nan() else number.scaleb(power))
    except ArithmeticError:
        return 0.0 if number.is_finite() and number.adjusted() < 0 else float("inf")


def from_si(value: float, power: int) -> str:
    """Format a value in the unit of a file, such that `to_si` restores it exactly.

    >>> from_si(0.010430441, -6), from_si(2e-09, -3)
    ('10430.441', '0.000002')
    """
    exact = Decimal(repr(value)).scaleb(-power)
    # Usually the nearest number in the other unit does as well; it is the original text of an imported value.
    near = Decimal(repr(float(Decimal(value).scaleb(-power))))
    found = [near, exact] if to_si(near, power) == value else [exact]
    return f"{min(found, key=lambda number: len(number.as_tuple().digits)):f}"


def _shorten(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
