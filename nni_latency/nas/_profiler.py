"""`LatencyProfiler`: an estimator as a profiler of NNI."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.estimators import (
    AdditiveCost,
    Distillation,
    Estimator,
    LayerEstimator,
    Missing,
    NetworkEstimator,
    TableEstimator,
    additive_cost,
    distil,
)
from nni_latency.loading import EstimatorSource, load_estimator
from nni_latency.nas._nni import ExpressionProfiler, MutableExpression
from nni_latency.operators import freeze_shapes
from nni_latency.spaces import choices_of, plan_of
from nni_latency.tables import SpaceReference


class LatencyProfiler(ExpressionProfiler):
    """The cost of a sample, for NNI's filters, penalties and strategies.

    It is an `ExpressionProfiler` of NNI: its `expression` is the sum over the labels of the space, so whatever NNI
    does with expressions works. `profile` itself does not evaluate it but looks the choices up, which is faster.

    Parameters
    ----------
    space : ModelSpace
        The space to be searched. Penalties find the live architecture parameters through this very object.
    example_inputs : Tensor or tuple of Tensor, optional
        Input of the network; its batch size must be that of the estimator. Without it, a batch of one.
    latency_estimator : Estimator, LookupTable, str or path
        Whatever `load_estimator` takes.
    missing : {"error", "nearest"}, default="error"
        What a table does about candidates without an entry.
    n_samples : int, optional
        Networks that an estimator of whole networks is asked for, to find a sum that stands for it; see `distil`.

    Attributes
    ----------
    estimator : Estimator
        The estimator behind it.
    distillation : Distillation or None
        Of an estimator of whole networks: the sum that stands for it, and how far it is off.
    cost : AdditiveCost
        Cost of every choice, and the constant of the rest.
    expression : MutableExpression
        The same as an expression of NNI.

    Raises
    ------
    MismatchError
        If the estimator belongs to another space, input or batch size.
    MissingEntryError
        If the table lacks candidates, and `missing` is "error".
    InvalidValueError
        If the space has no choices, or the estimator can not be taken apart by layer.

    Examples
    --------
    >>> from nni_latency import FBNetSpace, LookupTable
    >>> space = FBNetSpace(depth=0.25)
    >>> table = LookupTable.from_latencies(
    ...     space, {label: {choice: 0.001 for choice in mutable.values} for label, mutable in space.simplify().items()}
    ... )
    >>> profiler = LatencyProfiler(space, space.example_inputs(), latency_estimator=table)
    >>> round(profiler.profile({label: "skip" for label in space.simplify()}), 6)
    0.007
    """

    def __init__(
        self,
        space: Any,
        example_inputs: Any = None,
        *,
        latency_estimator: EstimatorSource,
        missing: Missing = "error",
        n_samples: int | None = None,
    ) -> None:
        super().__init__(space)
        self.space = space
        self.estimator = load_estimator(latency_estimator, missing=missing)
        self.distillation: Distillation | None = None
        if isinstance(self.estimator, NetworkEstimator):
            choices_of(space)
            self.distillation = distil(self.estimator, space, example_inputs, n_samples=n_samples)
        self.cost = _cost_of_space(self.distillation or self.estimator, space, example_inputs)
        self.expression = _expression(self.cost, space)

    def profile(self, sample: Mapping[str, Any]) -> float:
        """Return the cost of a sample, in the SI unit of the estimator's metric.

        Raises
        ------
        MissingEntryError
            If the sample lacks a label, or has a choice that is not in the space.
        """
        return self.cost(sample)


def _cost_of_space(estimator: Estimator | Distillation, space: Any, example_inputs: Any) -> AdditiveCost:
    """Cost a space, keyed by the values that NNI's samples hold."""
    choices = choices_of(space)
    plan = plan_of(space, example_inputs)
    if isinstance(estimator, Distillation):
        cost = estimator.cost
    elif plan is not None and isinstance(estimator, TableEstimator):
        cost = estimator.cost_of_plan(plan)
    elif plan is not None and isinstance(estimator, LayerEstimator):
        cost = additive_cost(estimator, plan)
    elif isinstance(estimator, TableEstimator):
        _check_table(estimator, space, example_inputs)
        cost = estimator.cost
    else:
        raise InvalidValueError(
            f"{estimator!r} can not be taken apart by the layers of {type(space).__name__}. "
            "Give a lookup table of the space, or a space that has a measure plan."
        )
    names = {label: [str(value) for value in values] for label, values in choices.items()}
    known = {label: list(map(str, values)) for label, values in cost.costs.items()}
    if names != known:
        wrong = sorted(label for label in {*names, *known} if names.get(label) != known.get(label))
        raise MismatchError(
            f"The estimator knows other choices than the space for {', '.join(wrong[:5])}: "
            f"{known.get(wrong[0])} against {names.get(wrong[0])}."
        )
    by_value = {label: {value: cost.costs[label][str(value)] for value in values} for label, values in choices.items()}
    return replace(cost, costs=by_value)


def _check_table(estimator: TableEstimator, space: Any, example_inputs: Any) -> None:
    """Raise `MismatchError` if a table made by hand belongs to another class of spaces, or another batch size."""
    table = estimator.table
    asked = SpaceReference.of_class(type(space))
    if table.space.name not in ("unknown", asked.name):
        raise MismatchError(f"The table belongs to another space than asked: {table.space} against {asked}.")
    if example_inputs is not None:
        batch_size = freeze_shapes(example_inputs)[0].shape[0]
        if batch_size != table.batch_size:
            raise MismatchError(
                f"The table was measured with batch size {table.batch_size}, asked is batch size {batch_size}."
            )


def _expression(cost: AdditiveCost, space: Any) -> Any:
    mutables = space.simplify()
    terms = [MutableExpression.switch_case(mutables[label], dict(costs)) for label, costs in cost.costs.items()]
    if cost.combination != "sum":
        return _WholeCost(cost, terms)
    total = functools.reduce(operator.add, terms) + cost.constant
    return total if cost.residency is None else _ResidentSum(cost, total)


class _WholeCost(MutableExpression):
    """A cost that is no sum of the choices' costs. It has no expectation but over every network of the space."""

    def __init__(self, cost: AdditiveCost, terms: list[Any]) -> None:
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
        return self._cost.of_sum(super().evaluate(values))
