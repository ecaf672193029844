# SPDX-License-Identifier: Apache-2.0
"""How predictions are scored against measurements."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.errors import InvalidValueError
from nni_latency.estimators import score
from nni_latency.estimators.acts import score_blocks

_times = st.floats(1e-4, 1e2)
_pairs = st.lists(st.tuples(_times, _times), min_size=1, max_size=12)


def _split(pairs):
    return [one for one, _ in pairs], [other for _, other in pairs]


def _values(scores):
    return pytest.approx(dataclasses.asdict(scores), rel=1e-9, abs=1e-9, nan_ok=True)


def test_score_of_numbers_worked_out_by_hand():
    found = score([1.1, 1.8, 4.5, 8.0], [1.0, 2.0, 3.0, 8.0])
    assert found.n == 4
    assert found.mape == pytest.approx((0.1 + 0.1 + 0.5 + 0.0) / 4)
    assert found.rmspe == pytest.approx(math.sqrt((0.01 + 0.01 + 0.25) / 4))
    assert found.bias == pytest.approx((0.1 - 0.1 + 0.5) / 4)
    assert (found.within5, found.within10) == (0.25, 0.75)
    assert found.spearman == pytest.approx(1.0)
    assert found.worst == pytest.approx(0.5)


def test_spearman_is_one_less_six_times_the_squared_differences_of_ranks():
    # Ranks 1 2 3 4 against 2 1 4 3: the squares add up to 4, and 1 - 6 * 4 / (4 * 15) is 0.6.
    assert score([1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 4.0, 3.0]).spearman == pytest.approx(0.6)


def test_spearman_of_the_opposite_order_is_minus_one():
    assert score([3.0, 2.0, 1.0], [1.0, 2.0, 3.0]).spearman == pytest.approx(-1.0)


@pytest.mark.parametrize(
    ("predicted", "measured"),
    [([1.0, 2.0], [1.0, 2.0]), ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]), ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0])],
    ids=["two", "alike predictions", "alike measurements"],
)
def test_spearman_of_what_has_no_order_is_nan(predicted, measured):
    assert math.isnan(score(predicted, measured).spearman)


@pytest.mark.parametrize("share", [0.05, 0.10])
def test_error_at_the_limit_counts_as_within(share):
    measured = [0.3, 0.7, 1.1, 13.0]
    found = score([value * (1 + share) for value in measured], measured)
    assert (found.within5 if share == 0.05 else found.within10) == 1.0


@given(st.lists(_times, min_size=1, max_size=12))
def test_score_of_a_perfect_prediction_has_no_error(measured):
    found = score(measured, measured)
    assert (found.mape, found.rmspe, found.bias, found.worst) == (0.0, 0.0, 0.0, 0.0)
    assert (found.within5, found.within10) == (1.0, 1.0)


# Powers of two scale without rounding, so no error moves over a limit.
@given(_pairs, st.sampled_from([2.0**-20, 2.0**10, 2.0**30]))
def test_score_does_not_depend_on_the_unit(pairs, factor):
    predicted, measured = _split(pairs)
    scaled = score([value * factor for value in predicted], [value * factor for value in measured])
    assert dataclasses.asdict(score(predicted, measured)) == _values(scaled)


@given(_pairs.flatmap(lambda pairs: st.tuples(st.just(pairs), st.permutations(pairs))))
def test_score_does_not_depend_on_the_order(case):
    pairs, shuffled = case
    assert dataclasses.asdict(score(*_split(pairs))) == _values(score(*_split(shuffled)))


@given(_pairs)
def test_errors_are_ordered(pairs):
    """The bias is at most the mean error, that at most the root mean square, and that at most the worst."""
    found = score(*_split(pairs))
    ordered = [abs(found.bias), found.mape, found.rmspe, found.worst]
    assert all(less <= more * (1 + 1e-9) + 1e-9 for less, more in itertools.pairwise(ordered))


@given(_pairs)
def test_more_are_within_ten_per_cent_than_within_five(pairs):
    found = score(*_split(pairs))
    assert 0 <= found.within5 <= found.within10 <= 1


@given(st.lists(_times, min_size=1, max_size=12), st.floats(0.5, 3.0))
def test_score_of_a_constant_factor_is_a_bias_alone(measured, factor):
    found = score([value * factor for value in measured], measured)
    assert found.bias == pytest.approx(factor - 1, abs=1e-9)
    assert (found.mape, found.rmspe, found.worst) == pytest.approx((abs(factor - 1),) * 3, abs=1e-9)


_scorers = pytest.mark.parametrize("scorer", [score, score_blocks])


@_scorers
@pytest.mark.parametrize(
    ("predicted", "measured"),
    [([1.0], [1.0, 2.0]), ([], []), ([[1.0]], [[1.0]]), (1.0, 1.0)],
    ids=["unequal", "none", "2d", "numbers"],
)
def test_score_refuses_what_can_not_be_compared(scorer, predicted, measured):
    with pytest.raises(InvalidValueError, match=r"must be as many, at least one\. Got \("):
        scorer(predicted, measured)


@_scorers
@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_score_refuses_a_measurement_that_is_no_positive_number(scorer, bad):
    with pytest.raises(InvalidValueError, match=r"measurements positive and finite"):
        scorer([1.0, 1.0], [1.0, bad])


@_scorers
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_score_refuses_a_prediction_that_is_no_number(scorer, bad):
    with pytest.raises(InvalidValueError, match=r"Predictions must be finite"):
        scorer([1.0, bad], [1.0, 1.0])


def test_score_of_blocks_parts_short_from_long_ones():
    found = score_blocks([0.0011, 0.0018, 0.005, 0.0024], [0.001, 0.002, 0.005, 0.002])
    assert (found.n, found.n_short) == (4, 1)
    assert (found.median_short, found.median_long, found.median) == pytest.approx((0.1, 0.1, 0.1))
    assert found.correlation > 0.97
    assert found.r2 == pytest.approx(1 - 0.21 / 9, abs=1e-9)


@pytest.mark.parametrize(
    ("predicted", "measured"),
    [([1.0, 2.0], [1.0, 2.0]), ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]), ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0])],
    ids=["two", "alike predictions", "alike measurements"],
)
def test_correlation_of_blocks_that_are_few_or_alike_is_nan(predicted, measured):
    found = score_blocks(predicted, measured)
    assert math.isnan(found.correlation)
    assert math.isnan(found.r2)
    assert math.isnan(found.median_short)
