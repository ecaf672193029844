# SPDX-License-Identifier: Apache-2.0
"""What a space costs by an estimator: by label, by groups of labels, or network by network."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from nni_latency.errors import InvalidValueError, MismatchError, TargetWarning, UnreachableTargetError, listed
from nni_latency.estimators import (
    AdditiveCost,
    ChoiceCost,
    Distillation,
    Estimator,
    GraphEstimator,
    GroupedCost,
    LayerEstimator,
    ModuleEstimator,
    PredictedRest,
    TableEstimator,
    additive_cost,
)
from nni_latency.operators import freeze_shapes
from nni_latency.spaces import (
    TooManyChoicesError,
    choices_of,
    draw_samples,
    example_inputs_of,
    labels_of,
    network_of,
    operators_of_space,
    plan_of,
)
from nni_latency.tables import HEAD_ONLY, UNKNOWN_SPACE, SpaceReference, sample_text
from nni_latency.units import format_metric, with_article

#: Networks that an estimator measures which measures on demand; the operators of all others are predicted.
N_NETWORKS = 12

#: Networks that are looked at to say what a space costs.
_LOOKED_AT = 24


class FrozenCost(ChoiceCost):
    """Builds, traces and estimates every network that it is asked for, once."""

    separable = False

    def __init__(self, space: Any, estimator: Estimator, example_inputs: Any) -> None:
        self.space = space
        self.estimator = estimator
        self.example_inputs = example_inputs
        self.metric = estimator.metric
        self.missing: tuple[str, ...] = ()
        self._known: dict[str, float] = {}

    @property
    def choices(self) -> dict[str, list[Any]]:
        """The choices of every label of the space."""
        return choices_of(self.space)

    def __call__(self, sample: Mapping[str, Any]) -> float:
        """Return the cost of one sample."""
        key = sample_text(sample)
        if key not in self._known:
            with torch.device("meta"):
                network = self.space.freeze(dict(sample))
            self._known[key] = self.estimator.estimate(network, self.example_inputs).value
        return self._known[key]

    @cached_property
    def range(self) -> tuple[float, float]:
        """Costs of the cheapest and the costliest of some networks."""
        costs = [self(sample) for sample in draw_samples(self.space, _LOOKED_AT)]
        return min(costs), max(costs)

    def check_additive(self) -> None:
        """Raise `InvalidValueError`: nothing is known of the parts."""
        raise InvalidValueError(
            f"The networks of {type(self.space).__name__} are only known one by one, so there is no expected cost that "
            "a differentiable search could follow. Filter samples by it."
        )

    def check_target(self, target: float) -> None:
        """Raise `UnreachableTargetError` if all networks that were looked at cost twice as much as `target` or more."""
        if not target > 0:
            raise InvalidValueError(f"The 'target' must be a positive, finite number. Got {target!r}.")
        low, high = self.range
        if 2 * target < low:
            raise UnreachableTargetError(
                f"No network of the space seems to meet {with_article(self.metric)} of "
                f"{format_metric(target, self.metric)}: {_LOOKED_AT} of them cost "
                f"{format_metric(low, self.metric)} to {format_metric(high, self.metric)}."
            )


#: What a profiler may hold.
SpaceCost = AdditiveCost | GroupedCost | FrozenCost


def cost_of_space(
    estimator: Estimator | Distillation, space: Any, example_inputs: Any, n_networks: int = N_NETWORKS
) -> SpaceCost:
    """Cost a space, keyed by the values that NNI's samples hold.

    Raises
    ------
    MismatchError
        If the estimator belongs to another space, input or batch size.
    MissingEntryError
        If it does not know an operator or a candidate.
    InvalidValueError
        If it cannot be taken apart by layers, or operators.
    """
    labels_of(space)
    plan = plan_of(space, example_inputs)
    if isinstance(estimator, Distillation):
        cost = estimator.cost
    elif plan is not None and isinstance(estimator, TableEstimator) and estimator.table.layers:
        cost = estimator.cost_of_plan(plan)
    elif plan is not None and isinstance(estimator, LayerEstimator):
        cost = additive_cost(estimator, plan)
    elif isinstance(estimator, TableEstimator) and estimator.table.layers:
        _check_table(estimator, space, example_inputs)
        cost = estimator.cost
    elif isinstance(estimator, LayerEstimator):
        return _by_operators(estimator, space, example_inputs, n_networks)
    else:
        raise InvalidValueError(
            f"{estimator!r} cannot be taken apart by the layers of {type(space).__name__}. "
            "Give a lookup table of the space, or a space that has a measure plan."
        )
    return _by_value(cost, choices_of(space))


def warn_of_loose_limit(cost: SpaceCost, limit: float | None) -> None:
    """Warn if no network of a space costs more than a limit, which then has no effect on a search.

    Where networks are only known one by one, the limit must be twice what the costliest of some of them costs.
    """
    if limit is None:
        return
    low, high = cost.range
    if limit >= high * (2 if isinstance(cost, FrozenCost) else 1):
        warnings.warn(
            f"The target excludes no network: {with_article(cost.metric)} in this space is "
            f"{format_metric(low, cost.metric)} to {format_metric(high, cost.metric)}.",
            TargetWarning,
            stacklevel=3,
        )


def _by_operators(
    estimator: LayerEstimator, space: Any, example_inputs: Any, n_networks: int
) -> GroupedCost | FrozenCost:
    """Cost a space by the operators of its networks; one that cannot be followed network by network."""
    inputs = example_inputs_of(space) if example_inputs is None else example_inputs
    try:
        found = operators_of_space(space, inputs, estimator.by, runs_unused=estimator.runs_unused)
    except TooManyChoicesError as error:
        warnings.warn(
            f"{error} Every network is therefore built and traced when it is asked for, which takes about a second "
            "each, and differentiable strategies have no expected cost to follow.",
            stacklevel=4,
        )
        return FrozenCost(space, estimator, inputs)
    if isinstance(estimator, ModuleEstimator | GraphEstimator):
        networks = draw_samples(space, n_networks)
        estimator.measure([(network_of(space, sample)(), inputs) for sample in networks])
        return found.priced(PredictedRest(estimator, found.distinct))
    return found.priced(estimator)


def _by_value(cost: AdditiveCost, choices: dict[str, list[Any]]) -> AdditiveCost:
    """Key the costs by the values of the space, which a table holds as text."""
    names = {label: [str(value) for value in values] for label, values in choices.items()}
    known = {label: list(map(str, values)) for label, values in cost.costs.items()}
    if names != known:
        wrong = sorted(label for label in {*names, *known} if names.get(label) != known.get(label))
        raise MismatchError(
            f"The estimator knows other choices than the space for {listed(wrong)}: "
            f"{known.get(wrong[0])} against {names.get(wrong[0])}."
        )
    by_value = {label: {value: cost.costs[label][str(value)] for value in values} for label, values in choices.items()}
    return replace(cost, costs=by_value)


def _check_table(estimator: TableEstimator, space: Any, example_inputs: Any) -> None:
    """Raise `MismatchError` if a table made by hand belongs to another space, batch size or, where known, input."""
    table = estimator.table
    if table.space.name != UNKNOWN_SPACE:
        asked = SpaceReference.of_class(type(space), space.args)
        same = replace(asked, name=table.space.name) if table.space.is_of(type(space)) else asked
        if table.space.differences(same, ignore=HEAD_ONLY):
            raise MismatchError(f"The table belongs to another space than asked: {table.space} against {asked}.")
    if example_inputs is None:
        return
    shape = tuple(freeze_shapes(example_inputs)[0].shape)
    table.check_batch_size(shape[0])
    if len(table.input_shape) > 1 and shape != table.input_shape:
        raise MismatchError(f"The table belongs to inputs of {table.input_shape}, not of {shape}.")
