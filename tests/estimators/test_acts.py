# SPDX-License-Identifier: Apache-2.0
"""The ACTS estimator on invented devices, whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from acts_points import draw_blocks, noisy, time_of, totals_of
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from torch import nn

from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.estimators import ActsEstimator, break_down, estimate_selection
from nni_latency.estimators.acts import fit_line
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.regression import conformal_factor
from nni_latency.spaces import FBNetSpace

HERE = Platform("pi-4", "torch")


@pytest.fixture(scope="module")
def points():
    blocks = draw_blocks(80)
    return blocks, noisy([time_of(block) for block in blocks])


@pytest.fixture(scope="module")
def fitted(points):
    return ActsEstimator().fit(*points, platform=HERE)


def _median_error(estimator, blocks):
    truth = np.array([time_of(block) for block in blocks])
    return float(np.median(np.abs(estimator.predict(blocks) / truth - 1)))


def test_published_variant_finds_the_formula():
    totals = np.array([totals_of(block) for block in draw_blocks(60)], dtype=float)
    seconds = totals @ [3e-10, 2e-10, 1e-11] + 5e-5
    found = ActsEstimator(variant="published").fit(totals, seconds)
    assert [found.a_, found.b_, found.c_, found.d_] == pytest.approx([3e-10, 2e-10, 1e-11, 5e-5], rel=1e-6)
    assert found.predict(totals) == pytest.approx(seconds)


def test_published_variant_finds_the_second_line():
    totals = np.array([totals_of(block) for block in draw_blocks(120)], dtype=float)
    plane = totals @ [3e-10, 2e-10, 1e-11] + 1e-3
    seconds = np.where(plane < 2e-3, 0.5 * plane + 1e-4, plane)
    found = ActsEstimator(variant="published").fit(totals, seconds)
    assert found.breakpoint_ > 0
    assert found.slope_ < 1
    one_line = found.line_.plane(totals)
    assert np.abs(found.predict(totals) - seconds).sum() < np.abs(one_line - seconds).sum()


def test_blocks_without_convolutions_do_not_move_the_formula():
    totals = np.array([totals_of(block) for block in draw_blocks(60)], dtype=float)
    seconds = totals @ [3e-10, 2e-10, 1e-11] + 5e-5
    pools = np.array([[0.0, 0.0, 1e5 * (row + 1)] for row in range(30)])
    for variant in ("published", "refined"):
        found = ActsEstimator(variant=variant).fit(np.vstack([totals, pools]), np.append(seconds, [0.1] * 30))
        assert [found.a_, found.b_, found.c_, found.d_] == pytest.approx([3e-10, 2e-10, 1e-11, 5e-5], rel=1e-6)
        assert found.shares_ == pytest.approx(found.line_.shares(totals))
    assert fit_line(pools, pools[:, 2] * 1e-9, relative=False).c == pytest.approx(1e-9)


def test_the_constant_counts_once_in_a_network_of_many_operators():
    totals = np.array([totals_of(block) for block in draw_blocks(60)], dtype=float)
    published = ActsEstimator(variant="published").fit(totals, totals @ [3e-10, 2e-10, 1e-11] + 5e-4)
    block = [op for block in draw_blocks(20, seed=5) for op in block]
    parts = sum(published.estimate_op(op).value for op in block)
    assert parts + published.d_ == pytest.approx(published.estimate_block(block).value, rel=1e-4)


def test_coefficients_are_never_negative():
    generator = np.random.default_rng(3)
    for _ in range(20):
        totals = generator.uniform(0, 1e7, (15, 3))
        found = ActsEstimator(variant="published").fit(totals, generator.uniform(1e-4, 1e-2, 15))
        assert min(found.a_, found.b_, found.c_, found.d_, found.breakpoint_, found.slope_) >= 0
        assert found.predict(generator.uniform(0, 1e8, (50, 3))).min() >= 0


def test_refined_variant_beats_the_published_one_on_new_blocks(points, fitted):
    new = draw_blocks(120, seed=7)
    published = ActsEstimator(variant="published").fit(*points)
    assert _median_error(fitted, new) < 0.03 < _median_error(published, new)


def test_modules_are_as_good_as_operators_and_totals():
    conv = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    modules = [(conv, (batch, 8, side, side)) for batch in (1, 2, 4) for side in (8, 12, 16, 24)]
    modules += [(nn.Conv2d(8, 32, 1), (1, 8, side, side)) for side in (8, 16, 24)]
    seconds = [1e-5 * (index + 1) for index in range(len(modules))]
    by_modules = ActsEstimator(variant="published").fit(modules, seconds)
    totals = by_modules.predict(modules)
    window = 8 * 3 * 3
    acts = np.array([16 * shape[0] * shape[2] ** 2 for _, shape in modules[:12]])
    rows = [(a, a // 2, 2 * a * window + 3 * a) for a in acts]
    assert by_modules.predict(np.array(rows)) == pytest.approx(totals[:12])


def test_fit_on_totals_alone_answers_for_modules():
    blocks = draw_blocks(60)
    totals = [totals_of(block) for block in blocks]
    seconds = noisy([time_of(block) for block in blocks])
    found = ActsEstimator().fit(totals, seconds)
    assert not found.operators_
    assert found.predict(blocks) == pytest.approx(found.predict(totals))


def test_intervals_cover_as_often_as_they_say():
    """Mean coverage over several sets of points; the promise is about the mean, and every set has its luck."""
    new = draw_blocks(200, seed=11)
    truth = noisy([time_of(block) for block in new], seed=12)
    covered = {0.5: [], 0.8: [], 0.9: []}
    for seed in range(8):
        blocks = draw_blocks(50, seed)
        found = ActsEstimator().fit(blocks, noisy([time_of(block) for block in blocks], seed=100 + seed))
        ratio = np.abs(np.log(truth / found.predict(new)))
        for confidence, shares in covered.items():
            factor = conformal_factor(found.held_out_errors_, confidence)
            shares.append((ratio <= np.log(factor)).mean())
    for confidence, shares in covered.items():
        assert confidence - 0.04 < np.mean(shares) < confidence + 0.08


def test_shares_say_what_bounds_the_device():
    totals = np.array([totals_of(block) for block in draw_blocks(40)], dtype=float)
    slow_memory = ActsEstimator().fit(totals, totals @ [1e-8, 1e-8, 1e-13])
    slow_units = ActsEstimator().fit(totals, totals @ [1e-12, 1e-12, 1e-10])
    assert (slow_memory.bound_, slow_units.bound_) == ("memory", "compute")
    assert sum(slow_units.shares_.values()) == pytest.approx(1)
    assert slow_units.shares_["flops"] > 0.9


def test_what_is_not_counted_is_listed(fitted):
    answer = fitted.estimate_op(OpSpec.of("strange_kernel", [(1, 8, 4, 4)]))
    assert answer.missing == ("strange_kernel",)
    assert answer.low < answer.value < answer.high


def test_a_network_of_the_fbnet_space_is_the_sum_of_its_layers(fitted):
    plan = FBNetSpace(depth=0.25, width=0.5, input_size=32, num_classes=10).measure_plan()
    selection = plan.reference
    parts = [fitted.estimate_op(op).value for op in plan.ops_of(selection)]
    assert estimate_selection(fitted, plan, selection).value == pytest.approx(sum(parts))


def test_it_follows_scikit_learn(points):
    made = ActsEstimator(variant="published", confidence=0.8)
    assert clone(made).get_params() == made.get_params()
    with pytest.raises(NotFittedError):
        made.predict([[1, 1, 1]])
    first = ActsEstimator(random_state=3).fit(*points).predict(points[0])
    assert (ActsEstimator(random_state=3).fit(*points).predict(points[0]) == first).all()


def test_groups_are_left_out_together(points):
    blocks, seconds = points
    found = ActsEstimator().fit(blocks, seconds, groups=[index // 8 for index in range(len(blocks))])
    assert len(found.held_out_errors_) == len(blocks)
    with pytest.raises(InvalidValueError, match="one for each point, at least two different"):
        ActsEstimator().fit(blocks, seconds, groups=["one"] * len(blocks))


def _rows(count, seed=0):
    return np.random.default_rng(seed).uniform(1, 1e6, (count, 3))


@pytest.mark.parametrize(
    ("totals", "seconds", "message"),
    [
        (_rows(9), np.ones(9), r"at least 10 points to fit. Got 9"),
        (_rows(12), np.ones(11), r"one latency \[s\] for each of 12 points. Got an array of shape \(11,\)"),
        (_rows(12), -np.ones(12), "positive, finite"),
        (_rows(12), np.full(12, np.nan), "positive, finite"),
        (_rows(12), ["fast"] * 12, "one latency"),
        (-_rows(12), np.ones(12), "finite numbers >= 0"),
        (_rows(12)[:, :2], np.ones(12), r"\(n, 3\) array of ACTS, INP and FLOPs, .* Got an array of shape \(12, 2\)"),
        ("words", np.ones(12), r"an \(n, 3\) array"),
        ([], [], r"an \(n, 3\) array"),
        (np.outer(np.arange(1, 13), [3e5, 2e5, 1e7]), np.arange(1, 13), "All 12 points are of one block"),
        (np.zeros((12, 3)), np.ones(12), "All 12 points are of one block"),
    ],
)
def test_points_that_teach_nothing_are_refused(totals, seconds, message):
    with pytest.raises(InvalidValueError, match=message):
        ActsEstimator().fit(totals, seconds)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variant": "magic"}, "'variant' of ActsEstimator must be 'refined' or 'published'. Got 'magic'"),
        ({"confidence": 1.0}, r"'confidence' .* in \(0, 1\)"),
        ({"n_folds": 1}, "'n_folds' .* int >= 2"),
    ],
)
def test_settings_outside_their_range_are_refused(settings, message):
    with pytest.raises(InvalidValueError, match=message):
        ActsEstimator(**settings).fit(_rows(12), np.ones(12))


def test_one_block_at_many_batch_sizes_is_refused():
    block = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU())
    with pytest.raises(InvalidValueError, match="of one block"):
        ActsEstimator().fit([(block, (2**k % 1000 + 1, 4, 8, 8)) for k in range(12)], np.arange(1, 13))


def test_points_of_two_devices_are_refused(points):
    blocks, seconds = points
    platforms = [HERE] * (len(blocks) - 1) + [Platform("a30", "torch")]
    with pytest.raises(MismatchError, match=r"would mix two platforms \(id: pi-4.torch.fp32.t1 against a30"):
        ActsEstimator().fit(blocks, seconds, platform=platforms)
    with pytest.raises(InvalidValueError, match=r"one for each of 80 points. Got 1"):
        ActsEstimator().fit(blocks, seconds, platform=[HERE])


def test_an_input_that_does_not_fit_is_refused():
    with pytest.raises(InvalidValueError, match="do not fit Conv2d"):
        ActsEstimator().fit([(nn.Conv2d(4, 4, 3), (1, 3, 8, 8))] * 12, np.ones(12))
    with pytest.raises(InvalidValueError, match=r"input shape of Conv2d must be whole numbers > 0.* Got \(1, -3\)"):
        ActsEstimator().fit([(nn.Conv2d(4, 4, 3), (1, -3))] * 12, np.ones(12))


def test_estimate_needs_example_inputs(fitted):
    with pytest.raises(InvalidValueError, match="needs 'example_inputs'"):
        fitted.estimate(nn.ReLU())


@pytest.mark.parametrize("variant", ["refined", "published"])
def test_parts_of_a_network_add_up_to_the_whole(points, variant):
    estimator = ActsEstimator(variant=variant).fit(*points)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    found = break_down(estimator, model, torch.zeros(1, 3, 32, 32))
    whole = estimator.estimate(model, torch.zeros(1, 3, 32, 32)).value
    assert sum(item.estimate.value for item in found.operators) == pytest.approx(whole)
    assert found.total.value == pytest.approx(whole)


def test_what_a_block_takes_once_is_left_out_inside_networks():
    blocks = draw_blocks(60)
    found = ActsEstimator().fit(blocks, [time_of(block) + 3e-4 for block in blocks])
    assert found.start_
    alone, inside = found.predict(blocks[:5]), found.predict(blocks[:5], alone=False)
    assert ((alone - inside > 1e-4) & (alone - inside < 4e-4)).all()
    assert found.estimate_block(blocks[0]).value == pytest.approx(inside[0])


def test_blocks_of_one_operator_have_no_beginning_of_their_own():
    blocks = [[block[0]] for block in draw_blocks(40)]
    found = ActsEstimator().fit(blocks, [time_of(block) for block in blocks])
    assert not found.start_
    assert (found.predict(blocks) == found.predict(blocks, alone=False)).all()
