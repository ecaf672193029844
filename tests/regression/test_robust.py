# SPDX-License-Identifier: Apache-2.0
"""Robust locations and scales, held to scikit-learn and to one group at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import HuberRegressor

from nni_latency.measurement import quantile, trim
from nni_latency.regression import (
    deviation,
    group_means,
    group_quantiles,
    huber_locations,
    huber_losses,
    huber_weights,
    weighted_quantile,
)

_groups = st.lists(st.integers(0, 4), min_size=1, max_size=40)


@given(_groups, st.integers(0, 2**31), st.floats(0, 1), st.floats(0, 0.49))
@settings(deadline=None)
def test_group_quantiles_are_those_of_each_group(groups, seed, level, outlier):
    values = np.random.default_rng(seed).normal(size=len(groups))
    found = group_quantiles(values, np.array(groups), 5, level, outlier)
    for group in range(5):
        own = [value for value, other in zip(values.tolist(), groups, strict=True) if other == group]
        if own:
            assert found[group] == pytest.approx(quantile(trim(own, outlier)[0], level), rel=1e-9, abs=1e-12)
        else:
            assert np.isnan(found[group])


def test_spikes_hardly_move_a_location():
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(10), 30)
    values = groups + generator.normal(0, 0.02, 300)
    spoilt = values + np.where(generator.random(300) < 0.1, 0.5, 0.0)
    assert huber_locations(spoilt, groups, 10) == pytest.approx(np.arange(10.0), abs=0.02)


def test_a_location_is_that_of_scikit_learn():
    """Which finds the scale together with the location."""
    values = np.random.default_rng(0).standard_t(2, 200)
    fitted = HuberRegressor(epsilon=1.345, alpha=0.0, tol=1e-10, max_iter=1000).fit(np.zeros((200, 1)), values)
    location = 0.0
    for _ in range(100):
        location = float(np.average(values, weights=huber_weights(values - location, fitted.scale_)))
    assert location == pytest.approx(fitted.intercept_, abs=1e-5)


def test_a_location_has_the_least_loss():
    values = np.random.default_rng(1).standard_t(2, 100)
    scale, location = 0.8, 0.0
    for _ in range(200):
        location = float(np.average(values, weights=huber_weights(values - location, scale)))
    least = huber_losses(values - location, scale).sum()
    assert all(huber_losses(values - location - step, scale).sum() > least for step in (-0.01, 0.01))


def test_a_deviation_is_that_of_normal_values_whatever_a_few_of_them_are():
    values = np.random.default_rng(0).normal(0, 2.0, 20_000)
    values[:200] = 1e9
    assert deviation(values) == pytest.approx(2.0, rel=0.03)


def test_means_of_groups_are_held_to_zero():
    values, groups = np.array([2.0, 4.0, 6.0]), np.array([0, 0, 2])
    assert group_means(values, groups, 3) == pytest.approx([3.0, np.nan, 6.0], nan_ok=True)
    assert group_means(values, groups, 3, restraint=2.0) == pytest.approx([1.5, 0.0, 2.0])
    assert group_means(values, groups, 3, np.array([1.0, 3.0, 1.0]))[0] == pytest.approx(3.5)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0.01, 1))
def test_a_weighted_quantile_of_equal_weights_is_one_of_the_values(values, level):
    expected = np.quantile(values, level, method="inverted_cdf")
    assert weighted_quantile(np.array(values), np.ones(len(values)), level) in (expected, *values)
    assert weighted_quantile(np.array(values), np.ones(len(values)), 1.0) == max(values)
