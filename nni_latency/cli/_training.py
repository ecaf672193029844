# SPDX-License-Identifier: Apache-2.0
"""``--training NAME=VALUE,...``: how something learns, for those who know that they want it otherwise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from nni_latency.cli._option import fields_option, with_fields
from nni_latency.errors import InvalidValueError, is_int

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Training = TypeVar("Training", bound="DataclassInstance")


def training_option(text: str, fields: type[DataclassInstance]) -> Any:
    """Make a field of a group that holds what ``--training`` was given, for `training_of`.

    Parameters
    ----------
    text : str
        Help text, without a colon and the names of the fields behind it.
    fields : type
        A dataclass whose fields have defaults.
    """
    names = ", ".join(item.name for item in dataclasses.fields(fields))
    return fields_option(f"{text}: {names}.", "--training", rare=True)


def training_of(usual: Training, given: Iterable[tuple[str, Any]]) -> Training:
    """Return what is usual with the values that ``--training`` was given.

    Raises
    ------
    UnknownNameError
        If there is no such field.
    InvalidValueError
        If a value is outside its range.
    """
    return with_fields(usual, given, "field of --training")


def check_whole(record: DataclassInstance, **least: int) -> None:
    """Raise `InvalidValueError` unless fields are whole numbers, each at least so large."""
    for name, smallest in least.items():
        value = getattr(record, name)
        if not is_int(value, smallest):
            raise _not_as_expected(name, f"a whole number >= {smallest}", value)


def check_number(record: DataclassInstance, name: str, *, zero: bool = False) -> None:
    """Raise `InvalidValueError` unless a field is a positive number, or zero where that is allowed."""
    value = getattr(record, name)
    is_number = type(value) in (int, float) and math.isfinite(value)
    if not (is_number and (value > 0 or (zero and value == 0))):
        raise _not_as_expected(name, "a number >= 0" if zero else "a number > 0", value)


def _not_as_expected(name: str, expected: str, value: Any) -> InvalidValueError:
    return InvalidValueError(f"The field {name!r} of --training must be {expected}. Got {value!r}.")
