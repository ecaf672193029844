# SPDX-License-Identifier: Apache-2.0
"""Trimming, quantiles and their intervals."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nni_latency.errors import InvalidValueError
from nni_latency.measurement import fewest_samples, quantile, quantile_interval, trim, windows_agree

_samples = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=60)
_shares = st.floats(0, 0.5, exclude_max=True)


def test_trim_drops_from_both_ends_and_keeps_the_order():
    assert trim([3.0, 1.0, 99.0, 2.0, 0.1], 0.2) == ((3.0, 1.0, 2.0), (99.0, 0.1))


@given(_samples, _shares)
def test_trim_loses_and_invents_nothing(samples, outlier):
    kept, dropped = trim(samples, outlier)
    assert Counter(kept) + Counter(dropped) == Counter(samples)


@given(_samples, _shares)
def test_trim_drops_as_many_at_either_end_and_keeps_at_least_one(samples, outlier):
    kept, dropped = trim(samples, outlier)
    assert len(dropped) == 2 * int(len(samples) * outlier) < len(samples)
    assert sorted(kept) == sorted(samples)[len(dropped) // 2 : len(samples) - len(dropped) // 2]


@given(_samples, _shares, st.floats(1e-3, 1e3))
def test_trim_does_not_depend_on_the_unit(samples, outlier, factor):
    assume(len({factor * sample for sample in samples}) == len(set(samples)))
    scaled = trim([factor * sample for sample in samples], outlier)
    assert scaled == tuple(tuple(factor * sample for sample in part) for part in trim(samples, outlier))


@pytest.mark.parametrize("outlier", [-0.1, 0.5, 1.0, float("nan")])
def test_trim_refuses_a_share_that_leaves_nothing(outlier):
    with pytest.raises(InvalidValueError, match=r"'outlier' share must be a number in \[0, 0\.5\)"):
        trim([1.0], outlier)


@given(_samples, st.floats(0, 1))
def test_quantile_is_that_of_numpy(samples, q):
    assert quantile(samples, q) == pytest.approx(float(np.quantile(samples, q)), rel=1e-9)


def test_quantile_and_its_interval_need_a_sample():
    with pytest.raises(InvalidValueError, match=r"A quantile needs at least one sample"):
        quantile([], 0.5)
    with pytest.raises(InvalidValueError, match=r"An interval needs at least one sample"):
        quantile_interval([], 0.5)


@given(_samples, st.floats(0.01, 0.99), st.floats(0.5, 0.999))
def test_quantile_interval_is_made_of_samples(samples, q, confidence):
    low, high = quantile_interval(samples, q, confidence)
    assert low in samples
    assert high in samples
    assert low <= high


@given(st.lists(st.floats(1e-9, 1e3), min_size=8, max_size=60), st.floats(0.05, 0.95))
def test_quantile_interval_encloses_the_quantile(samples, q):
    low, high = quantile_interval(samples, q, 0.95)
    assert low * (1 - 1e-12) <= quantile(samples, q) <= high * (1 + 1e-12)


@given(_samples, st.floats(0.05, 0.95), st.floats(0.5, 0.999), st.floats(0.5, 0.999))
def test_quantile_interval_widens_with_confidence(samples, q, one, other):
    less, more = sorted((one, other))
    narrow, wide = quantile_interval(samples, q, less), quantile_interval(samples, q, more)
    assert wide[0] <= narrow[0]
    assert narrow[1] <= wide[1]


def test_quantile_interval_of_few_samples_is_their_range():
    assert quantile_interval([3.0, 1.0, 2.0], 0.25, 0.95) == (1.0, 3.0)


@pytest.mark.parametrize("n", [20, 80, 300])
@pytest.mark.parametrize("q", [0.25, 0.5])
@pytest.mark.parametrize(
    ("draw", "inverse"),
    [
        (lambda generator: generator.random(), lambda q: q),
        (lambda generator: generator.expovariate(1.0), lambda q: -np.log1p(-q)),
        (lambda generator: generator.paretovariate(1.5), lambda q: (1 - q) ** (-1 / 1.5)),
    ],
    ids=["uniform", "exponential", "pareto"],
)
def test_quantile_interval_covers_the_true_quantile(n, q, draw, inverse):
    """It encloses the truth at least as often as it says, for any distribution, and is not absurdly wide."""
    generator = random.Random(f"{n}/{q}")
    truth, trials = inverse(q), 1000
    hits = 0
    for _ in range(trials):
        low, high = quantile_interval([draw(generator) for _ in range(n)], q, 0.9)
        hits += low <= truth <= high
    # Three standard deviations of a share of 0.9 in 1000 trials.
    assert hits / trials >= 0.9 - 3 * 0.0095
    assert hits / trials <= 0.98


def _tails(n, q):
    """Return how often all of n samples lie above, and all below, the true quantile: binomial with n and q."""
    return (1 - q) ** n, q**n


@pytest.mark.parametrize(
    ("q", "confidence", "count"), [(0.5, 0.95, 6), (0.25, 0.95, 13), (0.75, 0.95, 13), (0.5, 0.5, 2)]
)
def test_fewest_samples_of_known_cases(q, confidence, count):
    assert fewest_samples(q, confidence) == count


@given(st.floats(0.05, 0.95), st.floats(0.5, 0.999))
def test_fewest_samples_leave_each_tail_at_most_half_of_the_rest(q, confidence):
    count = fewest_samples(q, confidence)
    tail = (1 - confidence) / 2
    assert max(_tails(count, q)) <= tail * (1 + 1e-9)
    assert max(_tails(count - 1, q)) > tail * (1 - 1e-9)


@given(st.floats(0.05, 0.95), st.floats(0.5, 0.999))
def test_fewest_samples_have_an_interval_as_sure_as_it_says(q, confidence):
    """The pair of order statistics that is chosen encloses the quantile with the confidence, counted exactly."""
    count = fewest_samples(q, confidence)
    low, high = (int(rank) for rank in quantile_interval(list(map(float, range(count))), q, confidence))
    enclosed = sum(
        math.comb(count, below) * q**below * (1 - q) ** (count - below) for below in range(low + 1, high + 1)
    )
    assert enclosed >= confidence * (1 - 1e-9)


def test_fewest_samples_of_the_lower_quartile_leave_samples_outside_the_interval():
    """Of a quartile the far end is not needed: the interval is not the whole range."""
    low, high = quantile_interval(list(map(float, range(fewest_samples(0.25)))), 0.25)
    assert (low, high) == (0.0, 6.0)


def test_windows_agree_compares_medians_of_the_last_two():
    assert windows_agree([99.0, 1.0, 1.0, 7.0, 1.04, 1.04, 9.0], 3, 0.05)


def test_windows_agree_not_where_the_median_still_falls():
    assert not windows_agree([1.1, 1.1, 1.0, 1.0], 2, 0.05)


def test_windows_agree_not_before_there_are_two():
    assert not windows_agree([1.0, 1.0, 1.0], 2, 0.5)


@pytest.mark.parametrize("samples", [[1.0, 1.5], [1.5, 1.0]])
def test_windows_agree_up_to_the_tolerance_in_either_direction(samples):
    assert windows_agree(samples, 1, 0.5)
    assert not windows_agree(samples, 1, 0.499)


@given(st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=20), st.floats(0, 0.5), st.integers(-8, 8))
def test_windows_agree_whatever_the_unit(samples, tolerance, power):
    size = len(samples) // 2
    scaled = [sample * 2.0**power for sample in samples]
    assert windows_agree(scaled, size, tolerance) == windows_agree(samples, size, tolerance)


@given(st.floats(1e-6, 1e3), st.integers(1, 9))
def test_windows_agree_on_what_stays_the_same(sample, size):
    assert windows_agree([sample] * 2 * size, size, 0.0)
