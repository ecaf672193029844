# SPDX-License-Identifier: Apache-2.0
"""A table as an estimator."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nni_latency.errors import InvalidValueError, MismatchError, MissingEntryError
from nni_latency.estimators import TableEstimator
from nni_latency.loading import load_estimator
from nni_latency.measurement import Protocol
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.spaces import FBNetSpace
from nni_latency.tables import Entry, LookupTable, SpaceReference, TableLayer, build_table
from nni_latency.testing import FakeRuntime

_SPACE = {"a": ["x", "y"], "b": ["x", "z", "w"]}
_FULL = LookupTable.from_latencies(_SPACE, {"a": {"x": 1.0, "y": 2.0}, "b": {"x": 3.0, "z": 4.0, "w": 8.0}})
_GAPS = LookupTable.from_latencies(_SPACE, {"a": {"x": 1.0, "y": 2.0}, "b": {"z": 4.0, "w": 8.0}})


def _seconds(op):
    """Make up a time that every operator has to itself."""
    return 1e-6 * (1 + sum(map(ord, op.op_key)) % 997)


@pytest.fixture(scope="module")
def space():
    return FBNetSpace(num_classes=4, input_size=16, width=0.5, depth=0.25)


@pytest.fixture(scope="module")
def fbnet_table(space, tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "fbnet.json"
    protocol = Protocol(n_warmup=0, rounds=1, time_budget=1e9)
    return build_table(space.measure_plan(), FakeRuntime(_seconds), protocol, path)


def _scaled(table, factor):
    def scale(entry):
        return Entry(factor * entry.value, factor * entry.low, factor * entry.high, op=entry.op)

    layers = tuple(
        dataclasses.replace(layer, entries={choice: scale(entry) for choice, entry in layer.entries.items()})
        for layer in table.layers
    )
    return dataclasses.replace(table, layers=layers)


@st.composite
def _costed(draw):
    """Make a table of invented costs with a calibration and a fixed layer, and one of its networks."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    values = st.floats(1e-6, 1e3)
    layers = []
    for number, size in enumerate(sizes):
        entries = {}
        for choice in range(size):
            low, value, high = sorted(draw(st.tuples(values, values, values)))
            entries[f"c{choice}"] = Entry(value, low, high)
        layers.append(TableLayer(f"layer{number}", tuple(entries), entries))
    value = draw(values)
    fixed = TableLayer("stem", ("conv",), {"conv": Entry(value, value, value)}, searched=False, default="conv")
    table = LookupTable(
        space=SpaceReference("fake"),
        platform=Platform("pi"),
        layers=(fixed, *layers),
        input_shape=(1,),
        calibration=draw(st.floats(0.5, 2.0)),
    )
    return table, [draw(st.integers(0, size - 1)) for size in sizes]


@given(_costed())
def test_predict_is_the_calibrated_sum_of_entries(case):
    table, network = case
    entries = [table["stem"]["conv"].value]
    entries += [list(layer.entries.values())[index].value for layer, index in zip(table.searched, network, strict=True)]
    assert TableEstimator(table).predict([network])[0] == pytest.approx(table.calibration * sum(entries))


@given(_costed())
def test_estimate_sample_is_predict(case):
    table, network = case
    estimator = TableEstimator(table)
    assert estimator.estimate_sample(network).value == pytest.approx(estimator.predict([network])[0])


@given(_costed())
def test_estimate_sample_takes_names_as_well_as_indices(case):
    table, network = case
    estimator = TableEstimator(table)
    sample = {layer.name: f"c{index}" for layer, index in zip(table.searched, network, strict=True)}
    assert estimator.estimate_sample(sample) == estimator.estimate_sample(network)
    assert estimator.cost(sample) == pytest.approx(estimator.estimate_sample(sample).value)


@given(_costed())
def test_breakdown_adds_up_to_the_whole(case):
    table, network = case
    parts = TableEstimator(table).breakdown(network)
    assert [part.name for part in parts] == [layer.name for layer in table.layers]
    assert sum(part.share for part in parts) == pytest.approx(1.0)
    whole = TableEstimator(table).estimate_sample(network)
    assert sum(part.estimate.value for part in parts) == pytest.approx(whole.value)


@given(_costed(), st.sampled_from([0.25, 2.0, 1024.0]))
def test_estimates_scale_with_the_unit(case, factor):
    table, network = case
    one = TableEstimator(table).estimate_sample(network)
    other = TableEstimator(_scaled(table, factor)).estimate_sample(network)
    assert (other.value, other.low, other.high) == pytest.approx(
        (factor * one.value, factor * one.low, factor * one.high)
    )


@given(_costed())
def test_interval_encloses_the_estimate(case):
    table, network = case
    answer = TableEstimator(table).estimate_sample(network)
    assert 0 <= answer.low <= answer.value <= answer.high


@pytest.mark.slow
@settings(max_examples=10)
@given(st.data())
def test_estimate_of_a_frozen_network_is_that_of_its_sample(space, fbnet_table, data):
    choices = {layer.name: data.draw(st.sampled_from(layer.choices)) for layer in fbnet_table.searched}
    estimator = TableEstimator(fbnet_table)
    answer = estimator.estimate(space.freeze(choices), space.example_inputs())
    assert answer == estimator.estimate_sample(choices)


def test_estimate_op_is_the_mean_of_equal_operators_in_different_places():
    op = OpSpec.of("identity", [(1, 8)])
    layers = tuple(
        TableLayer(name, ("skip",), {"skip": Entry(value, value / 2, value * 2, op=op)})
        for name, value in {"a": 1.0, "b": 3.0}.items()
    )
    answer = TableEstimator(
        LookupTable(space=SpaceReference("s"), platform=Platform("pi"), layers=layers, input_shape=(1, 8))
    ).estimate_op(op)
    assert (answer.value, answer.low, answer.high) == (2.0, 1.0, 4.0)


def test_estimate_costs_equal_operators_by_their_own_layer():
    op = OpSpec.of("relu", [(1, 8)])
    layers = tuple(
        TableLayer(name, ("relu",), {"relu": Entry(value, value, value, op=op)})
        for name, value in {"a": 1.0, "b": 3.0}.items()
    )
    estimator = TableEstimator(
        LookupTable(space=SpaceReference("s"), platform=Platform("pi"), layers=layers, input_shape=(1, 8))
    )
    model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU())
    assert estimator.estimate(model, torch.zeros(1, 8)).value == 4.0


@pytest.mark.slow
def test_unknown_operator_is_named(fbnet_table):
    with pytest.raises(
        MissingEntryError, match=r"no entry for the operator relu\(\)@1x3x4x4:float32.*missing='nearest'"
    ):
        TableEstimator(fbnet_table).estimate(torch.nn.ReLU(), torch.zeros(1, 3, 4, 4))


def test_nearest_takes_the_most_alike_operator_and_lists_it(fbnet_table):
    known = fbnet_table["layer1"]["k3_e6"]
    unknown = OpSpec(known.op.kind, known.op.input_shapes, known.op.attributes).replace(out_channels=17)
    answer = TableEstimator(fbnet_table, missing="nearest").estimate_op(unknown)
    assert answer.value == known.value
    assert answer.missing == (unknown.op_key,)


def test_nearest_lists_what_it_took():
    estimator = TableEstimator(_GAPS, missing="nearest")
    assert estimator.estimate_sample({"a": "x", "b": "x"}).missing == ("b:x",)
    assert estimator.cost.missing == ("b:x",)


def test_missing_candidates_are_named():
    with pytest.raises(MissingEntryError, match=r"The table lacks 1 candidate: b:x\. Measure them"):
        TableEstimator(_GAPS).predict([[0, 1]])


def test_missing_candidate_of_a_sample_is_named():
    with pytest.raises(MissingEntryError, match=r"no entry for 'b': x"):
        TableEstimator(_GAPS).estimate_sample({"a": "x", "b": "x"})


def test_sample_without_the_gap_is_answered():
    assert TableEstimator(_GAPS).estimate_sample({"a": "x", "b": "w"}).value == 9.0


def test_nearest_of_an_unknown_operator_is_the_same_choice_of_the_nearest_layer():
    space = {label: ["x", "y"] for label in "abcd"}
    costs = {"a": {"x": 1.0, "y": 9.0}, "b": {"y": 8.0}, "c": {"y": 7.0}, "d": {"x": 3.0, "y": 6.0}}
    estimator = TableEstimator(LookupTable.from_latencies(space, costs), missing="nearest")
    assert estimator.cost.costs["b"]["x"] == 1.0
    assert estimator.cost.costs["c"]["x"] == 3.0
    assert estimator.cost.missing == ("b:x", "c:x")


def test_nearest_of_a_plan_is_the_operator_most_alike():
    space = FBNetSpace()
    costs = {
        label: {choice: 1e-6 if choice == "skip" else 1e-3 for choice in mutable.values}
        for label, mutable in space.simplify().items()
    }
    del costs["layer2"]["skip"]
    estimator = TableEstimator(LookupTable.from_latencies(space, costs), missing="nearest")
    assert estimator.cost_of_plan(space.measure_plan()).costs["layer2"]["skip"] == 1e-6


def test_layer_without_any_entry_has_no_nearest():
    table = LookupTable.from_latencies(_SPACE, {"a": {"x": 1.0, "y": 2.0}})
    with pytest.raises(MissingEntryError, match=r"no entry for 'b': z"):
        TableEstimator(table, missing="nearest").estimate_sample([0, 1])


def test_fixed_layers_that_a_table_made_by_hand_lacks_count_as_nothing_and_are_listed(space):
    costs = {label: dict.fromkeys(mutable.values, 1.0) for label, mutable in space.simplify().items()}
    table = LookupTable.from_latencies(space, costs)
    answer = TableEstimator(table).estimate_sample([0] * 7)
    assert (answer.value, answer.missing) == (7.0, ("stem", "head"))
    assert table.coverage < 1
    assert TableEstimator(table).cost_of_plan(space.measure_plan()).missing == ("stem", "head")


def test_default_head_alone_is_enough():
    space = FBNetSpace()
    costs = {label: dict.fromkeys(mutable.values, 1.0) for label, mutable in space.simplify().items()}
    table = LookupTable.from_latencies(space, {**costs, "stem": {"conv": 2.0}, "head": {"1504": 3.0}})
    assert TableEstimator(table).predict([[0] * 22]) == [27.0]
    assert TableEstimator(table).cost.missing == ()


def test_missing_must_be_one_of_three_words():
    with pytest.raises(InvalidValueError, match=r"must be one of 'error', 'nearest', 'predict'\. Got 'guess'"):
        TableEstimator(_FULL, missing="guess")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"a": "x"}, r"The sample has no choice for 'b'"),
        ({"a": "x", "b": "y"}, r"The choice of 'b' must be one of x, z, w\. Got 'y'"),
        ({"a": "x", "b": "x", "c": "x"}, r"labels that the table has not: c"),
        ([0], r"An architecture of this table has 2 layers\. Got 1"),
        ([0, 3], r"An index of 'b' must be in \[0, 2\]\. Got 3"),
        ([-1, 0], r"An index of 'a' must be in \[0, 1\]\. Got -1"),
    ],
)
def test_sample_of_another_space_is_refused(sample, message):
    with pytest.raises(InvalidValueError, match=message):
        TableEstimator(_FULL).estimate_sample(sample)


def test_sample_may_choose_a_fixed_layer():
    heads = {name: Entry(value, value, value) for name, value in {"small": 1.0, "large": 5.0}.items()}
    fixed = TableLayer("head", tuple(heads), heads, searched=False, default="small")
    estimator = TableEstimator(dataclasses.replace(_FULL, layers=(*_FULL.layers, fixed)))
    assert estimator.estimate_sample({"a": "x", "b": "x"}).value == 5.0
    assert estimator.estimate_sample({"a": "x", "b": "x", "head": "large"}).value == 9.0


def test_cost_of_its_own_plan_is_the_cost_of_the_table(space, fbnet_table):
    estimator = TableEstimator(fbnet_table)
    cost = estimator.cost_of_plan(space.measure_plan())
    assert (cost.constant, cost.costs) == (pytest.approx(estimator.cost.constant), estimator.cost.costs)


def test_cost_of_a_plan_with_other_classes_takes_the_nearest_head(fbnet_table):
    other = FBNetSpace(num_classes=7, input_size=16, width=0.5, depth=0.25)
    cost = TableEstimator(fbnet_table).cost_of_plan(other.measure_plan())
    assert cost.missing == ("head:1504",)


def test_plan_of_another_batch_size_is_refused_and_both_are_named(space, fbnet_table):
    with pytest.raises(MismatchError, match=r"measured with batch size 1, not with 8"):
        TableEstimator(fbnet_table).check_plan(space.measure_plan(8))


def test_plan_of_another_space_is_refused_and_both_are_named(fbnet_table):
    other = FBNetSpace(num_classes=4, input_size=32, width=1.0, depth=0.25)
    with pytest.raises(MismatchError, match=r"input_size=16 against input_size=32; width=0\.5 against width=1\.0"):
        TableEstimator(fbnet_table).check_plan(other.measure_plan())


def test_load_estimator_reads_what_was_saved(tmp_path):
    path = _GAPS.save(tmp_path / "t.json")
    estimator = load_estimator(path, missing="nearest")
    assert isinstance(estimator, TableEstimator)
    assert (estimator.table, estimator.missing) == (_GAPS, "nearest")


def test_repr_tells_space_metric_and_platform():
    assert repr(TableEstimator(_FULL)) == "TableEstimator(unknown(), latency on unknown.unknown.fp32.t1)"
