# SPDX-License-Identifier: Apache-2.0
"""The expected cost where choices act together."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.errors import InvalidValueError, UnreachableTargetError
from nni_latency.estimators import AdditiveCost, CostTable, Derived, GroupedCost
from nni_latency.nas import ExpectedCost, ExpectedGroups, expected_cost, likeliest_together

VALUES = {"depth": (1, 2, 3), "kernel": (3, 5), "width": (8, 16)}


def _grouped(**options):
    generator = np.random.default_rng(0)
    tables = (
        CostTable(("depth",), generator.random(3)),
        CostTable(("depth", "kernel"), generator.random((3, 2))),
        CostTable(("depth", "kernel", "width"), generator.random((3, 2, 2))),
    )
    return GroupedCost(0.5, tables, VALUES, **options)


_logits = st.lists(st.floats(-3, 3), min_size=7, max_size=7)


def _alphas(numbers):
    return [torch.tensor(part, dtype=torch.float64) for part in (numbers[:3], numbers[3:5], numbers[5:])]


def _by_hand(cost, alphas):
    rows = [torch.softmax(alpha, -1).tolist() for alpha in alphas]
    total = 0.0
    for picked in itertools.product(*(range(len(row)) for row in rows)):
        share = np.prod([row[index] for row, index in zip(rows, picked, strict=True)])
        total += share * cost({label: VALUES[label][index] for label, index in zip(VALUES, picked, strict=True)})
    return total


@given(_logits)
def test_expectation_is_the_mean_over_all_networks(numbers):
    cost, alphas = _grouped(), _alphas(numbers)
    expected = ExpectedGroups(cost)
    assert float(expected(expected.softmax(alphas))) == pytest.approx(_by_hand(cost, alphas), rel=1e-5)


def test_expectation_has_the_gradient_of_the_mean():
    cost, alphas = _grouped(), [alpha.requires_grad_() for alpha in _alphas([0.3, -0.2, 0.5, 1.0, 0.1, -0.4, 0.2])]
    expected = ExpectedGroups(cost)
    expected(expected.softmax(alphas)).backward()
    step = 1e-4
    for row, place in ((0, 1), (1, 0), (2, 1)):
        moved = [alpha.detach().clone() for alpha in alphas]
        moved[row][place] += step
        slope = (_by_hand(cost, moved) - _by_hand(cost, [alpha.detach() for alpha in alphas])) / step
        assert float(alphas[row].grad[place]) == pytest.approx(slope, abs=1e-3)


def test_tables_over_one_label_are_an_additive_cost():
    costs = {"a": {"x": 1.0, "y": 2.0}, "b": {"x": 0.5, "y": 0.25, "z": 4.0}}
    tables = tuple(CostTable((label,), np.array(list(row.values()))) for label, row in costs.items())
    grouped = GroupedCost(0.25, tables, {label: tuple(row) for label, row in costs.items()})
    alphas = [torch.tensor([0.1, -0.4]), torch.tensor([1.0, 0.0, 0.3])]
    found = [made(made.softmax(alphas)) for made in (expected_cost(AdditiveCost(0.25, costs)), expected_cost(grouped))]
    assert float(found[0]) == pytest.approx(float(found[1]), rel=1e-6)
    assert isinstance(expected_cost(grouped), ExpectedGroups)
    assert isinstance(expected_cost(AdditiveCost(0.25, costs)), ExpectedCost)


def test_combinations_that_no_network_has_are_left_out():
    table = CostTable(("depth", "kernel"), np.array([[1.0, np.nan], [3.0, 5.0], [np.nan, np.nan]]))
    expected = ExpectedGroups(GroupedCost(0.0, (table,), {"depth": (1, 2, 3), "kernel": (3, 5)}))
    even = expected.softmax([torch.zeros(3), torch.zeros(2)])
    assert float(expected(even)) == pytest.approx(3.0)


def test_derived_labels_follow_their_distribution():
    """The number of layers of two: the sum of both depths."""
    table = CostTable(("sum",), np.array([2.0, 3.0, 10.0]))
    derived = Derived(("sum",), ("a", "b"), lambda sample: (sample["a"] + sample["b"],))
    cost = GroupedCost(0.0, (table,), {"a": (1, 2), "b": (1, 2), "sum": (2, 3, 4)}, derived=(derived,))
    expected = ExpectedGroups(cost)
    assert expected.labels == ("a", "b")
    alphas = [torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.0])]
    a, b = (torch.softmax(alpha, -1).tolist() for alpha in alphas)
    by_hand = 2.0 * a[0] * b[0] + 3.0 * (a[0] * b[1] + a[1] * b[0]) + 10.0 * a[1] * b[1]
    assert float(expected(expected.softmax(alphas))) == pytest.approx(by_hand, rel=1e-6)


def test_a_label_derived_from_too_much_is_refused():
    labels = tuple(f"l{n}" for n in range(20))
    derived = Derived(("count",), labels, lambda sample: (sum(sample.values()),))
    values = {**dict.fromkeys(labels, (0, 1)), "count": tuple(range(21))}
    cost = GroupedCost(0.0, (CostTable(("count",), np.arange(21.0)),), values, derived=(derived,))
    with pytest.raises(InvalidValueError, match=r"count follow from 1048576 combinations of choices: too many"):
        ExpectedGroups(cost)


def _all(cost, rows):
    """Return (score, cost, sample) of every network."""
    return [
        (sum(row[i] for row, i in zip(rows, picked, strict=True)), cost(sample), sample)
        for picked in itertools.product(*(range(len(row)) for row in rows))
        for sample in [{label: VALUES[label][index] for label, index in zip(VALUES, picked, strict=True)}]
    ]


@pytest.mark.parametrize("small", [4096, 0], ids=["gone through", "searched"])
@given(numbers=_logits, share=st.floats(0.0, 1.0), is_bounded=st.booleans())
def test_likeliest_network_where_choices_act_together(small, numbers, share, is_bounded):
    """The limit is kept always. Small spaces are solved exactly; of others the result is as good as its neighbours."""
    cost = _grouped()
    rows = [torch.log_softmax(alpha, -1).tolist() for alpha in _alphas(numbers)]
    networks = _all(cost, rows)
    low, high = (pick(value for _, value, _ in networks) for pick in (min, max))
    target = low + share * (high - low) + 1e-9
    floor = 0.5 * (low + target) if is_bounded else 0.0
    scores = dict(zip(VALUES, rows, strict=True))
    found = likeliest_together(cost, scores, target, floor=floor, exhaustive=small)
    assert cost(found) <= target
    inside = [item for item in networks if floor <= item[1] <= target]
    if inside and small:
        (score,) = (item[0] for item in networks if item[2] == found)
        assert score == pytest.approx(max(item[0] for item in inside))
    near = [item for item in inside if sum(item[2][label] != found[label] for label in VALUES) <= 2]
    if near and cost(found) >= floor:
        (score,) = (item[0] for item in networks if item[2] == found)
        assert score >= max(item[0] for item in near) - 1e-9


def test_likeliest_network_leaves_out_what_does_not_go_together():
    table = CostTable(("depth", "kernel"), np.array([[np.nan, 2.0], [3.0, np.nan], [5.0, 6.0]]))
    cost = GroupedCost(0.0, (table,), {"depth": (1, 2, 3), "kernel": (3, 5)})
    scores = {"depth": [-0.1, -3.0, -3.0], "kernel": [-0.1, -3.0]}
    assert likeliest_together(cost, scores, 4.0) in ({"depth": 1, "kernel": 5}, {"depth": 2, "kernel": 3})
    with pytest.raises(UnreachableTargetError, match=r"No network was found that costs at most 1"):
        likeliest_together(cost, scores, 1.0)
