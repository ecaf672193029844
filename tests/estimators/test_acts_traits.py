# SPDX-License-Identifier: Apache-2.0
"""What the cost of an operator may depend on, and how points are dealt to folds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from acts_points import SPEEDS
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.estimators import ActsEstimator
from nni_latency.estimators.acts._workloads import AMOUNTS, N_TOTALS, N_TRAITS, START, describe_work, start_of_workload
from nni_latency.estimators.acts._workloads import describe_totals as totals_work
from nni_latency.operators import OpSpec, features_of

CHANNELS = st.integers(1, 70)


def _conv(before, after, groups=1, size=8, kernel=3):
    return OpSpec.of(
        "conv2d", [(2, before, size, size)], out_channels=after, kernel_size=kernel, stride=1, groups=groups, bias=False
    )


def _amount(work, name):
    return work.amounts[AMOUNTS.index(name)]


@given(CHANNELS, CHANNELS)
def test_flops_are_those_of_the_channels_that_are_computed_at_once(before, after):
    full = _conv(8 * math.ceil(before / 8), 8 * math.ceil(after / 8))
    assert _amount(describe_work(_conv(before, after))[0], "flops") == pytest.approx(features_of(full).flops)
    assert _amount(describe_work(full)[0], "flops") == features_of(full).flops


def test_channels_are_filled_up_by_group_and_those_of_a_depthwise_convolution_together():
    def factor(op):
        return _amount(describe_work(op)[0], "flops") / features_of(op).flops

    assert factor(_conv(72, 72, groups=9)) == 1
    assert factor(_conv(72, 72, groups=8)) == pytest.approx((16 / 9) ** 2)
    assert factor(_conv(72, 72, groups=72)) == 1
    assert factor(_conv(70, 70, groups=70)) == pytest.approx(72 / 70)
    assert factor(OpSpec.of("relu", [(1, 3, 5, 5)])) == 1


def test_all_work_has_the_same_numbers():
    conv = describe_work(_conv(3, 5))[0]
    assert len(conv.traits) == len(start_of_workload().traits) == N_TRAITS
    assert len(totals_work(1, 2, 3).traits) == N_TOTALS
    assert {len(work.amounts) for work in (conv, start_of_workload(), totals_work(1, 2, 3))} == {len(AMOUNTS)}
    assert start_of_workload().group == START


def test_a_device_that_fills_its_lanes_is_learned():
    def seconds(op):
        outputs, inputs, flops, call = SPEEDS["dense"]
        features = features_of(op)
        counted = flops * _amount(describe_work(op)[0], "flops")
        return outputs * features.outputs + inputs * features.inputs + counted + call

    generator = np.random.default_rng(0)
    ops = [_conv(*map(int, generator.integers(1, 90, 2)), size=int(generator.choice([7, 14, 28]))) for _ in range(160)]
    truth = np.array(list(map(seconds, ops)))
    blocks = [[op] for op in ops]
    fitted = ActsEstimator().fit(blocks[:80], truth[:80])
    assert np.median(np.abs(fitted.predict(blocks[80:]) / truth[80:] - 1)) < 0.01


def test_groups_are_one_for_each_point():
    totals = np.arange(36, dtype=float).reshape(12, 3) ** 2
    for groups in (["same"] * 12, ["a", "b"]):
        with pytest.raises(ValueError, match="'groups' of ActsEstimator must be one for each point"):
            ActsEstimator().fit(totals, np.arange(1, 13), groups=groups)
