"""Costs of spaces as expressions of NNI."""

from __future__ import annotations

import functools
import operator
from typing import Any

from nni_latency.estimators import AdditiveCost
from nni_latency.nas._nni import MutableExpression
from nni_latency.nas._space_cost import SpaceCost


def expression_of(cost: SpaceCost, space: Any) -> Any:
    """Return the cost of a space as an expression of NNI, so that whatever NNI does with expressions works."""
    mutables = space.simplify()
    if not isinstance(cost, AdditiveCost):
        return _WholeCost(cost, [mutable for mutable in mutables.values() if hasattr(mutable, "values")])
    terms = [MutableExpression.switch_case(mutables[label], dict(costs)) for label, costs in cost.costs.items()]
    if not cost.combination.has_expectation:
        return _WholeCost(cost, terms)
    total = functools.reduce(operator.add, terms) + cost.constant
    return total if cost.residency is None else _ResidentSum(cost, total)


class _WholeCost(MutableExpression):
    """A cost that is no sum of the choices' costs.

    NNI could only take its expectation over every network of the space, which never ends: `LatencyPenalty` knows a way.
    """

    def __init__(self, cost: SpaceCost, terms: list[Any]) -> None:
        super().__init__(cost, f"{cost.combination}({', '.join(['{}'] * len(terms))})", terms)
        self._cost = cost

    def evaluate(self, values: Any) -> float:
        return self._cost(values)

    def grid(self, memo: Any = None, granularity: Any = None) -> Any:
        self._cost.check_additive()


class _ResidentSum(MutableExpression):
    """A sum less what a small network saves.

    NNI takes the expectation of a sum term by term and of anything else over every network of the space, which never
    ends. So this looks like a sum: NNI's own expectation leaves out the saving, and evaluation is exact.
    """

    def __init__(self, cost: AdditiveCost, total: MutableExpression) -> None:
        super().__init__(operator.add, "{} + {}", [total, 0.0])
        self._cost = cost

    def evaluate(self, values: Any) -> float:
        return float(self._cost.of_sum(super().evaluate(values)))
