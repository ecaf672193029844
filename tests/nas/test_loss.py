# SPDX-License-Identifier: Apache-2.0
"""`FBNetLoss` against its closed form."""

from __future__ import annotations

import math

import pytest
import torch
from toys import LATENCIES, Toy, profiler_of

from nni_latency.errors import InvalidValueError
from nni_latency.imports import quiet_nni
from nni_latency.nas import FBNetLoss, SharedGumbelSoftmax, architecture_parameters

with quiet_nni():
    from nni.nas.strategy import DARTS


@pytest.fixture
def made():
    """Make a loss over a supernet with uneven probabilities; return it with the live parameters."""

    def make(*, tau=1.0, latencies=None, **options):
        torch.manual_seed(0)
        space, mask = Toy(), SharedGumbelSoftmax(tau)
        loss = FBNetLoss(profiler_of(space, latencies), mask, **options)
        DARTS().mutate_model(space)
        alphas = dict(architecture_parameters(space))
        with torch.no_grad():
            for alpha in alphas.values():
                alpha.copy_(torch.randn(len(alpha)))
        return loss, alphas

    return make


def _latency(loss, alphas):
    """Return the cost under the mask, by hand."""
    return sum(loss.mask(alphas[label]) @ torch.tensor(list(row.values())) for label, row in LATENCIES.items())


def test_profile_is_the_cost_under_the_mask(made):
    loss, alphas = made(tau=2.5)
    torch.testing.assert_close(loss.profile({}), _latency(loss, alphas))


def test_profile_is_the_expected_cost_in_evaluation(made):
    loss, alphas = made()
    loss.mask.eval()
    by_hand = sum(
        torch.softmax(alphas[label], -1) @ torch.tensor(list(row.values())) for label, row in LATENCIES.items()
    )
    torch.testing.assert_close(loss.profile({}), by_hand)


@pytest.mark.parametrize(("alpha", "beta", "weight"), [(0.2, 0.6, 1.0), (0.7, 1.5, 1.0), (0.2, 0.6, 3.0)])
def test_loss_is_that_of_the_paper(made, alpha, beta, weight):
    loss, alphas = made(alpha=alpha, beta=beta, weight=weight)
    joined, _ = loss(torch.tensor(1.7), {})
    expected = 1.7 * alpha * math.log(float(_latency(loss, alphas).detach()) / 1e-6) ** (weight * beta)
    assert float(joined.detach()) == pytest.approx(expected, rel=1e-5)


def test_gradient_is_that_of_the_paper(made):
    loss, alphas = made()
    joined, _ = loss(torch.tensor(1.7), {})
    by_hand = 1.7 * 0.2 * torch.log(_latency(loss, alphas) / 1e-6) ** 0.6
    parameters = list(alphas.values())
    ours, theirs = torch.autograd.grad(joined, parameters), torch.autograd.grad(by_hand, parameters)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def test_loss_without_weight_is_the_cross_entropy(made):
    loss, _ = made(weight=0.0)
    cross_entropy = torch.tensor(1.7)
    assert loss(cross_entropy, {})[0] is cross_entropy


def test_gradient_of_an_overwhelming_weight_is_finite(made):
    """The paper's factor alone would be infinite in 32 bits."""
    loss, alphas = made(weight=1e4)
    joined, _ = loss(torch.tensor(1.7), {})
    for grad in torch.autograd.grad(joined, list(alphas.values())):
        assert torch.isfinite(grad).all()
        assert grad.any()


def test_loss_reports_what_it_joined(made):
    loss, alphas = made()
    joined, details = loss(torch.tensor(1.7), {})
    assert details["loss_original"] == pytest.approx(1.7)
    torch.testing.assert_close(details["penalty"], _latency(loss, alphas).detach())
    torch.testing.assert_close(details["loss_final"], joined.detach())


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"alpha": 0.0}, r"'alpha' of FBNet must be a number > 0\. Got 0\.0"),
        ({"alpha": float("nan")}, r"'alpha' of FBNet must be a number > 0\. Got nan"),
        ({"beta": -0.1}, r"'beta' of FBNet must be a number >= 0\. Got -0\.1"),
        ({"weight": -1.0}, r"'weight' of FBNet must be a number >= 0\. Got -1\.0"),
    ],
)
def test_loss_refuses_numbers_out_of_range(options, complaint):
    with pytest.raises(InvalidValueError, match=complaint):
        FBNetLoss(profiler_of(Toy()), SharedGumbelSoftmax(), **options)


def test_loss_refuses_costs_that_its_logarithm_can_not_take():
    tiny = {label: {choice: cost * 1e-4 for choice, cost in row.items()} for label, row in LATENCIES.items()}
    with pytest.raises(InvalidValueError, match=r"needs costs well above 1e-06"):
        FBNetLoss(profiler_of(Toy(), tiny), SharedGumbelSoftmax())
