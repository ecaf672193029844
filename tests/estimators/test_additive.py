# SPDX-License-Identifier: Apache-2.0
"""Costs that are sums, and the search in them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nni_latency.errors import InvalidValueError, MissingEntryError, UnreachableTargetError
from nni_latency.estimators import (
    AdditiveCost,
    additive_cost,
    cheapest_selection,
    estimate_selection,
    estimate_table,
    likeliest_within,
)
from nni_latency.testing import fake_plan

_COST = AdditiveCost(1.0, {"a": {"x": 0.5, "y": 2.0}, "b": {"x": 0.25, "y": 0.75, "z": 4.0}})

_spaces = st.lists(st.lists(st.floats(1e-3, 10.0), min_size=1, max_size=4), min_size=1, max_size=4)


def _cost(rows, constant=0.0):
    return AdditiveCost(
        constant, {f"l{n}": {f"c{k}": cost for k, cost in enumerate(row)} for n, row in enumerate(rows)}
    )


@st.composite
def _problems(draw):
    """Make a small space, a logarithm of a probability for each choice, and a target somewhere in its range."""
    rows = draw(_spaces)
    scores = [draw(st.lists(st.floats(-9.0, 0.0), min_size=len(row), max_size=len(row))) for row in rows]
    cost = _cost(rows, draw(st.floats(0.0, 5.0)))
    low, high = cost.range
    return cost, scores, low + draw(st.floats(0.0, 1.1)) * (high - low)


def _all(cost):
    return itertools.product(*(range(len(column)) for column in cost.columns))


def _indices(cost, selection):
    return [list(choices).index(selection[label]) for label, choices in cost.costs.items()]


@given(_spaces, st.floats(0, 5), st.data())
def test_predict_is_the_sum_of_the_entries(rows, constant, data):
    cost = _cost(rows, constant)
    networks = data.draw(st.lists(st.tuples(*(st.integers(0, len(row) - 1) for row in rows)), min_size=1, max_size=9))
    expected = [constant + sum(row[index] for row, index in zip(rows, network, strict=True)) for network in networks]
    assert cost.predict(networks) == pytest.approx(expected)


@given(_spaces, st.data())
def test_call_is_predict_of_one(rows, data):
    cost = _cost(rows)
    network = [data.draw(st.integers(0, len(row) - 1)) for row in rows]
    sample = {f"l{layer}": f"c{index}" for layer, index in enumerate(network)}
    assert cost(sample) == pytest.approx(cost.predict([network])[0])


@given(_spaces)
def test_range_is_met_by_the_cheapest_and_the_costliest(rows):
    cost = _cost(rows, 1.0)
    predicted = cost.predict(list(_all(cost)))
    assert cost.range == pytest.approx((predicted.min(), predicted.max()))


@given(_spaces)
def test_cheapest_selection_is_the_cheapest(rows):
    cost = _cost(rows)
    assert cost(cheapest_selection(cost)) == pytest.approx(cost.range[0])


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64])
def test_predict_takes_any_integers(dtype):
    assert _COST.predict(np.array([[0, 0], [1, 2]], dtype)) == pytest.approx([1.75, 7.0])


@pytest.mark.parametrize(
    "bad",
    [[[0, 1, 2]], [0, 1, 2], [[0.0, 1.0]], [0.0, 1.0], [], [["x", "y"]], [[True, False]], [[[0, 1]]]],
    ids=["3", "3-alone", "float", "float-alone", "0", "str", "bool", "3d"],
)
def test_predict_refuses_what_is_no_array_of_architectures(bad):
    with pytest.raises(InvalidValueError, match=r"must be an int array of shape \(n, 2\) or \(2,\)\. Got"):
        _COST.predict(bad)


def test_predict_takes_one_architecture():
    cost = _COST.predict([1, 2])
    assert cost == pytest.approx(7.0)
    assert np.ndim(cost) == 0


@pytest.mark.parametrize("index", [-1, 3])
def test_predict_names_the_label_of_a_wrong_index(index):
    with pytest.raises(InvalidValueError, match=rf"An index of 'b' must be in \[0, 2\]\. Got {index}"):
        _COST.predict([[0, 0], [1, index]])


def test_predict_of_no_architecture_is_empty():
    assert _COST.predict(np.zeros((0, 2), int)).shape == (0,)


def test_call_names_what_the_sample_lacks():
    with pytest.raises(MissingEntryError, match=r"The sample has no choice for 'b'"):
        _COST({"a": "x"})


def test_call_names_a_choice_that_is_not_there():
    with pytest.raises(MissingEntryError, match=r"The choice of 'b' must be one of x, y, z\. Got 'w'"):
        _COST({"a": "x", "b": "w"})


def test_call_names_a_choice_that_nothing_could_be_kept_by():
    with pytest.raises(MissingEntryError, match=r"The choice of 'b' must be one of x, y, z\. Got \['x'\]"):
        _COST({"a": "x", "b": ["x"]})


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan, math.inf])
def test_check_target_refuses_what_is_no_cost(target):
    with pytest.raises(InvalidValueError, match=r"'target' must be a positive, finite number"):
        _COST.check_target(target)


def test_check_target_gives_the_reachable_range():
    with pytest.raises(UnreachableTargetError, match=r"meets a latency of 1\.5 s\. Reachable is 1\.75 s to 7 s"):
        _COST.check_target(1.5)


def test_check_target_accepts_the_cheapest_network():
    assert _COST.check_target(1.75) is None


@given(_problems())
def test_likeliest_never_exceeds_the_target(problem):
    cost, scores, target = problem
    assert cost(likeliest_within(cost, scores, target)) <= target * (1 + 1e-9)


@given(_problems(), st.floats(0.0, 1.0))
def test_likeliest_is_at_least_as_likely_as_any_network_well_within_the_range(problem, fill):
    """Against all networks: only those nearer to an end than the documented resolution may be passed over."""
    cost, scores, target = problem
    resolution, floor = 400, fill * target
    picked = _indices(cost, likeliest_within(cost, scores, target, floor=floor, resolution=resolution))
    margin = len(scores) / resolution * (target - cost.range[0])
    inside = [network for network in _all(cost) if floor + margin <= cost.predict([network])[0] <= target - margin]
    if inside:
        assert floor <= cost.predict([picked])[0]
    best = max((_score(scores, network) for network in inside), default=-math.inf)
    assert _score(scores, picked) >= best - 1e-9


@given(_problems())
def test_likeliest_without_a_limit_takes_the_likeliest_of_every_layer(problem):
    cost, scores, _ = problem
    assume(all(len(set(row)) == len(row) for row in scores))
    picked = _indices(cost, likeliest_within(cost, scores, cost.range[1] * 2))
    assert picked == [int(np.argmax(row)) for row in scores]


@given(_spaces, st.data())
def test_likeliest_at_the_cheapest_target_is_the_cheapest(rows, data):
    cost = _cost(rows)
    scores = [data.draw(st.lists(st.floats(-9, 0), min_size=len(row), max_size=len(row))) for row in rows]
    selection = likeliest_within(cost, scores, cost.range[0])
    assert cost(selection) == pytest.approx(cost.range[0])


@pytest.mark.slow
@given(_spaces, st.data())
def test_likeliest_just_above_the_cheapest_target_is_the_cheapest(rows, data):
    """A slack of a single rounding error must not let a costly choice slip through."""
    cost = _cost(rows)
    scores = [data.draw(st.lists(st.floats(-9, 0), min_size=len(row), max_size=len(row))) for row in rows]
    target = math.nextafter(cost.range[0], math.inf)
    assert cost(likeliest_within(cost, scores, target)) == pytest.approx(cost.range[0])


def test_likeliest_takes_the_likelier_of_two_equally_cheap_ones():
    cost = AdditiveCost(0.0, {"a": {"x": 1.0, "y": 1.0, "z": 5.0}})
    assert likeliest_within(cost, [[-3.0, -2.0, -0.1]], 1.0) == {"a": "y"}


def test_likeliest_allows_choices_of_probability_zero():
    cost = AdditiveCost(0.0, {"a": {"x": 1.0, "y": 2.0}, "b": {"x": 1.0, "y": 2.0}})
    assert likeliest_within(cost, [[-math.inf, 0.0], [-1.0, -0.5]], 2.5) == {"a": "x", "b": "x"}
    assert likeliest_within(cost, [[-math.inf, 0.0], [-1.0, -0.5]], 3.0) == {"a": "y", "b": "x"}


def test_likeliest_stays_above_a_floor_where_it_can():
    cost = AdditiveCost(0.0, {"a": {"x": 1.0, "y": 2.0, "z": 3.0}})
    scores = [[0.0, -2.0, -1.0]]
    assert likeliest_within(cost, scores, 2.5) == {"a": "x"}
    assert likeliest_within(cost, scores, 2.5, floor=1.5) == {"a": "y"}
    assert likeliest_within(cost, scores, 2.5, floor=2.2) == {"a": "x"}


def test_likeliest_refuses_a_target_that_nothing_meets():
    with pytest.raises(UnreachableTargetError, match=r"Reachable is 1\.75 s to 7 s"):
        likeliest_within(_COST, [[0.0, 0.0], [0.0, 0.0, 0.0]], 1.0)


def test_additive_cost_asks_for_every_candidate_of_a_plan(by_choice):
    plan, _ = fake_plan({"stem": {"conv": 1.0}, "a": {"x": 1.0, "y": 1.0}}, fixed=["stem"])
    cost = additive_cost(by_choice({"conv": 4.0, "x": 1.0, "y": 3.0}, calibration=2.0), plan)
    assert (cost.constant, cost.costs) == (8.0, {"a": {"x": 2.0, "y": 6.0}})


def test_what_a_run_costs_besides_its_operators_counts_once(by_choice):
    plan, _ = fake_plan({"stem": {"conv": 1.0}, "a": {"x": 1.0, "y": 1.0}}, fixed=["stem"])
    estimator = by_choice({"conv": 4.0, "x": 1.0, "y": 3.0}, calibration=2.0)
    estimator.constant = 0.5
    assert additive_cost(estimator, plan)({"a": "y"}) == 14.5
    assert estimate_selection(estimator, plan, {"stem": "conv", "a": "y"}).value == 14.5
    (_, left_out) = estimate_table(estimator, plan).remarks
    assert left_out == "What a run costs besides its operators, 500 ms, is left out."


def _score(scores, network):
    return sum(row[index] for row, index in zip(scores, network, strict=True))
