# SPDX-License-Identifier: Apache-2.0
"""The layers of kernels: a table from the name of each to its operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from nni_latency.operators import OpSpec, build_operator

Sizes = Mapping[str, int]
Shapes = Sequence[tuple[int, ...]]

#: Builds an operator from the input shapes, the kernel's sizes, and whether a normalisation follows.
Layer = Callable[[Shapes, Sizes, bool], OpSpec]


def _convolution(dimensions: int, depthwise: bool = False) -> Layer:
    def make(shapes: Shapes, sizes: Sizes, normalised: bool) -> OpSpec:
        channels = shapes[0][1]
        window = sizes["KERNEL_SIZE"]
        # A window of odd size is 'same'-padded, the default of the attribute.
        padding: dict[str, Any] = {} if window % 2 else {"padding": (window - 1) // 2}
        return OpSpec.of(
            f"conv{dimensions}d",
            shapes,
            out_channels=channels if depthwise else sizes["COUT"],
            kernel_size=window,
            stride=sizes["STRIDES"],
            groups=channels if depthwise else sizes.get("GROUPS", 1),
            bias=not normalised,
            **padding,
        )

    return make


def _transposed(shapes: Shapes, sizes: Sizes, normalised: bool) -> OpSpec:
    """Enlarge an image by exactly the stride."""
    window, stride = sizes["KERNEL_SIZE"], sizes["STRIDES"]
    padding = max(0, (window - stride + 1) // 2)
    given: dict[str, Any] = {"padding": padding, "output_padding": stride - window + 2 * padding}
    return OpSpec.of(
        "conv_transpose2d",
        shapes,
        out_channels=sizes["COUT"],
        kernel_size=window,
        stride=stride,
        groups=1,
        bias=not normalised,
        **{name: value for name, value in given.items() if value},
    )


def _linear(shapes: Shapes, sizes: Sizes, _: bool) -> OpSpec:
    return OpSpec.of("linear", shapes, out_features=sizes["COUT"], bias=True)


def _pooling(kind: str) -> Layer:
    def make(shapes: Shapes, sizes: Sizes, _: bool) -> OpSpec:
        (batch, channels, *area), window, stride = shapes[0], sizes["KERNEL_SIZE"], sizes["POOL_STRIDES"]
        padding = (window - 1) // 2
        out = [(size + 2 * padding - window) // stride + 1 for size in area]
        given: dict[str, Any] = {"padding": padding} if padding else {}
        if out != area:
            given["out"] = (batch, channels, *out)
        return OpSpec.of(kind, shapes, kernel_size=window, stride=stride, **given)

    return make


def _elementwise(kind: str) -> Layer:
    return lambda shapes, _sizes, _normalised: OpSpec.of(kind, shapes)


def _global_pooling(shapes: Shapes, _: Sizes, __: bool) -> OpSpec:
    return OpSpec.of("adaptive_avg_pool2d", shapes, output_size=1, **_out(shapes, (*shapes[0][:2], 1, 1)))


def _out(shapes: Shapes, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the attribute of the output shape, which is set only if it differs from the input shape."""
    return {} if tuple(shapes[0]) == shape else {"out": shape}


def _layer_norm(shapes: Shapes, _: Sizes, __: bool) -> OpSpec:
    width = shapes[0][-1]
    return OpSpec.of("layer_norm", shapes, normalized_shape=width, weights=f"{width}+{width}")


def _softmax(shapes: Shapes, _: Sizes, __: bool) -> OpSpec:
    return OpSpec.of("softmax", shapes, dim=-1)


def _matmul(shapes: Shapes, _: Sizes, __: bool) -> OpSpec:
    return OpSpec.of("matmul", shapes, **_out(shapes, (*shapes[0][:-1], shapes[1][-1])))


def _mean(shapes: Shapes, _: Sizes, __: bool) -> OpSpec:
    batch, _tokens, width = shapes[0]
    return OpSpec.of("mean", shapes, dim=1, out=(batch, width))


def _resize(shapes: Shapes, sizes: Sizes, _: bool) -> OpSpec:
    batch, channels, *area = shapes[0]
    out = (batch, channels, *(size * sizes["SCALE"] for size in area))
    given: dict[str, Any] = {"scale_factor": float(sizes["SCALE"]), "mode": "nearest", "antialias": False}
    return OpSpec.of("interpolate", shapes, **given, **_out(shapes, out))


def _concat(shapes: Shapes, _: Sizes, __: bool) -> OpSpec:
    out = (shapes[0][0], sum(shape[1] for shape in shapes), *shapes[0][2:])
    return OpSpec.of("cat", shapes, dim=1, **_out(shapes, out))


#: Activations that can be fused to the first operator of a kernel.
ACTIVATIONS = {
    "relu": "relu",
    "relu6": "relu6",
    "hswish": "hardswish",
    "silu": "silu",
    "gelu": "gelu",
    "sigmoid": "sigmoid",
    "hsigmoid": "hardsigmoid",
}

#: Operators by layer name. Layers after the first consume the output of the previous one.
LAYERS: dict[str, Layer] = {
    "conv": _convolution(2),
    "dwconv": _convolution(2, depthwise=True),
    "conv1d": _convolution(1),
    "convtranspose": _transposed,
    "fc": _linear,
    "bn": _elementwise("batch_norm"),
    **{name: _elementwise(kind) for name, kind in ACTIVATIONS.items()},
    "add": _elementwise("add"),
    "mul": _elementwise("mul"),
    "maxpool": _pooling("max_pool2d"),
    "avgpool": _pooling("avg_pool2d"),
    "globalavgpool": _global_pooling,
    "concat": _concat,
    "layernorm": _layer_norm,
    "softmax": _softmax,
    "matmul": _matmul,
    "attention": _elementwise("scaled_dot_product_attention"),
    "mean": _mean,
    "resize": _resize,
}


def chain_operators(layers: Sequence[str], shapes: Shapes, sizes: Sizes) -> tuple[OpSpec, ...]:
    """Return the operators of a sequence of layers."""
    found: list[OpSpec] = []
    for place, name in enumerate(layers):
        normalised = "bn" in layers[place + 1 :]
        op = LAYERS[name](shapes, sizes, normalised)
        found.append(op)
        shapes = [_shape_after(op)]
    return tuple(found)


def _shape_after(op: OpSpec) -> tuple[int, ...]:
    """Return the output shape of an operator."""
    shape = op.input_shapes[0]
    if op.kind in ("conv1d", "conv2d"):
        window, stride = op["kernel_size"], op["stride"]
        padding = op.get("padding", window // 2)
        area = [(size + 2 * padding - window) // stride + 1 for size in shape[2:]]
        return (shape[0], op["out_channels"], *area)
    if op.kind == "conv_transpose2d":
        return (shape[0], op["out_channels"], *(size * op["stride"] for size in shape[2:]))
    if op.kind == "linear":
        return (*shape[:-1], op["out_features"])
    return tuple(op.get("out", shape))


class Pipe(nn.Sequential):
    """A sequence of layers, the first of which may take several inputs."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Apply the layers."""
        first, *others = self
        value: torch.Tensor = first(*inputs)
        for layer in others:
            value = layer(value)
        return value


#: Number of random values, which are tiled over all weights; generating more takes longer than measuring the kernel.
_NUMBERS = 2**14


def build_chain(ops: Sequence[OpSpec]) -> nn.Module:
    """Build the module of a sequence of operators, with random weights."""
    with torch.device("meta"):
        module = Pipe(*map(build_operator, ops))
    # Keep the initial values of buffers, such as the statistics of a normalisation.
    buffers = {name: torch.zeros_like(buffer, device="cpu") for name, buffer in module.named_buffers()}
    module.to_empty(device="cpu")
    numbers = torch.randn(_NUMBERS, generator=torch.Generator().manual_seed(0), device="cpu")
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name] + 1 if name.endswith("running_var") else buffers[name])
        for parameter in module.parameters():
            _fill(parameter.view(-1), numbers / math.sqrt(max(1, parameter[0].numel())))
    return module


def _fill(weights: torch.Tensor, numbers: torch.Tensor) -> None:
    """Fill weights by repeating numbers."""
    rows = len(weights) // len(numbers)
    whole = rows * len(numbers)
    weights[:whole].view(rows, len(numbers)).copy_(numbers)
    weights[whole:].copy_(numbers[: len(weights) - whole])


class SqueezeExcite(nn.Module):
    """Squeeze-and-excitation of MobileNetV3: average, two pointwise convolutions with 1/4 of the channels, product."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        narrow = squeezed(channels)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, narrow, 1),
            nn.ReLU(),
            nn.Conv2d(narrow, channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Scale the input."""
        scaled: torch.Tensor = inputs * self.gate(inputs)
        return scaled


def squeezed(channels: int) -> int:
    """Return the number of inner channels of a gate."""
    return max(1, channels // 4)


def squeeze_excite_operators(shapes: Shapes, _: Sizes) -> tuple[OpSpec, ...]:
    """Return the operators of `SqueezeExcite`."""
    shape = shapes[0]
    channels, narrow = shape[1], squeezed(shape[1])
    pointwise: dict[str, Any] = {"kernel_size": 1, "stride": 1, "groups": 1, "bias": True}
    small, smaller = (shape[0], channels, 1, 1), (shape[0], narrow, 1, 1)
    return (
        _global_pooling(shapes, {}, False),
        OpSpec.of("conv2d", [small], out_channels=narrow, **pointwise),
        OpSpec.of("relu", [smaller]),
        OpSpec.of("conv2d", [smaller], out_channels=channels, **pointwise),
        OpSpec.of("hardsigmoid", [small]),
        OpSpec.of("mul", [shape, small]),
    )


def channel_shuffle_operators(shapes: Shapes, _: Sizes) -> tuple[OpSpec, ...]:
    """Return the copy of a `nni_latency.operators.ChannelShuffle` of two groups."""
    batch, channels, *area = shapes[0]
    return (OpSpec.of("copy", [(batch, channels // 2, 2, *area)], out=shapes[0]),)


class Split(nn.Module):
    """Splits the channels into two halves."""

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Split the input."""
        return torch.split(inputs, inputs.shape[1] // 2, dim=1)


def split_operators(shapes: Shapes, _: Sizes) -> tuple[OpSpec, ...]:
    """Return the copy of a split in a runtime without views."""
    batch, channels, *area = shapes[0]
    return (OpSpec.of("split", shapes, dim=1, out=(batch, channels // 2, *area)),)
