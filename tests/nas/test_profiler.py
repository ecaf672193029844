# SPDX-License-Identifier: Apache-2.0
"""`LatencyProfiler`: what NNI asks a profiler for."""

from __future__ import annotations

import random
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from toys import LATENCIES, Fixed, Listed, Toy, profiler_of, table_of

from nni_latency.errors import InvalidValueError, MismatchError, MissingEntryError, UnknownNameError
from nni_latency.estimators import Estimate, LayerEstimator
from nni_latency.imports import quiet_nni
from nni_latency.nas import LatencyProfiler
from nni_latency.operators import features_of
from nni_latency.platforms import Platform
from nni_latency.spaces import CANDIDATES, FBNetSpace, choices_of
from nni_latency.tables import LookupTable

with quiet_nni():
    import nni
    from nni.nas.nn.pytorch import InputChoice, ModelSpace, MutableLinear
    from nni.nas.oneshot.pytorch.profiler import (
        ExpectationProfilerPenalty,
        RangeProfilerFilter,
        SampleProfilerPenalty,
    )
    from nni.nas.profiler import ExpressionProfiler


class ByMacs(LayerEstimator):
    """A microsecond for each thousand multiply-adds, and one for every operator; not a table."""

    metric = "latency"
    platform = Platform("paper")
    calibration = 1.5

    def estimate_op(self, op):
        seconds = 1e-6 + features_of(op).macs * 1e-9
        return Estimate(seconds, seconds, seconds)


@pytest.fixture(scope="module")
def fbnet():
    return FBNetSpace(depth=0.25)


@pytest.fixture(scope="module")
def fbnet_latencies(fbnet):
    draw = random.Random(0)
    searched = {label: {choice: draw.uniform(1e-4, 3e-3) for choice in CANDIDATES} for label in fbnet.simplify()}
    return {"stem": {"conv": 5e-4}, **searched, "head": {"1504": 7e-4}}


@pytest.fixture(scope="module")
def fbnet_profiler(fbnet, fbnet_latencies):
    return LatencyProfiler(fbnet, latency_estimator=LookupTable.from_latencies(fbnet, fbnet_latencies))


_indices = st.lists(st.integers(0, 8), min_size=7, max_size=7)


@given(_indices)
def test_profile_is_the_sum_of_the_table(fbnet_profiler, fbnet_latencies, indices):
    sample = {f"layer{n}": CANDIDATES[index] for n, index in enumerate(indices)}
    expected = 5e-4 + 7e-4 + sum(fbnet_latencies[label][name] for label, name in sample.items())
    assert fbnet_profiler.profile(sample) == pytest.approx(expected, rel=1e-12)


@given(_indices)
def test_profile_is_what_nni_makes_of_the_expression(fbnet_profiler, indices):
    sample = {f"layer{n}": CANDIDATES[index] for n, index in enumerate(indices)}
    assert fbnet_profiler.expression.evaluate(sample) == pytest.approx(fbnet_profiler.profile(sample), rel=1e-12)


def test_profile_and_expression_take_the_indices_of_listed_candidates():
    profiler = profiler_of(Listed(), {"first": {0: 1e-3, 1: 2e-3, 2: 4e-3}, "second": {0: 1e-4, 1: 3e-4}})
    assert isinstance(profiler, ExpressionProfiler)
    for cost in (profiler.profile, profiler.expression.evaluate):
        assert cost({"first": 2, "second": 1}) == pytest.approx(4.3e-3)


def test_profile_takes_value_choices():
    class Wide(ModelSpace):
        def __init__(self):
            super().__init__()
            self.layer = MutableLinear(8, nni.choice("width", [4, 16]))

    profiler = profiler_of(Wide(), {"width": {4: 1e-3, 16: 3e-3}})
    assert profiler.profile({"width": 16}) == pytest.approx(3e-3)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"a": "x"}, r"The sample has no choice for 'b'"),
        ({"a": "x", "b": "z", "c": "x"}, r"The choice of 'b' must be one of x, y\. Got 'z'"),
    ],
)
def test_profile_names_a_wrong_choice(sample, message):
    with pytest.raises(MissingEntryError, match=message):
        profiler_of(Toy()).profile(sample)


def test_range_filter_of_nni_keeps_what_is_fast_enough():
    keep = RangeProfilerFilter(profiler_of(Toy()), max=4e-3)
    assert keep({"a": "z", "b": "x", "c": "w"})
    assert not keep({"a": "y", "b": "x", "c": "w"})


def test_sample_penalty_of_nni_takes_it():
    penalty = SampleProfilerPenalty(profiler_of(Toy()), baseline=3e-3, scale=2.0)
    loss, _ = penalty(torch.tensor(1.0), {"a": "x", "b": "y", "c": "w"})
    assert float(loss) == pytest.approx(1 + 2.0 * (6e-3 / 3e-3 - 1))


def test_expectation_penalty_of_nni_takes_it():
    penalty = ExpectationProfilerPenalty(profiler_of(Toy()), baseline=3e-3)
    even = {label: {choice: 1 / len(row) for choice in row} for label, row in LATENCIES.items()}
    assert penalty.profile(even) == pytest.approx(2e-3 + 1.5e-3 + 2.5e-3)


@pytest.mark.parametrize(
    ("space", "inputs", "message"),
    [
        (FBNetSpace(depth=0.25, width=0.5), None, r"another space than asked \(width=1\.0 against width=0\.5\)"),
        (FBNetSpace(depth=0.25), torch.zeros(4, 3, 224, 224), r"measured with batch size 1, not with 4"),
        (
            FBNetSpace(depth=0.25),
            torch.zeros(1, 3, 32, 32),
            r"32\), the space is made for \(1, 3, 224, 224\)",
        ),
    ],
    ids=["space", "batch size", "size"],
)
def test_profiler_refuses_a_table_of_another_space_or_input(space, inputs, message, fbnet, fbnet_latencies):
    table = LookupTable.from_latencies(fbnet, fbnet_latencies)
    with pytest.raises(MismatchError, match=message):
        LatencyProfiler(space, inputs, latency_estimator=table)


@pytest.mark.parametrize(
    ("space", "inputs", "table", "message"),
    [
        (Listed(), None, table_of(Toy()), r"another space than asked: toys:Toy\(\) against toys:Listed\(\)"),
        (Toy(), torch.zeros(8, 8), table_of(Toy()), r"measured with batch size 1, not with 8"),
        (
            Listed(),
            None,
            LookupTable.from_latencies({"first": ["other"]}, {"first": {"other": 1e-3}}),
            r"other choices than the space for .*first",
        ),
    ],
    ids=["class", "batch size", "choices"],
)
def test_profiler_refuses_another_table_for_a_space_without_a_plan(space, inputs, table, message):
    with pytest.raises(MismatchError, match=message):
        LatencyProfiler(space, inputs, latency_estimator=table)


def test_profiler_names_missing_candidates():
    latencies = {**LATENCIES, "c": {"x": 4e-3, "y": 1e-3}}
    with pytest.raises(MissingEntryError, match=r"lacks 2 candidates: c:z, c:w"):
        profiler_of(Toy(), latencies)


def test_profiler_lists_what_it_took_from_the_nearest_entry():
    latencies = {**LATENCIES, "c": {"x": 4e-3, "y": 1e-3}}
    space = Toy()
    profiler = LatencyProfiler(space, latency_estimator=table_of(space, latencies), missing="nearest")
    assert profiler.cost.missing == ("c:z", "c:w")
    assert profiler.cost.costs["c"]["z"] in (4e-3, 1e-3)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Fixed(), r"The space Fixed has no choices: there is nothing to search"),
        (nn.Linear(2, 2), r"must be an NNI model space\. Got Linear"),
    ],
)
def test_profiler_refuses_a_space_without_choices(space, message):
    with pytest.raises(InvalidValueError, match=message):
        LatencyProfiler(space, latency_estimator=table_of(Toy()))


def test_profiler_refuses_a_choice_of_several_inputs():
    class Several(ModelSpace):
        def __init__(self):
            super().__init__()
            self.inputs = InputChoice(n_candidates=2, n_chosen=1, label="inputs")

    table = LookupTable.from_latencies({"inputs": [0, 1]}, {"inputs": {0: 1e-3, 1: 1e-3}})
    with pytest.raises(InvalidValueError, match=r"The label 'inputs' is not a choice among values but a Categorical"):
        LatencyProfiler(Several(), latency_estimator=table)


@pytest.mark.parametrize("wrong", [None, 3, object(), {"a": 1}], ids=["None", "int", "object", "dict"])
def test_profiler_refuses_an_estimator_of_a_wrong_type(wrong):
    message = rf"'latency_estimator' must be an Estimator.*Got {type(wrong).__name__}"
    with pytest.raises(InvalidValueError, match=message):
        LatencyProfiler(Toy(), latency_estimator=wrong)


def test_profiler_takes_the_path_of_a_table_and_names_an_unknown_estimator(tmp_path):
    space = Toy()
    profiler = LatencyProfiler(space, latency_estimator=table_of(space).save(tmp_path / "table.json"))
    assert profiler.profile({"a": "z", "b": "x", "c": "y"}) == pytest.approx(3e-3)
    with pytest.raises(UnknownNameError, match=r"Unknown estimator 'crystal-ball'\. Available:"):
        LatencyProfiler(Toy(), latency_estimator="crystal-ball")


def test_profiler_takes_other_metrics():
    space = Toy()
    profiler = LatencyProfiler(space, latency_estimator=LookupTable.from_latencies(space, LATENCIES, metric="energy"))
    assert profiler.cost.metric == "energy"
    assert profiler.profile({"a": "x", "b": "y", "c": "w"}) == pytest.approx(6e-3)


def test_profiler_sums_up_a_layer_estimator(fbnet):
    profiler = LatencyProfiler(fbnet, latency_estimator=ByMacs())
    plan = fbnet.measure_plan()
    sample = {f"layer{n}": CANDIDATES[n] for n in range(7)}
    ops = [layer.candidates[sample.get(layer.name, layer.default)].op for layer in plan.layers]
    expected = 1.5 * sum(1e-6 + features_of(op).macs * 1e-9 for op in ops)
    assert profiler.profile(sample) == pytest.approx(expected)


def test_profiler_costs_the_operators_of_a_space_without_a_plan():
    space = Toy()
    profiler = LatencyProfiler(space, torch.zeros(1, 8), latency_estimator=ByMacs())
    sample = {label: choices[0] for label, choices in choices_of(space).items()}
    with torch.device("meta"):
        network = space.freeze(dict(sample))
    assert profiler.profile(sample) == pytest.approx(ByMacs().estimate(network, torch.zeros(1, 8)).value, rel=1e-12)
    assert profiler.expression.evaluate(sample) == profiler.profile(sample)


def test_frozen_model_costs_what_its_sample_does():
    space = FBNetSpace(depth=0.25)
    profiler = LatencyProfiler(space, space.example_inputs(), latency_estimator=ByMacs())
    sample = dict.fromkeys(space.simplify(), "k3_e1")
    assert profiler.profile(space.freeze(sample)) == pytest.approx(profiler.profile(sample), rel=1e-6)
    assert profiler.profile(space.random()) > 0


def test_model_of_a_strategy_costs_what_its_sample_does():
    space = Toy()
    profiler = profiler_of(space)

    class Frozen:
        sample: ClassVar = {"a": "x", "b": "y", "c": "z"}

    assert profiler.profile(Frozen()) == profiler.profile(Frozen.sample)


def test_whole_space_is_no_network():
    space = FBNetSpace(depth=0.25)
    profiler = LatencyProfiler(space, space.example_inputs(), latency_estimator=ByMacs())
    with pytest.raises(InvalidValueError, match="FBNetSpace is a whole space, not a network of it"):
        profiler.profile(space)
