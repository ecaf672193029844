# SPDX-License-Identifier: Apache-2.0
"""Combinations: how the costs of parts make the cost of a whole, one object for each way."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Iterable
from typing import Any, Protocol, TypeVar, cast

from nni_latency.costs import Cost

#: A number, an array of numbers, or a record of a cost.
C = TypeVar("C")
Record = TypeVar("Record", bound=Cost)


class Curve(Protocol):
    """What a whole costs by the total of its parts, a rising function with an inverse."""

    def __call__(self, total: Any) -> Any:
        """Return the cost of a total, a number or an array."""

    def inverse(self, cost: float) -> float:
        """Return the total of a cost."""


class Combination(ABC):
    """How the costs of parts make the cost of a whole: every part counts for something, and the total is the whole's.

    Numbers, arrays and records of costs are treated alike. Immutable.

    Examples
    --------
    >>> SUM.whole(SUM.total([1.0, 2.0])), LARGEST.whole(LARGEST.total([1.0, 2.0]))
    (3.0, 2.0)
    >>> INVERSE.whole(INVERSE.total(map(INVERSE.counted, [3.0, 6.0])))
    2.0
    """

    #: As it stands in messages.
    name: str
    #: Whether the total is the sum of what parts count for, so that parts can be calibrated, and solved for.
    adds_up: bool = True
    #: Whether the mean cost of random networks is the sum of the mean costs of their parts, which a gradient follows.
    has_expectation: bool = False
    #: Cost of a part that adds nothing to the total.
    nothing: float = 0.0

    def __repr__(self) -> str:
        return self.name

    def counted(self, cost: C, calibration: float = 1.0) -> C:
        """Return what a part counts for in the total. Without a calibration it is its own inverse."""
        return _scaled(cost, calibration)

    def footing(self, factor: float) -> float:
        """Return the factor on the cost of every part by which the total becomes `factor` times as large."""
        return factor

    def total(self, counted: Iterable[float]) -> float:
        """Return the total of what parts count for."""
        return math.fsum(counted)

    def total_cost(self, kind: type[Record], counted: Iterable[Record]) -> Record:
        """Return the total of what parts count for, as a record, for parts that were measured independently."""
        return kind.sum(counted)

    def join(self, one: Any, other: Any) -> Any:
        """Return the totals of two arrays of them, element by element."""
        return one + other

    def whole(self, total: C, curve: Curve | None = None) -> C:
        """Return what a whole costs by its total; it never falls with the total where parts are costs."""
        return _through(curve, total)

    def total_of(self, whole: float, curve: Curve | None = None) -> float:
        """Return the total of a whole that costs `whole`: the inverse of `whole`."""
        return whole if curve is None else curve.inverse(whole)


class _Sum(Combination):
    """Costs add up."""

    name = "sum"
    has_expectation = True


class _Inverse(Combination):
    """One over the costs adds up, as the times behind throughputs do."""

    name = "inverse"
    nothing = math.inf

    def counted(self, cost: C, calibration: float = 1.0) -> C:
        return _scaled(_inverse(cost), calibration)

    def footing(self, factor: float) -> float:
        return 1 / factor

    def whole(self, total: C, curve: Curve | None = None) -> C:
        return _inverse(super().whole(total, curve))

    def total_of(self, whole: float, curve: Curve | None = None) -> float:
        return super().total_of(1 / whole, curve)


class _Largest(Combination):
    """The largest cost counts, as of memory that layers need one after another. It knows no calibration nor curve."""

    name = "max"
    adds_up = False

    def counted(self, cost: C, calibration: float = 1.0) -> C:
        return cost

    def footing(self, factor: float) -> float:
        return 1.0

    def total(self, counted: Iterable[float]) -> float:
        listed = list(counted)
        return math.nan if any(map(math.isnan, listed)) else max(listed, default=0.0)

    def total_cost(self, kind: type[Record], counted: Iterable[Record]) -> Record:
        return kind.largest(counted)

    def join(self, one: Any, other: Any) -> Any:
        import numpy as np

        return np.maximum(one, other)

    def whole(self, total: C, curve: Curve | None = None) -> C:
        return total

    def total_of(self, whole: float, curve: Curve | None = None) -> float:
        return whole


SUM, INVERSE, LARGEST = _Sum(), _Inverse(), _Largest()


def _through(curve: Curve | None, total: C) -> C:
    applied: Any = total if curve is None else total.mapped(curve) if isinstance(total, Cost) else curve(total)
    return cast(C, applied)


def _scaled(cost: C, factor: float) -> C:
    scaled: Any = cost.scaled(factor) if isinstance(cost, Cost) else factor * cost  # type: ignore[operator]
    return cast(C, scaled)


def _inverse(cost: C) -> C:
    inverse: Any = cost.inverted() if isinstance(cost, Cost) else 1 / cost  # type: ignore[operator]
    return cast(C, inverse)
