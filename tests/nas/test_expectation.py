# SPDX-License-Identifier: Apache-2.0
"""The expected cost as one product."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from nni_latency.errors import MismatchError
from nni_latency.estimators import AdditiveCost
from nni_latency.nas import ExpectedCost
from nni_latency.tables import Residency

_UNEQUAL = AdditiveCost(1.0, {"a": {"x": 1.0, "y": 3.0}, "b": {"x": 2.0, "y": 4.0, "z": 6.0}, "c": {"x": 5.0}})
_EQUAL = AdditiveCost(0.5, {"a": {"x": 1.0, "y": 3.0}, "b": {"x": 2.0, "y": 4.0}})
_ALL = [replace(cost, residency=saved) for cost in (_UNEQUAL, _EQUAL) for saved in (None, Residency(0.4, 3.0))]
_NAMES = ["unequal", "unequal with a residency", "equal", "equal with a residency"]


@pytest.mark.parametrize("cost", _ALL, ids=_NAMES)
def test_expected_cost_of_certain_choices_is_the_cost_of_the_network(cost):
    expected = ExpectedCost(cost)
    sizes = [len(column) for column in cost.columns]
    for network in itertools.product(*map(range, sizes)):
        certain = torch.cat([torch.eye(size)[choice] for size, choice in zip(sizes, network, strict=True)])
        assert float(expected(certain)) == pytest.approx(cost.predict([network])[0], rel=1e-6)


@pytest.mark.parametrize("cost", [_UNEQUAL, _EQUAL], ids=["unequal", "equal"])
def test_expected_cost_of_even_choices_is_the_sum_of_the_means(cost):
    expected = ExpectedCost(cost)
    logits = [torch.zeros(len(column)) for column in cost.columns]
    assert float(expected(expected.softmax(logits))) == pytest.approx(
        cost.constant + sum(column.mean() for column in cost.columns)
    )


@pytest.mark.parametrize("cost", [_UNEQUAL, _EQUAL], ids=["unequal", "equal"])
def test_softmax_is_that_of_every_label(cost):
    generator = torch.Generator().manual_seed(0)
    logits = [torch.randn(len(column), generator=generator) for column in cost.columns]
    by_label = torch.cat([torch.softmax(row, -1) for row in logits])
    torch.testing.assert_close(ExpectedCost(cost).softmax(logits), by_label)


@pytest.mark.parametrize("cost", _ALL, ids=_NAMES)
def test_expected_cost_has_the_right_gradient(cost):
    """Checked against finite differences, in double precision."""
    expected = ExpectedCost(cost).double()
    generator = torch.Generator().manual_seed(0)
    logits = [torch.randn(len(row), dtype=torch.double, generator=generator).requires_grad_() for row in cost.columns]
    assert torch.autograd.gradcheck(lambda *rows: expected(expected.softmax(list(rows))), logits)


def test_check_labels_names_what_does_not_fit():
    expected = ExpectedCost(_UNEQUAL)
    with pytest.raises(MismatchError, match=r"no fitting architecture parameters for b, c\."):
        expected.check_labels({"a": torch.zeros(2), "b": torch.zeros(2)})
