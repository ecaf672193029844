# SPDX-License-Identifier: Apache-2.0
"""Blocks on feature maps of any size, written in ONNX: convolutions with all attributes, pooling, resizing, gates."""

from __future__ import annotations

import math

import numpy as np

from nni_latency.graphs._block_writer import Block, BlockWriter

#: Windows of convolutions; square ones are the most frequent.
_WINDOWS = ((1, 1), (3, 3), (3, 3), (3, 3), (5, 5), (7, 7), (2, 2), (1, 3), (3, 1), (1, 7), (7, 1), (4, 4), (3, 5))


def _area(write: BlockWriter, data: str) -> int:
    return math.prod(write.net.shape(data)[2:])


def convolve(
    write: BlockWriter,
    data: str,
    outputs: int,
    kernel: tuple[int, ...],
    *,
    strides: tuple[int, ...] | None = None,
    dilation: int = 1,
    groups: int = 1,
    normalise: bool = True,
) -> str:
    """Write a convolution of any number of dimensions that keeps the size, up to the strides.

    It is followed by a batch normalisation, or has a bias or not.
    """
    net, inputs = write.net, write.net.shape(data)[1]
    weights = [net.weight(outputs, inputs // groups, *kernel)]
    if not normalise and write.chance(0.7):
        weights.append(net.weight(outputs))
    both = [dilation * (side - 1) for side in kernel]
    pads = [total // 2 for total in both] + [total - total // 2 for total in both]
    made = net(
        "Conv", data, *weights, kernel_shape=kernel, strides=strides or [1] * len(kernel), pads=pads, group=groups,
        dilations=[dilation] * len(kernel),
    )  # fmt: skip
    return write.batch_norm(made) if normalise else made


def convolution(write: BlockWriter, data: str) -> str:
    """Write any convolution: windows, strides, dilation, groups."""
    net = write.net
    inputs, (height, width) = net.shape(data)[1], net.shape(data)[2:]
    kernel = write.choose(*_WINDOWS)
    kind = write.choose("dense", "dense", "dense", "grouped", "depthwise")
    groups = {"dense": 1, "depthwise": inputs}.get(kind, math.gcd(inputs, write.choose(2, 3, 4, 8)))
    outputs = write.width(height * width, inputs // groups, math.prod(kernel))
    outputs = max(groups, outputs // groups * groups) if kind != "depthwise" else inputs
    dilation = write.choose(1, 1, 1, 2, 3) if min(height, width) > 8 else 1
    strides = write.choose((1, 1), (1, 1), (1, 1), (2, 2), (2, 1), (1, 2)) if min(height, width) > 8 else (1, 1)
    normalise = write.chance(0.5)
    made = convolve(
        write, data, outputs, kernel, strides=strides, dilation=dilation, groups=groups, normalise=normalise
    )
    return write.activation(made) if write.chance(0.7) else made


def separable(write: BlockWriter, data: str) -> str:
    """Write a depthwise and a pointwise convolution (arXiv:1704.04861)."""
    inputs, side = write.net.shape(data)[1], write.choose(3, 5, 7)
    window = write.choose((side, side), (side, side), (1, side), (side, 1))
    deep = convolve(write, data, inputs, window, groups=inputs, normalise=write.chance(0.7))
    outputs = write.width(_area(write, deep), inputs)
    return write.activation(convolve(write, write.activation(deep), outputs, (1, 1), normalise=write.chance(0.7)))


def inverted(write: BlockWriter, data: str) -> str:
    """Write an inverted residual with an optional gate (arXiv:1801.04381)."""
    inputs = write.net.shape(data)[1]
    wide = min(inputs * write.choose(2, 3, 4, 6), max(8, write.most_elements // _area(write, data)))
    grown = write.activation(convolve(write, data, wide, (1, 1)))
    window = write.choose((3, 3), (5, 5))
    deep = write.activation(convolve(write, grown, wide, window, groups=wide))
    if write.chance(0.5):
        deep = _gate(write, deep)
    made = convolve(write, deep, inputs, (1, 1))
    return write.net("Add", data, made)


def _gate(write: BlockWriter, data: str) -> str:
    """Write squeeze and excitation in one of the forms in which exporters write it."""
    net, shape = write.net, write.net.shape(data)
    channels = shape[1]
    narrow = max(4, channels // write.choose(4, 8, 16))
    mean = net("GlobalAveragePool", data) if write.chance(0.5) else net.reduce("ReduceMean", data, [2, 3])
    if write.chance(0.3):
        flat = net("Flatten", mean, axis=1)
        hidden = net("Relu", net("Gemm", flat, net.weight(narrow, channels), net.weight(narrow), transB=1))
        gate = net("Gemm", hidden, net.weight(channels, narrow), net.weight(channels), transB=1)
        gate = net.reshape(gate, shape[0], channels, 1, 1)
    else:
        hidden = net("Relu", net("Conv", mean, net.weight(narrow, channels, 1, 1), net.weight(narrow)))
        gate = net("Conv", hidden, net.weight(channels, narrow, 1, 1), net.weight(channels))
    gate = net(write.choose("Sigmoid", "HardSigmoid"), gate)
    return net("Mul", data, gate)


def residual(write: BlockWriter, data: str) -> str:
    """Write a bottleneck with a shortcut (arXiv:1512.03385)."""
    inputs, window = write.net.shape(data)[1], write.choose((3, 3), (3, 3), (5, 5), (1, 3))
    groups = write.choose(1, 1, math.gcd(inputs, 4))
    middle = max(groups, write.width(_area(write, data), inputs, math.prod(window)) // groups * groups)
    normalise = write.chance(0.8)
    one = write.activation(convolve(write, data, middle, write.choose((1, 1), window), normalise=normalise))
    two = convolve(write, one, middle, window, groups=groups, normalise=normalise)
    three = convolve(write, write.activation(two), inputs, (1, 1), normalise=normalise)
    return write.activation(write.net("Add", three, data))


def ghost(write: BlockWriter, data: str) -> str:
    """Compute half of the channels, and the others from them by a depthwise convolution (arXiv:1911.11907)."""
    half = write.width(_area(write, data), write.net.shape(data)[1])
    primary = write.activation(convolve(write, data, half, (1, 1)))
    cheap = write.activation(convolve(write, primary, half, (3, 3), groups=half))
    return write.net("Concat", primary, cheap, axis=1)


def shuffling(write: BlockWriter, data: str) -> str:
    """Write grouped pointwise convolutions with a shuffle of channels between them (arXiv:1707.01083)."""
    net = write.net
    groups = write.choose(2, 3, 4, 8)
    inputs = max(groups, net.shape(data)[1] // groups * groups)
    if inputs != net.shape(data)[1]:
        data = convolve(write, data, inputs, (1, 1))
    middle = max(groups, inputs // write.choose(1, 2, 4) // groups * groups)
    one = net("Relu", convolve(write, data, middle, (1, 1), groups=groups))
    shape = net.shape(one)
    parts = net("Transpose", net.reshape(one, shape[0], groups, -1, *shape[2:]), perm=[0, 2, 1, 3, 4])
    two = convolve(write, net.reshape(parts, *shape), middle, (3, 3), groups=middle)
    three = convolve(write, two, inputs, (1, 1), groups=groups)
    return net("Relu", net("Add", data, three))


def branches(write: BlockWriter, data: str) -> str:
    """Join the results of parallel branches of different kinds."""
    net, inputs, area = write.net, write.net.shape(data)[1], _area(write, data)
    ways = []
    for _ in range(write.choose(2, 3, 4)):
        outputs, kernel = write.width(area, inputs, 9, most=256), write.choose(*_WINDOWS)
        if write.chance(0.2):
            pooled = net(write.choose("MaxPool", "AveragePool"), data, kernel_shape=[3, 3], pads=[1] * 4)
            ways.append(write.activation(convolve(write, pooled, outputs, (1, 1))))
        else:
            narrow = write.activation(convolve(write, data, max(4, outputs // 2), (1, 1)))
            ways.append(write.activation(convolve(write, narrow, outputs, kernel)))
    return net("Concat", *ways, axis=1)


def split(write: BlockWriter, data: str) -> str:
    """Transform one half of the channels."""
    net = write.net
    channels = net.shape(data)[1] // 2 * 2
    if channels < 2 or channels != net.shape(data)[1]:
        channels = max(2, channels)
        data = convolve(write, data, channels, (1, 1))
    one, two = net.split(data, 2, 1)
    more = write.activation(convolve(write, two, channels // 2, (3, 3)))
    parts = [one, two, more] if write.chance(0.4) else [one, more]
    return convolve(write, net("Concat", *parts, axis=1), channels, (1, 1), normalise=write.chance(0.8))


def dense(write: BlockWriter, data: str) -> str:
    """Write convolutions that read the results of all before them (arXiv:1608.06993)."""
    growth = write.choose(8, 12, 16, 32)
    for _ in range(write.choose(2, 3, 4)):
        before = write.activation(write.batch_norm(data))
        new = convolve(write, before, growth, (3, 3), normalise=False)
        data = write.net("Concat", data, new, axis=1)
    return data


def _up_and_down(write: BlockWriter, data: str) -> str:
    """Enlarge a smaller map and join it, as in U-Net and feature pyramids."""
    net, shape = write.net, write.net.shape(data)
    if min(shape[2:]) < 4 or shape[2] % 2 or shape[3] % 2:
        return _resized(write, data)
    inputs = shape[1]
    middle = write.width(_area(write, data) // 4, inputs, 9)
    if write.chance(0.5):
        small = write.activation(convolve(write, data, middle, (3, 3), strides=(2, 2)))
    else:
        small = net("MaxPool", data, kernel_shape=[2, 2], strides=[2, 2])
        small = write.activation(convolve(write, small, middle, (3, 3)))
    outputs = write.width(_area(write, data), middle, 4, most=256)
    if write.chance(0.6):
        side = write.choose(2, 4, 3)
        pads, extra = {2: (0, 0), 4: (1, 0), 3: (1, 1)}[side]
        large = net(
            "ConvTranspose", small, net.weight(middle, outputs, side, side), net.weight(outputs), strides=[2, 2],
            kernel_shape=[side, side], pads=[pads] * 4, output_padding=[extra] * 2,
        )  # fmt: skip
    else:
        large = enlarged(write, convolve(write, small, outputs, (1, 1)), shape[2], shape[3])
    if write.chance(0.5):
        return net("Concat", data, large, axis=1)
    return net("Add", large, convolve(write, data, outputs, (1, 1)))


def enlarged(write: BlockWriter, data: str, height: int, width: int, mode: str | None = None) -> str:
    """Enlarge or shrink a map to a height and a width."""
    net, shape = write.net, write.net.shape(data)
    mode = mode or write.choose("nearest", "nearest", "linear", "linear", "cubic")
    how = {"mode": mode}
    if mode != "nearest":
        how["coordinate_transformation_mode"] = write.choose("half_pixel", "align_corners", "pytorch_half_pixel")
    else:
        how |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return net("Resize", data, "", "", net.whole(*shape[:2], height, width), **how)


def _resized(write: BlockWriter, data: str) -> str:
    shape = write.net.shape(data)
    factor = write.choose(0.5, 1.5, 2.0)
    if math.prod(shape) * factor**2 > write.most_elements:
        factor = 0.5
    height, width = (max(2, round(size * factor)) for size in shape[2:])
    return enlarged(write, data, height, width)


def _pooling(write: BlockWriter, data: str) -> str:
    net, (height, width) = write.net, write.net.shape(data)[2:]
    side = write.choose(2, 3, 3, 5)
    if min(height, width) < 2 * side:
        return write.channel_norm(data)
    kind = write.choose("MaxPool", "MaxPool", "AveragePool", "LpPool")
    kernel = write.choose((side, side), (side, side), (1, side), (side, 1))
    strides = write.choose((1, 1), kernel, (2, 2), (2, 1))
    how = {"ceil_mode": 1} if kind == "MaxPool" and write.chance(0.3) else {}
    return net(kind, data, kernel_shape=kernel, strides=strides, pads=[size // 2 for size in kernel] * 2, **how)


def _normalised(write: BlockWriter, data: str) -> str:
    made = convolve(write, data, _width(write, data), (3, 3), normalise=False)
    made = write.channel_norm(write.activation(made) if write.chance(0.5) else made)
    return write.activation(made) if write.chance(0.5) else made


def _width(write: BlockWriter, data: str) -> int:
    """Draw a number of channels for a 3x3 convolution behind a map."""
    return write.width(_area(write, data), write.net.shape(data)[1], 9)


def _padded(write: BlockWriter, data: str) -> str:
    """Pad in a separate operator before a convolution, or move space to depth and back."""
    net, shape = write.net, write.net.shape(data)
    if write.chance(0.6) or shape[2] % 2 or shape[3] % 2:
        mode = write.choose("constant", "reflect", "edge")
        pads = [0, 0, 1, 1, 0, 0, *write.choose((1, 1), (2, 1))]
        wider = net("Pad", data, net.whole(*pads), mode=mode)
        outputs = _width(write, data)
        return net("Conv", wider, net.weight(outputs, shape[1], 3, 3), net.weight(outputs), kernel_shape=[3, 3])
    small = net("SpaceToDepth", data, blocksize=2)
    made = write.activation(convolve(write, small, 4 * max(1, _width(write, small) // 8), (3, 3)))
    return net("DepthToSpace", made, blocksize=2, mode=write.choose("DCR", "CRD"))


def _spatial_gate(write: BlockWriter, data: str) -> str:
    """Scale places by the mean and the maximum over channels (arXiv:1807.06521)."""
    net = write.net
    both = [net.reduce("ReduceMean", data, [1]), net.reduce("ReduceMax", data, [1])]
    side = write.choose(3, 7)
    gate = convolve(write, net("Concat", *both, axis=1), 1, (side, side), normalise=False)
    return net("Mul", data, net("Sigmoid", gate))


def _softmax(write: BlockWriter, data: str) -> str:
    """Write a softmax over channels, rows or all places, as a gate or a weighted mean."""
    net, shape = write.net, write.net.shape(data)
    if write.chance(0.5):
        return net("Mul", data, net(write.choose("Softmax", "LogSoftmax"), data, axis=write.choose(1, 2, 3)))
    scores = net("Softmax", net.reshape(convolve(write, data, 1, (1, 1), normalise=False), shape[0], 1, -1), axis=2)
    columns = net("Transpose", net.reshape(data, shape[0], shape[1], -1), perm=[0, 2, 1])
    return net("Add", data, net.reshape(net("MatMul", scores, columns), shape[0], shape[1], 1, 1))


def _sampled(write: BlockWriter, data: str) -> str:
    """Sample at positions that are computed (opset 16)."""
    net = write.net
    if net.opset not in (16, 17, 18) or _area(write, data) > 10_000:
        return _moved(write, data)
    offsets = net("Tanh", convolve(write, data, 2, (3, 3), normalise=False))
    grid = net("Transpose", offsets, perm=[0, 2, 3, 1])
    return net("GridSample", data, grid, mode=write.choose("bilinear", "nearest"), align_corners=write.choose(0, 1))


def _moved(write: BlockWriter, data: str) -> str:
    """Move elements: transposes, slices, repetitions, gathers and scatters."""
    net, shape = write.net, write.net.shape(data)
    kind = write.choose("transpose", "slice", "tile", "gather", "scatter", "flip", "channels last", "gather elements")
    if kind == "transpose":
        turned = net("Transpose", data, perm=write.choose([0, 1, 3, 2], [0, 3, 2, 1], [0, 2, 1, 3]))
        return net("Transpose", write.function(turned), perm=write.choose([0, 1, 3, 2], [0, 2, 1, 3]))
    if kind == "slice" and min(shape[2:]) >= 4:
        parts = [
            net.slice(net.slice(data, 2, row, 2**31, 2), 3, column, 2**31, 2) for row in (0, 1) for column in (0, 1)
        ]
        least = [min(net.shape(part)[axis] for part in parts) for axis in (2, 3)]
        cut = [net.slice(net.slice(part, 2, 0, least[0]), 3, 0, least[1]) for part in parts]
        joined = net("Concat", *cut, axis=1)
        return convolve(write, joined, _width(write, joined), (3, 3))
    if kind == "tile" and math.prod(shape) * 2 < write.most_elements:
        return net("Tile", write.function(data), net.whole(1, write.choose(1, 2), 1, 2))
    if kind == "gather":
        axis = write.choose(1, 2, 3)
        places = write.random.permutation(shape[axis]).astype(np.int64)
        return net("Gather", write.function(data), net.constant(places), axis=axis)
    if kind == "scatter":
        rows = net.constant(np.arange(0, shape[2], 2, dtype=np.int64).reshape(1, 1, -1, 1).repeat(shape[3], 3))
        index = net("Expand", rows, net.whole(shape[0], shape[1], -(-shape[2] // 2), shape[3]))
        update = net.slice(write.function(data), 2, 0, -(-shape[2] // 2))
        return net("ScatterElements", data, index, update, axis=2)
    if kind == "flip":
        return net("Add", data, net.slice(data, write.choose(2, 3), -1, -(2**31), -1))
    if kind == "gather elements":
        index = net("ArgMax", data, axis=1, keepdims=1)
        return net("Add", data, net("GatherElements", data, index, axis=1))
    last = net("Transpose", data, perm=[0, 2, 3, 1])
    last = write.layer_norm(last) if write.chance(0.5) else write.arithmetic(last)
    wide = write.width(_area(write, data), shape[1])
    last = net("MatMul", last, net.weight(shape[1], wide))
    return net("Transpose", write.activation(last), perm=[0, 3, 1, 2])


def _elementwise(write: BlockWriter, data: str) -> str:
    """Write a chain of elementwise operators before a pointwise convolution."""
    for _ in range(write.choose(2, 3, 4, 5)):
        step = write.choose(
            BlockWriter.arithmetic, BlockWriter.arithmetic, BlockWriter.function, BlockWriter.activation,
            BlockWriter.comparison, BlockWriter.quantised,
        )  # fmt: skip
        data = step(write, data)
    inputs = write.net.shape(data)[1]
    return convolve(write, data, write.width(_area(write, data), inputs), (1, 1), normalise=write.chance(0.5))


def _reduced(write: BlockWriter, data: str) -> str:
    """Reduce one or several dimensions, and add the result to the map."""
    net = write.net
    kind = write.choose("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceLogSumExp", "ReduceL1")
    axes = write.choose([1], [2], [3], [2, 3], [1, 2], [1, 3])
    found = write.function(net.reduce(kind, data, axes))
    return net("Add", data, net("Sigmoid", found))


def _attending(write: BlockWriter, data: str) -> str:
    """Write attention between the places of a small map."""
    net, shape = write.net, write.net.shape(data)
    heads = write.choose(1, 2, 4)
    width = heads * write.choose(8, 16, 32)
    if _area(write, data) > 400:
        data = net("MaxPool", data, kernel_shape=[3, 3], strides=[3, 3])
        shape = net.shape(data)
        if _area(write, data) > 800:
            return _spatial_gate(write, data)
    parts = [convolve(write, data, width, (1, 1), normalise=False) for _ in range(3)]
    queries, keys, values = (net.reshape(part, shape[0], heads, width // heads, -1) for part in parts)
    scores = net("MatMul", net("Transpose", queries, perm=[0, 1, 3, 2]), keys)
    weights = net("Softmax", net("Mul", scores, net.number(0.2)), axis=-1)
    mixed = net("MatMul", values, net("Transpose", weights, perm=[0, 1, 3, 2]))
    return convolve(write, net.reshape(mixed, shape[0], width, *shape[2:]), shape[1], (1, 1))


PICTURE_BLOCKS: tuple[Block, ...] = (
    convolution, separable, inverted, residual, ghost, shuffling, branches, split, dense, _up_and_down,
    _resized, _pooling, _normalised, _normalised, _padded, _spatial_gate, _softmax, _sampled, _moved, _elementwise,
    _reduced, _attending,
)  # fmt: skip
