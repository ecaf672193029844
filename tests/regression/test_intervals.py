# SPDX-License-Identifier: Apache-2.0
"""Conformal factors, against what theory promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.regression import conformal_factor


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=50), st.floats(0.05, 0.95))
def test_factor_is_that_of_an_error_or_one(errors, confidence):
    factor = conformal_factor(errors, confidence)
    assert factor >= 1
    assert any(math.isclose(factor, math.exp(abs(error))) for error in errors)


@given(st.lists(st.floats(-2, 2), min_size=3, max_size=50))
def test_factor_rises_with_the_confidence(errors):
    factors = [conformal_factor(errors, confidence) for confidence in (0.1, 0.5, 0.9)]
    assert factors == sorted(factors)


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.9])
def test_future_errors_are_covered_as_often_as_promised(confidence):
    """Mean coverage over many sets of 30 errors, which theory puts between the level and the level + 1/31."""
    generator = np.random.default_rng(0)
    covered = []
    for _ in range(400):
        factor = conformal_factor(generator.standard_t(3, 30) * 0.1, confidence)
        covered.append((np.abs(generator.standard_t(3, 200) * 0.1) <= math.log(factor)).mean())
    assert confidence - 0.01 < np.mean(covered) < confidence + 1 / 31 + 0.01
