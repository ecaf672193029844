# SPDX-License-Identifier: Apache-2.0
"""How fast a space of NNI's hub is walked, and how fast a sample is costed. Run by hand: ``make benchmarks``."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest
import torch

from nni_latency.estimators import Estimate, GroupedCost, LayerEstimator
from nni_latency.imports import quiet_nni
from nni_latency.nas import LatencyProfiler
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.spaces import HUB_SPACES, draw_samples, example_inputs_of, hub_space, operators_of_space

with quiet_nni():
    from nni.nas.profiler.pytorch.flops import FlopsProfiler


class Free(LayerEstimator):
    """Costs every operator alike, so that nothing but the space is timed."""

    metric = "latency"
    platform = Platform("benchmark")

    def estimate_op(self, op: OpSpec) -> Estimate:
        return Estimate(1e-6, 1e-6, 1e-6)


@cache
def _space(name: str) -> Any:
    return hub_space(name)


@cache
def _cost(name: str) -> GroupedCost:
    return operators_of_space(_space(name), example_inputs_of(_space(name))).priced(Free())


@pytest.mark.benchmark(group="walk of a space of the hub, and pricing it")
@pytest.mark.parametrize("name", HUB_SPACES)
def test_walk(benchmark: Any, name: str) -> None:
    inputs = example_inputs_of(_space(name))
    found = benchmark.pedantic(lambda: operators_of_space(_space(name), inputs, fresh=True).priced(Free()), rounds=3)
    assert found.tables


@pytest.mark.benchmark(group="walk of a space of the hub that is in the cache")
@pytest.mark.parametrize("name", HUB_SPACES)
def test_cached_walk(benchmark: Any, name: str) -> None:
    inputs = example_inputs_of(_space(name))
    operators_of_space(_space(name), inputs)
    assert benchmark.pedantic(lambda: operators_of_space(_space(name), inputs), rounds=3).parts


@pytest.mark.benchmark(group="profile of one sample of the hub")
@pytest.mark.parametrize("name", HUB_SPACES)
def test_profile_of_the_hub(benchmark: Any, name: str) -> None:
    """Of samples that were never seen before, one after the other."""
    samples = itertools.cycle(draw_samples(_space(name), 200))
    assert benchmark(lambda: _cost(name)(next(samples))) > 0


@pytest.mark.benchmark(group="profile of one sample of the hub")
def test_profile_of_mobilenetv3_by_nni(benchmark: Any) -> None:
    profiler = FlopsProfiler(_space("mobilenetv3"), torch.randn(1, 3, 224, 224))
    samples = itertools.cycle(draw_samples(_space("mobilenetv3"), 20))
    assert benchmark.pedantic(lambda: profiler.profile(next(samples)), rounds=20) > 0


@pytest.mark.benchmark(group="a profiler from nothing")
@pytest.mark.parametrize("name", ["mobilenetv3", "autoformer", "darts"])
def test_profiler_from_nothing(benchmark: Any, name: str) -> None:
    made = benchmark.pedantic(lambda: LatencyProfiler(_space(name), latency_estimator=Free()), rounds=2)
    assert made.cost.tables
