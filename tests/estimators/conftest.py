# SPDX-License-Identifier: Apache-2.0
"""An estimator that tests can make up."""

from __future__ import annotations

import pytest

from nni_latency.estimators import Estimate, LayerEstimator
from nni_latency.platforms import Platform


class _ByChoice(LayerEstimator):
    """Costs the invented operators of `fake_plan` by their choice."""

    metric = "latency"
    platform = Platform("pi")

    def __init__(self, costs, calibration):
        self.costs = costs
        self.calibration = calibration

    def estimate_op(self, op):
        return Estimate(*[self.costs[op["choice"]]] * 3)


@pytest.fixture
def by_choice():
    return lambda costs, calibration=1.0: _ByChoice(costs, calibration)
