"""Trimming, quantiles and their intervals."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nni_latency.errors import InvalidValueError
from nni_latency.measurement import quantile, quantile_interval, trim

_samples = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=60)
_shares = st.floats(0, 0.5, exclude_max=True)


def test_trim_drops_from_both_ends_and_keeps_the_order():
    assert trim([3.0, 1.0, 99.0, 2.0, 0.1], 0.2) == ((3.0, 1.0, 2.0), (99.0, 0.1))


def test_trim_rounds_the_count_down():
    assert trim([1.0, 2.0, 3.0, 4.0], 0.24) == ((1.0, 2.0, 3.0, 4.0), ())


@given(_samples, _shares)
def test_trim_loses_and_invents_nothing(samples, outlier):
    kept, dropped = trim(samples, outlier)
    assert Counter(kept) + Counter(dropped) == Counter(samples)


@given(_samples, _shares)
def test_trim_keeps_at_least_one(samples, outlier):
    assert trim(samples, outlier)[0]


@given(_samples, _shares)
def test_trim_drops_as_many_at_either_end(samples, outlier):
    kept, dropped = trim(samples, outlier)
    assert len(dropped) == 2 * int(len(samples) * outlier)
    assert sorted(kept) == sorted(samples)[len(dropped) // 2 : len(samples) - len(dropped) // 2]


@given(_samples, _shares, st.randoms(use_true_random=False))
def test_trim_keeps_the_same_whatever_the_order(samples, outlier, generator):
    shuffled = samples.copy()
    generator.shuffle(shuffled)
    assert Counter(trim(shuffled, outlier)[0]) == Counter(trim(samples, outlier)[0])


@given(_samples, _shares, _shares)
def test_trim_keeps_fewer_with_a_larger_share(samples, one, other):
    more, fewer = (Counter(trim(samples, share)[0]) for share in sorted((one, other)))
    assert fewer <= more


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


@given(_samples, st.floats(0, 1), st.floats(0, 1))
def test_quantile_grows_with_q(samples, one, other):
    low, high = sorted((one, other))
    assert quantile(samples, low) <= quantile(samples, high) * (1 + 1e-12)


def test_quantile_needs_a_sample():
    with pytest.raises(InvalidValueError, match=r"A quantile needs at least one sample"):
        quantile([], 0.5)


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


def test_quantile_interval_needs_a_sample():
    with pytest.raises(InvalidValueError, match=r"An interval needs at least one sample"):
        quantile_interval([], 0.5)


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
