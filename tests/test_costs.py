# SPDX-License-Identifier: Apache-2.0
"""Records of a cost: validation and arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.costs import Cost
from nni_latency.errors import InvalidValueError
from nni_latency.operators import OpSpec
from nni_latency.tables import Entry

_numbers = st.floats(1e-9, 1e9)
_costs = st.tuples(_numbers, _numbers, _numbers).map(sorted).map(lambda ends: Cost(ends[1], ends[0], ends[2]))
_lists = st.lists(_costs, min_size=1, max_size=8)
_factors = st.floats(1e-6, 1e6)


@dataclass(frozen=True)
class _Named(Cost):
    name: str = ""


@pytest.mark.parametrize("value", [-1.0, math.nan, -math.inf])
def test_cost_refuses_a_value_that_is_no_cost(value):
    with pytest.raises(InvalidValueError, match=rf"The value of Cost must be a number >= 0\. Got {value!r}"):
        Cost(value, 0.0, 1.0)


@pytest.mark.parametrize(("low", "high"), [(1.5, 2.0), (0.5, 0.9), (-0.1, 2.0), (math.nan, 2.0), (0.5, math.nan)])
def test_cost_refuses_an_interval_that_does_not_enclose_the_value(low, high):
    with pytest.raises(InvalidValueError, match=r"The interval of Cost must enclose its value 1\.0"):
        Cost(1.0, low, high)


def test_cost_of_nothing_as_a_throughput_is_infinite():
    assert Cost(math.inf, math.inf, math.inf).inverted() == Cost(0.0, 0.0, 0.0)


@pytest.mark.parametrize("make", [Entry, lambda *ends: Entry(*ends, op=OpSpec.of("relu", [(1, 8)]))])
def test_measured_costs_are_finite(make):
    with pytest.raises(InvalidValueError, match=r"must be a finite number >= 0\. Got inf"):
        make(math.inf, 1.0, math.inf)


@given(_costs, _factors)
def test_scaled_scales_value_width_and_keeps_the_spread(cost, factor):
    scaled = cost.scaled(factor)
    assert (scaled.value, scaled.low, scaled.high) == (factor * cost.value, factor * cost.low, factor * cost.high)
    assert scaled.spread == pytest.approx(cost.spread)
    assert scaled.half_width == pytest.approx(factor * cost.half_width)


@given(_costs, _factors)
def test_inverted_twice_is_the_cost(cost, of):
    twice = cost.inverted(of).inverted(of)
    assert (twice.value, twice.low, twice.high) == pytest.approx((cost.value, cost.low, cost.high))


@given(_costs, st.floats(-1e9, 1e9))
def test_shifted_moves_all_and_stops_at_zero(cost, by):
    shifted = cost.shifted(by)
    assert (shifted.value, shifted.low) == (max(0.0, cost.value + by), max(0.0, cost.low + by))


@given(_costs, _numbers, _numbers)
def test_widened_encloses_what_was_asked_for(cost, low, high):
    wide = cost.widened(low, high)
    assert wide.value == cost.value
    assert wide.encloses(cost.low) and wide.encloses(cost.high)
    assert wide.low <= low and wide.high >= high


@given(_lists, _factors)
def test_sums_agree_on_the_value_and_the_independent_one_is_narrower(costs, factor):
    independent, together = Cost.sum(costs, factor), Cost.comonotone_sum(costs, factor)
    assert independent.value == together.value == factor * math.fsum(cost.value for cost in costs)
    slack = 1e-9 * together.high
    assert together.low - slack <= independent.low
    assert independent.high <= together.high + slack


@given(_costs)
def test_sum_of_one_is_that_one(cost):
    for found in (Cost.sum([cost]), Cost.comonotone_sum([cost]), Cost.largest([cost]), Cost.mean([cost])):
        known = pytest.approx((cost.value, cost.low, cost.high), abs=1e-9 * cost.high)
        assert (found.value, found.low, found.high) == known


@given(_lists)
def test_mean_is_the_comonotone_sum_over_the_number(costs):
    mean, total = Cost.mean(costs), Cost.comonotone_sum(costs)
    assert (mean.value * len(costs), mean.low * len(costs)) == pytest.approx((total.value, total.low))


@given(_lists, st.randoms(use_true_random=False))
def test_joined_costs_do_not_depend_on_the_order(costs, generator):
    shuffled = costs.copy()
    generator.shuffle(shuffled)
    assert Cost.sum(shuffled) == Cost.sum(costs)
    assert Cost.comonotone_sum(shuffled) == Cost.comonotone_sum(costs)
    assert Cost.largest(shuffled) == Cost.largest(costs)


def test_arithmetic_keeps_what_a_subclass_knows():
    cost = _Named(2.0, 1.0, 4.0, "a")
    assert cost.scaled(2.0) == _Named(4.0, 2.0, 8.0, "a")
    assert cost.inverted() == _Named(0.5, 0.25, 1.0, "a")
    assert cost.shifted(-1.5) == _Named(0.5, 0.0, 2.5, "a")


def test_mean_of_entries_adds_up_their_samples_and_keeps_the_operator():
    op = OpSpec.of("relu", [(1, 8)])
    entries = [Entry(1.0, 0.5, 2.0, 3, 1, op), Entry(3.0, 2.5, 4.0, 4, 2, op)]
    assert Entry.mean(entries) == Entry(2.0, 1.5, 3.0, 7, 3, op)
