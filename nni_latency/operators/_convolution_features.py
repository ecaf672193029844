"""Features of convolutions: of one to three dimensions, dense, grouped, depthwise and transposed."""

from __future__ import annotations

import math

from nni_latency.errors import InvalidValueError
from nni_latency.operators._features import FeatureFunction, Features, make_features, spread
from nni_latency.operators._op_spec import OpSpec, Shape


def convolution(op: OpSpec) -> Features:
    """Count a convolution: every output takes a multiply-add for each weight that it sees."""
    batch, channels, sizes = _split(op)
    kernel = spread(op["kernel_size"], len(sizes))
    seen = math.prod(kernel) * (channels // op.get("groups", 1))
    out = op["out_channels"]
    outputs = batch * out * math.prod(_convolved(sizes, kernel, op))
    return _counted(op, outputs, macs=outputs * seen, weights=out * seen)


def transposed(op: OpSpec) -> Features:
    """Count a transposed convolution: every input takes a multiply-add for each weight that it is spread by."""
    batch, channels, sizes = _split(op)
    kernel = spread(op["kernel_size"], len(sizes))
    out, groups = op["out_channels"], op.get("groups", 1)
    outputs = batch * out * math.prod(_widened(sizes, kernel, op))
    each = out // groups * math.prod(kernel)
    return _counted(op, outputs, macs=batch * channels * math.prod(sizes) * each, weights=channels * each)


def _counted(op: OpSpec, outputs: int, *, macs: int, weights: int) -> Features:
    bias = bool(op.get("bias"))
    params = weights + op["out_channels"] * bias
    return make_features(op, outputs, macs=macs, other_flops=outputs * bias, params=params, convolution=True)


def _split(op: OpSpec) -> tuple[int, int, Shape]:
    """Return batch, channels and sizes; an input without a batch is a batch of one."""
    shape, dimensions = op.input_shapes[0], int(op.kind[-2])
    batch = shape[0] if len(shape) == dimensions + 2 else 1
    return batch, shape[-dimensions - 1], shape[-dimensions:]


def _convolved(sizes: Shape, kernel: Shape, op: OpSpec) -> list[int]:
    """Return the sizes of a convolution's output; without 'padding' the window is 'same'-padded."""
    stride, dilation = spread(op["stride"], len(sizes)), spread(op.get("dilation", 1), len(sizes))
    if op.get("padding") is None:
        return [-(-size // step) for size, step in zip(sizes, stride, strict=True)]
    padding = _both_sides(op["padding"], len(sizes))
    found = [
        (size + both - gap * (window - 1) - 1) // step + 1
        for size, both, gap, window, step in zip(sizes, padding, dilation, kernel, stride, strict=True)
    ]
    return _checked(found, op)


def _widened(sizes: Shape, kernel: Shape, op: OpSpec) -> list[int]:
    """Return the sizes of a transposed convolution's output; what does not stand in the attributes is 0, or 1."""
    names = {"stride": 1, "output_padding": 0, "dilation": 1}
    stride, extra, dilation = (spread(op.get(name, usual), len(sizes)) for name, usual in names.items())
    padding = _both_sides(op.get("padding", 0), len(sizes))
    found = [
        (size - 1) * step - both + gap * (window - 1) + more + 1
        for size, step, both, gap, window, more in zip(sizes, stride, padding, dilation, kernel, extra, strict=True)
    ]
    return _checked(found, op)


def _both_sides(padding: int | tuple[int, ...], dimensions: int) -> list[int]:
    """Return the padding of both sides together; where they differ, those before stand before those behind."""
    sides = spread(padding, dimensions)
    behind = sides[dimensions:] or sides
    return [one + other for one, other in zip(sides[:dimensions], behind, strict=True)]


def _checked(sizes: list[int], op: OpSpec) -> list[int]:
    """Return the sizes of an output, or raise `InvalidValueError` where nothing would be left of the input."""
    if min(sizes, default=0) < 0:
        raise InvalidValueError(
            f"The operator {op.op_key!r} has a window that its input does not hold: its output would have the sizes "
            f"{sizes}."
        )
    return sizes


CONVOLUTIONS: dict[str, FeatureFunction] = {
    **{f"conv{n}d": convolution for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": transposed for n in (1, 2, 3)},
}
