# SPDX-License-Identifier: Apache-2.0
"""Estimators that answer together."""

from __future__ import annotations

import pytest
from whole_network import WholeNetwork

from nni_latency.errors import InvalidValueError, MismatchError, MissingEntryError
from nni_latency.estimators import (
    LayerEnsemble,
    NetworkEnsemble,
    TableEstimator,
    estimate_selection,
    make_ensemble,
)
from nni_latency.nas import LatencyProfiler
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.spaces import FBNetSpace
from nni_latency.tables import Entry, LookupTable, Residency, TableLayer, scale_table, subset_table

TINY = {"num_classes": 10, "input_size": 32, "width": 0.25, "depth": 0.25}
PI = Platform("pi")


def _whole(value):
    return WholeNetwork(value, low=0.9, high=1.2)


@pytest.fixture(scope="module")
def space():
    return FBNetSpace(**TINY)


@pytest.fixture(scope="module")
def plan(space):
    return space.measure_plan()


def _make(plan, metric="latency", residency=None):
    layers = tuple(
        TableLayer(
            layer.name,
            tuple(layer.candidates),
            {
                choice: Entry(v := 1e-3 * (place + 1) * (index + 2), 0.95 * v, 1.1 * v, 4, 0, candidate.op)
                for index, (choice, candidate) in enumerate(layer.candidates.items())
            },
            layer.searched,
            layer.default,
        )
        for place, layer in enumerate(plan.layers)
    )
    return LookupTable(
        space=plan.space,
        platform=PI,
        layers=layers,
        input_shape=plan.input_shape,
        metric=metric,
        calibration=1.2,
        residency=residency,
    )


@pytest.fixture(scope="module")
def table(plan):
    return _make(plan)


@pytest.fixture
def networks(plan):
    names = ("k3_e1", "k3_e6", "k5_e3", "skip")
    return [{layer.name: layer.default or name for layer in plan.layers} for name in names]


@pytest.mark.parametrize("metric", ["latency", "energy"])
def test_a_sum_is_the_weighted_mean(space, plan, networks, metric):
    first = _make(plan, metric)
    members = [TableEstimator(first), TableEstimator(scale_table(first, 3))]
    both = LayerEnsemble(members=members, weights=[3, 1])
    profiler = LatencyProfiler(space, space.example_inputs(), latency_estimator=both)
    for network in networks:
        found = estimate_selection(both, plan, network)
        one = estimate_selection(members[0], plan, network)
        assert found.value == pytest.approx(1.5 * one.value)
        assert found.low < one.value < found.high
        assert found.missing == ()
        sample = {layer.name: network[layer.name] for layer in plan.searched}
        assert profiler.profile(sample) == pytest.approx(found.value)


@pytest.mark.parametrize("metric", ["throughput", "activation_memory"])
def test_members_that_agree_answer_as_one(plan, networks, metric):
    member = TableEstimator(_make(plan, metric))
    both = LayerEnsemble(members=[member, member])
    for network in networks:
        found, one = (estimate_selection(item, plan, network) for item in (both, member))
        assert (found.value, found.low, found.high) == pytest.approx((one.value, one.low, one.high))


def test_what_small_networks_save_is_kept(plan, networks):
    member = TableEstimator(_make(plan, residency=Residency(0.4, 0.01)))
    both = LayerEnsemble(members=[member, member])
    assert both.residency.saving == pytest.approx(0.4)
    value = estimate_selection(both, plan, networks[0]).value
    assert value == pytest.approx(estimate_selection(member, plan, networks[0]).value)
    half = LayerEnsemble(members=[member, TableEstimator(_make(plan))])
    assert (half.residency.saving, half.residency.scale) == pytest.approx((0.2, 0.01))


def test_members_far_apart_make_a_wide_interval(plan, table, networks):
    near, far = (
        LayerEnsemble(members=[TableEstimator(table), TableEstimator(scale_table(table, factor))])
        for factor in (1.01, 2)
    )
    wide = [estimate_selection(item, plan, networks[0]) for item in (near, far)]
    assert (wide[1].high - wide[1].low) / wide[1].value > 2 * (wide[0].high - wide[0].low) / wide[0].value


def test_a_member_that_lacks_a_part_is_made_up_for_and_named(plan, table, networks):
    holes = TableEstimator(subset_table(scale_table(table, 2), choices=["k3_e1"]))
    both = LayerEnsemble(members=[TableEstimator(table), holes])
    op = plan.layers[1].candidates["skip"].op
    found = both.estimate_choice("layer0", "skip", op)
    assert (found.value, found.missing) == (pytest.approx(1.2 * table["layer0"]["skip"].value), ("layer0:skip",))
    assert len(estimate_selection(both, plan, networks[3]).missing) == 7
    with pytest.raises(MissingEntryError, match="No member of the ensemble knows layer0:skip"):
        LayerEnsemble(members=[holes, holes]).estimate_choice("layer0", "skip", op)


def test_weights_are_those_of_the_errors(plan, table, networks):
    members = [TableEstimator(scale_table(table, factor)) for factor in (1.02, 1.2)]
    truth = [estimate_selection(TableEstimator(table), plan, network).value for network in networks]
    both = LayerEnsemble(members=members).fit(plan, networks, truth)
    assert both.weights_[0] > 0.98
    assert both.errors_ == pytest.approx((0.0198, 0.1823), rel=0.01)
    for network, value in zip(networks, truth, strict=True):
        found = estimate_selection(both, plan, network)
        assert found.value == pytest.approx(value, rel=0.03)
        assert found.low <= value <= found.high


def test_whole_networks_are_averaged_too(space, plan, table, networks):
    both = make_ensemble([TableEstimator(table), _whole(0.2)], [1, 3])
    assert isinstance(both, NetworkEnsemble)
    model = space.freeze(dict.fromkeys(space.simplify(), "k3_e1"))
    one = TableEstimator(table).estimate(model, space.example_inputs()).value
    assert both.estimate(model, space.example_inputs()).value == pytest.approx(0.25 * one + 0.15)
    silent = make_ensemble([TableEstimator(subset_table(table, choices=["skip"])), _whole(0.2)])
    found = silent.estimate(model, space.example_inputs())
    assert found.value == pytest.approx(0.2)
    assert "TableEstimator" in found.missing[0]


@pytest.mark.parametrize(
    ("measured", "complaint"),
    [
        ([0.1, 0.2], "at least 3 networks.*Got 4 networks and measurements of shape"),
        ([0.1, 0.2, float("nan"), 0], r"Those at \[2, 3\] are not"),
        ([1e5, 2e5, 3e5, 4e5], "times above what the members say. Are they in another unit"),
    ],
)
def test_measurements_that_are_none_are_refused(plan, table, networks, measured, complaint):
    with pytest.raises(InvalidValueError, match=complaint):
        make_ensemble([TableEstimator(table)] * 2).fit(plan, networks, measured)


def test_two_measurements_are_too_few(plan, table, networks):
    with pytest.raises(InvalidValueError, match=r"at least 3 networks, with one measurement each. Got 2 networks"):
        make_ensemble([TableEstimator(table)] * 2).fit(plan, networks[:2], [0.1, 0.2])


@pytest.mark.parametrize("weights", [[1], [1, -1], [0, 0], [0, 0, 1], [float("nan"), 1], [float("inf"), 1]])
def test_weights_that_are_none_are_refused(table, weights):
    with pytest.raises(InvalidValueError, match="'weights' of an ensemble must be 2 numbers >= 0"):
        make_ensemble([TableEstimator(table)] * 2, weights)


def test_members_that_do_not_fit_are_refused(plan, table):
    with pytest.raises(InvalidValueError, match=r"at least two members. Got 1"):
        make_ensemble([TableEstimator(table)])
    with pytest.raises(InvalidValueError, match=r"must be Estimators. Got str"):
        make_ensemble([TableEstimator(table), "table.json"])
    with pytest.raises(InvalidValueError, match="must be layer-based"):
        LayerEnsemble(members=[TableEstimator(table), _whole(1)])
    with pytest.raises(MismatchError, match="cannot mix latency and energy"):
        make_ensemble([TableEstimator(table), TableEstimator(_make(plan, "energy"))])
    far = _whole(1.0)
    far.platform = Platform("pixel")
    with pytest.raises(MismatchError, match="mix two platforms"):
        make_ensemble([TableEstimator(table), far])


def test_an_operator_that_only_one_knows(table):
    strange = OpSpec.of("relu", [(1, 2)])
    with pytest.raises(MissingEntryError, match="No member of the ensemble knows relu"):
        make_ensemble([TableEstimator(table)] * 2).estimate_op(strange)
