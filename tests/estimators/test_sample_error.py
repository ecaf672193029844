# SPDX-License-Identifier: Apache-2.0
"""What is said about samples that have no cost."""

from __future__ import annotations

import numpy as np
import pytest

from nni_latency.errors import InvalidValueError, MissingEntryError
from nni_latency.estimators import AdditiveCost, CostTable, Derived, GroupedCost, sample_error

CHOICES = {"a": (1, 2), "b": ("x", "y"), "made": ((1,), (2,))}
DERIVED = (Derived(("made",), ("a",), lambda sample: ((sample["a"],),)),)


@pytest.mark.parametrize(
    ("sample", "kind", "said"),
    [
        ({}, MissingEntryError, "The sample has no choice for 'a', 'b'."),
        ({"a": 1}, MissingEntryError, "The sample has no choice for 'b'."),
        ({"a": 3}, MissingEntryError, "The choice of 'a' must be one of 1, 2. Got 3."),
        ({"a": [1], "b": "x"}, MissingEntryError, "The choice of 'a' must be one of 1, 2. Got [1]."),
        ({"a": 1, "b": "x"}, InvalidValueError, "The sample is not a network of the space: they clash."),
        ({"a": 1, "b": "x", "made": (3,)}, InvalidValueError, "The sample is not a network of the space: they clash."),
    ],
)
def test_one_sentence_says_what_is_wrong(sample, kind, said):
    error = sample_error(sample, CHOICES, ValueError("they clash."), DERIVED)
    assert type(error) is kind
    assert str(error) == said


def test_what_was_looked_up_in_vain_is_no_reason():
    error = sample_error({"a": 1, "b": "x"}, CHOICES, KeyError((3,)), DERIVED)
    assert str(error) == "The sample is not a network of the space: its choices do not go together."


def test_long_lists_are_cut():
    many = {f"l{index}": range(30) for index in range(9)}
    assert str(sample_error({}, many)).endswith("for 'l0', 'l1', 'l2', 'l3', 'l4', 'l5', 'l6', 'l7' and 1 more.")
    assert "6, 7 and 22 more. Got 99" in str(sample_error({"l0": 99}, many))


def test_all_costs_say_the_same():
    costs = (
        AdditiveCost(0.0, {"a": {1: 0.5, 2: 1.0}, "b": {"x": 0.5, "y": 1.0}}),
        GroupedCost(0.0, (CostTable(("a",), np.ones(2)),), {"a": (1, 2), "b": ("x", "y")}),
    )
    said = set()
    for cost in costs:
        with pytest.raises(MissingEntryError) as caught:
            cost({"a": 7, "b": "x"})
        said.add(str(caught.value))
    assert said == {"The choice of 'a' must be one of 1, 2. Got 7."}
