# SPDX-License-Identifier: Apache-2.0
"""`Cost`: a value and the interval in which it lies, with the arithmetic that all records of costs share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from nni_latency.errors import InvalidValueError

Self = TypeVar("Self", bound="Cost")

#: Half the width of a 95 % interval of a normal quantity, in standard deviations.
NORMAL = 1.96

#: No cost of a network is larger, in any SI unit; sums of costs of such a size are finite.
LARGEST_COST = 1e18

#: Stands for zero in a divisor, so that the inverse of an interval that begins at zero has an upper end.
_TINY = 1e-300


@dataclass(frozen=True)
class Cost:
    """A cost and its interval. Immutable; records that know more of a cost are subclasses.

    Parameters
    ----------
    value, low, high : float
        The cost and the ends of its interval, in the SI unit of its metric.

    Raises
    ------
    InvalidValueError
        If the value is negative or not a number, or lies outside its interval.

    Examples
    --------
    >>> cost = Cost(2.0, 1.5, 2.5)
    >>> cost.spread, cost.inverted().value, cost.encloses(1.6)
    (0.25, 0.5, True)
    >>> Cost.sum([Cost(1.0, 0.7, 1.3), Cost(2.0, 1.6, 2.4)]).half_width
    0.5
    """

    value: float
    low: float
    high: float

    #: Whether infinity, and a value above `LARGEST_COST`, is refused, as where a record is measured.
    _finite: ClassVar[bool] = False

    def __post_init__(self) -> None:
        most = math.inf if not self._finite else math.nextafter(math.inf, 0)
        if not 0 <= self.value <= most:
            finite = "finite " if self._finite else ""
            raise InvalidValueError(
                f"The value of {type(self).__name__} must be a {finite}number >= 0. Got {self.value!r}."
            )
        if self._finite and self.value > LARGEST_COST:
            raise InvalidValueError(
                f"The value of {type(self).__name__} must be at most {LARGEST_COST:g}. Got {self.value!r}."
            )
        if not 0 <= self.low <= self.value <= self.high <= most:
            raise InvalidValueError(
                f"The interval of {type(self).__name__} must enclose its value {self.value!r}. "
                f"Got {self.low!r} to {self.high!r}."
            )

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    @property
    def spread(self) -> float:
        """Half the width of the interval as a share of the value."""
        return (self.high - self.low) / (2 * self.value)

    def encloses(self, value: float) -> bool:
        """Whether a value lies in the interval, its ends included."""
        return self.low <= value <= self.high

    def mapped(self: Self, function: Callable[[float], float]) -> Self:
        """Apply a function that never falls to the value and both ends."""
        return replace(
            self, value=float(function(self.value)), low=float(function(self.low)), high=float(function(self.high))
        )

    def scaled(self: Self, factor: float) -> Self:
        """Return the cost times a factor >= 0."""
        return self.mapped(lambda number: factor * number)

    def shifted(self: Self, by: float) -> Self:
        """Return the cost plus a number, and no number below zero."""
        return self.mapped(lambda number: max(0.0, number + by))

    def inverted(self: Self, of: float = 1.0) -> Self:
        """Return `of` over the cost, as throughput is the batch size over the latency."""
        return replace(self, value=of / self.value, low=of / self.high, high=of / max(self.low, _TINY))

    def widened(self: Self, low: float, high: float) -> Self:
        """Return the cost with an interval that reaches from `low` to `high` at least."""
        return replace(self, low=max(0.0, min(self.low, low)), high=max(self.high, high))

    def with_error(self: Self, error: float) -> Self:
        """Return the cost with an interval that holds a relative standard deviation `error` besides, at 95 %."""
        below, above = (math.hypot(width, NORMAL * error * self.value) for width in self._widths)
        return replace(self, low=max(0.0, self.value - below), high=self.value + above) if error else self

    @property
    def _widths(self) -> tuple[float, float]:
        return self.value - self.low, self.high - self.value

    @classmethod
    def sum(cls: type[Self], parts: Iterable[Self], factor: float = 1.0) -> Self:
        """Add up costs that were measured independently, times a factor.

        The half-widths of the intervals add up like standard deviations: root of the sum of squares.
        """
        items = list(parts)
        value = math.fsum(item.value for item in items)
        below = math.sqrt(math.fsum((item.value - item.low) ** 2 for item in items))
        above = math.sqrt(math.fsum((item.high - item.value) ** 2 for item in items))
        return cls._joined(items, factor * value, factor * max(0.0, value - below), factor * (value + above))

    @classmethod
    def comonotone_sum(cls: type[Self], parts: Iterable[Self], factor: float = 1.0) -> Self:
        """Add up costs that rise and fall together, times a factor: the ends of the intervals add up as they are."""
        items = list(parts)
        value, low, high = (math.fsum(ends) for ends in _columns(items))
        return cls._joined(items, factor * value, factor * low, factor * high)

    @classmethod
    def mean(cls: type[Self], parts: Sequence[Self]) -> Self:
        """Return the mean of costs, with the mean of their intervals."""
        value, low, high = (math.fsum(ends) / len(parts) for ends in _columns(parts))
        return cls._joined(parts, value, low, high)

    @classmethod
    def largest(cls: type[Self], parts: Iterable[Self]) -> Self:
        """Return the largest of costs that do not add up, such as the memory that layers need one after another."""
        items = list(parts)
        value, low, high = (max(ends, default=0.0) for ends in _columns(items))
        return cls._joined(items, value, low, high)

    @classmethod
    def _joined(cls: type[Self], parts: Sequence[Self], value: float, low: float, high: float) -> Self:
        """Make a cost of several; subclasses say what becomes of the rest of the parts."""
        return cls(value, low, high)


def _columns(items: Iterable[Cost]) -> tuple[list[float], list[float], list[float]]:
    listed = list(items)
    return [item.value for item in listed], [item.low for item in listed], [item.high for item in listed]
