# SPDX-License-Identifier: Apache-2.0
"""Networks divided into kernels."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from nni_latency.errors import InvalidValueError, MismatchError
from nni_latency.operators import FusionRule, FusionRules, FusionTimes, OpSpec, Trace, TracedOperator, fuse, trace
from nni_latency.operators import chained as chain_of
from nni_latency.platforms import Platform

_PLATFORM = Platform("cpu")
_INPUTS = torch.zeros(1, 3, 8, 8)
_KINDS = ("sigmoid", "neg", "exp", "add")


def _rules(*fused, apart=(), **options):
    rules = [FusionRule(tuple(text.split("+")), True, **options) for text in fused]
    rules += [FusionRule(tuple(text.split("+")), False) for text in apart]
    folds = [FusionRule(("conv2d", "batch_norm"), True, folds=True)]
    return FusionRules(_PLATFORM, tuple(rules + [rule for rule in folds if rule.kinds not in {r.kinds for r in rules}]))


def _kinds(kernels):
    return [tuple(item.op.kind for item in kernel) for kernel in kernels]


def _conv(channels=4):
    return nn.Sequential(nn.Conv2d(channels, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4))


class _Residual(nn.Module):
    """A block whose input is added to what two convolutions make of it."""

    def __init__(self):
        super().__init__()
        self.stem, self.first, self.second, self.act = _conv(3), _conv(), _conv(), nn.ReLU()

    def forward(self, inputs):
        stem = self.act(self.stem(inputs))
        return self.act(self.second(self.act(self.first(stem))) + stem)


@st.composite
def _networks(draw):
    """Draw operators of which each takes what up to two earlier ones returned."""
    items = []
    for number in range(draw(st.integers(1, 12))):
        sources = draw(st.lists(st.integers(0, number - 1), max_size=2, unique=True)) if number else []
        kind = draw(st.sampled_from(_KINDS))
        op = OpSpec.of(kind, [(1, 4)] * max(1, len(sources)))
        items.append(TracedOperator(f"op{number}", op, tuple(sources)))
    return Trace(tuple(items), len(items))


@st.composite
def _any_rules(draw):
    names = st.lists(st.sampled_from(_KINDS), min_size=2, max_size=3).map(tuple)
    kinds = draw(st.lists(names, max_size=12, unique=True))
    flags = st.booleans()
    rules = (FusionRule(item, draw(flags), shared=draw(flags), folds=draw(flags)) for item in kinds)
    return FusionRules(_PLATFORM, tuple(rules))


def _numbers(network, kernels):
    return [tuple(network.operators.index(item) for item in kernel) for kernel in kernels]


@given(_networks(), _any_rules())
def test_kernels_are_a_partition_in_an_order_that_can_be_executed(network, rules):
    kernels = _numbers(network, fuse(network, rules))
    assert sorted(itertools.chain(*kernels)) == list(range(len(network.operators)))
    assert all(list(kernel) == sorted(kernel) for kernel in kernels)
    place = {number: where for where, kernel in enumerate(kernels) for number in kernel}
    for number, item in enumerate(network.operators):
        assert all(place[source] <= place[number] for source in item.sources)


@given(_networks(), _any_rules())
def test_the_same_network_is_always_divided_in_the_same_way(network, rules):
    again = FusionRules(rules.platform, tuple(reversed(rules.rules)))
    assert fuse(network, rules) == fuse(network, again)


@given(_networks())
def test_without_rules_every_operator_is_a_kernel(network):
    assert fuse(network, FusionRules(_PLATFORM)) == [(item,) for item in network.operators]


@given(_networks(), _any_rules())
def test_no_kernel_spans_what_is_read_elsewhere_unless_a_rule_allows_it(network, rules):
    strict = FusionRules(_PLATFORM, tuple(FusionRule(rule.kinds, rule.fused) for rule in rules.rules))
    for kernel in _numbers(network, fuse(network, strict)):
        for number in kernel[:-1]:
            readers = [place for place, item in enumerate(network.operators) if number in item.sources]
            assert set(readers) <= set(kernel)


def test_weights_are_folded_before_what_follows_is_judged():
    network = nn.Sequential(*_conv(3), nn.ReLU())
    for by in ("module", "graph"):
        traced = trace(network, _INPUTS, by)
        assert _kinds(fuse(traced, _rules("conv2d+relu"))) == [("conv2d", "batch_norm", "relu")]
        assert _kinds(fuse(traced, _rules("batch_norm+relu"))) == [("conv2d", "batch_norm"), ("relu",)]


def test_an_addition_joins_what_was_computed_last():
    kernels = fuse(trace(_Residual(), _INPUTS), _rules("conv2d+relu", "conv2d+add", "conv2d+add+relu", "relu+add"))
    block = ("conv2d", "batch_norm")
    assert _kinds(kernels) == [(*block, "relu"), (*block, "relu"), (*block, "add", "relu")]


def test_a_result_that_is_read_twice_ends_its_kernel():
    stem = trace(nn.Sequential(*_conv(3)), _INPUTS).operators
    readers = [TracedOperator(str(place), OpSpec.of("relu", [(1, 4, 8, 8)]), (1,)) for place in range(2)]
    network = Trace((*stem, *readers), 4)
    assert _kinds(fuse(network, _rules("conv2d+relu"))) == [("conv2d", "batch_norm"), ("relu",), ("relu",)]
    shared = _rules("conv2d+relu", shared=True)
    assert _kinds(fuse(network, shared)) == [("conv2d", "batch_norm", "relu"), ("relu",)]


def test_a_result_that_the_network_returns_ends_its_kernel():
    """As in ONNX Runtime, which has no place to write such a result in a fused kernel."""
    operators = trace(nn.Sequential(*_conv(3), nn.ReLU()), _INPUTS).operators
    ends, returns = (Trace(operators, 3, returned=returned) for returned in ((2,), (1, 2)))
    assert _kinds(fuse(ends, _rules("conv2d+relu"))) == [("conv2d", "batch_norm", "relu")]
    assert _kinds(fuse(returns, _rules("conv2d+relu"))) == [("conv2d", "batch_norm"), ("relu",)]


def test_an_operator_that_waits_for_another_one_does_not_join():
    """The addition takes the first result and what is made of it elsewhere: it cannot run with the first."""
    ops = [OpSpec.of("sigmoid", [(1, 4)]), OpSpec.of("neg", [(1, 4)]), OpSpec.of("add", [(1, 4), (1, 4)])]
    sources = [(), (0,), (0, 1)]
    network = Trace(tuple(TracedOperator("", op, item) for op, item in zip(ops, sources, strict=True)), 3)
    assert _kinds(fuse(network, _rules("sigmoid+add", shared=True))) == [("sigmoid",), ("neg",), ("add",)]


def test_the_longest_rule_decides():
    network = chain_of([OpSpec.of(kind, [(1, 4)]) for kind in ("sigmoid", "neg", "exp")])
    rules = _rules("sigmoid+neg", "neg+exp", apart=["sigmoid+neg+exp"])
    assert _kinds(fuse(network, rules)) == [("sigmoid", "neg"), ("exp",)]


def test_a_family_goes_before_its_kind():
    network = trace(nn.Sequential(nn.Conv2d(3, 3, 3, groups=3), nn.ReLU(), nn.Conv2d(3, 3, 3), nn.ReLU()), _INPUTS)
    rules = _rules("conv2d+relu", apart=["conv2d depthwise+relu"])
    assert _kinds(fuse(network, rules)) == [("conv2d",), ("relu",), ("conv2d", "relu")]


def test_a_part_of_a_result_or_one_that_is_spread_is_not_fused():
    class Gate(nn.Module):
        def forward(self, inputs):
            return torch.sigmoid(inputs)[:, :1].exp(), inputs * torch.sigmoid(inputs.mean((2, 3), keepdim=True))

    kernels = fuse(trace(Gate(), _INPUTS), _rules("sigmoid+exp", "sigmoid+mul"))
    assert all(len(kernel) == 1 for kernel in kernels)


def test_times_say_what_is_saved():
    times = FusionTimes(4e-4, 1e-4, 4.1e-4, 0.1)
    assert times.share == pytest.approx(0.9)
    assert times.clear
    assert not FusionTimes(4e-4, 1e-4, 4.5e-4, 0.1).clear
    assert not FusionTimes(4e-4, 1e-4, 1e-4, 3.0).clear
    assert FusionTimes(4e-4, 1e-4, 9e-4, 3.0).clear
    assert FusionTimes(4e-4, -1e-9, 4e-4, 1.0).share == 0


def test_rules_are_those_of_one_runtime():
    rules = _rules("conv2d+relu")
    rules.check_runtime(Platform("another-device"))
    with pytest.raises(MismatchError, match=r"runtime torch in fp32, not of openvino in fp32: another .*learn kernels"):
        rules.check_runtime(Platform("cpu", "openvino"))


def test_rules_that_cannot_be_are_refused():
    with pytest.raises(InvalidValueError, match="two kinds of operators or more"):
        FusionRule(("conv2d",), True)
    with pytest.raises(InvalidValueError, match=r"Got two for conv2d \+ relu"):
        FusionRules(_PLATFORM, (FusionRule(("conv2d", "relu"), True), FusionRule(("conv2d", "relu"), False)))
