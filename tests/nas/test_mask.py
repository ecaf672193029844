# SPDX-License-Identifier: Apache-2.0
"""`SharedGumbelSoftmax`: one draw a step."""

from __future__ import annotations

import pytest
import torch

from nni_latency.nas import SharedGumbelSoftmax


def test_mask_stays_the_same_until_resampled():
    mask, alpha = SharedGumbelSoftmax(), torch.zeros(4)
    first = mask(alpha)
    assert torch.equal(mask(alpha), first)
    mask.resample()
    assert not torch.equal(mask(alpha), first)


def test_mask_draws_for_every_parameter():
    mask, one, other = SharedGumbelSoftmax(), torch.zeros(4), torch.zeros(4)
    assert not torch.equal(mask(one), mask(other))


def test_mask_follows_parameters_that_change_within_a_step():
    mask, alpha = SharedGumbelSoftmax(1.0), torch.zeros(3)
    before = mask(alpha).log()
    alpha += torch.tensor([1.0, 0.0, 0.0])
    after = mask(alpha).log()
    torch.testing.assert_close((after - before)[0] - (after - before)[1], torch.tensor(1.0))


def test_mask_is_a_distribution():
    mask = SharedGumbelSoftmax(0.5)
    drawn = mask(torch.randn(9, generator=torch.Generator().manual_seed(0)))
    assert drawn.sum() == pytest.approx(1.0, abs=1e-6)
    assert drawn.min() >= 0


def test_mask_prefers_candidates_by_their_probability():
    """The largest element of a Gumbel softmax is distributed as the softmax itself, whatever the temperature."""
    torch.manual_seed(0)
    mask, alpha, n_draws = SharedGumbelSoftmax(5.0), torch.tensor([0.0, 1.0, 2.0]), 20_000
    counts = torch.zeros(3)
    for _ in range(n_draws):
        mask.resample()
        counts[mask(alpha).argmax()] += 1
    # Four standard deviations of a share of 20,000 draws.
    torch.testing.assert_close(counts / n_draws, torch.softmax(alpha, -1), atol=0.0142, rtol=0)


def test_mask_gets_sharper_as_the_temperature_falls():
    mask, alpha = SharedGumbelSoftmax(5.0), torch.tensor([0.0, 1.0, 2.0])
    soft = mask(alpha).max()
    mask.tau = 0.1
    assert mask(alpha).max() > soft


def test_mask_has_no_noise_in_evaluation():
    mask, alpha = SharedGumbelSoftmax(5.0).eval(), torch.tensor([0.0, 1.0, 2.0])
    assert torch.equal(mask(alpha), torch.softmax(alpha, -1))


def test_mask_hands_the_gradient_on():
    mask, alpha = SharedGumbelSoftmax(1.0), torch.zeros(3, requires_grad=True)
    drawn = mask(alpha)
    drawn[0].backward()
    p = drawn.detach()
    torch.testing.assert_close(alpha.grad, p[0] * (torch.tensor([1.0, 0.0, 0.0]) - p))
