# SPDX-License-Identifier: Apache-2.0
"""The glue to NNI where a table says what small networks save, and where costs are no sum."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import LATENCIES, SCORES, Toy, evaluator_for, module_of, seeded, with_scores

from nni_latency.errors import InvalidValueError
from nni_latency.estimators import AdditiveCost
from nni_latency.imports import quiet_nni
from nni_latency.nas import ExpectedCost, FBNet, LatencyProfiler
from nni_latency.spaces import CANDIDATES, FBNetSpace
from nni_latency.tables import LookupTable, Residency
from nni_latency.units import with_article

with quiet_nni():
    from nni.nas.oneshot.pytorch.profiler import RangeProfilerFilter
    from nni.nas.oneshot.pytorch.supermodule._expression_utils import expression_expectation

_RESIDENCY = Residency(0.3, 4e-3)
_NETWORKS = [dict(zip(LATENCIES, choices, strict=True)) for choices in itertools.product(*LATENCIES.values())]


def _resident(space, latencies=None, **options):
    table = LookupTable.from_latencies(space, LATENCIES if latencies is None else latencies, **options)
    return dataclasses.replace(table, residency=_RESIDENCY)


def _latency(sample):
    total = sum(LATENCIES[label][choice] for label, choice in sample.items())
    return total * (1 - _RESIDENCY.saving * math.exp(-total / _RESIDENCY.scale))


@pytest.fixture(scope="module")
def toy():
    space = Toy()
    return LatencyProfiler(space, latency_estimator=_resident(space))


@pytest.fixture(scope="module")
def fbnet():
    """Profile the full space, 22 layers of 9 choices."""
    space, draw = FBNetSpace(), random.Random(0)
    searched = {label: {choice: draw.uniform(1e-4, 2e-3) for choice in CANDIDATES} for label in space.simplify()}
    latencies = {"stem": {"conv": 5e-4}, **searched, "head": {"1504": 7e-4}}
    return LatencyProfiler(space, latency_estimator=_resident(space, latencies))


def test_profile_with_a_residency_is_the_sum_less_the_saving(toy):
    assert [toy.profile(sample) for sample in _NETWORKS] == pytest.approx([_latency(sample) for sample in _NETWORKS])


def test_profile_with_a_residency_is_what_nni_makes_of_the_expression(toy):
    evaluated = [toy.expression.evaluate(sample) for sample in _NETWORKS]
    assert evaluated == pytest.approx([toy.profile(sample) for sample in _NETWORKS], rel=1e-12)


def test_expectation_of_nni_with_a_residency_does_not_go_through_every_network(fbnet):
    """Over all of 9 ** 22 networks it would never end; term by term it is the sum of the means, without the saving."""
    even = {label: [1 / 9] * 9 for label in fbnet.cost.costs}
    expected = fbnet.cost.constant + sum(column.mean() for column in fbnet.cost.columns)
    assert expression_expectation(fbnet.expression, even) == pytest.approx(expected)


def test_range_filter_of_nni_sees_the_saving(toy):
    sample = {"a": "z", "b": "x", "c": "y"}
    keep = RangeProfilerFilter(toy, max=2.9e-3)
    # The parts add up to 3 ms; with what it saves it takes 2.6 ms.
    assert _latency(sample) < 2.9e-3 < 3e-3
    assert keep(sample)


@pytest.mark.parametrize("metric", ["throughput", "activation_memory"])
def test_expression_of_a_metric_that_is_no_sum_is_what_is_profiled(metric):
    space = Toy()
    profiler = LatencyProfiler(space, latency_estimator=LookupTable.from_latencies(space, LATENCIES, metric=metric))
    evaluated = [profiler.expression.evaluate(sample) for sample in _NETWORKS]
    assert evaluated == pytest.approx([profiler.profile(sample) for sample in _NETWORKS])


@pytest.mark.parametrize("metric", ["throughput", "activation_memory", "peak_memory"])
def test_expected_cost_of_what_is_no_sum_is_refused(metric):
    with pytest.raises(
        InvalidValueError,
        match=rf"^{with_article(metric).capitalize()} is not a sum over layers, so it has no expected cost",
    ):
        ExpectedCost(AdditiveCost(0.0, {"a": {"x": 1.0, "y": 2.0}}, metric))


def test_search_by_a_metric_that_is_no_sum_is_refused(tmp_path):
    space = seeded(Toy)
    table = LookupTable.from_latencies(space, LATENCIES, metric="activation_memory")
    strategy = FBNet(table, target=3e-3)
    with pytest.raises(InvalidValueError, match=r"^An activation_memory is not a sum over layers"):
        strategy.mutate_model(space)
        strategy.configure_oneshot_module(evaluator_for(1, tmp_path).module)


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    space = seeded(Toy)
    return module_of(space, FBNet(_resident(space), target=5e-3), tmp_path_factory.mktemp("trainer"))


_CHEAPEST = min(map(_latency, _NETWORKS))


@given(st.floats(_CHEAPEST, 1e-2), SCORES)
def test_export_with_a_residency_never_exceeds_the_target(module, target, scores):
    assert _latency(with_scores(module, target, scores).export()) <= target * (1 + 1e-9)


def test_export_with_a_residency_takes_what_only_the_saving_lets_fit(module):
    scores = ([5.0, 0.0, 0.0], [5.0, 0.0], [0.0, 5.0, 0.0, 0.0])
    # a:x, b:x and c:y add up to 4 ms, and take 3.56 ms.
    assert with_scores(module, 3.7e-3, scores).export() == {"a": "x", "b": "x", "c": "y"}
