# SPDX-License-Identifier: Apache-2.0
"""Networks as sums of kernels."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from nni_latency.errors import MismatchError, MissingEntryError
from nni_latency.estimators import Estimate, KernelEstimator, LayerEnsemble, LayerEstimator, break_down
from nni_latency.operators import FusionRule, FusionRules, OpSpec, read_onnx
from nni_latency.platforms import Platform
from nni_latency.testing import check_estimator

_PLATFORM = Platform("cpu", "openvino")
_RULES = FusionRules(
    _PLATFORM,
    (FusionRule(("conv2d", "batch_norm"), True, folds=True), FusionRule(("conv2d", "relu"), True)),
)
_INPUTS = torch.zeros(1, 3, 8, 8)


class _Costs:
    """Knows some kernels."""

    platform, metric = _PLATFORM, "latency"

    def __init__(self, known):
        self.known = known

    def estimate_fused(self, ops):
        value = self.known.get("+".join(op.kind for op in ops))
        return None if value is None else Estimate(value, 0.9 * value, 1.2 * value)


class _Fallback(LayerEstimator):
    platform, metric = _PLATFORM, "latency"

    def estimate_op(self, op):
        return Estimate(0.25, 0.2, 0.3)


_KNOWN = {"conv2d+batch_norm+relu": 1.0, "conv2d": 0.8, "adaptive_avg_pool2d": 0.1, "batch_norm": 0.2, "relu": 0.1}


def _network():
    return nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1))


def test_a_network_costs_its_kernels_and_what_the_runtime_adds():
    found = KernelEstimator(_RULES, _Costs(_KNOWN), constant=0.5).estimate(_network(), _INPUTS)
    assert found.value == pytest.approx(1.6)
    assert found.low < 1.6 < found.high
    assert not found.missing


def test_an_ensemble_of_kernel_estimators_fuses_and_adds_what_the_runtime_adds():
    dear = {kernel: 2 * value for kernel, value in _KNOWN.items()}
    members = [
        KernelEstimator(_RULES, _Costs(known), constant=constant) for known, constant in ((_KNOWN, 0.5), (dear, 0.9))
    ]
    expected = (members[0].estimate(_network(), _INPUTS).value + members[1].estimate(_network(), _INPUTS).value) / 2
    assert LayerEnsemble(members=members).estimate(_network(), _INPUTS).value == pytest.approx(expected)


def test_an_unknown_kernel_costs_what_is_known_of_its_beginning():
    known = {name: value for name, value in _KNOWN.items() if "+" not in name}
    found = KernelEstimator(_RULES, _Costs(known)).estimate(_network(), _INPUTS)
    assert found.value == pytest.approx(0.8 + 0.1)
    assert not found.missing


def test_a_shortcut_that_joins_a_kernel_costs_what_it_reads_besides():
    rules = FusionRules(_PLATFORM, (FusionRule(("conv2d", "add"), True), FusionRule(("conv2d", "add", "relu"), True)))
    costs = _Costs({"conv2d": 0.8, "add": 0.3, "relu": 0.1})

    class Shortcut(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = nn.Conv2d(3, 3, 1)

        def forward(self, x):
            return torch.relu(x + self.convolution(x))

    found = KernelEstimator(rules, costs).estimate(Shortcut(), _INPUTS)
    assert found.value == pytest.approx(0.8 + 0.3 / 3)
    assert not found.missing


def test_a_result_is_brought_into_another_layout_once():
    """The activation between convolutions is outside of their layout: its input goes out of it, and its result back."""
    rules = FusionRules(_PLATFORM, plain=("hardswish",))
    costs = _Costs({"conv2d": 0.8, "hardswish": 0.2, "relu": 0.1, "cat": 0.05})

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.left, self.right = (nn.Conv2d(3, 3, 1) for _ in range(3))

        def forward(self, x):
            inner = nn.functional.hardswish(self.first(x))
            return torch.cat((self.left(inner), self.right(inner)), 1)

    found = KernelEstimator(rules, costs).estimate(Branches(), _INPUTS)
    assert found.value == pytest.approx(3 * 0.8 + 0.2 + 0.05 + 2 * 0.1)
    assert KernelEstimator(FusionRules(_PLATFORM), costs).estimate(Branches(), _INPUTS).value == pytest.approx(
        3 * 0.8 + 0.2 + 0.05
    )


@pytest.mark.parametrize(("channels", "copies"), [(16, 0), (24, 3), (8, 3)])
def test_results_of_broken_blocks_are_brought_into_the_plain_layout(channels, copies):
    """Both that are put together go out of the layout of convolutions, and what is made of them back into it."""
    rules = FusionRules(_PLATFORM, blocks={"cat": 16})
    costs = _Costs({"conv2d": 0.8, "relu": 0.1, "cat": 0.05})

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = (nn.Conv2d(3, channels, 1) for _ in range(2))
            self.last = nn.Conv2d(2 * channels, 4, 1)

        def forward(self, x):
            return self.last(torch.cat((self.left(x), self.right(x)), 1))

    found = KernelEstimator(rules, costs).estimate(Branches(), _INPUTS)
    assert found.value == pytest.approx(3 * 0.8 + 0.05 + copies * 0.1)


def test_what_takes_results_of_both_layouts_works_in_the_plain_one():
    rules = FusionRules(_PLATFORM, plain=("hardswish",))
    costs = _Costs({"conv2d": 0.8, "hardswish": 0.2, "relu": 0.1, "add": 0.05})

    class Shortcut(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = (nn.Conv2d(3, 3, 1) for _ in range(2))

        def forward(self, x):
            value = self.first(x)
            return self.last(value + nn.functional.hardswish(value))

    found = KernelEstimator(rules, costs).estimate(Shortcut(), _INPUTS)
    # One copy for the activation and the sum, another one back for the convolution.
    assert found.value == pytest.approx(2 * 0.8 + 0.2 + 0.05 + 2 * 0.1)


def test_what_does_not_work_on_numbers_at_hand_costs_what_it_costs_alone():
    rules = FusionRules(_PLATFORM, (FusionRule(("conv2d", "max_pool2d"), True),))
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2))
    found = KernelEstimator(rules, _Costs({"conv2d": 0.8, "max_pool2d": 0.3})).estimate(network, _INPUTS)
    assert found.value == pytest.approx(1.1)


def test_an_unknown_operator_has_what_the_fallback_says():
    costs = _Costs({"conv2d+batch_norm+relu": 1.0})
    found = KernelEstimator(_RULES, costs, fallback=_Fallback()).estimate(_network(), _INPUTS)
    assert found.value == pytest.approx(1.25)
    (missing,) = found.missing
    assert missing.startswith("adaptive_avg_pool2d(")
    with pytest.raises(MissingEntryError, match=r"Nothing is known of the operator adaptive_avg_pool2d\("):
        KernelEstimator(_RULES, costs).estimate(_network(), _INPUTS)


def test_a_block_is_divided_into_kernels():
    block = OpSpec.of("conv_block", [(1, 3, 8, 8)], out_channels=4, kernel_size=3, stride=1, relu=True)
    assert KernelEstimator(_RULES, _Costs(_KNOWN), constant=0.5).estimate_op(block).value == pytest.approx(1.0)


def test_a_breakdown_gives_a_kernel_to_its_first_operator():
    found = break_down(KernelEstimator(_RULES, _Costs(_KNOWN)), _network(), _INPUTS)
    assert [item.estimate.value for item in found.operators] == pytest.approx([1.0, 0, 0, 0.1])


def test_it_keeps_the_contract_of_estimators():
    check_estimator(KernelEstimator(_RULES, _Costs(_KNOWN), constant=0.5), _network(), _INPUTS)


def test_rules_costs_and_fallback_must_agree():
    elsewhere = FusionRules(Platform("cpu", "onnxruntime"))
    with pytest.raises(MismatchError, match="another runtime makes other kernels"):
        KernelEstimator(elsewhere, _Costs(_KNOWN))
    other = _Fallback()
    other.metric = "energy"
    with pytest.raises(MismatchError, match="cannot stand in"):
        KernelEstimator(_RULES, _Costs(_KNOWN), fallback=other)
    other.platform = Platform("another", "openvino")
    with pytest.raises(MismatchError, match="A fallback for kernels would mix"):
        KernelEstimator(_RULES, _Costs(_KNOWN), fallback=other)


def test_an_onnx_file_is_divided_as_the_network_is(tmp_path):
    pytest.importorskip("onnx", reason="the package onnx is not installed")
    with warnings.catch_warnings():
        # The exporter that needs no further package is on its way out.
        warnings.simplefilter("ignore")
        torch.onnx.export(_network().eval(), _INPUTS, str(tmp_path / "net.onnx"), dynamo=False)
    # The exporter has folded batch normalisation itself.
    estimator = KernelEstimator(_RULES, _Costs({"conv2d+relu": 1.0, "adaptive_avg_pool2d": 0.1}))
    assert estimator.estimate(tmp_path / "net.onnx").value == pytest.approx(1.1)
    assert estimator.estimate(read_onnx(tmp_path / "net.onnx")).value == pytest.approx(1.1)
