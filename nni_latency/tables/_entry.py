"""`Entry`: what one candidate of one layer costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nni_latency.costs import Cost
from nni_latency.operators import Features, OpSpec, features_of


@dataclass(frozen=True)
class Entry(Cost):
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

    n_samples: int = 0
    n_dropped: int = 0
    op: OpSpec | None = None

    _finite = True

    @property
    def features(self) -> Features | None:
        """Features of the operator, where it is known."""
        return None if self.op is None else features_of(self.op)

    @classmethod
    def _joined(cls, parts: Sequence[Entry], value: float, low: float, high: float) -> Entry:
        n_samples, n_dropped = sum(part.n_samples for part in parts), sum(part.n_dropped for part in parts)
        return cls(value, low, high, n_samples, n_dropped, parts[0].op)
