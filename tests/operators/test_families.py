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


@pytest.mark.parametrize("op", [OpSpec.of("mystery", [(2, 3), (4,)]), OpSpec.of("conv2d", [(2, 5)])])
def test_work_of_what_cannot_be_counted_is_what_its_shapes_say(op):
    assert work_of(op) == (Features(inputs=10, outputs=10), False)


def test_work_of_an_unknown_kind_knows_its_output():
    assert work_of(OpSpec.of("mystery", [(2, 3)], out=(5, 6))) == (Features(inputs=6, outputs=30), False)
