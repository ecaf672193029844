# SPDX-License-Identifier: Apache-2.0
"""Families and groups of operators, and their work."""

from __future__ import annotations

import pytest

from nni_latency.operators import Features, OpSpec, family_of, features_of, form_of, group_of, work_of


def _conv(kind="conv2d", kernel=3, groups=1, channels=8):
    shape = (1, channels, 9, 9)[: 3 if kind.endswith("1d") else 4]
    return OpSpec.of(kind, [shape], out_channels=8, kernel_size=kernel, stride=1, groups=groups, bias=False)


@pytest.mark.parametrize(
    ("op", "family", "group"),
    [
        (_conv(), "conv2d dense", "dense convolution"),
        (_conv(kernel=(1, 1)), "conv2d pointwise", "pointwise convolution"),
        (_conv(groups=8), "conv2d depthwise", "depthwise convolution"),
        (_conv("conv1d", groups=4), "conv1d grouped", "grouped convolution"),
        (_conv("conv_transpose2d"), "conv_transpose2d dense", "transposed convolution"),
        (OpSpec.of("conv_block", [(1, 8, 9, 9)], kernel_size=1), "conv_block", "pointwise convolution"),
        (OpSpec.of("linear", [(1, 8)], out_features=4), "linear", "matrix product"),
        (OpSpec.of("max_pool2d", [(1, 8, 9, 9)], kernel_size=2), "max_pool2d", "max pooling"),
        (OpSpec.of("adaptive_avg_pool2d", [(1, 8, 9, 9)], output_size=1), "adaptive_avg_pool2d", "reduction"),
        (OpSpec.of("relu", [(1, 8)]), "relu", "elementwise"),
    ],
    ids=lambda item: item.kind if isinstance(item, OpSpec) else item,
)
def test_family_and_group_of_an_operator(op, family, group):
    assert (family_of(op), group_of(op)) == (family, group)


def test_only_convolutions_have_a_form():
    assert form_of(OpSpec.of("max_pool2d", [(1, 8, 9, 9)], kernel_size=2)) is None
    assert form_of(_conv(groups=2)) == "grouped"


def test_work_of_a_known_kind_is_its_features():
    assert work_of(_conv()) == (features_of(_conv()), True)


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "memory"),
    [
        (OpSpec.of("mystery", [(2, 3), (4,)]), 10, 6, 64),
        (OpSpec.of("mystery", [(2, 3)], out=(5, 6), dtype="float16"), 6, 30, 72),
        (OpSpec.of("mystery", [], out=7, dtype="complex64"), 0, 7, 56),
        (OpSpec.of("mystery", [(2, 3)], out="strange", weights="none"), 6, 6, 48),
        (OpSpec.of("conv2d", [(2, 5)]), 10, 10, 80),
        (OpSpec.of("einsum", [(2, 3)], equation="ij,jk->ik"), 6, 6, 48),
        (OpSpec.of("conv_block", [(2, 5)]), 10, 10, 80),
    ],
    ids=lambda item: item.kind if isinstance(item, OpSpec) else str(item),
)
def test_work_of_what_cannot_be_counted_is_what_its_shapes_say(op, inputs, outputs, memory):
    assert work_of(op) == (Features(memory=memory, inputs=inputs, outputs=outputs), False)


def test_work_of_a_block_counts_the_parts_that_are_known():
    parts = [_conv(), OpSpec.of("mystery", [(1, 8, 9, 9)])]
    block = OpSpec.of("block", [(1, 8, 9, 9)], calls=" ".join(part.op_key for part in parts))
    assert work_of(block) == (work_of(parts[0])[0] + work_of(parts[1])[0], False)
