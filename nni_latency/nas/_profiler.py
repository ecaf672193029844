# SPDX-License-Identifier: Apache-2.0
"""`LatencyProfiler` and `LatencyFilter`: an estimator as a profiler of NNI, and limits on what is tried."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any

from torch import nn

from nni_latency.errors import InvalidValueError, UnreachableTargetError
from nni_latency.estimators import AdditiveCost, Distillation, Missing, NetworkEstimator, distil
from nni_latency.hook_checks import is_number
from nni_latency.loading import EstimatorSource, load_estimator
from nni_latency.nas._nni import ExpressionProfiler, ModelSpace, MutableExpression, Profiler, RangeProfilerFilter
from nni_latency.nas._space_cost import N_NETWORKS, FrozenCost, SpaceCost, cost_of_space, warn_of_loose_limit
from nni_latency.spaces import choices_of, example_inputs_of
from nni_latency.units import format_metric, with_article


class LatencyProfiler(ExpressionProfiler):
    """The cost of a sample, for NNI's filters, penalties and strategies.

    It is an `ExpressionProfiler` of NNI: its `expression` is the sum over the labels of the space, so whatever NNI
    does with expressions works. `profile` itself does not evaluate it but looks the choices up, which is faster.

    It counts what the platform executes: compiled runtimes remove operators that no output depends on.

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
        Networks that an estimator of whole networks is asked for, to find a sum that stands for it; see `distil`. Also
        those that one measures which measures operators on demand (12 without it); other operators are predicted.

    Attributes
    ----------
    estimator : Estimator
        The estimator behind it.
    distillation : Distillation or None
        Of an estimator of whole networks: the sum that stands for it, and how far it is off.
    cost : AdditiveCost, GroupedCost or FrozenCost
        Cost of every choice, and the constant of the rest; where choices act together, by groups of them; where a
        space cannot be followed, network by network.
    expression : MutableExpression
        The same as an expression of NNI.

    Raises
    ------
    MismatchError
        If the estimator belongs to another space, input or batch size.
    MissingEntryError
        If the table lacks candidates, and `missing` is "error".
    InvalidValueError
        If the space has no choices, or the estimator cannot be taken apart by layer.

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
        self.example_inputs = example_inputs
        self.estimator = load_estimator(latency_estimator, missing=missing)
        self.distillation: Distillation | None = None
        if isinstance(self.estimator, NetworkEstimator):
            choices_of(space)
            self.distillation = distil(self.estimator, space, example_inputs, n_samples=n_samples)
        self.cost = cost_of_space(self.distillation or self.estimator, space, example_inputs, n_samples or N_NETWORKS)
        self.expression = expression_of(self.cost, space)

    def profile(self, sample: Mapping[str, Any] | nn.Module) -> float:
        """Return the cost of a network, in the SI unit of the estimator's metric.

        Parameters
        ----------
        sample : mapping or Module
            A sample, ``{label: choice}``, or a frozen model. A model that a strategy froze knows its sample; one that
            ``space.freeze`` or ``space.random`` returned does not, and the estimator is asked for the network itself.

        Raises
        ------
        MissingEntryError
            If the sample lacks a label, or has a choice that is not in the space.
        """
        if not isinstance(sample, nn.Module):
            return self.cost(sample_of(sample))
        if isinstance(sample, ModelSpace) and sample.simplify():
            raise InvalidValueError(
                f"The {type(sample).__name__} is a whole space, not a network of it. Freeze it with a sample."
            )
        inputs = example_inputs_of(self.space) if self.example_inputs is None else self.example_inputs
        return self.estimator.estimate(sample, inputs).value


class LatencyFilter(RangeProfilerFilter):
    """Let through only what costs at least `min` and at most `max`.

    It is a `RangeProfilerFilter` of NNI that also takes models. NNI's middleware `Filter` hands over the model that was
    submitted, its one-shot strategies hand over the sample, and NNI's own filter knows samples alone: inside a `Filter`
    it raises a TypeError at the first model. A range that no network of the space reaches is refused here, before a
    strategy tries a thousand networks and ends without a result.

    Parameters
    ----------
    profiler : Profiler
        A `LatencyProfiler`, or any other profiler of NNI.
    max : float, optional
        Highest cost, in the SI unit of the profiler's metric.
    min : float, optional
        Lowest cost. One of the two must be given.

    Raises
    ------
    InvalidValueError
        If neither is given, one is not a finite number, or `min` is above `max`.
    UnreachableTargetError
        If no network of the space costs that much, or that little.

    Examples
    --------
    >>> from nni.nas.strategy import Random                                                    # doctest: +SKIP
    >>> from nni.nas.strategy.middleware import Chain, Filter                                  # doctest: +SKIP
    >>> strategy = Chain(Random(), Filter(LatencyFilter(profiler, max=0.012)))                 # doctest: +SKIP
    """

    def __init__(self, profiler: Profiler, max: float | None = None, min: float | None = None) -> None:  # noqa: A002
        if max is None and min is None:
            raise InvalidValueError("LatencyFilter needs a highest cost 'max', a lowest 'min', or both. Got neither.")
        for name, bound in (("max", max), ("min", min)):
            if bound is not None and not is_number(bound):
                raise InvalidValueError(f"The {name!r} of LatencyFilter must be a finite number. Got {bound!r}.")
        if max is not None and min is not None and min > max:
            raise InvalidValueError(f"The 'min' of LatencyFilter must be at most 'max'. Got {min!r} and {max!r}.")
        super().__init__(profiler, min=min, max=max)
        _check_range(profiler, min, max)

    def __call__(self, candidate: Any) -> bool:
        """Tell whether a sample, or a model that was frozen with one, may pass.

        Raises
        ------
        InvalidValueError
            If it is neither.
        MissingEntryError
            If the sample lacks a label, or has a choice that is not in the space.
        """
        return bool(self.filter(sample_of(candidate)))


def sample_of(candidate: Any) -> Mapping[str, Any]:
    """Return the sample of what a strategy hands over: the sample itself, or a model that was frozen with it.

    Raises
    ------
    InvalidValueError
        If it is neither, or the model has not been frozen.
    """
    if isinstance(candidate, Mapping):
        return candidate
    sample = getattr(candidate, "sample", None)
    if not isinstance(sample, Mapping):
        raise InvalidValueError(
            "A candidate must be a sample, or a model that a strategy froze with one (model formats 'raw' and "
            f"'simplified'). Got {type(candidate).__name__}."
        )
    return sample


def _check_range(profiler: Any, low: float | None, high: float | None) -> None:
    """Raise `UnreachableTargetError` if nothing is between the bounds, and warn if everything is, where it is known."""
    cost: Any = getattr(profiler, "cost", None)
    if cost is None or not hasattr(cost, "range"):
        return
    cheapest, costliest = cost.range
    # Where networks are only known one by one, others may be cheaper or costlier than those that were looked at.
    slack = 2 if isinstance(cost, FrozenCost) else 1
    if (high is not None and high * slack < cheapest) or (low is not None and low > slack * costliest):
        asked = " and ".join(
            f"{words} {format_metric(bound, cost.metric)}"
            for words, bound in (("at least", low), ("at most", high))
            if bound is not None
        )
        known = "Those that were looked at have" if isinstance(cost, FrozenCost) else "Reachable is"
        raise UnreachableTargetError(
            f"No network of the space has {with_article(cost.metric)} of {asked}. {known} "
            f"{format_metric(cheapest, cost.metric)} to {format_metric(costliest, cost.metric)}."
        )
    if low is None or low <= cheapest:
        warn_of_loose_limit(cost, high)


def expression_of(cost: SpaceCost, space: Any) -> Any:
    """Return the cost of a space as an expression of NNI, so that whatever NNI does with expressions works."""
    mutables = space.simplify()
    if not isinstance(cost, AdditiveCost):
        return _WholeCost(cost, [mutable for mutable in mutables.values() if hasattr(mutable, "values")])
    terms = [MutableExpression.switch_case(mutables[label], dict(costs)) for label, costs in cost.costs.items()]
    if not cost.combination.has_expectation:
        return _WholeCost(cost, terms)
    total = functools.reduce(operator.add, terms) + cost.constant
    return total if cost.residency is None and not cost.pairs else _NearlySum(cost, total)


class _WholeCost(MutableExpression):
    """A cost that is not the sum of the choices' costs.

    NNI could only take its expectation over every network of the space, which never ends: `LatencyPenalty` knows a way.
    """

    def __init__(self, cost: SpaceCost, terms: list[Any]) -> None:
        super().__init__(cost, f"{cost.combination}({', '.join(['{}'] * len(terms))})", terms)
        self._cost = cost

    def evaluate(self, values: Any) -> float:
        return self._cost(values)

    def grid(self, memo: Any = None, granularity: Any = None) -> Any:
        self._cost.check_additive()


class _NearlySum(MutableExpression):
    """A sum less what a small network saves, and with what neighbours cost together.

    NNI takes the expectation of a sum term by term and of anything else over every network of the space, which never
    ends. So this looks like a sum: NNI's own expectation leaves out saving and neighbours, and evaluation is exact.
    """

    def __init__(self, cost: AdditiveCost, total: MutableExpression) -> None:
        super().__init__(operator.add, "{} + {}", [total, 0.0])
        self._cost = cost

    def evaluate(self, values: Any) -> float:
        return self._cost(values)
