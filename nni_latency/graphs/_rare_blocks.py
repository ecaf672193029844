# SPDX-License-Identifier: Apache-2.0
"""Operators that few networks have, written in ONNX: three-dimensional, quantised, fused, spectral, on integers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nni_latency.graphs._block_writer import Block, BlockWriter
from nni_latency.graphs._onnx_builder import RUNTIME
from nni_latency.graphs._picture_blocks import convolve

#: Codes of element types in ONNX.
_FLOAT, _INT32 = 1, 6


def _rows(write: BlockWriter, data: str) -> tuple[str, int, int]:
    """Return a map as a matrix of rows for each input, with the sizes of the matrix."""
    net = write.net
    count, channels, *sides = net.shape(data)
    return net.reshape(data, count, channels, math.prod(sides)), channels, math.prod(sides)


def _as_before(write: BlockWriter, found: str, data: str) -> str:
    """Give a result the shape of a map and add it."""
    return write.net("Add", data, write.net.reshape(found, *write.net.shape(data)))


def _three_dimensions(write: BlockWriter, data: str) -> str:
    """Write a convolution or a pooling over three dimensions."""
    net = write.net
    count, channels, height, width = net.shape(data)
    depth = write.choose(4, 8)
    volume = net.reshape(data, count, 1, channels, height, width)
    if channels > depth:
        volume = net("MaxPool", volume, kernel_shape=[channels // depth, 1, 1], strides=[channels // depth, 2, 2])
    inner = net.shape(volume)
    wide = write.width(math.prod(inner[2:]), 1, 27, most=32)
    deep = write.activation(net("Conv", volume, net.weight(wide, 1, 3, 3, 3), kernel_shape=[3, 3, 3], pads=[1] * 6))
    kind = write.choose("MaxPool", "AveragePool", "Conv", "ConvTranspose")
    if kind == "Conv":
        deep = net("Conv", deep, net.weight(wide, wide, 3, 3, 3), kernel_shape=[3, 3, 3], pads=[1] * 6)
    elif kind == "ConvTranspose":
        weights = net.weight(wide, max(1, wide // 2), 2, 2, 2)
        deep = net("ConvTranspose", deep, weights, kernel_shape=[2, 2, 2], strides=[2, 2, 2])
    else:
        deep = net(kind, deep, kernel_shape=[2, 2, 2], strides=[1, 1, 1])
    flat = net.shape(deep)
    return net.reshape(deep, flat[0], flat[1] * flat[2], *flat[3:])


def _whole_numbers(write: BlockWriter, data: str) -> str:
    """Write operators on whole numbers and truth values."""
    net = write.net
    number = net("Cast", net("Mul", data, net.number(100.0)), to=_INT32)
    mask = net.constant(np.array(write.choose(7, 15, 255), dtype=np.int32))
    kind = write.choose("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "Mod", "Add", "Mul", "Max")
    found = net(kind, number) if kind == "BitwiseNot" else net(kind, number, mask)
    return net("Add", data, net("Mul", net("Cast", found, to=_FLOAT), net.number(0.01)))


def _checked(write: BlockWriter, data: str) -> str:
    """Replace what is no number or infinite."""
    net = write.net
    wrong = net(write.choose("IsNaN", "IsInf"), data)
    return net("Where", wrong, net.number(0.0), data)


def _bounded(write: BlockWriter, data: str) -> str:
    """Write functions that are defined on an interval."""
    net = write.net
    kind = write.choose("Asin", "Acos", "Atanh", "Acosh", "Shrink", "Hardmax", "Sinh", "MeanVarianceNormalization")
    if kind == "Acosh":
        return net(kind, net("Add", net("Abs", data), net.number(1.1)))
    if kind in ("Asin", "Acos", "Atanh"):
        return net(kind, net("Clip", data, net.number(-0.9), net.number(0.9)))
    if kind == "MeanVarianceNormalization":
        return net.shaped(kind, data, shape=net.shape(data))
    if kind == "Shrink":
        return net(kind, data, lambd=0.2, bias=0.1)
    if kind == "Hardmax":
        return net("Mul", data, net(kind, data, axis=write.choose(1, 3)))
    return net(kind, net("Clip", data, net.number(-2.0), net.number(2.0)))


def _triangle(write: BlockWriter, data: str) -> str:
    """Write the triangle of a matrix of products."""
    net = write.net
    rows, _, _ = _rows(write, data)
    products = net("MatMul", rows, net("Transpose", rows, perm=[0, 2, 1]))
    masked = net("Trilu", products, upper=write.choose(0, 1))
    return _as_before(write, net("MatMul", net("Softmax", masked, axis=-1), rows), data)


def _indexed(write: BlockWriter, data: str) -> str:
    """Gather and scatter by indices of several dimensions."""
    net = write.net
    count, channels, height, width = net.shape(data)
    kind = write.choose("GatherND", "ScatterND", "ReverseSequence", "CumSum")
    if kind == "ReverseSequence":
        lengths = net.constant(np.full(count, channels, dtype=np.int64))
        return net(kind, data, lengths, batch_axis=0, time_axis=1)
    if kind == "CumSum":
        axis = net.constant(np.array(write.choose(1, 2, 3), dtype=np.int64))
        return net(kind, data, axis, reverse=write.choose(0, 1), exclusive=write.choose(0, 1))
    places = np.stack([np.zeros(channels), write.random.permutation(channels)], axis=1).astype(np.int64)
    index = net.constant(places)
    if kind == "GatherND":
        return net.reshape(net(kind, data, index), 1, channels, height, width)
    update = net.reshape(write.function(data), channels, height, width)
    return net(kind, data, index, update)


def _spectral(write: BlockWriter, data: str) -> str:
    """Write a Fourier transform of the rows of a map."""
    net = write.net
    rows, channels, length = _rows(write, data)
    signal = net.reshape(rows, channels, length, 1)
    axis = net.constant(np.array(1, dtype=np.int64))
    spectrum = net("DFT", signal, "", axis, onesided=write.choose(0, 1))
    power = net.reduce("ReduceSumSquare", spectrum, [2], keep=False)
    power = net.reduce("ReduceMean", power, [1])
    return net("Add", data, net.reshape(power, 1, channels, 1, 1))


def _short_spectrum(write: BlockWriter, data: str) -> str:
    """Write a short-time Fourier transform."""
    net = write.net
    rows, channels, length = _rows(write, data)
    signal = net.reshape(rows, 1, channels * length, 1)
    size = write.choose(64, 128, 256)
    if channels * length < 4 * size:
        return _spectral(write, data)
    step, frame = (net.constant(np.array(value, dtype=np.int64)) for value in (size // 2, size))
    spectrum = net("STFT", signal, step, "", frame, onesided=1)
    return net("Add", data, net.reduce("ReduceMean", spectrum, [0, 1, 2, 3], keep=False))


def _integer_product(write: BlockWriter, data: str) -> str:
    """Write a product of whole numbers, with a quantisation at run time."""
    net = write.net
    rows, _, length = _rows(write, data)
    number, scale, zero = net.several("DynamicQuantizeLinear", rows, count=3)
    wide = write.width(net.shape(data)[1], length, most=512)
    weights = net.constant(write.random.integers(-100, 100, (length, wide)).astype(np.int8))
    product = net("MatMulInteger", number, weights, zero)
    found = net("Mul", net("Cast", product, to=_FLOAT), scale)
    return net("Add", data, net.reshape(net.reduce("ReduceMean", found, [2]), 1, net.shape(data)[1], 1, 1))


def _quantised_layer(write: BlockWriter, data: str) -> str:
    """Write a convolution between a quantisation and its inverse, in one of two forms."""
    net, inputs = write.net, write.net.shape(data)[1]
    scale, zero = net.number(0.02), net.constant(np.array(128, dtype=np.uint8))
    number = net("QuantizeLinear", data, scale, zero)
    outputs = write.width(math.prod(net.shape(data)[2:]), inputs, 9, most=256)
    side = write.choose(1, 3)
    sizes = (outputs, inputs, side, side)
    weights = net.constant(write.random.integers(-100, 100, sizes).astype(np.int8))
    small, none = net.number(0.01), net.constant(np.array(0, dtype=np.int8))
    how: dict[str, Any] = {"kernel_shape": [side, side], "pads": [side // 2] * 4}
    if write.chance(0.5):
        found = net("QLinearConv", number, scale, zero, weights, small, none, scale, zero, **how)
        return net("DequantizeLinear", found, scale, zero)
    back = net("DequantizeLinear", number, scale, zero)
    found = net("Conv", back, net("DequantizeLinear", weights, small, none), **how)
    return net("DequantizeLinear", net("QuantizeLinear", net("Relu", found), scale, zero), scale, zero)


def _unpooled(write: BlockWriter, data: str) -> str:
    """Write a pooling with its places, and the inverse of it."""
    net = write.net
    if any(side % 2 for side in net.shape(data)[2:]):
        return _bounded(write, data)
    small, places = net.several("MaxPool", data, count=2, kernel_shape=[2, 2], strides=[2, 2])
    return net.shaped("MaxUnpool", small, places, shape=net.shape(data), kernel_shape=[2, 2], strides=[2, 2])


def _regions(write: BlockWriter, data: str) -> str:
    """Write features of regions of a map, as detectors of two stages have them."""
    net = write.net
    _, _, height, width = net.shape(data)
    count = write.choose(16, 64, 100)
    corners = write.random.uniform(0, 0.5, (count, 2)) * [width, height]
    boxes = np.concatenate([corners, corners + np.array([width, height]) / 2], axis=1).astype(np.float32)
    index = net.constant(np.zeros(count, dtype=np.int64))
    side = write.choose(3, 7)
    found = net("RoiAlign", data, net.constant(boxes), index, output_height=side, output_width=side, sampling_ratio=2)
    return net("Add", data, net.reduce("ReduceMean", found, [0, 2, 3]))


def _columns(write: BlockWriter, data: str) -> str:
    """Add up overlapping windows."""
    net = write.net
    count, channels, height, width = net.shape(data)
    blocks = (height - 2) * (width - 2)
    if min(height, width) < 4 or channels * 9 * blocks > 1_000_000:
        return _bounded(write, data)
    wide = convolve(write, data, channels * 9, (1, 1), normalise=False)
    cut = net.reshape(net.slice(net.slice(wide, 2, 0, height - 2), 3, 0, width - 2), count, channels * 9, blocks)
    return net("Col2Im", cut, net.whole(height, width), net.whole(3, 3))


def _several_indices(write: BlockWriter, data: str) -> str:
    """Write sums over products by their indices."""
    net = write.net
    channels, width = net.shape(data)[1], net.shape(data)[3]
    kind = write.choose("bchw,cd->bdhw", "bchw,bcvw->bchv", "bchw->bc", "bchw,w->bch")
    if kind == "bchw,cd->bdhw":
        return net("Einsum", data, net.weight(channels, write.size(8, 256)), equation=kind)
    if kind == "bchw,bcvw->bchv":
        square = net("Einsum", data, data, equation=kind)
        return net("Add", data, net.reduce("ReduceMean", square, [3]))
    found = net("Einsum", data, *([net.weight(width)] if "w->" in kind and "," in kind else []), equation=kind)
    shape = net.shape(found)
    return net("Add", data, net.reshape(found, *shape, *[1] * (4 - len(shape))))


def _grouped_norm(write: BlockWriter, data: str) -> str:
    """Write a normalisation of groups of channels, or of several dimensions at once."""
    net, shape = write.net, write.net.shape(data)
    if write.chance(0.6):
        groups = math.gcd(shape[1], write.choose(2, 4, 8, 32))
        weights = net.positive(shape[1]), net.weight(shape[1])
        return net.shaped("GroupNormalization", data, *weights, shape=shape, num_groups=groups)
    return net("LayerNormalization", data, net.positive(*shape[1:]), net.weight(*shape[1:]), axis=1)


def _warped(write: BlockWriter, data: str) -> str:
    """Sample a map at given places."""
    net, (count, _, height, width) = write.net, write.net.shape(data)
    grid = net.constant(write.random.uniform(-1, 1, (count, height, width, 2)).astype(np.float32))
    mode = write.choose("linear", "nearest", "cubic")
    return net("GridSample", data, grid, mode=mode, padding_mode=write.choose("zeros", "border", "reflection"))


def _cropped(write: BlockWriter, data: str) -> str:
    """Pad or crop a map around its middle, or enlarge it in other ways than usual."""
    net, shape = write.net, write.net.shape(data)
    sides = [max(2, side + write.choose(-3, 2, 4)) for side in shape[2:]]
    if write.chance(0.4):
        return net("CenterCropPad", data, net.whole(*sides), axes=[2, 3])
    how: dict[str, Any] = write.choose(
        {"mode": "linear", "antialias": 1}, {"mode": "cubic", "cubic_coeff_a": -0.5}, {"mode": "nearest"},
        {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
    )  # fmt: skip
    return net("Resize", data, "", "", net.whole(*shape[:2], *sides), **how)


def _fused(write: BlockWriter, data: str) -> str:
    """Write operators of ONNX Runtime that stand for several, as its optimiser writes them."""
    net = write.net
    rows, channels, width = _rows(write, data)
    kind = write.choose("FusedMatMul", "BiasGelu", "FastGelu", "QuickGelu", "SkipLayerNormalization")
    if kind == "FusedMatMul":
        product = net.shaped(kind, rows, rows, shape=(1, channels, channels), domain=RUNTIME, transB=1, alpha=0.1)
        return _as_before(write, net("MatMul", net("Softmax", product, axis=-1), rows), data)
    if kind == "SkipLayerNormalization":
        weights = net.positive(width), net.weight(width)
        return _as_before(
            write, net.shaped(kind, rows, rows, *weights, shape=(1, channels, width), domain=RUNTIME), data
        )
    more = [net.weight(width)] if kind == "BiasGelu" else []
    return _as_before(write, net.shaped(kind, rows, *more, shape=(1, channels, width), domain=RUNTIME), data)


RARE_BLOCKS: tuple[Block, ...] = (
    _three_dimensions, _whole_numbers, _checked, _bounded, _triangle, _indexed, _spectral, _short_spectrum,
    _integer_product, _quantised_layer, _unpooled, _regions, _columns, _several_indices, _grouped_norm, _warped,
    _cropped, _fused,
)  # fmt: skip
