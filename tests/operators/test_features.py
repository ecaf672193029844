# SPDX-License-Identifier: Apache-2.0
"""Counts of every operator kind against closed forms and against the real modules."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from nni_latency.errors import InvalidValueError
from nni_latency.operators import Features, OpSpec, capture_operators, features_of
from nni_latency.spaces import ClassificationHead, ConvBlock, FBNetBlock, Skip

_X = (2, 8, 6, 5)
_ELEMENTS = 2 * 8 * 6 * 5

#: Every plain kind with the numbers worked out by hand.
_CLOSED_FORMS = {
    "conv2d": (
        OpSpec.of("conv2d", [_X], out_channels=4, kernel_size=3, stride=2, groups=2, bias=True),
        # 2 x 4 x 3 x 3 outputs of 4 x 3 x 3 multiply-adds, 4 filters of 36 weights and 4 biases
        Features(72 * 36, 2 * 72 * 36 + 72, 72, _ELEMENTS, 4 * 36 + 4, 4 * (_ELEMENTS + 72 + 148), _ELEMENTS, 72),
    ),
    "linear": (
        OpSpec.of("linear", [(2, 7)], out_features=3, bias=True),
        Features(macs=42, flops=90, params=24, memory=4 * (14 + 6 + 24), inputs=14, outputs=6),
    ),
    "batch_norm": (
        OpSpec.of("batch_norm", [_X]),
        Features(flops=960, params=16, memory=4 * (960 + 32), inputs=480, outputs=480),
    ),
    "relu": (OpSpec.of("relu", [_X]), Features(flops=480, memory=4 * 960, inputs=480, outputs=480)),
    "add": (OpSpec.of("add", [_X, _X]), Features(flops=480, memory=4 * 1440, inputs=960, outputs=480)),
    "multiply": (
        OpSpec.of("multiply", [_X, (2, 8, 1, 1)]),
        Features(flops=480, memory=4 * (480 + 16 + 480), inputs=496, outputs=480),
    ),
    "channel_shuffle": (OpSpec.of("channel_shuffle", [_X]), Features(memory=4 * 960, inputs=480, outputs=480)),
    "global_average_pool": (
        OpSpec.of("global_average_pool", [_X]),
        Features(flops=480, memory=4 * (480 + 16), inputs=480, outputs=16),
    ),
    "identity": (OpSpec.of("identity", [_X]), Features()),
}

#: Composite kinds: real modules, and the leaf operators that torch runs outside any module.
_BLOCKS = {
    "conv_block": ConvBlock(8, 16, 3, 2),
    "conv_block without relu": ConvBlock(8, 16, 1, 1, relu=False),
    "residual": FBNetBlock(8, 8, 5, 1, 3),
    "strided": FBNetBlock(8, 12, 3, 2, 6),
    "grouped": FBNetBlock(8, 8, 3, 1, 1, groups=2),
    "grouped strided": FBNetBlock(8, 16, 5, 2, 1, groups=2),
    "classification_head": ClassificationHead(8, 24, 10),
    "skip": Skip(),
}


@pytest.mark.parametrize("kind", _CLOSED_FORMS)
def test_features_match_the_closed_form(kind):
    op, features = _CLOSED_FORMS[kind]
    assert features_of(op) == features


@pytest.mark.parametrize("name", _BLOCKS)
def test_block_parameters_are_those_of_the_real_module(name):
    block = _BLOCKS[name]
    assert features_of(block.op_spec(_X)).params == sum(parameter.numel() for parameter in block.parameters())


@pytest.mark.parametrize("name", _BLOCKS)
def test_block_multiply_adds_are_those_of_its_leaves(name):
    counted = _leaf_features(_BLOCKS[name])
    features = features_of(_BLOCKS[name].op_spec(_X))
    assert (features.macs, features.acts, features.inp) == (counted.macs, counted.acts, counted.inp)


@pytest.mark.parametrize("name", _BLOCKS)
def test_block_flops_are_those_of_its_leaves_and_of_the_sum_and_mean(name):
    block = _BLOCKS[name]
    extra = _ELEMENTS if getattr(block, "residual", False) else 0
    extra += 2 * 24 * 6 * 5 if isinstance(block, ClassificationHead) else 0
    assert features_of(block.op_spec(_X)).flops == _leaf_features(block).flops + extra


def _mobile_block(channels, out_channels, kernel_size, stride, squeeze_excite):
    """Make the block of MobileNetV3 with 8 channels in front, out of torch's own modules."""
    widened = [ConvBlock(8, channels)] if channels != 8 else []
    gate = [nn.Conv2d(channels, 8, 1), nn.ReLU(), nn.Conv2d(8, channels, 1)] if squeeze_excite else []
    depthwise = ConvBlock(channels, channels, kernel_size, stride, groups=channels)
    return nn.Sequential(*widened, depthwise), gate, ConvBlock(channels, out_channels, relu=False)


@pytest.mark.parametrize(("channels", "stride", "squeeze_excite"), [(8, 1, 0), (24, 2, 1), (32, 1, 1)])
def test_expanded_conv_counts_what_its_modules_count(channels, stride, squeeze_excite):
    inner, gate, last = _mobile_block(channels, 8, 5, stride, squeeze_excite)
    op = OpSpec.of(
        "expanded_conv",
        [_X],
        channels=channels,
        out_channels=8,
        kernel_size=5,
        stride=stride,
        residual=stride == 1,
        squeeze_excite=squeeze_excite,
    )
    found = features_of(op)
    assert found.params == sum(weights.numel() for part in (inner, *gate, last) for weights in part.parameters())
    leaves = _leaf_features(nn.Sequential(inner, last)).macs + 2 * 2 * channels * 8 * squeeze_excite
    assert found.macs == leaves


@given(st.sampled_from(sorted(_CLOSED_FORMS)), st.integers(1, 64))
def test_features_scale_with_the_batch(kind, batch):
    """All counts but those of parameters are per picture."""
    op, _ = _CLOSED_FORMS[kind]
    one, many = (features_of(_with_batch(op, size)) for size in (1, batch))
    scaled = [getattr(many, name) == batch * getattr(one, name) for name in ("macs", "flops", "acts", "inp")]
    assert all(scaled)
    assert many.params == one.params


def test_half_precision_moves_half_the_bytes():
    op = _CLOSED_FORMS["conv2d"][0]
    assert features_of(dataclasses.replace(op, dtype="float16")).memory * 2 == features_of(op).memory


def test_features_add_up():
    assert Features(1, 2, 3, 4, 5, 6) + Features(10, 20, 30, 40, 50, 60) == Features(11, 22, 33, 44, 55, 66)


def test_features_of_an_unknown_kind_are_what_its_shapes_say():
    assert features_of(OpSpec.of("strange", [(1, 2)], out=3)) == Features(memory=20, inputs=2, outputs=3)


@pytest.mark.parametrize(
    "op", [OpSpec.of("conv2d", [(1, 3, 8, 8)]), OpSpec.of("conv_block", [(1, 3, 8, 8)])], ids=lambda op: op.kind
)
def test_attributes_that_a_known_kind_lacks_are_named(op):
    with pytest.raises(InvalidValueError, match=rf"attributes of {op.kind}\(\).* do not fit its kind: KeyError: '\w+'"):
        features_of(op)


def _with_batch(op: OpSpec, batch: int) -> OpSpec:
    return dataclasses.replace(op, input_shapes=tuple((batch, *shape[1:]) for shape in op.input_shapes))


def _leaf_features(block: nn.Module) -> Features:
    """Count the leaves of a block one by one: the modules that torch itself defines."""
    if isinstance(block, Skip):
        return Features()
    seen: list[tuple[nn.Module, torch.Tensor]] = []
    hooks = [
        leaf.register_forward_pre_hook(lambda module, inputs: seen.append((module, inputs[0])))
        for leaf in block.modules()
        if isinstance(leaf, (nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.Linear))
    ]
    with torch.inference_mode():
        block.eval()(torch.zeros(_X))
    for hook in hooks:
        hook.remove()
    ops = [op for module, inputs in seen for _, op in capture_operators(module, inputs)]
    return sum(map(features_of, ops), Features())
