# SPDX-License-Identifier: Apache-2.0
"""The cost of a space whose choices act together."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nni_latency.errors import InvalidValueError, MissingEntryError, UnreachableTargetError
from nni_latency.estimators import CostTable, Derived, GroupedCost
from nni_latency.tables import Residency

VALUES = {"a": (1, 2), "b": ("x", "y", "z"), "c": ((0,), (0, 1))}


@st.composite
def costs(draw):
    tables = []
    for labels in draw(st.lists(st.sampled_from(["a", "b", "c", "ab", "bc", "ac", "abc"]), min_size=1, max_size=6)):
        shape = tuple(len(VALUES[label]) for label in labels)
        numbers = draw(st.lists(st.floats(0, 1), min_size=math.prod(shape), max_size=math.prod(shape)))
        tables.append(CostTable(tuple(labels), np.array(numbers).reshape(shape)))
    return GroupedCost(draw(st.floats(0, 1)), tuple(tables), VALUES)


def _samples():
    for chosen in itertools.product(*VALUES.values()):
        yield dict(zip(VALUES, chosen, strict=True))


def _slow(cost, sample):
    places = {label: VALUES[label].index(value) for label, value in sample.items()}
    return cost.constant + sum(
        float(table.costs[tuple(places[label] for label in table.labels)]) for table in cost.tables
    )


@settings(max_examples=40, deadline=None)
@given(costs())
def test_cost_is_the_sum_of_what_the_tables_say(cost):
    for sample in _samples():
        assert cost(sample) == pytest.approx(_slow(cost, sample), abs=1e-12)


@settings(max_examples=20, deadline=None)
@given(costs())
def test_range_holds_networks_that_exist(cost):
    every = [_slow(cost, sample) for sample in _samples()]
    low, high = cost.range
    assert min(every) - 1e-12 <= low <= high <= max(every) + 1e-12
    assert any(low == pytest.approx(value, abs=1e-12) for value in every)


def test_largest_of_parts_counts_for_memory():
    tables = (CostTable(("a",), np.array([1.0, 5.0])), CostTable(("a", "b"), np.full((2, 3), 3.0)))
    cost = GroupedCost(2.0, tables, VALUES, metric="activation_memory")
    assert [cost({"a": a, "b": "x", "c": (0,)}) for a in (1, 2)] == [3.0, 5.0]


def test_throughput_is_one_over_the_sum_of_times():
    cost = GroupedCost(0.5, (CostTable(("a",), np.array([0.5, 1.5])),), VALUES, metric="throughput")
    assert cost({"a": 2, "b": "x", "c": (0,)}) == 0.5


def test_small_networks_save():
    cost = GroupedCost(1.0, (), VALUES, residency=Residency(0.2, 1.0))
    assert cost({"a": 1, "b": "x", "c": (0,)}) == pytest.approx(float(Residency(0.2, 1.0)(1.0)))


def test_lists_of_a_sample_mean_tuples():
    cost = GroupedCost(0.0, (CostTable(("c",), np.array([1.0, 2.0])),), VALUES)
    assert cost({"a": 1, "b": "x", "c": [0, 1]}) == 2.0


def test_derived_labels_follow_from_others():
    half = Derived(("half",), ("a",), lambda sample: (sample["a"] % 2,))
    table = CostTable(("half", "b"), np.array([[1.0, 1, 1], [2, 2, 2]]))
    cost = GroupedCost(0.0, (table,), {**VALUES, "half": (0, 1)}, (half,))
    assert cost.labels == ("a", "b", "c")
    assert cost({"a": 1, "b": "x", "c": (0,)}) == 2.0
    assert cost.range == (1.0, 2.0)


def test_a_label_that_makes_no_difference_may_be_missing():
    depth = CostTable(("a", "b"), np.array([[1.0, 1.0, 1.0], [2.0, 3.0, 4.0]]))
    cost = GroupedCost(0.0, (depth,), VALUES)
    assert cost({"a": 1}) == 1.0
    with pytest.raises(MissingEntryError, match=r"no choice for 'b', 'c'"):
        cost({"a": 2})


def test_a_label_that_makes_no_difference_to_a_derived_one_may_be_missing():
    def function(sample):
        if sample["b"] == "z" and sample["a"] == 2:
            raise ValueError("no such pair")
        return (sample["a"] + (sample["a"] == 2 and sample["b"] == "y"),)

    pair = Derived(("pair",), ("a", "b"), function)
    chain = Derived(("chain",), ("pair", "c"), lambda sample: (sample["pair"] > 1 and sample["c"] == (0,),))
    tables = (CostTable(("pair",), np.array([1.0, 2.0, 4.0])), CostTable(("chain",), np.array([0.0, 0.5])))
    values = {**VALUES, "pair": (1, 2, 3), "chain": (False, True)}
    cost = GroupedCost(0.0, tables, values, (pair, chain))
    assert cost({"a": 1}) == cost({"a": 1, "b": "z", "c": (0,)}) == 1.0
    assert cost({"a": 1, "c": (0,)}) == 1.0
    for sample, absent in (({"a": 2, "c": (0,)}, "'b'"), ({"a": 2, "b": "y"}, "'c'"), ({"b": "x"}, "'a', 'c'")):
        with pytest.raises(MissingEntryError, match=f"no choice for {absent}\\."):
            cost(sample)


def test_a_sample_without_labels_of_no_network_is_refused():
    cost = GroupedCost(0.0, (CostTable(("a", "b"), np.array([[1.0] * 3, [math.nan] * 3])),), VALUES)
    assert cost({"a": 1}) == 1.0
    with pytest.raises(MissingEntryError, match="no choice for 'b', 'c'"):
        cost({"a": 2})


def test_an_unknown_choice_is_named():
    cost = GroupedCost(0.0, (CostTable(("a",), np.array([1.0, 2.0])),), VALUES)
    with pytest.raises(MissingEntryError, match=r"choice of 'a' must be one of 1, 2. Got 3"):
        cost({"a": 3, "b": "x", "c": (0,)})


def test_choices_that_do_not_go_together_are_refused():
    cost = GroupedCost(0.0, (CostTable(("a",), np.array([1.0, math.nan])),), VALUES)
    with pytest.raises(InvalidValueError, match="not a network of the space"):
        cost({"a": 2, "b": "x", "c": (0,)})
    assert cost.range == (1.0, 1.0)


def test_a_space_without_networks_has_no_range():
    cost = GroupedCost(0.0, (CostTable(("a",), np.array([math.nan, math.nan])),), VALUES)
    with pytest.raises(InvalidValueError, match="None of 10000 random samples of the space is a network"):
        cost.range  # noqa: B018


def test_an_unreachable_target_is_an_error():
    cost = GroupedCost(1.0, (CostTable(("a",), np.array([1.0, 2.0])),), VALUES)
    cost.check_target(2.0)
    with pytest.raises(UnreachableTargetError, match=r"Found were 2 s to 3 s"):
        cost.check_target(1.5)
    with pytest.raises(InvalidValueError, match="positive, finite"):
        cost.check_target(math.nan)


def test_tables_are_joined_to_fewer():
    tables = tuple(CostTable(labels, np.ones([len(VALUES[x]) for x in labels])) for labels in ("a", "b", "ab", "bc"))
    cost = GroupedCost(0.0, tables, VALUES)
    assert len(cost._joined) == 1
    assert cost({"a": 1, "b": "x", "c": (0,)}) == 4.0
