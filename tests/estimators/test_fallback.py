# SPDX-License-Identifier: Apache-2.0
"""A table with another estimator behind it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from whole_network import WholeNetwork

from nni_latency.errors import InvalidValueError, MismatchError, MissingEntryError
from nni_latency.estimators import (
    Estimate,
    FallbackEstimator,
    LayerEstimator,
    NetworkFallback,
    TableEstimator,
    estimate_layers,
    estimate_selection,
    with_fallback,
)
from nni_latency.nas import LatencyProfiler
from nni_latency.operators import features_of
from nni_latency.platforms import Platform
from nni_latency.spaces import FBNetSpace
from nni_latency.tables import Entry, LookupTable, TableLayer, subset_table

TINY = {"num_classes": 10, "input_size": 32, "width": 0.25, "depth": 0.25}
PI = Platform("pi")
_WHOLE = WholeNetwork(0.25, low=0.8, high=1.2)


class _Work(LayerEstimator):
    """Costs an operator by its multiply-adds."""

    metric = "latency"

    def __init__(self, rate=1e9, platform=PI, calibration=1.0):
        self.rate, self.platform, self.calibration = rate, platform, calibration

    def estimate_op(self, op):
        seconds = (features_of(op).macs + 1e4) / self.rate
        return Estimate(seconds, seconds, seconds)


@pytest.fixture(scope="module")
def space():
    return FBNetSpace(**TINY)


@pytest.fixture(scope="module")
def plan(space):
    return space.measure_plan()


@pytest.fixture(scope="module")
def table(plan):
    """Costs twice what `_Work` says, give or take a tenth."""
    work, layers = _Work(), []
    for layer in plan.layers:
        entries = {}
        for index, (choice, candidate) in enumerate(layer.candidates.items()):
            value = work.estimate_op(candidate.op).value * 2 * (1 + 0.05 * (index % 5 - 2))
            entries[choice] = Entry(value, value * 0.99, value * 1.01, 9, 0, candidate.op)
        layers.append(TableLayer(layer.name, tuple(layer.candidates), entries, layer.searched, layer.default))
    return LookupTable(
        space=plan.space, platform=PI, layers=tuple(layers), input_shape=plan.input_shape, calibration=1.25
    )


@pytest.fixture(scope="module")
def holes(table):
    return subset_table(table, choices=["k3_e1", "k3_e6", "k5_e3"])


def test_what_the_table_knows_comes_from_it(plan, table, holes):
    both = FallbackEstimator(holes, _Work())
    for layer in plan.searched:
        op = layer.candidates["k3_e6"].op
        found = both.estimate_choice(layer.name, "k3_e6", op)
        assert found == TableEstimator(table).estimate_choice(layer.name, "k3_e6", op)
        assert found.missing == ()


def test_what_it_lacks_comes_from_the_other_scaled_named_and_wider(plan, table, holes):
    both = FallbackEstimator(holes, _Work())
    # Of three candidates in seven layers, stem and head, some compute the same.
    assert both.agreement.n == 20
    op = plan.layers[2].candidates["k5_e6"].op
    found = both.estimate_choice("layer1", "k5_e6", op)
    truth = table["layer1"]["k5_e6"].value
    assert found.missing == ("layer1:k5_e6",)
    assert found.low <= truth <= found.high
    assert found.value == pytest.approx(truth, rel=0.15)
    assert (found.high - found.low) / found.value > 0.1


def test_without_scaling_the_interval_holds_the_bias(plan, holes):
    op = plan.layers[2].candidates["k5_e6"].op
    plain = FallbackEstimator(holes, _Work(), adapt=False).estimate_choice("layer1", "k5_e6", op)
    assert plain.value == pytest.approx(_Work().estimate_op(op).value / 1.25)
    assert plain.high > 2 * plain.value


def test_the_calibration_of_the_other_counts(plan, holes):
    op = plan.layers[2].candidates["k5_e6"].op
    one, other = (
        FallbackEstimator(holes, _Work(calibration=c), adapt=False).estimate_choice("layer1", "k5_e6", op)
        for c in (1.0, 3.0)
    )
    assert other.value == pytest.approx(3 * one.value)


def test_a_whole_network_tells_the_difference(plan, table, holes):
    both = FallbackEstimator(holes, _Work())
    known = {layer.name: layer.default or "k3_e6" for layer in plan.layers}
    inside = estimate_selection(both, plan, known)
    assert inside == estimate_selection(TableEstimator(table), plan, known)
    partly = estimate_selection(both, plan, {**known, "layer2": "k5_e6"})
    assert partly.missing == ("layer2:k5_e6",)
    assert (partly.high - partly.low) / partly.value > 2 * (inside.high - inside.low) / inside.value
    shares = estimate_layers(both, plan, {**known, "layer2": "k5_e6"})
    assert sum(share.estimate.value for share in shares) == pytest.approx(partly.value)


def test_a_fixed_layer_without_entries_comes_from_the_other(plan, table):
    bare = replace(
        table, layers=tuple(layer if layer.searched else replace(layer, entries={}) for layer in table.layers)
    )
    known = {layer.name: layer.default or "k3_e6" for layer in plan.layers}
    found = estimate_selection(FallbackEstimator(bare, _Work()), plan, known)
    assert found.missing == ("stem:conv", "head:1504")
    assert found.value == pytest.approx(estimate_selection(TableEstimator(table), plan, known).value, rel=0.1)


def test_it_adds_up_in_a_profiler(space, table, holes):
    both = FallbackEstimator(TableEstimator(holes, missing="nearest"), _Work())
    profiler = LatencyProfiler(space, space.example_inputs(), latency_estimator=both)
    assert len(profiler.cost.missing) == 7 * 6
    exact = LatencyProfiler(space, space.example_inputs(), latency_estimator=table)
    sample = dict.fromkeys(space.simplify(), "k5_e3")
    assert profiler.profile(sample) == pytest.approx(exact.profile(sample))
    sample["layer0"] = "k5_e6"
    assert profiler.profile(sample) == pytest.approx(exact.profile(sample), rel=0.1)


def test_a_network_that_the_table_does_not_know_comes_whole_from_the_other(space, holes):
    both = with_fallback(holes, _WHOLE)
    assert isinstance(both, NetworkFallback)
    known = space.freeze(dict.fromkeys(space.simplify(), "k3_e6"))
    assert both.estimate(known, space.example_inputs()).missing == ()
    strange = both.estimate(space.freeze(dict.fromkeys(space.simplify(), "k5_e6")), space.example_inputs())
    assert (strange.value, strange.missing) == (0.25, ("network",))


def test_another_platform_stands_in_only_where_that_was_said(plan, holes):
    far = _Work(rate=5e6, platform=Platform("roofline", "analytic"))
    with pytest.raises(MismatchError, match=r"mix two platforms .* say so with across_platforms=True"):
        FallbackEstimator(holes, far)
    near, scaled = FallbackEstimator(holes, _Work()), FallbackEstimator(holes, far, across_platforms=True, adapt=False)
    op = plan.layers[2].candidates["k5_e6"].op
    assert scaled.estimate_op(op).value == pytest.approx(near.estimate_op(op).value)
    few = subset_table(holes, layers=["layer0"])
    with pytest.raises(InvalidValueError, match=r"at least 8 operators that both know. .* share 5"):
        FallbackEstimator(few, far, across_platforms=True)


def test_a_table_of_another_space_is_refused(holes):
    with pytest.raises(MismatchError, match="another space"):
        LatencyProfiler(FBNetSpace(**{**TINY, "width": 0.5}), latency_estimator=FallbackEstimator(holes, _Work()))


def test_what_neither_knows_is_missing(plan, holes):
    both = FallbackEstimator(holes, TableEstimator(holes))
    with pytest.raises(MissingEntryError, match="no entry for 'layer1': k5_e6"):
        both.estimate_choice("layer1", "k5_e6", plan.layers[2].candidates["k5_e6"].op)


@pytest.mark.parametrize(
    ("first", "second", "complaint"),
    [
        (_Work(), _Work(), "first of a fallback must be a table. Got _Work"),
        (None, _WHOLE, "must be layer-based; NetworkFallback takes"),
        (None, "table.json", "must be layer-based.*Got str"),
    ],
)
def test_what_can_not_be_combined_is_refused(holes, first, second, complaint):
    with pytest.raises(InvalidValueError, match=complaint):
        FallbackEstimator(first or holes, second)


def test_another_metric_is_refused(holes):
    energy = _Work()
    energy.metric = "energy"
    with pytest.raises(MismatchError, match="estimator of energy cannot stand in for one of latency"):
        FallbackEstimator(holes, energy)
