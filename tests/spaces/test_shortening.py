# SPDX-License-Identifier: Apache-2.0
"""Values that depend on many choices keep them when they are shortened."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from nni_latency.errors import MissingEntryError
from nni_latency.estimators import CostTable, GroupedCost
from nni_latency.spaces._shortening import shortened
from nni_latency.spaces._varying import Choices, Varying

SIZES = {"op": 9, "input": 6, "width": 5, "depth": 4, "ends": 5}


def _value(op, source, width, depth, ends):
    """Only the first operator passes on what made its input, which depends on the other choices."""
    return (width, ends) if op == 0 and source < 2 and depth > ends % 3 else (op % 3, source == 2, width)


def test_values_are_kept_and_take_less_room():
    choices = Choices({label: range(size) for label, size in SIZES.items()})
    part = choices.combine([choices.label(label) for label in SIZES], _value)
    small = choices.combine([choices.label("op")], lambda op: op // 2)
    derived = []
    long, short = shortened(choices, [part, small], derived)
    assert short is small
    assert part.ids.size == np.prod(list(SIZES.values()))
    assert long.ids.size <= part.ids.size / 5
    for chosen in itertools.product(*map(range, SIZES.values())):
        sample = dict(zip(SIZES, chosen, strict=True))
        for item in derived:
            sample.update(zip(item.outputs, item.function(sample), strict=True))
        assert long.at({label: choices.values[label].index(sample[label]) for label in long.labels}) == _value(*chosen)


def test_the_choice_of_a_skipped_layer_may_be_missing_from_a_sample():
    def value(depth, kernel, width, ends):
        return depth, kernel if depth == 2 else None, width, ends

    choices = Choices({"depth": range(3), "kernel": range(9), "width": range(12), "ends": range(12)})
    part = choices.combine([choices.label(label) for label in choices.values], value)
    derived = []
    (short,) = shortened(choices, [part], derived)
    assert [item.labels for item in derived] == [("depth", "kernel")]
    numbers = np.arange(1.0, 1 + len(short.values))
    cost = GroupedCost(0.0, (CostTable(short.labels, numbers[short.ids]),), choices.values, tuple(derived))
    sample = {"depth": 1, "width": 3, "ends": 4}
    assert cost(sample) == cost({**sample, "kernel": 5}) == numbers[short.values.index((1, None, 3, 4))]
    with pytest.raises(MissingEntryError, match="no choice for 'kernel'"):
        cost({**sample, "depth": 2})


def test_values_without_alike_choices_stay_as_they_are():
    choices = Choices({label: range(12) for label in "abc"})
    part = choices.combine([choices.label(label) for label in "abc"], lambda *items: items)
    derived = []
    single = Varying(("long",), np.arange(2000), tuple(range(2000)))
    found = shortened(choices, [part, single], derived)
    assert found == [part, single]
    assert not derived
