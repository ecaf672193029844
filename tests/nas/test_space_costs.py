# SPDX-License-Identifier: Apache-2.0
"""Profilers of spaces whose choices act together: as the slow way, and for NNI's own spaces by name."""

from __future__ import annotations

import math

import pytest
import torch
from test_profiler import ByMacs
from torch import nn

from nni_latency.errors import InvalidValueError, UnreachableTargetError
from nni_latency.estimators import ModuleEstimator
from nni_latency.imports import quiet_nni
from nni_latency.measurement import Protocol
from nni_latency.nas import LatencyFilter, LatencyProfiler
from nni_latency.operators import trace
from nni_latency.spaces import draw_samples, hub_space
from nni_latency.testing import FakeRuntime

with quiet_nni():
    import nni
    from nni.nas.nn.pytorch import ModelSpace, MutableLinear


class Endless(ModelSpace):
    """A space with a choice among all numbers of a range."""

    def __init__(self):
        super().__init__()
        self.add_mutable(nni.uniform("rate", 0, 1))
        self.layer = MutableLinear(4, nni.choice("width", [4, 64]))

    def freeze(self, sample):
        return nn.Sequential(nn.Dropout(sample["rate"]), self.layer.freeze(sample))

    def forward(self, inputs):
        return self.layer(inputs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("mobilenetv3", {"width_multipliers": (0.5, 1.0), "expand_ratios": (1.0, 3.0), "depth_range": (1, 2)}),
        ("enas", {"width": 8, "num_cells": 3}),
    ],
)
def test_profile_is_what_the_estimator_says_of_the_frozen_network(name, arguments):
    space = hub_space(name, **arguments)
    inputs = torch.zeros(1, 3, 32, 32)
    profiler = LatencyProfiler(space, inputs, latency_estimator=ByMacs())
    for sample in draw_samples(space, 3, 5):
        slow = ByMacs().estimate(space.freeze(dict(sample)), inputs).value
        assert profiler.profile(sample) == pytest.approx(slow, rel=1e-12)
        assert profiler.expression.evaluate(sample) == profiler.profile(sample)


def test_a_filter_of_nni_keeps_the_range():
    space = hub_space("nasbench201", num_modules_per_stack=1)
    profiler = LatencyProfiler(space, torch.zeros(1, 3, 32, 32), latency_estimator=ByMacs())
    low, high = profiler.cost.range
    keep = LatencyFilter(profiler, max=(low + high) / 2)
    kept = [sample for sample in draw_samples(space, 40) if keep(sample)]
    assert 0 < len(kept) < 40
    assert max(map(profiler.profile, kept)) <= (low + high) / 2


def test_a_space_that_can_not_be_followed_is_costed_network_by_network():
    space = Endless()
    with pytest.warns(UserWarning, match=r"'rate' is not a choice among values but a Numerical"):
        profiler = LatencyProfiler(space, torch.zeros(1, 4), latency_estimator=ByMacs())
    small, large = (profiler.profile({"rate": 0.5, "width": width}) for width in (4, 64))
    assert (small, large) == (pytest.approx(1.5 * (1e-6 + 16e-9)), pytest.approx(1.5 * (1e-6 + 256e-9)))
    assert profiler.cost.range == (small, large)
    with pytest.raises(InvalidValueError, match="only known one by one"):
        profiler.cost.check_additive()
    with pytest.raises(UnreachableTargetError, match=r"seems to meet a latency"):
        profiler.cost.check_target(small / 4)


class Wide(Endless):
    """The same with so many widths that the cheapest network is not among those that are looked at."""

    def __init__(self):
        super().__init__()
        self.layer = MutableLinear(4, nni.choice("many", list(range(1000, 101_000, 100))))


def test_a_filter_of_networks_that_are_known_one_by_one_takes_cheaper_and_costlier_ones():
    with pytest.warns(UserWarning, match=r"'rate' is not a choice among values"):
        profiler = LatencyProfiler(Wide(), torch.zeros(1, 4), latency_estimator=ByMacs())
    (low, high), cheapest, costliest = profiler.cost.range, {"rate": 0.5, "many": 1000}, {"rate": 0.5, "many": 100_900}
    assert profiler.profile(cheapest) < low / 1.5
    assert high < profiler.profile(costliest)
    assert LatencyFilter(profiler, max=low / 1.5)(cheapest)
    assert LatencyFilter(profiler, min=profiler.profile(costliest))(costliest)
    with pytest.raises(UnreachableTargetError, match=r"No network of the space has a latency of at most"):
        LatencyFilter(profiler, max=low / 2.1)


@pytest.mark.slow
def test_measuring_estimators_measure_networks_and_predict_the_rest():
    """With a thousandth of a second for an operator and a millionth for an input number, whatever stands around it."""
    runtime = FakeRuntime(lambda op: 1e-3 + 1e-6 * sum(math.prod(shape) for shape in op.input_shapes), by="module")
    estimator = ModuleEstimator(runtime=runtime, protocol=Protocol(n_run=3, processes=1), store="memory")
    space = hub_space("mobilenetv3", width_multipliers=(0.5, 1.0), expand_ratios=(1.0, 3.0), depth_range=(1, 2))
    inputs = torch.zeros(1, 3, 32, 32)
    profiler = LatencyProfiler(space, inputs, latency_estimator=estimator, n_samples=3)
    assert any(name.startswith("predicted: conv2d") for name in profiler.cost.missing)
    measured = draw_samples(space, 3)
    for sample in draw_samples(space, 6):
        truth = sum(
            1e-3 + 1e-6 * sum(math.prod(shape) for shape in item.op.input_shapes)
            for item in trace(space.freeze(dict(sample)), inputs).operators
        )
        assert profiler.profile(sample) == pytest.approx(truth, rel=1e-6 if sample in measured else 0.05)
