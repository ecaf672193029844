"""`LayerShare`: the cost of one layer, scaled so that all layers add up to the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nni_latency.estimators._base import Estimate, LayerEstimator
from nni_latency.units import combination_of


@dataclass(frozen=True)
class LayerShare:
    """The cost of one layer of a network."""

    name: str
    choice: str
    estimate: Estimate
    share: float


def layer_shares(estimator: LayerEstimator, parts: Sequence[tuple[str, str, Estimate]]) -> list[LayerShare]:
    """Take the cost of a network apart: the parts, each with layer and choice, scaled so that they make it up.

    A share is that of the sum; for a throughput that of the time; for memory that layers need one after another that of
    the largest.
    """
    combination = combination_of(estimator.metric)
    weights = [combination.counted(part.value) for _, _, part in parts]
    total = combination.total(weights)
    factor = estimator.total(part for _, _, part in parts).value / combination.whole(total) if total else 1.0
    return [
        LayerShare(name, choice, part.scaled(factor), weight / total if total else 0.0)
        for (name, choice, part), weight in zip(parts, weights, strict=True)
    ]
