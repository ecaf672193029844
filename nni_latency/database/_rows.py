# SPDX-License-Identifier: Apache-2.0
"""Records, failures and headers as rows of the database, and back; rows that make no sense raise an error."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Row

from nni_latency.errors import InvalidValueError, LatencyWarning
from nni_latency.measurement import CampaignHeader, Failure, Protocol, Record
from nni_latency.platforms import Platform

_ENCODER = json.JSONEncoder(default=dict, allow_nan=False, separators=(",", ":"))


class DatabaseWarning(LatencyWarning):
    """Warns that rows of a database make no sense and are left out, and which."""


def dumped(content: Any) -> str:
    """Return plain values as JSON.

    Raises
    ------
    InvalidValueError
        If JSON cannot hold them.
    """
    try:
        return _ENCODER.encode(content)
    except (TypeError, ValueError) as error:
        raise InvalidValueError(f"The database keeps plain values and finite numbers alone: {error}.") from error


def digest_of(content: Any) -> str:
    """Return a digest of plain values."""
    text = json.dumps(content, default=dict, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def record_row(record: Record, numbers: Mapping[str, int]) -> dict[str, Any]:
    """Return the columns of a record.

    Parameters
    ----------
    record : Record
        What was measured; rounded.
    numbers : mapping of str to int
        Number of every subject of the campaign, by its key.

    Raises
    ------
    InvalidValueError
        If it names a subject that was not admitted, or holds what no measurement gives.
    """
    unknown = [key for key in record.subjects if key not in numbers]
    if unknown:
        raise InvalidValueError(f"The subject {unknown[0]!r} must be admitted before a record names it.")
    check_record(record)
    return {
        "round": record.round,
        "process": record.process,
        "at": record.at,
        "duration": record.duration,
        "reference": record.reference,
        "subjects": dumped([numbers[key] for key in record.subjects]),
        "samples": dumped(record.samples),
        "parts": dumped(record.parts),
        "fallbacks": dumped([item.content() for item in record.fallbacks]) if record.fallbacks else None,
    }


def record_of(row: Row[Any], keys: Mapping[int, str]) -> Record:
    """Make the record of a row.

    Parameters
    ----------
    row : Row
        Columns of a record.
    keys : mapping of int to str
        Key of every subject of the campaign, by its number.

    Raises
    ------
    InvalidValueError
        If the row makes no sense; the message says why.
    """
    try:
        numbers = json.loads(row.subjects)
        unknown = [number for number in numbers if number not in keys]
        if unknown:
            raise InvalidValueError(f"its campaign has no subject {unknown[0]!r}")
        content = {
            **row._mapping,
            "subjects": [keys[number] for number in numbers],
            "samples": json.loads(row.samples),
            "parts": json.loads(row.parts),
            "fallbacks": json.loads(row.fallbacks or "[]"),
        }
        record = Record.of(content)
        check_record(record)
    except InvalidValueError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InvalidValueError(f"a field is of another type ({type(error).__name__}: {error})") from error
    return record


def record_numbers(row: Any) -> list[int]:
    """Return the numbers of the subjects of a record; none for a row that makes no sense."""
    try:
        return [int(number) for number in json.loads(row.subjects)]
    except (ValueError, TypeError, RecursionError):
        return []


def n_samples(record: Record) -> int:
    """Return how many samples a record holds, those of its parts included."""
    return sum(map(len, record.samples.values())) + sum(map(len, record.parts))


def header_of(row: Row[Any]) -> CampaignHeader:
    """Make the header of a row that joins a campaign, its platform and its protocol.

    Raises
    ------
    InvalidValueError
        If the row makes no sense; the message says why.
    """
    try:
        return CampaignHeader(
            row.kind, json.loads(row.content), platform_of(row.platform), Protocol(**json.loads(row.protocol))
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise InvalidValueError(f"its header cannot be read ({error})") from error


def platform_of(content: str) -> Platform:
    """Make a platform of its JSON."""
    return Platform(**json.loads(content))


def plain_text(text: str) -> str:
    r"""Return a text that every database can hold: a null character or half a character pair is written out.

    >>> plain_text("it raised \x00")
    'it raised \\x00'
    """
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def failure_row(failure: Failure) -> dict[str, Any]:
    """Return the columns of a failure, whose reason may be anything that user code raised."""
    return {"subject": failure.subject, "reason": plain_text(failure.reason)}


def check_record(record: Record) -> None:
    """Raise `InvalidValueError` for what no measurement gives."""
    numbers = {"reference": [record.reference], "duration": [record.duration], "at": [record.at], **record.samples}
    for name, values in numbers.items():
        _check_numbers(name, values)
    for values in record.parts:
        _check_numbers("parts", values)


def _check_numbers(name: str, values: Iterable[float]) -> None:
    for value in values:
        if not (math.isfinite(value) and value >= 0):
            raise InvalidValueError(f"{name!r} must hold finite numbers that are not negative, and holds {value!r}")
