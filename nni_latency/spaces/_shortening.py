# SPDX-License-Identifier: Apache-2.0
"""Shorter forms of values that depend on many choices: pairs of labels whose choices are alike become one label."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.estimators import Derived
from nni_latency.spaces._varying import Choices, Varying

Ints = NDArray[np.int64]

#: Combinations of choices that a value may depend on as it is, and passes over those that depend on more.
_LARGE, _PASSES = 3000, 6


def shortened(choices: Choices, parts: Sequence[Varying], derived: list[Derived]) -> list[Varying]:
    """Return the same values by fewer combinations of choices.

    An operator behind an identity depends on the operator of one place and on the choices that made the input of
    another, but on the latter only for one choice of the former. So two labels are replaced by one that tells what
    matters of both, which is added to `choices` and `derived`.
    """
    found = list(parts)
    for _ in range(_PASSES):
        wanted: dict[tuple[str, str], list[int]] = defaultdict(list)
        for number, part in enumerate(found):
            if part.ids.size > _LARGE and len(part.labels) > 1:
                wanted[min(itertools.combinations(part.labels, 2), key=partial(_share, part))].append(number)
        n_labels = len(choices.values)
        for labels, numbers in wanted.items():
            _replace(choices, found, labels, numbers, derived)
        if len(choices.values) == n_labels:
            break
    return found


def _rows(part: Varying, labels: tuple[str, str]) -> Ints:
    """Return the numbers of a value with a row for every choice of two labels."""
    axes = [part.labels.index(label) for label in labels]
    return np.moveaxis(part.ids, axes, (0, 1)).reshape(part.ids.shape[axes[0]] * part.ids.shape[axes[1]], -1)


def _classes(rows: Ints) -> Ints:
    """Return the number of the class of each row; equal rows are of one class."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in np.ascontiguousarray(rows)])


def _share(part: Varying, labels: tuple[str, str]) -> float:
    rows = _rows(part, labels)
    return _count(_classes(rows)) / len(rows)


def _replace(
    choices: Choices, parts: list[Varying], labels: tuple[str, str], numbers: Sequence[int], derived: list[Derived]
) -> None:
    """Replace two labels of some values by one with half as many choices or fewer: by the same, if there is one."""
    own = {number: _classes(_rows(parts[number], labels)) for number in numbers}
    shared = _classes(np.stack(list(own.values()), axis=1))
    if 2 * _count(shared) <= len(shared):
        own = dict.fromkeys(numbers, shared)
    names: dict[bytes, str] = {}
    for number, classes in own.items():
        if 2 * _count(classes) > len(classes):
            continue
        key = classes.tobytes()
        if key not in names:
            names[key] = _add(choices, labels, classes, derived)
        part = parts[number]
        left = tuple(label for label in part.labels if label not in labels)
        rows = _rows(part, labels)[np.unique(classes, return_index=True)[1]]
        ids = np.moveaxis(rows.reshape(-1, *(len(choices.values[label]) for label in left)), 0, -1)
        parts[number] = Varying((*left, names[key]), np.ascontiguousarray(ids), part.values)


def _count(classes: Ints) -> int:
    return 1 + int(classes.max())


def _add(choices: Choices, labels: tuple[str, str], classes: Ints, derived: list[Derived]) -> str:
    """Add a label that tells the class of the choices of two others; return its name."""
    name = " and ".join(labels)
    while name in choices.values:
        name += "'"
    pairs = list(itertools.product(*(choices.values[label] for label in labels)))
    choices.add(name, range(_count(classes)))
    table = dict(zip(pairs, classes.tolist(), strict=True))
    derived.append(Derived((name,), labels, partial(_class_of, labels, table)))
    return name


def _class_of(labels: tuple[str, str], table: Mapping[tuple[Any, Any], int], sample: Mapping[str, Any]) -> tuple[int]:
    first, second = labels
    return (table[sample[first], sample[second]],)
