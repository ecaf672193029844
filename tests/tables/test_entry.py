# SPDX-License-Identifier: Apache-2.0
"""What one candidate costs."""

from __future__ import annotations

import math

import pytest

from nni_latency.errors import InvalidValueError
from nni_latency.operators import OpSpec, features_of
from nni_latency.tables import Entry


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_entry_refuses_a_value_that_is_no_cost(value):
    with pytest.raises(InvalidValueError, match=rf"must be a finite number >= 0\. Got {value!r}"):
        Entry(value, 0.0, 1.0)


def test_entry_may_be_no_cost_at_all():
    """A layer without parameters takes no memory for them; which metrics may be 0, the table says."""
    assert Entry(0.0, 0.0, 0.0).half_width == 0


def test_entry_says_how_wide_its_interval_is():
    assert Entry(1.0, 0.5, 2.0).half_width == 0.75


@pytest.mark.parametrize(("low", "high"), [(1.5, 2.0), (0.5, 0.9), (-0.1, 2.0), (0.5, math.inf), (math.nan, 2.0)])
def test_entry_refuses_an_interval_that_does_not_enclose_the_value(low, high):
    with pytest.raises(InvalidValueError, match=r"must enclose its value 1\.0"):
        Entry(1.0, low, high)


def test_entry_counts_the_features_of_its_operator():
    op = OpSpec.of("relu", [(1, 8)])
    assert Entry(1.0, 1.0, 1.0, op=op).features == features_of(op)


def test_entry_without_an_operator_has_no_features():
    assert Entry(1.0, 1.0, 1.0).features is None
