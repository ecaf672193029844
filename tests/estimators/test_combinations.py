# SPDX-License-Identifier: Apache-2.0
"""Costs that combine otherwise than by a plain sum: with a residency, as the largest, as one over a sum."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.combinations import INVERSE, LARGEST
from nni_latency.errors import InvalidValueError
from nni_latency.estimators import AdditiveCost, Estimate, TableEstimator, likeliest_within
from nni_latency.platforms import Platform
from nni_latency.tables import Entry, LookupTable, Residency, SpaceReference, TableLayer
from nni_latency.units import METRICS, combination_of, with_article

_residencies = st.none() | st.builds(Residency, st.floats(0.0, 0.9), st.floats(1e-2, 1e2))
_costs = st.floats(1e-3, 1e1)
_SPACE = {"a": ["x", "y"], "b": ["x", "y"]}
_VALUES = {"a": {"x": 4.0, "y": 10.0}, "b": {"x": 5.0, "y": 20.0}}


def _table(metric, values=None):
    return LookupTable.from_latencies(_SPACE, _VALUES if values is None else values, metric=metric)


@st.composite
def _tables(draw, metrics=tuple(METRICS)):
    """Make a table of any metric with a fixed layer, a calibration and perhaps a residency."""
    metric = draw(st.sampled_from(metrics))
    layers = []
    for number, size in enumerate(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))):
        entries = {}
        for choice in range(size):
            low, value, high = sorted(draw(st.tuples(_costs, _costs, _costs)))
            entries[f"c{choice}"] = Entry(value, low, high)
        layers.append(TableLayer(f"layer{number}", tuple(entries), entries))
    stem = draw(_costs)
    fixed = TableLayer("stem", ("conv",), {"conv": Entry(stem, stem, stem)}, searched=False, default="conv")
    summed = combination_of(metric) is not LARGEST
    return LookupTable(
        space=SpaceReference("fake"),
        platform=Platform("pi"),
        layers=(fixed, *layers),
        input_shape=(1,),
        metric=metric,
        calibration=draw(st.floats(0.5, 2.0)) if summed else 1.0,
        residency=draw(_residencies) if summed else None,
    )


def _all(table):
    return list(itertools.product(*(range(len(layer.choices)) for layer in table.searched)))


def _sample(table, network):
    return {layer.name: layer.choices[index] for layer, index in zip(table.searched, network, strict=True)}


def _by_hand(table, network):
    """Combine the entries of a network as the metric says."""
    values = [layer.entries[choice].value for layer, choice in zip(table.layers, ("conv", *network), strict=True)]
    if combination_of(table.metric) is LARGEST:
        return max(values)
    inverse = combination_of(table.metric) is INVERSE
    total = table.calibration * sum(1 / value if inverse else value for value in values)
    if table.residency is not None:
        total *= 1 - table.residency.saving * math.exp(-total / table.residency.scale)
    return 1 / total if inverse else total


@given(_tables())
def test_predict_combines_the_entries_as_the_metric_says(table):
    networks = _all(table)
    expected = [_by_hand(table, tuple(f"c{index}" for index in network)) for network in networks]
    assert TableEstimator(table).predict(networks) == pytest.approx(expected)


@given(_tables())
def test_call_and_estimate_sample_are_predict(table):
    estimator, networks = TableEstimator(table), _all(table)
    predicted = estimator.predict(networks)
    assert [estimator.cost(_sample(table, network)) for network in networks] == pytest.approx(predicted)
    assert [estimator.estimate_sample(network).value for network in networks] == pytest.approx(predicted)


@given(_tables())
def test_range_is_that_of_all_networks(table):
    predicted = TableEstimator(table).predict(_all(table))
    assert TableEstimator(table).cost.range == pytest.approx((predicted.min(), predicted.max()))


@given(_tables())
def test_interval_encloses_the_estimate_of_every_metric(table):
    answer = TableEstimator(table).estimate_sample([0] * len(table.searched))
    assert answer.low <= answer.value <= answer.high


@given(_tables())
def test_breakdown_of_every_metric_has_shares_that_add_up_to_one(table):
    parts = TableEstimator(table).breakdown([0] * len(table.searched))
    shares = [part.share for part in parts]
    # Of memory that layers need one after another, each is compared with the layer that needs most.
    together = max if combination_of(table.metric) is LARGEST else sum
    assert together(shares) == pytest.approx(1.0)


@given(_tables(("latency", "energy", "parameter_memory")))
def test_breakdown_of_a_sum_with_a_residency_makes_up_the_whole(table):
    estimator, network = TableEstimator(table), [0] * len(table.searched)
    whole = estimator.estimate_sample(network).value
    parts = estimator.breakdown(network)
    assert sum(part.estimate.value for part in parts) == pytest.approx(whole)
    assert [part.estimate.value for part in parts] == pytest.approx([part.share * whole for part in parts])


@given(_residencies, st.sampled_from(["latency", "throughput"]), st.floats(1e-2, 1e2))
def test_as_sum_is_the_inverse_of_of_sum(residency, metric, total):
    cost = AdditiveCost(0.0, {"a": {"x": 1.0}}, metric, residency=residency)
    assert cost.as_sum(cost.of_sum(total)) == pytest.approx(total, rel=1e-9)


@given(_residencies, st.lists(st.floats(1e-2, 1e2), min_size=2, max_size=8, unique=True))
def test_of_sum_rises_for_a_latency(residency, totals):
    cost = AdditiveCost(0.0, {"a": {"x": 1.0}}, residency=residency)
    values = [cost.of_sum(total) for total in sorted(totals)]
    assert values == sorted(values)


def test_residency_saves_its_share():
    cost = AdditiveCost(0.0, {"a": {"x": 2.0}}, residency=Residency(0.5, 2.0))
    assert cost({"a": "x"}) == pytest.approx(2.0 * (1 - 0.5 / math.e))


@pytest.mark.parametrize("metric", ["throughput", "activation_memory", "peak_memory"])
def test_check_additive_refuses_what_is_no_sum(metric):
    with pytest.raises(InvalidValueError, match=rf"^{with_article(metric).capitalize()} is not a sum over layers"):
        AdditiveCost(0.0, {"a": {"x": 1.0}}, metric).check_additive()


@pytest.mark.parametrize("metric", ["latency", "energy", "parameter_memory"])
def test_check_additive_takes_what_is_a_sum(metric):
    assert AdditiveCost(0.0, {"a": {"x": 1.0}}, metric, residency=Residency(0.1, 1.0)).check_additive() is None


def test_likeliest_of_what_is_no_sum_is_refused():
    with pytest.raises(InvalidValueError, match=r"A throughput is not a sum over layers"):
        likeliest_within(AdditiveCost(0.0, {"a": {"x": 1.0}}, "throughput"), [[0.0]], 1.0)


@st.composite
def _problems(draw):
    """Make a small space with a residency, logarithms of probabilities, and a target somewhere in its range."""
    rows = draw(st.lists(st.lists(_costs, min_size=1, max_size=4), min_size=1, max_size=4))
    scores = [draw(st.lists(st.floats(-9.0, 0.0), min_size=len(row), max_size=len(row))) for row in rows]
    cost = AdditiveCost(
        draw(st.floats(0.0, 5.0)),
        {f"l{n}": {f"c{k}": value for k, value in enumerate(row)} for n, row in enumerate(rows)},
        residency=Residency(draw(st.floats(0.01, 0.9)), draw(st.floats(0.1, 30.0))),
    )
    low, high = cost.range
    return cost, scores, low + draw(st.floats(0.0, 1.1)) * (high - low)


def _networks(cost):
    return itertools.product(*(range(len(column)) for column in cost.columns))


def _score(scores, network):
    return sum(row[index] for row, index in zip(scores, network, strict=True))


@given(_problems())
def test_likeliest_with_a_residency_never_exceeds_the_target(problem):
    cost, scores, target = problem
    assert cost(likeliest_within(cost, scores, target)) <= target * (1 + 1e-9)


@given(_problems())
def test_likeliest_with_a_residency_is_as_likely_as_any_well_within_the_target(problem):
    """Against all networks: only those nearer to the target, by their sums, than the resolution may be passed over."""
    cost, scores, target = problem
    resolution = 400
    picked = likeliest_within(cost, scores, target, resolution=resolution)
    indices = [list(choices).index(picked[label]) for label, choices in cost.costs.items()]
    low, high = cost.as_sum(cost.range[0]), cost.as_sum(target)
    limit = cost.of_sum(high - len(scores) / resolution * (high - low))
    fitting = [network for network in _networks(cost) if cost.predict([network])[0] <= limit]
    best = max((_score(scores, network) for network in fitting), default=-math.inf)
    assert _score(scores, indices) >= best - 1e-9


def test_likeliest_with_a_residency_takes_what_only_the_saving_lets_fit():
    plain = AdditiveCost(0.0, {"a": {"x": 1.0, "y": 3.0}})
    saving = dataclasses.replace(plain, residency=Residency(0.5, 4.0))
    assert likeliest_within(plain, [[-1.0, -0.1]], 2.5) == {"a": "x"}
    assert likeliest_within(saving, [[-1.0, -0.1]], 2.5) == {"a": "y"}


def test_likeliest_with_a_residency_stays_above_a_floor_where_it_can():
    cost = AdditiveCost(0.0, {"a": {"x": 1.0, "y": 2.0, "z": 3.0}}, residency=Residency(0.2, 2.0))
    # They cost 0.88, 1.85 and 2.87.
    assert likeliest_within(cost, [[0.0, -2.0, -1.0]], 2.5, floor=1.5) == {"a": "y"}
    assert likeliest_within(cost, [[0.0, -2.0, -1.0]], 2.5, floor=1.9) == {"a": "x"}


@pytest.mark.parametrize("metric", ["activation_memory", "peak_memory"])
def test_memory_of_a_network_is_that_of_its_largest_layer(metric):
    estimator = TableEstimator(_table(metric))
    assert estimator.estimate_sample({"a": "y", "b": "x"}) == Estimate(10.0, 10.0, 10.0)
    assert estimator.cost.range == (5.0, 20.0)


def test_throughput_of_a_network_is_one_over_the_summed_times():
    estimator = TableEstimator(_table("throughput"))
    assert estimator.estimate_sample({"a": "x", "b": "y"}).value == pytest.approx(1 / (1 / 4 + 1 / 20))
    assert estimator.cost.range == pytest.approx((1 / (1 / 4 + 1 / 5), 1 / (1 / 10 + 1 / 20)))


def test_throughput_of_a_table_made_by_hand_leaves_out_fixed_layers():
    """They count as no time at all, and are listed."""
    fixed = TableLayer("stem", ("conv",), {}, searched=False, default="conv")
    table = _table("throughput")
    estimator = TableEstimator(dataclasses.replace(table, layers=(fixed, *table.layers)))
    answer = estimator.estimate_sample({"a": "x", "b": "y"})
    assert (answer.value, answer.missing) == (pytest.approx(1 / (1 / 4 + 1 / 20)), ("stem",))
    assert estimator.cost({"a": "x", "b": "y"}) == pytest.approx(answer.value)


def test_share_of_a_throughput_is_that_of_the_time():
    shares = {part.name: part.share for part in TableEstimator(_table("throughput")).breakdown({"a": "x", "b": "y"})}
    assert shares == pytest.approx({"a": (1 / 4) / (1 / 4 + 1 / 20), "b": (1 / 20) / (1 / 4 + 1 / 20)})


def test_breakdown_of_memory_that_is_zero_is_zero():
    table = _table("parameter_memory", {"a": {"x": 0.0, "y": 1.0}, "b": {"x": 0.0, "y": 1.0}})
    parts = TableEstimator(table).breakdown({"a": "x", "b": "x"})
    assert [part.estimate.value for part in parts] == [0.0, 0.0]


def test_interval_of_a_throughput_is_that_of_the_time_turned_round():
    layer = TableLayer("a", ("x",), {"x": Entry(4.0, 2.0, 5.0)})
    table = LookupTable(
        space=SpaceReference("s"), platform=Platform("pi"), layers=(layer,), input_shape=(1,), metric="throughput"
    )
    answer = TableEstimator(table).estimate_sample([0])
    assert (answer.value, answer.low, answer.high) == pytest.approx((4.0, 2.0, 5.0))


def test_missing_candidates_of_other_metrics_are_taken_from_the_nearest():
    table = _table("activation_memory", {"a": {"x": 4.0, "y": 10.0}, "b": {"y": 20.0}})
    answer = TableEstimator(table, missing="nearest").estimate_sample({"a": "x", "b": "x"})
    assert (answer.value, answer.missing) == (4.0, ("b:x",))


def test_largest_takes_each_end_of_the_interval_by_itself():
    found = Estimate.largest([Estimate(3.0, 1.0, 4.0, ("a",)), Estimate(2.0, 1.5, 9.0, ("b",))])
    assert found == Estimate(3.0, 1.5, 9.0, ("a", "b"))


def test_inverted_twice_is_the_same_estimate():
    estimate = Estimate(4.0, 2.0, 8.0, ("a",))
    assert estimate.inverted() == Estimate(0.25, 0.125, 0.5, ("a",))
    assert estimate.inverted().inverted() == estimate
