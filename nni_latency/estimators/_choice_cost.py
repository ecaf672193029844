"""`ChoiceCost`: what the costs of spaces by their choices have in common."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from nni_latency.combinations import Combination
from nni_latency.errors import InvalidValueError, UnreachableTargetError
from nni_latency.tables import Residency
from nni_latency.units import combination_of, format_metric, with_article


class ChoiceCost(ABC):
    """The cost of a space by what it chooses: a constant, and parts that depend on choices."""

    constant: float
    metric: str
    missing: tuple[str, ...]
    residency: Residency | None

    #: Whether every part depends on the choice of one label alone.
    separable: bool

    @property
    @abstractmethod
    def choices(self) -> Mapping[str, Sequence[Any]]:
        """The choices of every label of the space, in order."""

    @property
    @abstractmethod
    def range(self) -> tuple[float, float]:
        """Costs of the cheapest and the costliest network."""

    @abstractmethod
    def __call__(self, sample: Mapping[str, Any]) -> float:
        """Return the cost of one sample, ``{label: choice}``."""

    @cached_property
    def combination(self) -> Combination:
        """How the costs of the choices make that of a network."""
        return combination_of(self.metric)

    def check_additive(self) -> None:
        """Raise `InvalidValueError` if the costs of choices do not add up to that of a network."""
        if not self.combination.has_expectation:
            raise InvalidValueError(
                f"{with_article(self.metric).capitalize()} is no sum over layers, so it has no expected cost "
                "that a search could follow. "
                "Filter samples by it; for a throughput, search with a latency table and batch size / throughput."
            )

    def of_sum(self, total: Any) -> Any:
        """Return what a network costs by the total of its parts, a number or an array; a throughput falls with it."""
        return self.combination.whole(total, self.residency)

    def as_sum(self, cost: float) -> float:
        """Return the total of the parts of a network that costs `cost`: the inverse of `of_sum`."""
        return self.combination.total_of(cost, self.residency)

    def check_target(self, target: float) -> None:
        """Raise `UnreachableTargetError` if no network is known to be as cheap as `target`."""
        if not (math.isfinite(target) and target > 0):
            raise InvalidValueError(f"The 'target' must be a positive, finite number. Got {target!r}.")
        low, high = self.range
        if target < low:
            raise UnreachableTargetError(
                f"No network of the space meets {with_article(self.metric)} of {format_metric(target, self.metric)}. "
                f"{'Reachable is' if self.separable else 'Found were'} {format_metric(low, self.metric)} to "
                f"{format_metric(high, self.metric)}."
            )
