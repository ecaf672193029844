# SPDX-License-Identifier: Apache-2.0
"""The answer of an estimator, and what the base class of layer-based ones does."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from nni_latency.errors import InvalidValueError
from nni_latency.estimators import Estimate, LayerEstimator, break_down
from nni_latency.operators import export_onnx
from nni_latency.platforms import Platform

_estimates = st.builds(
    lambda low, below, above: Estimate(low + below, low, low + below + above),
    st.floats(0, 1e3),
    st.floats(1e-6, 1e3),
    st.floats(0, 1e3),
)


class _ByKind(LayerEstimator):
    """Two seconds a convolution, one second for anything else."""

    metric = "latency"
    platform = Platform("pi")
    calibration = 1.5

    def estimate_op(self, op):
        seconds = 2.0 if op.kind == "conv2d" else 1.0
        return Estimate(seconds, seconds / 2, seconds * 2, () if op.kind == "conv2d" else (op.kind,))


def test_sum_adds_values_and_widths_like_standard_deviations():
    total = Estimate.sum([Estimate(1.0, 0.7, 1.3), Estimate(2.0, 1.6, 2.4)])
    assert (total.value, total.low, total.high) == pytest.approx((3.0, 2.5, 3.5))


def test_sum_of_nothing_is_zero():
    assert Estimate.sum([]) == Estimate(0.0, 0.0, 0.0)


def test_sum_lists_all_that_is_missing():
    assert Estimate.sum([Estimate(1, 1, 1, ("a",)), Estimate(1, 1, 1, ("b", "c"))]).missing == ("a", "b", "c")


@given(st.lists(_estimates, max_size=6), st.sampled_from([0.5, 1.0, 4.0]))
def test_sum_scales_with_its_factor(parts, factor):
    plain, scaled = Estimate.sum(parts), Estimate.sum(parts, factor)
    assert (scaled.value, scaled.low, scaled.high) == (factor * plain.value, factor * plain.low, factor * plain.high)


@given(st.lists(_estimates, min_size=1, max_size=6))
def test_sum_is_no_wider_than_the_sum_of_the_ends(parts):
    total = Estimate.sum(parts)
    slack = 1e-9 * (1 + total.high)
    assert math.fsum(part.low for part in parts) - slack <= total.low <= total.value
    assert total.value <= total.high <= math.fsum(part.high for part in parts) + slack


@given(st.lists(_estimates, max_size=6), st.randoms(use_true_random=False))
def test_sum_does_not_depend_on_the_order(parts, generator):
    shuffled = parts.copy()
    generator.shuffle(shuffled)
    assert Estimate.sum(shuffled) == Estimate.sum(parts)


def test_layer_estimator_adds_up_the_operators_and_calibrates():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1))
    answer = _ByKind().estimate(model, torch.zeros(1, 3, 4, 4))
    assert answer.value == 1.5 * 5
    assert answer.missing == ("relu",)


def test_layer_estimator_takes_an_onnx_file_as_it_takes_the_network(tmp_path):
    pytest.importorskip("onnx")
    model, inputs = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1)).eval(), torch.zeros(1, 3, 4, 4)
    path = tmp_path / "net.onnx"
    path.write_bytes(export_onnx(model, [inputs]).serialised())
    for answer in (_ByKind().estimate(path), break_down(_ByKind(), path).total):
        assert answer == _ByKind().estimate(model, inputs)


def test_layer_estimator_needs_inputs():
    with pytest.raises(InvalidValueError, match=r"_ByKind\.estimate needs 'example_inputs'"):
        _ByKind().estimate(nn.ReLU())
