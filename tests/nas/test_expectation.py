"""The expected cost as one product."""

from __future__ import annotations

import pytest
import torch

from nni_latency.errors import MismatchError
from nni_latency.estimators import AdditiveCost
from nni_latency.nas import ExpectedCost

_UNEQUAL = AdditiveCost(1.0, {"a": {"x": 1.0, "y": 3.0}, "b": {"x": 2.0, "y": 4.0, "z": 6.0}, "c": {"x": 5.0}})
_EQUAL = AdditiveCost(0.5, {"a": {"x": 1.0, "y": 3.0}, "b": {"x": 2.0, "y": 4.0}})


@pytest.mark.parametrize("cost", [_UNEQUAL, _EQUAL], ids=["unequal", "equal"])
def test_expected_cost_of_certain_choices_is_the_cost_of_the_network(cost):
    expected = ExpectedCost(cost)
    certain = torch.cat([torch.eye(len(column))[-1] for column in cost.columns])
    assert float(expected(certain)) == pytest.approx(cost.predict([[len(column) - 1 for column in cost.columns]])[0])


@pytest.mark.parametrize("cost", [_UNEQUAL, _EQUAL], ids=["unequal", "equal"])
def test_expected_cost_of_even_choices_is_the_sum_of_the_means(cost):
    expected = ExpectedCost(cost)
    logits = [torch.zeros(len(column)) for column in cost.columns]
    assert float(expected(expected.softmax(logits))) == pytest.approx(
        cost.constant + sum(column.mean() for column in cost.columns)
    )


@pytest.mark.parametrize("cost", [_UNEQUAL, _EQUAL], ids=["unequal", "equal"])
def test_softmax_is_that_of_every_label_by_itself(cost):
    generator = torch.Generator().manual_seed(0)
    logits = [torch.randn(len(column), generator=generator) for column in cost.columns]
    torch.testing.assert_close(
        ExpectedCost(cost).softmax(logits), torch.cat([torch.softmax(row, -1) for row in logits])
    )


def test_expected_cost_has_the_right_gradient():
    """Checked against finite differences, in double precision."""
    expected = ExpectedCost(_UNEQUAL).double()
    logits = [torch.randn(n, dtype=torch.double, requires_grad=True) for n in (2, 3, 1)]
    assert torch.autograd.gradcheck(lambda *rows: expected(expected.softmax(list(rows))), logits)


def test_check_labels_names_what_does_not_fit():
    expected = ExpectedCost(_UNEQUAL)
    with pytest.raises(MismatchError, match=r"no fitting architecture parameters for b, c\."):
        expected.check_labels({"a": torch.zeros(2), "b": torch.zeros(2)})
