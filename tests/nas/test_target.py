# SPDX-License-Identifier: Apache-2.0
"""`TargetPenalty` by hand, and the network that is found within a target against all networks."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toys import LATENCIES, SCORES, Toy, expected_latency, latency_of, profiler_of, search, seeded, table_of

from nni_latency.errors import InvalidValueError, UnreachableTargetError
from nni_latency.imports import quiet_nni
from nni_latency.nas import FBNet, TargetPenalty, architecture_parameters, found_sample, likeliest_sample

with quiet_nni():
    from nni.nas.strategy import DARTS

#: Mean latency of `Toy` with even probabilities [s].
_EVEN = 6e-3

_targets = st.floats(3.05e-3, 1e-2)


@pytest.fixture
def made():
    """Make a penalty over a supernet with even probabilities; return it with the live parameters."""

    def make(target, **options):
        space = Toy()
        penalty = TargetPenalty(profiler_of(space), target, **options)
        DARTS().mutate_model(space)
        alphas = list(dict(architecture_parameters(space)).values())
        with torch.no_grad():
            for alpha in alphas:
                alpha.zero_()
        return penalty, alphas

    return make


def _gradient(penalty, alphas):
    joined, _ = penalty(torch.tensor(1.7, requires_grad=True), {})
    return torch.cat(torch.autograd.grad(joined, alphas))


def test_penalty_above_the_target_is_the_priced_excess(made):
    penalty, _ = made(4e-3, weight=3.0)
    assert float(penalty(torch.tensor(1.7), {})[0].detach()) == pytest.approx(1.7 + 3.0 * 2.0 * 0.5 * 0.5, rel=1e-5)


def test_gradient_above_the_target_points_to_faster_choices(made):
    grads = _gradient(*made(4e-3)).split([3, 2, 4])
    for grad, row in zip(grads, LATENCIES.values(), strict=True):
        assert grad.argsort().tolist() == torch.tensor(list(row.values())).argsort().tolist()


@pytest.mark.parametrize("options", [{}, {"fill": 0.8}, {"fill": 0.95}], ids=str)
def test_supernet_inside_of_the_range_is_not_pressed(made, options):
    penalty, alphas = made(_EVEN / 0.97, **options)
    assert not _gradient(penalty, alphas).any()
    assert float(penalty(torch.tensor(1.7), {})[0].detach()) == pytest.approx(1.7)


def test_gradient_below_the_fill_points_to_slower_choices(made):
    grads = _gradient(*made(8e-3, fill=0.9)).split([3, 2, 4])
    for grad, row in zip(grads, LATENCIES.values(), strict=True):
        assert (-grad).argsort().tolist() == torch.tensor(list(row.values())).argsort().tolist()


def test_multiplier_grows_with_every_step_outside_and_shrinks_inside(made):
    penalty, alphas = made(4e-3)
    first = _gradient(penalty, alphas)
    second = _gradient(penalty, alphas)
    assert second.tolist() == pytest.approx((first * (1 + 0.05 / 2)).tolist(), rel=1e-3)
    penalty.baseline = 12e-3
    for _ in range(3):
        penalty(torch.tensor(1.0), {})
    assert penalty.multipliers.tolist() == [0.0, 0.0]


def test_penalty_without_weight_is_the_cross_entropy(made):
    penalty, _ = made(4e-3, weight=0.0)
    cross_entropy = torch.tensor(1.7)
    assert penalty(cross_entropy, {})[0] is cross_entropy


@pytest.mark.parametrize("fill", [0.0, -0.1, 1.01, math.nan])
def test_fill_outside_of_its_range_is_refused(fill):
    with pytest.raises(InvalidValueError, match=r"'fill' of a search must be a share of the target in \(0, 1\]\. Got"):
        TargetPenalty(profiler_of(Toy()), 5e-3, fill=fill)


def test_fill_that_no_network_reaches_is_refused_with_the_costliest():
    with pytest.raises(UnreachableTargetError, match=r"uses 95\.0 % of a latency of 20\.0 ms: the costliest has 9\.00"):
        TargetPenalty(profiler_of(Toy()), 20e-3, fill=0.95)


def test_weight_below_zero_is_refused():
    with pytest.raises(InvalidValueError, match=r"'weight' of TargetPenalty must be a number >= 0\. Got -1\.0"):
        TargetPenalty(profiler_of(Toy()), 5e-3, weight=-1.0)


def test_fill_of_fbnet_needs_a_target():
    with pytest.raises(InvalidValueError, match=r"'fill' of FBNet is a share of its target\. Give a 'target'"):
        FBNet("table.json", fill=0.9)


@pytest.fixture(scope="module")
def supernet():
    space = seeded(Toy)
    profiler = profiler_of(space)
    DARTS().mutate_model(space)
    return profiler, list(dict(architecture_parameters(space)).values())


def _set(supernet, scores):
    profiler, alphas = supernet
    with torch.no_grad():
        for alpha, row in zip(alphas, scores, strict=True):
            alpha.copy_(torch.tensor(row))
    return profiler


def _all():
    """Yield every network of `Toy`, the index of its choices and its latency [s]."""
    for choices in itertools.product(*(enumerate(row.items()) for row in LATENCIES.values())):
        sample = {label: name for label, (_, (name, _)) in zip(LATENCIES, choices, strict=True)}
        yield sample, [index for index, _ in choices], sum(cost for _, (_, cost) in choices)


def _score(scores, indices):
    return sum(row[index] for row, index in zip(scores, indices, strict=True))


def _best(scores, low, high):
    """Return the score of the most probable network in a range, or none."""
    return max((_score(scores, at) for _, at, cost in _all() if low <= cost <= high), default=None)


def _score_of(scores, sample):
    return next(_score(scores, at) for other, at, _ in _all() if other == sample)


@given(_targets, SCORES, st.floats(0.0, 1.0))
def test_likeliest_sample_is_the_best_of_all_networks_in_the_range(supernet, target, scores, fill):
    """Networks nearer to an end of the range than the resolution are left out of the comparison."""
    profiler = _set(supernet, scores)
    found = likeliest_sample(profiler, max=target, min=fill * target)
    near = 1e-5
    best = _best(scores, fill * target + near, target - near)
    assert profiler.profile(found) <= target * (1 + 1e-12)
    if best is not None:
        assert profiler.profile(found) >= fill * target
        assert _score_of(scores, found) >= best - 1e-5


@given(_targets, SCORES)
def test_network_found_costs_about_what_is_expected_or_the_target(supernet, target, scores):
    """Nothing far below the target is found where the probabilities expect more and there is a network in between."""
    profiler = _set(supernet, scores)
    mean = sum(
        float(torch.softmax(torch.tensor(row), -1) @ torch.tensor(list(costs.values())))
        for row, costs in zip(scores, LATENCIES.values(), strict=True)
    )
    floor = 0.95 * min(target, mean)
    found = profiler.profile(found_sample(profiler, target))
    assert found <= target * (1 + 1e-12)
    if _best(scores, floor + 1e-5, target - 1e-5) is not None:
        assert found >= floor - 1e-9


@given(_targets, SCORES, st.floats(0.01, 1.0))
def test_network_found_uses_the_share_that_is_asked_for_where_one_does(supernet, target, scores, fill):
    profiler = _set(supernet, scores)
    found = profiler.profile(found_sample(profiler, target, fill))
    if _best(scores, fill * target + 1e-5, target - 1e-5) is not None:
        assert fill * target <= found <= target * (1 + 1e-12)


@pytest.mark.parametrize(("target", "fill"), [(4.5e-3, None), (4.5e-3, 0.85), (8.5e-3, 0.9)])
def test_search_fills_its_target(target, fill):
    """Expected latency ends in the range, from above and from below, and so does the network found."""
    space = seeded(Toy)
    strategy = FBNet(table_of(space), target=target, fill=fill, arc_learning_rate=0.1)
    sample = search(space, strategy, epochs=8)
    expected = expected_latency(strategy.oneshot_module.export_probs())
    assert (fill or 0.85) - 0.08 <= expected / target <= 1.08
    assert (fill or 0.85) * target <= latency_of(sample) <= target
