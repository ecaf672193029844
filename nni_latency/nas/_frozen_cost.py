"""`FrozenCost`: the cost of a space whose networks can only be known one by one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch

from nni_latency.errors import InvalidValueError, UnreachableTargetError
from nni_latency.estimators import ChoiceCost, Estimator
from nni_latency.spaces import choices_of, draw_samples
from nni_latency.units import format_metric, with_article

#: Networks that are looked at to say what a space costs.
_LOOKED_AT = 24


class FrozenCost(ChoiceCost):
    """Builds, traces and estimates every network that it is asked for, once.

    Parameters
    ----------
    space : ModelSpace
        The space.
    estimator : Estimator
        Whom to ask.
    example_inputs : Tensor, tuple or dict
        What the networks take.
    """

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
        key = json.dumps(sample, sort_keys=True, default=str)
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
