# SPDX-License-Identifier: Apache-2.0
"""From an operator's key back to a module."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - everybody calls it so
from torch import nn

from nni_latency.errors import UnknownNameError
from nni_latency.operators import OpSpec, build_operator, trace

FEATURES, ROWS = torch.zeros(2, 8, 6, 6), torch.zeros(2, 5, 8)

MODULES = [
    (nn.Conv2d(8, 4, 3, stride=2, padding=1), FEATURES),
    (nn.Conv2d(8, 4, 3), FEATURES),
    (nn.Conv2d(8, 8, (1, 5), padding=(0, 2), groups=4, bias=False), FEATURES),
    (nn.Conv2d(8, 8, 3, padding=2, dilation=2), FEATURES),
    (nn.Conv2d(8, 8, 2, padding="same"), FEATURES),
    (nn.Conv1d(5, 4, 3, padding=1), ROWS),
    (nn.ConvTranspose2d(8, 4, 3, stride=2, output_padding=1), FEATURES),
    (nn.Linear(8, 3), ROWS),
    (nn.BatchNorm2d(8), FEATURES),
    (nn.LayerNorm(8), ROWS),
    (nn.GroupNorm(2, 8), FEATURES),
    (nn.BatchNorm2d(8, affine=False), FEATURES),
    (nn.LayerNorm(8, bias=False), ROWS),
    (nn.LayerNorm(8, elementwise_affine=False), ROWS),
    (nn.GroupNorm(2, 8, affine=False), FEATURES),
    (nn.InstanceNorm2d(8), FEATURES),
    (nn.InstanceNorm2d(8, affine=True), FEATURES),
    (nn.ReLU(inplace=True), FEATURES),
    (nn.ReLU6(), FEATURES),
    (nn.Hardswish(), FEATURES),
    (nn.GELU(), ROWS),
    (nn.Softmax(-1), ROWS),
    (nn.MaxPool2d(3, 2, 1), FEATURES),
    (nn.AvgPool2d(2, count_include_pad=False), FEATURES),
    (nn.AdaptiveAvgPool2d((3, 1)), FEATURES),
]

FUNCTIONS = [
    (lambda x: x + x, FEATURES),
    (lambda x: 1 - x, FEATURES),
    (lambda x: x.mul_(x), FEATURES),
    (lambda x: torch.cat([x, x], 1), FEATURES),
    (lambda x: torch.stack([x, x]), FEATURES),
    (lambda x: x @ x.transpose(1, 2), ROWS),
    (lambda x: x.mean((2, 3), keepdim=True), FEATURES),
    (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), FEATURES),
    (lambda x: x.exp(), FEATURES),
    (lambda x: x.clamp(0, 6), FEATURES),
    (lambda x: x.cumsum(1), FEATURES),
    (lambda x: x.flip(1), FEATURES),
    (lambda x: x.roll((1, 2), (0, 1)), FEATURES),
    (lambda x: x.argmax(1, True), FEATURES),
    (lambda x: F.pixel_shuffle(x, 2), FEATURES),
]


def _op_of(module, inputs):
    (item,) = trace(module, inputs, by="graph").operators
    return item.op


class _Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, value):
        return self.function(value)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.parametrize(("module", "inputs"), MODULES, ids=lambda value: type(value).__name__)
def test_module_is_built_from_its_key(module, inputs):
    op = _op_of(module, inputs)
    built = build_operator(op)
    assert _op_of(built, inputs) == op
    assert sum(p.numel() for p in built.parameters()) == sum(p.numel() for p in module.parameters())
    assert built(*(torch.ones(shape) for shape in op.input_shapes)).shape == module(inputs).shape


@pytest.mark.parametrize(("function", "inputs"), FUNCTIONS)
def test_function_is_built_from_its_key(function, inputs):
    op = _op_of(_Call(function), inputs)
    built = build_operator(op)
    assert built(*(torch.ones(shape) for shape in op.input_shapes)).shape == function(inputs.clone()).shape


@pytest.mark.parametrize(
    "op",
    [
        OpSpec.of("inverted_residual", [(1, 3, 4, 4)]),
        OpSpec.of("copy", [(1, 3, 4, 4)], out=(1, 3, 4, 4)),
        OpSpec.of("conv2d", [(1, 3, 4, 4)]),
        OpSpec.of("linear", [(1, 4)], out_features=-2, bias=True),
        OpSpec.of("relu", [(1, 4)], dtype="nonsense"),
        OpSpec.of("relu", [(1, 4)], colour="red"),
        OpSpec.of("relu", [(1, 4)], out=(3, 3)),
        OpSpec.of("matmul", [(1, 4), (3, 3)]),
    ],
    ids=lambda op: op.kind,
)
def test_key_that_says_too_little_is_refused(op):
    with pytest.raises(UnknownNameError, match=r"cannot be built from its key\b.*[^.]\.$"):
        build_operator(op)


def test_attribute_that_is_missing_is_named():
    with pytest.raises(UnknownNameError, match=r"cannot be built from its key: it lacks 'kernel_size'\.$"):
        build_operator(OpSpec.of("conv2d", [(1, 10, 8, 8)], out_channels=9))


def test_attributes_that_are_superfluous_are_named_with_the_key_that_is_expected():
    """All arguments of the module, of which a key has those that differ from what is usual."""
    needed = {"out_channels": 4, "kernel_size": 3, "stride": 1, "groups": 1, "bias": True}
    expected = OpSpec.of("conv2d", [(1, 8, 6, 6)], **needed)
    usual = {"dilation": 1, "in_channels": 8, "padding": 1, "padding_mode": "zeros"}
    with pytest.raises(UnknownNameError) as caught:
        build_operator(OpSpec.of("conv2d", [(1, 8, 6, 6)], **needed, **usual))
    assert str(caught.value).endswith(
        " cannot be built from its key: leave out 'dilation', 'in_channels', 'padding', 'padding_mode'. "
        f"Expected: {expected.op_key}."
    )
    assert isinstance(build_operator(expected), nn.Conv2d)


@pytest.mark.parametrize("kind", ["save", "load", "compile", "set_num_threads", "__init__"])
def test_key_calls_no_function_that_is_not_listed(kind, tmp_path):
    with pytest.raises(UnknownNameError, match=r"cannot be built from its key alone"):
        build_operator(OpSpec.of(kind, [(1, 4)], f=str(tmp_path / "file")))
    assert not list(tmp_path.iterdir())
