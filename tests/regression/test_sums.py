# SPDX-License-Identifier: Apache-2.0
"""Sums with weights that are not negative, held to what is usual, and corrected."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression, Ridge

from nni_latency.regression import Process, corrected, nonnegative, proportional


def _terms(count=40, seed=0):
    generator = np.random.default_rng(seed)
    return np.column_stack([np.ones(count), 10.0 ** generator.uniform(3, 9, (count, 2))])


@given(st.integers(0, 2**16))
def test_weights_are_those_of_scikit_learn(seed):
    generator = np.random.default_rng(seed)
    design, target = generator.normal(size=(30, 4)), generator.normal(size=30)
    expected = LinearRegression(positive=True, fit_intercept=False).fit(design, target).coef_
    assert nonnegative(design, target) == pytest.approx(expected, abs=1e-8)


def test_weights_that_are_held_to_zero_are_those_of_a_ridge():
    generator = np.random.default_rng(0)
    design = generator.normal(size=(30, 3))
    target = design @ [1.0, 2.0, 3.0]
    expected = Ridge(4.0, fit_intercept=False).fit(design, target).coef_
    assert nonnegative(design, target, np.zeros(3), np.full(3, 2.0)) == pytest.approx(expected)


@given(st.floats(1e-9, 1e9), st.floats(1e-9, 1e9))
def test_units_of_terms_and_target_do_not_matter(one, other):
    terms = _terms()
    target, prior = terms @ [2.0, 3e-6, 4e-6], np.array([1.0, 1e-6, 1e-6])
    found = nonnegative(terms, target, prior, 0.1)
    assert nonnegative(terms * one, target * other, prior * other / one, 0.1) == pytest.approx(found * other / one)


def test_a_proportional_sum_fits_ratios():
    """Thousandfold sizes count alike, and one measurement in noise of 5 % is hit to a few percent by all."""
    terms = _terms(200)
    truth = terms @ [1e-5, 1e-11, 3e-11]
    measured = truth * np.exp(0.05 * np.random.default_rng(1).normal(size=200))
    ratios = terms @ proportional(terms, measured, 0.0) / truth
    assert np.abs(ratios - 1).max() < 0.05


def test_the_constant_is_positive():
    terms = np.column_stack([np.ones(5), np.arange(1.0, 6.0)])
    assert proportional(terms, np.arange(1.0, 6.0), 0.1)[0] == pytest.approx(0.1)


def test_a_term_that_never_occurs_costs_what_is_usual():
    terms = np.column_stack([np.ones(5), np.arange(1.0, 6.0), np.zeros(5)])
    found = proportional(terms, 2 + np.arange(1.0, 6.0), 0.0, np.array([1.0, 1.0, 7.0]), 0.01)
    assert found[2] == pytest.approx(7.0)


def test_several_corrections_count_by_their_mean():
    features = np.linspace(0, 3, 20)[:, None]
    one, other = Process.fit(features, np.sin(features[:, 0])), Process.fit(features, np.cos(features[:, 0]))
    expected = 2 * np.sqrt(np.exp(one.predict(features)) * np.exp(other.predict(features)))
    assert corrected(np.full(20, 2.0), [one, other], features) == pytest.approx(expected)
