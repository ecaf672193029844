# SPDX-License-Identifier: Apache-2.0
"""Costs of pairs of neighbours in estimates: one sum, whichever way it is asked for."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nni_latency import FBNetSpace
from nni_latency.errors import InvalidValueError, MissingEntryError, UnreachableTargetError
from nni_latency.estimators import (
    AdditiveCost,
    CostTable,
    FallbackEstimator,
    LayerEnsemble,
    TableEstimator,
    additive_cost,
    cheapest_selection,
    estimate_layers,
    estimate_selection,
    estimate_table,
    likeliest_within,
)
from nni_latency.tables import Entry, LayerPair, LookupTable, TableLayer, as_throughput


@st.composite
def costs(draw):
    """Draw a cost with chains of pairs; labels of a pair need not be neighbours in the order of the space."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=2, max_size=5))
    number = st.floats(0.5, 2.0)
    labels = [f"l{place}" for place in range(len(sizes))]
    columns = {label: {index: draw(number) for index in range(size)} for label, size in zip(labels, sizes, strict=True)}
    pairs, taken = [], set()
    for first in range(len(sizes)):
        seconds = [second for second in range(first + 1, len(sizes)) if second not in taken]
        if seconds and draw(st.booleans()):
            second = draw(st.sampled_from(seconds))
            taken.add(second)
            shape = (sizes[first], sizes[second])
            entries = draw(st.lists(st.floats(-0.2, 0.2), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
            pairs.append(CostTable((labels[first], labels[second]), np.array(entries).reshape(shape)))
    return AdditiveCost(draw(number), columns, pairs=tuple(pairs))


def everything(cost):
    networks = np.array(list(itertools.product(*(range(len(column)) for column in cost.columns))))
    return networks, [dict(zip(cost.costs, network, strict=True)) for network in networks.tolist()]


def by_hand(cost, sample):
    total = cost.constant + sum(choices[sample[label]] for label, choices in cost.costs.items())
    return total + sum(pair.costs[tuple(sample[label] for label in pair.labels)] for pair in cost.pairs)


@given(costs())
@settings(max_examples=60, deadline=None)
def test_all_ways_to_a_cost_agree(cost):
    networks, samples = everything(cost)
    expected = [by_hand(cost, sample) for sample in samples]
    assert cost.predict(networks) == pytest.approx(expected)
    assert [cost(sample) for sample in samples] == pytest.approx(expected)
    assert [cost.constant + sum(cost.parts(sample).values()) for sample in samples] == pytest.approx(expected)
    assert cost.range == pytest.approx((min(expected), max(expected)))
    assert cost(cheapest_selection(cost)) == pytest.approx(min(expected))


@given(costs(), st.integers(0, 2**32 - 1), st.floats(0.0, 1.0))
@settings(max_examples=60, deadline=None)
def test_search_finds_the_likeliest_network_within_a_target(cost, seed, place):
    networks, _ = everything(cost)
    generator = np.random.default_rng(seed)
    logs = [np.log(generator.dirichlet(np.ones(len(column)))).tolist() for column in cost.columns]
    scores = np.array([sum(row[index] for row, index in zip(logs, network, strict=True)) for network in networks])
    values = cost.predict(networks)
    low, high = cost.range
    target = low + place * (high - low)
    found = likeliest_within(cost, logs, target)
    value, score = cost(found), sum(row[found[label]] for label, row in zip(cost.costs, logs, strict=True))
    assert value <= target * (1 + 1e-12)
    # Costs are rounded to steps, so that networks close to the target may be missed.
    margin = (target - low) * len(logs) / 4000
    sure = values <= target - margin
    if sure.any():
        assert score >= scores[sure].max() - 1e-9


def test_target_below_all_networks_with_pairs_is_refused():
    cost = AdditiveCost(0.0, {"a": {0: 1.0}, "b": {0: 1.0}}, pairs=(CostTable(("a", "b"), np.array([[0.5]])),))
    assert cost.range == (2.5, 2.5)
    with pytest.raises(UnreachableTargetError, match=r"2\.5"):
        likeliest_within(cost, [[0.0], [0.0]], 2.4)


@pytest.mark.parametrize(
    ("labels", "shape"), [(("a", "z"), (2, 2)), (("b", "a"), (2, 2)), (("a", "b"), (2, 3)), (("a",), (2,))]
)
def test_pairs_that_do_not_fit_the_labels_are_refused(labels, shape):
    with pytest.raises(InvalidValueError, match=r"pair|two labels"):
        AdditiveCost(0.0, {"a": {0: 1.0, 1: 2.0}, "b": {0: 1.0, 1: 2.0}}, pairs=(CostTable(labels, np.zeros(shape)),))


def test_only_chains_of_pairs_are_taken():
    columns = {label: {0: 1.0, 1: 2.0} for label in "abc"}
    for pairs in ([("a", "b"), ("a", "c")], [("a", "c"), ("b", "c")]):
        with pytest.raises(InvalidValueError, match="chains"):
            AdditiveCost(0.0, columns, pairs=tuple(CostTable(pair, np.zeros((2, 2))) for pair in pairs))
    with pytest.raises(InvalidValueError, match="does not add up"):
        AdditiveCost(0.0, columns, metric="activation_memory", pairs=(CostTable(("a", "b"), np.zeros((2, 2))),))


def test_unknown_choice_of_a_pair_is_named():
    cost = AdditiveCost(0.0, {"a": {"x": 1.0}, "b": {"y": 1.0}}, pairs=(CostTable(("a", "b"), np.zeros((1, 1))),))
    with pytest.raises(MissingEntryError, match=r"choice of 'b' must be one of y"):
        cost({"a": "x", "b": "z"})
    with pytest.raises(MissingEntryError, match="no choice for 'a'"):
        cost({"b": "y"})


SPACE = FBNetSpace(num_classes=10, input_size=32, width=0.25, depth=0.25)
PLAN = SPACE.measure_plan()


@pytest.fixture(scope="module")
def estimator():
    """Make a table of a space between a fixed stem and head, with pairs of all of them."""
    generator = np.random.default_rng(0)
    layers, pairs = [], []
    for layer in PLAN.layers:
        entries = {}
        for choice, candidate in layer.candidates.items():
            value = float(generator.uniform(1e-4, 3e-4))
            entries[choice] = Entry(value, 0.9 * value, 1.1 * value, op=candidate.op)
        layers.append(TableLayer.of_plan(layer, entries))
    for one, other in itertools.pairwise(PLAN.layers):
        sizes = [len(layer.candidates) for layer in (one, other)]
        kinds = tuple(tuple(generator.integers(0, 2, size).tolist()) for size in sizes)
        pairs.append(
            LayerPair((one.name, other.name), kinds, tuple(map(tuple, generator.normal(0, 2e-5, (2, 2)).tolist())))
        )
    table = LookupTable(
        space=PLAN.space, platform=LookupTable.from_latencies({"a": "x"}, {}).platform, layers=tuple(layers),
        pairs=tuple(pairs), input_shape=PLAN.input_shape, calibration=1.25,
    )  # fmt: skip
    return TableEstimator(table)


@pytest.mark.parametrize("throughput", [False, True])
def test_estimates_of_a_table_with_pairs_agree(estimator, throughput):
    if throughput:
        estimator = TableEstimator(as_throughput(estimator.table))
    labels = [layer.name for layer in PLAN.searched]
    networks = np.random.default_rng(1).integers(0, 9, (20, len(labels)))
    predicted = estimator.predict(networks)
    for network, value in zip(networks, predicted, strict=True):
        selection = estimator.selection(network.tolist())
        found = estimator.estimate_sample(network.tolist())
        assert found.value == pytest.approx(value)
        assert found.low < found.value < found.high
        assert estimate_selection(estimator, PLAN, selection).value == pytest.approx(value)
        assert estimator.cost_of_plan(PLAN)({label: selection[label] for label in labels}) == pytest.approx(value)
        shares = estimator.breakdown(network.tolist())
        values = [share.estimate.value for share in shares]
        assert (1 / sum(1 / part for part in values) if throughput else sum(values)) == pytest.approx(value)
        assert [share.estimate.value for share in estimate_layers(estimator, PLAN, selection)] == pytest.approx(values)


def test_a_captured_network_has_the_cost_of_its_sample(estimator):
    sample = {label: mutable.values[-1 - place % 3] for place, (label, mutable) in enumerate(SPACE.simplify().items())}
    network = SPACE.freeze(sample)
    assert estimator.estimate(network, SPACE.example_inputs()).value == pytest.approx(
        estimator.estimate_sample(sample).value
    )


def test_parts_add_up_where_pairs_take_away_more_than_a_layer_costs():
    costs = {"a": {"x": 0.001}, "b": {"u": 0.001}, "c": {"p": 0.008}}
    table = LookupTable.from_latencies({label: list(choices) for label, choices in costs.items()}, costs)
    estimator = TableEstimator(replace(table, pairs=(LayerPair(("a", "b"), ((0,), (0,)), ((-0.004,),)),)))
    values = [share.estimate.value for share in estimator.breakdown([0, 0, 0])]
    assert min(values) >= 0 and sum(values) == pytest.approx(estimator.predict([0, 0, 0])) == pytest.approx(0.006)
    assert estimator.estimate_sample([0, 0, 0]).value == pytest.approx(0.006)


def test_a_table_of_estimates_keeps_pairs_or_names_what_it_leaves_out(estimator):
    table = estimate_table(estimator, PLAN)
    assert table.pairs == estimator.table.pairs and "neighbouring" not in " ".join(table.remarks)
    other = FBNetSpace(num_classes=10, input_size=64, width=0.25, depth=0.25).measure_plan()
    table = estimate_table(TableEstimator(estimator.table, missing="nearest"), other)
    assert table.pairs == () and "neighbouring layers" in " ".join(table.remarks)


def test_an_ensemble_of_tables_with_other_choices_of_a_layer_makes_no_table(estimator):
    first, second = (layer.name for layer in PLAN.layers[:2])
    costs = {first: {"x": 1e-4, "y": 1e-4}, second: {"u": 1e-4}}
    table = LookupTable.from_latencies({layer: list(choices) for layer, choices in costs.items()}, costs)
    other = TableEstimator(replace(table, pairs=(LayerPair((first, second), ((0, 1), (0,)), ((1e-5,), (0.0,))),)))
    ensemble = LayerEnsemble(members=[estimator, other])
    sizes = " and ".join(str(len(layer.candidates)) for layer in PLAN.layers[:2])
    message = rf"pair {first} and {second} .* the same choices .* Got {sizes} choices; 2 and 1 choices\. Use tables"
    with pytest.raises(InvalidValueError, match=message):
        estimate_table(ensemble, PLAN)


def _without(table, name, lost):
    """Return the table without an entry."""
    return replace(
        table,
        layers=tuple(
            replace(layer, entries={choice: entry for choice, entry in layer.entries.items() if choice != lost})
            if layer.name == name
            else layer
            for layer in table.layers
        ),
    )


@pytest.mark.parametrize("throughput", [False, True])
def test_ensembles_and_fallbacks_count_the_pairs_of_their_tables(estimator, throughput):
    table = as_throughput(estimator.table) if throughput else estimator.table
    estimator, plain = TableEstimator(table), TableEstimator(replace(table, pairs=()))
    other = replace(table, calibration=1.0, pairs=tuple(pair.scaled(3.0) for pair in table.pairs))
    members = [estimator, TableEstimator(other), plain]
    ensemble = LayerEnsemble(members=members, weights=[2, 1, 1])
    lost = PLAN.searched[2].name, next(iter(PLAN.searched[2].candidates))
    fallback = FallbackEstimator(_without(table, *lost), plain)
    labels = [layer.name for layer in PLAN.searched]
    for network in np.random.default_rng(1).integers(0, 9, (5, len(labels))).tolist():
        selection = estimator.selection(network)
        sample = {label: selection[label] for label in labels}
        values = [member.estimate_sample(sample).value for member in members]
        if throughput:
            values = [1 / value for value in values]
        mean = np.average(values, weights=[2, 1, 1])
        for made, expected in ((ensemble, 1 / mean if throughput else mean), (fallback, estimator.predict(network))):
            assert estimate_selection(made, PLAN, selection).value == pytest.approx(expected)
            assert additive_cost(made, PLAN)(sample) == pytest.approx(expected)
            assert estimate_table(made, PLAN).pairs == made.pairs != ()
            parts = [share.estimate.value for share in estimate_layers(made, PLAN, selection)]
            assert (1 / sum(1 / part for part in parts) if throughput else sum(parts)) == pytest.approx(expected)
            if sample[lost[0]] != lost[1]:
                found = made.estimate(PLAN.network_of(selection)(), SPACE.example_inputs())
                assert found.value == pytest.approx(expected)


def test_pairs_of_an_unknown_candidate_of_a_captured_network_are_left_out(estimator):
    layer = PLAN.searched[2]
    lost = next(iter(layer.candidates))
    fallback = FallbackEstimator(_without(estimator.table, layer.name, lost), estimator)
    others = tuple(pair for pair in estimator.table.pairs if layer.name not in pair.layers)
    expected = TableEstimator(replace(estimator.table, pairs=others))
    selection = {**PLAN.reference, layer.name: lost}
    found = fallback.estimate(PLAN.network_of(selection)(), SPACE.example_inputs())
    assert found.value == pytest.approx(estimate_selection(expected, PLAN, selection).value)


def test_without_pairs_nothing_changes(estimator):
    plain = TableEstimator(replace(estimator.table, pairs=()))
    assert plain.cost.pairs == ()
    assert abs(plain.predict([0] * len(PLAN.searched)) - estimator.predict([0] * len(PLAN.searched))) > 1e-6
