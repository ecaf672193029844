"""Tables of Once-for-All and ProxylessNAS: one object, JSON or YAML, from operator key to mean, deviation and count."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import Any

import nni_latency.tables as tables
from nni_latency.costs import NORMAL
from nni_latency.errors import FileFormatError, InvalidValueError
from nni_latency.operators import OpSpec
from nni_latency.tables._entry import Entry
from nni_latency.tables.formats._numbers import from_si, power_of, read_number
from nni_latency.tables.formats._operator_key import OperatorKey, operator_key
from nni_latency.tables.formats._shared import shared_entries
from nni_latency.tables.formats._sheet import Row, Sheet, Written
from nni_latency.tables.formats._text import decode, load_json, load_yaml


def is_ofa(data: bytes) -> bool:
    """Whether a file looks like such a table."""
    return b"-input:" in data[:65536] and b"-output:" in data[:65536]


def read_ofa(data: bytes) -> Sheet:
    """Read such a table, JSON or YAML.

    Raises
    ------
    FileFormatError
        If it is not whole, not of this form, or has a key with two values.
    """
    text = decode(data)
    content = load_json(text) if text.lstrip()[:1] in ("{", "[") else load_yaml(text)
    if not isinstance(content, dict):
        raise FileFormatError(f"it must be one object of operator keys. Got {type(content).__name__}")
    rows, unread = [], []
    for key, value in content.items():
        try:
            rows.append(_row(OperatorKey.parse(key), key, value))
        except InvalidValueError as error:
            unread.append(f"{key} ({error})" if key not in str(error) else str(error))
    return Sheet(tuple(rows), keyed=True, unread=tuple(unread))


def _row(key: OperatorKey, text: str, value: Any) -> Row:
    given = value if isinstance(value, dict) else {"mean": value}
    unknown = sorted(set(given) - {"mean", "std", "count"})
    if "mean" not in given or unknown:
        raise FileFormatError(f"key {text!r}: its value must be a number, or mean, std and count. Got {sorted(given)}")
    place = f"key {text!r}"
    count = read_number(given.get("count", 0), f"{place}, count")
    if not (count.is_finite() and count == count.to_integral_value() and 0 <= count < 10**12):
        raise FileFormatError(f"{place}: 'count' must be a whole number >= 0. Got {count}")
    deviation = read_number(given["std"], f"{place}, std") if "std" in given else None
    if deviation is not None and not (deviation.is_finite() and deviation >= 0):
        raise FileFormatError(f"{place}: 'std' must be a number >= 0. Got {deviation}")
    return Row(
        place,
        read_number(given["mean"], place),
        key.place,
        key.rest or key.name,
        key.operator(),
        deviation=deviation,
        n_samples=int(count),
    )


def write_ofa(table: tables.LookupTable | tables.OperatorTable, unit: str) -> Written:
    """Write a table as JSON by operator key."""
    return _write(table, unit, _render_json)


def write_ofa_yaml(table: tables.LookupTable | tables.OperatorTable, unit: str) -> Written:
    """Write a table as YAML by operator key."""
    return _write(table, unit, _render_yaml)


def _write(
    table: tables.LookupTable | tables.OperatorTable,
    unit: str,
    render: Callable[[Iterable[tuple[str, dict[str, str]]]], str],
) -> Written:
    power = power_of(unit, table.metric)
    entries, remarks = shared_entries(table, _key_of)
    rows = [(key, _numbers(entry, power)) for key, entry in entries.items()]
    return Written(render(rows).encode(), remarks)


def _key_of(name: str, op: OpSpec | None) -> str | None:
    """Return the key of an entry: the one it came with, or that of its operator."""
    try:
        OperatorKey.parse(name)
    except InvalidValueError:
        return None if op is None else operator_key(op)
    return name


def _numbers(entry: Entry, power: int) -> dict[str, str]:
    found = {"mean": from_si(entry.value, power)}
    if entry.n_samples:
        # The lower end may have been cut off at zero.
        deviation = (entry.high - entry.value) / NORMAL * math.sqrt(entry.n_samples)
        found = {"count": str(entry.n_samples), **found, "std": from_si(float(f"{deviation:.12g}"), power)}
    return found


def _render_json(rows: Iterable[tuple[str, dict[str, str]]]) -> str:
    lines = []
    for key, row in rows:
        numbers = ", ".join(f"{json.dumps(name)}: {text}" for name, text in row.items())
        lines.append(f" {json.dumps(key)}: {{{numbers}}}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _render_yaml(rows: Iterable[tuple[str, dict[str, str]]]) -> str:
    return "".join(
        f"{json.dumps(key)}:\n" + "".join(f"  {name}: {text}\n" for name, text in row.items()) for key, row in rows
    )
