# SPDX-License-Identifier: Apache-2.0
"""A network-based estimator for tests of what takes any estimator."""

from __future__ import annotations

from nni_latency.estimators import Estimate, NetworkEstimator
from nni_latency.operators import capture_operators
from nni_latency.platforms import Platform


class WholeNetwork(NetworkEstimator):
    """Costs networks alone: `cost` is a number, or a function of an operator to be added up over the network."""

    metric = "latency"

    def __init__(self, cost=1.0, *, low=1.0, high=1.0, platform=None):
        self.cost, self.low, self.high, self.platform = cost, low, high, platform or Platform("pi")

    def estimate(self, model, example_inputs=None):
        ops = capture_operators(model, example_inputs)
        value = sum(self.cost(op) for _, op in ops) if callable(self.cost) else self.cost
        return Estimate(value, self.low * value, self.high * value)
