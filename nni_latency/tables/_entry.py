"""`Entry`: what one candidate of one layer costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from nni_latency.errors import InvalidValueError
from nni_latency.operators import Features, OpSpec, features_of


@dataclass(frozen=True)
class Entry:
    """What one candidate of one layer costs. Immutable.

    Parameters
    ----------
    value, low, high : float
        Cost and its interval, in the unit of the table's metric.
    n_samples, n_dropped : int
        Samples behind it, and how many of them were trimmed away; 0 for numbers from elsewhere.
    op : OpSpec or None
        The operator, where it is known.

    Raises
    ------
    InvalidValueError
        If the value is negative or not finite, or lies outside its interval.
    """

    value: float
    low: float
    high: float
    n_samples: int = 0
    n_dropped: int = 0
    op: OpSpec | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value >= 0):
            raise InvalidValueError(f"The value of an entry must be a finite number >= 0. Got {self.value!r}.")
        if not (math.isfinite(self.high) and 0 <= self.low <= self.value <= self.high):
            raise InvalidValueError(
                f"The interval of an entry must enclose its value {self.value!r}. Got {self.low!r} to {self.high!r}."
            )

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    def inverted(self, of: float = 1.0) -> Entry:
        """Return `of` over the cost, as throughput is the batch size over the latency."""
        # An interval that reaches down to no time at all has no upper end; a huge one is as good.
        return replace(self, value=of / self.value, low=of / self.high, high=of / max(self.low, 1e-12))

    @property
    def features(self) -> Features | None:
        """Features of the operator, where it is known."""
        return None if self.op is None else features_of(self.op)
