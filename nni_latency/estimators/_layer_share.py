"""`LayerShare`: what one layer of a network costs, so that all make up the network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nni_latency.estimators._base import Estimate, LayerEstimator
from nni_latency.units import METRIC_COMBINATIONS


@dataclass(frozen=True)
class LayerShare:
    """What one layer of a network costs."""

    name: str
    choice: str
    estimate: Estimate
    share: float


def layer_shares(estimator: LayerEstimator, parts: Sequence[tuple[str, str, Estimate]]) -> list[LayerShare]:
    """Take the cost of a network apart: the parts, each with layer and choice, scaled so that they make it up.

    A share is that of the sum; for a throughput that of the time; for memory that layers need one after another that of
    the largest.
    """
    whole, combination = estimator.total(part for _, _, part in parts), METRIC_COMBINATIONS[estimator.metric]
    if combination == "max":
        weights, factor, total = [part.value for _, _, part in parts], 1.0, whole.value
    elif combination == "inverse":
        weights = [1 / part.value for _, _, part in parts]
        total = math.fsum(weights)
        factor = whole.value * total
    else:
        weights = [part.value for _, _, part in parts]
        total = math.fsum(weights)
        factor = whole.value / total if total else 1.0
    return [
        LayerShare(name, choice, Estimate.sum([part], factor), weight / total if total else 0.0)
        for (name, choice, part), weight in zip(parts, weights, strict=True)
    ]
