# SPDX-License-Identifier: Apache-2.0
"""The roofline plugin as a library: what it answers, and that it keeps every contract."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.errors import InvalidValueError
from nni_latency.estimators import additive_cost
from nni_latency.operators import OpSpec, features_of
from nni_latency.spaces import FBNetSpace
from nni_latency.testing import check_estimator, check_plugin

_FOLDER = Path(__file__).parents[1] / "plugins" / "nni_latency_roofline"
_RELU = OpSpec.of("relu", [(1, 64, 100, 100)])
_CONV = OpSpec.of("conv2d", [(1, 64, 56, 56)], out_channels=64, kernel_size=3, stride=1, groups=1, bias=False)


@pytest.fixture(scope="module")
def roofline():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(_FOLDER)
        yield importlib.import_module("nni_latency_roofline")


@pytest.fixture(scope="module")
def space():
    return FBNetSpace(num_classes=4, input_size=16, width=0.5, depth=0.25)


def test_plugin_keeps_the_contract(roofline):
    check_plugin(importlib.import_module("nni_latency_roofline.plugin"))


@pytest.mark.parametrize("argument", ["100,20", "100,20,5", "0.5,1.5,0"])
def test_estimator_keeps_the_contract(roofline, space, argument):
    model = space.freeze(dict.fromkeys(space.simplify(), "k3_e3"))
    check_estimator(roofline.parse_roofline(argument), model, space.example_inputs())


def test_operator_is_bound_by_arithmetic_or_by_memory(roofline):
    estimator = roofline.parse_roofline("100,20")
    assert estimator.estimate_op(_CONV).value == pytest.approx(features_of(_CONV).flops / 100e9)
    assert estimator.estimate_op(_RELU).value == pytest.approx(features_of(_RELU).memory / 20e9)


def test_overhead_is_added_to_every_operator(roofline):
    fast, slow = (roofline.parse_roofline(text).estimate_op(_RELU).value for text in ("100,20", "100,20,5"))
    assert slow - fast == pytest.approx(5e-6)


@given(st.floats(0.1, 1e4), st.floats(0.1, 1e4), st.sampled_from([2.0, 8.0]))
def test_device_twice_as_fast_takes_half_the_time(roofline, peak, bandwidth, factor):
    one = roofline.RooflineEstimator(peak=peak * 1e9, bandwidth=bandwidth * 1e9)
    other = roofline.RooflineEstimator(peak=factor * peak * 1e9, bandwidth=factor * bandwidth * 1e9)
    assert one.estimate_op(_CONV).value == pytest.approx(factor * other.estimate_op(_CONV).value)


@pytest.mark.parametrize("kind", ["conv_block", "inverted_residual", "classification_head", "identity"])
def test_every_block_of_the_fbnet_space_has_a_positive_time(roofline, space, kind):
    ops = [c.op for layer in space.measure_plan().layers for c in layer.candidates.values() if c.op.kind == kind]
    answers = [roofline.parse_roofline("100,20").estimate_op(op) for op in ops]
    assert answers
    assert all(0 < answer.low <= answer.value <= answer.high < 1e-3 and not answer.missing for answer in answers)


def test_identity_is_the_cheapest_candidate(roofline, space):
    cost = additive_cost(roofline.parse_roofline("100,20"), space.measure_plan())
    kinds = {layer.name: layer.candidates["skip"].op.kind for layer in space.measure_plan().searched}
    cheapest = {name: min(choices, key=choices.get) for name, choices in cost.costs.items()}
    assert all(cheapest[name] == "skip" for name, kind in kinds.items() if kind == "identity")


def test_unknown_operator_is_costed_by_its_inputs_and_listed(roofline):
    class Special(torch.nn.Module):
        def forward(self, inputs):
            return torch.digamma(inputs)

    answer = roofline.parse_roofline("100,20").estimate(Special(), torch.zeros(1, 8, 10, 10))
    assert answer.value == pytest.approx(2 * 800 * 4 / 20e9)
    assert [key.partition("(")[0] for key in answer.missing] == ["digamma"]


def test_rooflines_of_other_peaks_are_other_platforms(roofline):
    one, other = (roofline.parse_roofline(text).platform for text in ("100,20", "100,40"))
    assert one.differences(other)


@pytest.mark.parametrize("argument", ["", "100", "100,20,5,1", "fast,20", "100;20"])
def test_argument_of_another_form_is_refused(roofline, argument):
    with pytest.raises(InvalidValueError, match=rf"as in 'roofline:100,20,5'\. Got '{argument}'"):
        roofline.parse_roofline(argument)


@pytest.mark.parametrize(
    ("argument", "name"), [("0,20", "peak"), ("nan,20", "peak"), ("100,-1", "bandwidth"), ("1,inf", "bandwidth")]
)
def test_peak_that_is_no_rate_is_refused(roofline, argument, name):
    with pytest.raises(InvalidValueError, match=rf"The '{name}' of a roofline must be a positive, finite number"):
        roofline.parse_roofline(argument)


def test_negative_overhead_is_refused(roofline):
    with pytest.raises(InvalidValueError, match=r"'overhead' of a roofline must be a number >= 0"):
        roofline.parse_roofline("100,20,-1")
