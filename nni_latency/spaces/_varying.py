# SPDX-License-Identifier: Apache-2.0
"""Values that depend on some of a space's choices."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.errors import InvalidValueError

#: Combinations of choices that one value may depend on.
MOST_CASES = 2_000_000


class TooManyChoicesError(InvalidValueError):
    """Raised when something depends on more combinations of choices than can be listed."""


class ImpossibleError(Exception):
    """Raised when user code fails without data for a combination of choices, or for all of them."""


@contextlib.contextmanager
def user_code() -> Iterator[None]:
    """Raise `ImpossibleError` for whatever a module, a function of torch or an expression of the space raises."""
    try:
        yield
    except Exception as error:  # user code may raise anything
        raise ImpossibleError(f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Invalid:
    """Stands for a value that cannot be computed for some choices; an error only for networks that need it."""

    reason: str


@dataclass(frozen=True, eq=False)
class Varying:
    """A value by choices. Immutable.

    Parameters
    ----------
    labels : tuple of str
        What it depends on, in the order of the space.
    ids : ndarray of int of shape (n_choices of the first label, ...)
        Number of the value for every combination of choices.
    values : tuple
        The distinct values, all hashable.
    """

    labels: tuple[str, ...]
    ids: NDArray[np.int64]
    values: tuple[Any, ...]

    @classmethod
    def constant(cls, value: Hashable) -> Varying:
        """Make one that depends on nothing."""
        return cls((), np.zeros((), dtype=np.int64), (value,))

    @property
    def key(self) -> Hashable:
        """A value that is equal for equal ones."""
        return self.labels, self.ids.tobytes(), self.values

    def at(self, indices: Mapping[str, int]) -> Any:
        """Return the value for choices given as ``{label: index}``."""
        return self.values[int(self.ids[tuple(indices[label] for label in self.labels)])]


def as_key(value: Any) -> Any:
    """Turn a choice into something hashable: lists become tuples."""
    return tuple(map(as_key, value)) if isinstance(value, (list, tuple)) else value


class Choices:
    """The labels of a space with their values, in order; combines varying values.

    Parameters
    ----------
    values : mapping of str to sequence
        Choices of every label, hashable.
    """

    def __init__(self, values: Mapping[str, Sequence[Any]]) -> None:
        self.values = {label: tuple(items) for label, items in values.items()}
        self._ranks = {label: rank for rank, label in enumerate(self.values)}

    def add(self, label: str, values: Sequence[Any]) -> None:
        """Add a label that follows from others."""
        self._ranks.setdefault(label, len(self._ranks))
        self.values[label] = tuple(values)

    def label(self, label: str) -> Varying:
        """Return the choice of a label itself, as a varying value."""
        items = self.values[label]
        return Varying((label,), np.arange(len(items)), items)

    def combine(self, parts: Sequence[Varying], function: Callable[..., Any]) -> Varying:
        """Apply a function to varying values, once for every distinct combination of them.

        Where the function raises `ImpossibleError`, or a value is a `Invalid`, the result is one.

        Raises
        ------
        TooManyChoicesError
            If the values depend on too many choices together.
        """
        labels, shape = self._together(parts)
        codes = np.zeros(shape, dtype=np.int64)
        for part in parts:
            codes = codes * len(part.values) + self._spread(part, labels)
        distinct, places = np.unique(codes, return_inverse=True)
        numbers: dict[Any, int] = {}
        found = np.empty(len(distinct), dtype=np.int64)
        for place, code in enumerate(distinct.tolist()):
            result = _apply(function, _decode(code, parts))
            found[place] = numbers.setdefault(result, len(numbers))
        return _reduce(labels, found[places].reshape(shape), tuple(numbers))

    def switch(self, choice: Varying, cases: Mapping[Any, Varying]) -> Varying:
        """Return the case of every value of a choice."""
        labels, shape = self._together([choice, *cases.values()])
        chosen = self._spread(choice, labels)
        numbers: dict[Any, int] = {}
        ids = np.zeros(shape, dtype=np.int64)
        for place, value in enumerate(choice.values):
            case = Varying.constant(value) if isinstance(value, Invalid) else cases[value]
            renumbered = np.array([numbers.setdefault(item, len(numbers)) for item in case.values])
            ids = np.where(chosen == place, renumbered[self._spread(case, labels)], ids)
        used, compact = np.unique(ids, return_inverse=True)
        values = list(numbers)
        return _reduce(labels, compact.reshape(shape), tuple(values[number] for number in used))

    def _together(self, parts: Sequence[Varying]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return all labels that some values depend on, in order, and how many choices each has."""
        labels = tuple(sorted({label for part in parts for label in part.labels}, key=self._ranks.__getitem__))
        shape = tuple(len(self.values[label]) for label in labels)
        if math.prod(shape) > MOST_CASES:
            raise TooManyChoicesError(
                f"Something in the space depends on {math.prod(shape):,} combinations of {', '.join(labels)}; "
                f"at most {MOST_CASES:,} can be listed."
            )
        return labels, shape

    def _spread(self, part: Varying, labels: Sequence[str]) -> NDArray[np.int64]:
        """Return the numbers of a value with an axis for every label."""
        return part.ids.reshape([len(self.values[label]) if label in part.labels else 1 for label in labels])

    def joined(self, parts: Sequence[Varying]) -> list[Varying]:
        """Join tuples that depend on the same labels end to end, so that one is left for every set of labels."""
        by_labels: dict[tuple[str, ...], list[Varying]] = {}
        for part in parts:
            by_labels.setdefault(part.labels, []).append(part)
        return [_join(group) if len(group) > 1 else group[0] for group in by_labels.values()]

    def enumerated(self, labels: Sequence[str], function: Callable[[dict[str, Any]], Any]) -> Varying:
        """Apply a function to every combination of choices of some labels, given as ``{label: choice}``."""
        parts = [self.label(label) for label in labels]
        return self.combine(parts, lambda *items: function(dict(zip(labels, items, strict=True))))


def _join(parts: Sequence[Varying]) -> Varying:
    rows = np.stack([part.ids.ravel() for part in parts], axis=1)
    distinct, places = np.unique(rows, axis=0, return_inverse=True)
    numbers: dict[Any, int] = {}
    found = np.empty(len(distinct), dtype=np.int64)
    for place, row in enumerate(distinct.tolist()):
        items = [part.values[number] for part, number in zip(parts, row, strict=True)]
        invalid = next((item for item in items if isinstance(item, Invalid)), None)
        whole = invalid if invalid is not None else tuple(itertools.chain.from_iterable(items))
        found[place] = numbers.setdefault(whole, len(numbers))
    return _reduce(parts[0].labels, found[places.ravel()].reshape(parts[0].ids.shape), tuple(numbers))


def _decode(code: int, parts: Sequence[Varying]) -> list[Any]:
    items = []
    for part in reversed(parts):
        code, number = divmod(code, len(part.values))
        items.append(part.values[number])
    return items[::-1]


def _apply(function: Callable[..., Any], items: list[Any]) -> Any:
    for item in items:
        if isinstance(item, Invalid):
            return item
    try:
        return function(*items)
    except ImpossibleError as error:
        return Invalid(str(error))


def _reduce(labels: tuple[str, ...], ids: NDArray[np.int64], values: tuple[Any, ...]) -> Varying:
    """Drop the labels that the values do not depend on."""
    kept: list[str] = []
    for label in labels:
        axis = len(kept)
        first = ids.take([0], axis=axis)
        if ids.shape[axis] == 1 or bool((ids == first).all()):
            ids = np.asarray(ids.take(0, axis=axis))
        else:
            kept.append(label)
    return Varying(tuple(kept), ids.copy(), values)
