# SPDX-License-Identifier: Apache-2.0
"""Networks of random blocks of every kind of operator, on inputs of every shape, written in ONNX."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import nni_latency.graphs._staged_blocks as staged
from nni_latency.graphs._block_writer import MOST_ELEMENTS, Block, BlockWriter
from nni_latency.graphs._picture_blocks import PICTURE_BLOCKS, convolve
from nni_latency.graphs._rare_blocks import RARE_BLOCKS
from nni_latency.graphs._sequence_blocks import SIGNAL_BLOCKS, TOKEN_BLOCKS, VECTOR_BLOCKS, linear, recurrent

#: Heights and widths of pictures as tasks have them.
_PICTURES = (
    *((224, 224), (224, 224), (48, 320), (48, 192), (320, 320), (640, 640), (80, 160), (96, 96), (32, 32), (28, 28)),
    *((112, 112), (256, 128), (384, 288), (64, 512), (128, 100), (512, 512), (300, 300), (160, 160), (40, 101)),
)

#: Sides of large pictures, and the largest number of elements of their maps.
_LARGE_SIDES, _MOST_ELEMENTS = (320, 384, 416, 480, 512, 640, 736, 800, 960), 5_000_000

#: Most weights of a layer behind a map that is flattened.
_MOST_WEIGHTS = 40_000_000

#: Fewest and most operators of a network behind which no further block is added.
_OPERATORS = (12, 60)


def picture_blocks(seed: int, batch_size: int) -> Any:
    """Write random blocks on pictures of any size, and a head that classifies, detects or segments."""
    write = BlockWriter(seed, "blocks-picture")
    net, (height, width) = write.net, write.choose(*_PICTURES)
    data = net.input(batch_size, write.choose(3, 3, 3, 1), height, width)
    stride = write.choose(1, 2, 4) if height * width > 10_000 else 1
    stride = max(stride, 2 if height * width > 50_000 else 1, 4 if height * width > 200_000 else 1)
    side = write.choose(stride, 3, 5, 7)
    places = height * width // stride**2
    data = convolve(
        write, data, write.width(places, 3, side**2, most=96), (max(side, stride),) * 2, strides=(stride,) * 2
    )
    data = _stacked(write, write.activation(data), _kinds(write, seed, PICTURE_BLOCKS))
    kind = write.choose("classes", "classes", "flat", "map", "tokens")
    if kind == "tokens" and math.prod(net.shape(data)[2:]) <= 400:
        shape = net.shape(data)
        tokens = net("Transpose", net.reshape(data, *shape[:2], -1), perm=[0, 2, 1])
        return net.model(_stacked(write, tokens, _kinds(write, seed, TOKEN_BLOCKS), most=20))
    if kind == "map":
        return net.model(net("Sigmoid", convolve(write, data, write.choose(1, 4, 21), (1, 1), normalise=False)))
    if kind == "flat":
        if math.prod(net.shape(data)[2:]) > 196:
            data = net("MaxPool", data, kernel_shape=[4, 4], strides=[4, 4])
        vector = net("Flatten", data, axis=1)
        wide = max(32, min(4096, _MOST_WEIGHTS // net.shape(vector)[1]))
        vector = net("Relu", linear(write, vector, write.size(32, wide)))
        return net.model(linear(write, net("Relu", linear(write, vector, write.size(32, 4096))), 1000))
    pooled = net("GlobalMaxPool" if write.chance(0.2) else "GlobalAveragePool", data)
    vector = net("Flatten", pooled, axis=1)
    return net.model(linear(write, vector, write.choose(10, 100, 1000)))


def large_blocks(seed: int, batch_size: int) -> Any:
    """Write random blocks on large maps, which no cache holds: detection, segmentation, restoration."""
    write = BlockWriter(seed, "blocks-large", most_elements=_MOST_ELEMENTS)
    net, stride = write.net, write.choose(1, 2, 2, 4)
    data = net.input(batch_size, 3, write.choose(*_LARGE_SIDES), write.choose(*_LARGE_SIDES))
    side, places = write.choose(stride, 3), math.prod(net.shape(data)[2:]) // stride**2
    data = convolve(
        write, data, write.width(places, 3, side**2, most=64), (max(side, stride),) * 2, strides=(stride,) * 2
    )
    data = _stacked(write, write.activation(data), _kinds(write, seed, PICTURE_BLOCKS), most=write.size(6, 20))
    return net.model(convolve(write, data, write.choose(1, 3, 21), (1, 1), normalise=False))


def token_blocks(seed: int, batch_size: int) -> Any:
    """Write random blocks on sequences of tokens: transformers, recurrent networks, mixers."""
    write = BlockWriter(seed, "blocks-token")
    tokens, channels = write.size(8, 512), write.size(16, 512, 8)
    data = write.net.input(batch_size, tokens, channels)
    data = _stacked(write, data, _kinds(write, seed, TOKEN_BLOCKS))
    if write.chance(0.4):
        data = write.net.reduce(write.choose("ReduceMean", "ReduceMax"), data, [1], keep=False)
    return write.net.model(linear(write, data, write.choose(2, 10, 128)))


def signal_blocks(seed: int, batch_size: int) -> Any:
    """Write random blocks on signals: speech, vibration, electrocardiograms."""
    write = BlockWriter(seed, "blocks-signal")
    channels = write.choose(1, 1, 2, 12, 40, 80, 128)
    length = write.size(64, min(32_000, MOST_ELEMENTS / channels))
    data = write.net.input(batch_size, channels, length)
    outputs = write.width(length, channels, 5, most=128)
    side, stride = write.choose(3, 5, 9, 15), write.choose(1, 2, 4) if length > 256 else 1
    data = write.activation(convolve(write, data, outputs, (side,), strides=(stride,)))
    data = _stacked(write, data, _kinds(write, seed, SIGNAL_BLOCKS))
    if write.chance(0.5):
        vector = write.net("Flatten", write.net("GlobalAveragePool", data), axis=1)
        return write.net.model(linear(write, vector, write.choose(2, 10, 50)))
    return write.net.model(convolve(write, data, write.choose(1, 2, 40), (1,), normalise=False))


def vector_blocks(seed: int, batch_size: int) -> Any:
    """Write random blocks on vectors: perceptrons and recommenders."""
    write = BlockWriter(seed, "blocks-vector")
    data = write.net.input(batch_size * write.choose(1, 1, 4, 32), write.size(8, 4096))
    data = _stacked(write, linear(write, data, write.size(16, 1024)), _kinds(write, seed, VECTOR_BLOCKS), most=30)
    return write.net.model(linear(write, data, write.choose(1, 2, 10, 100)))


def rare_blocks(seed: int, batch_size: int) -> Any:
    """Write blocks of operators that few networks have, between convolutions."""
    write = BlockWriter(seed, "blocks-rare", opset=21)
    net, side = write.net, write.choose(16, 24, 32, 48, 56)
    # Some of these operators take one input at a time.
    data = net.input(1, write.choose(3, 8), side, side)
    data = write.activation(convolve(write, data, write.width(side**2, 8, 9, most=64), (3, 3)))
    kind = RARE_BLOCKS[seed % len(RARE_BLOCKS)]
    for _ in range(write.choose(2, 3, 4)):
        data = kind(write, data)
        if write.chance(0.5):
            data = write.activation(data)
        outputs = write.width(math.prod(net.shape(data)[2:]), net.shape(data)[1], 9, most=64)
        data = convolve(write, data, outputs, write.choose((1, 1), (3, 3)))
    return net.model(data)


def staged_blocks(seed: int, batch_size: int) -> Any:
    """Write networks in stages of falling resolution, each of one repeated block, with a head for a task."""
    write = staged.StyledWriter(seed, "blocks-staged")
    net, (height, width) = write.net, write.choose(*_PICTURES)
    data = net.input(batch_size, write.choose(3, 3, 3, 1), height, width)
    multiple, first = write.choose(4, 8, 8, 16), write.choose(8, 12, 16, 16, 24, 32, 32, 48, 64)
    if height * width > 50_000:
        first = max(multiple, min(first, 32))
    data = _stem(write, data, max(multiple, first // multiple * multiple))
    block = staged.STAGED_BLOCKS[seed % len(staged.STAGED_BLOCKS)]
    growth, maps = write.choose(1.5, 2.0, 2.0), []
    for _ in range(write.choose(2, 3, 4, 4, 5)):
        choices = int(write.random.integers(2**31))
        for _ in range(write.choose(1, 1, 2, 2, 3, 4)):
            data = write.repeat(block, data, choices)
        maps.append(data)
        shape = net.shape(data)
        if min(shape[2:]) < 4:
            break
        outputs = max(multiple, round(shape[1] * growth / multiple) * multiple)
        data = staged.downsampled(write, data, min(outputs, 512))
    heads = [staged.classes, staged.classes, staged.detections, staged.pyramid, staged.enlarged_picture]
    if width > 2 * height:
        heads = [staged.line_of_text, staged.line_of_text, staged.classes]
    return net.model(write.choose(*heads)(write, maps))


def recurrent_blocks(seed: int, batch_size: int) -> Any:
    """Write recurrent networks: of one step with its state, or of sequences, behind convolutions of a signal or not."""
    write = BlockWriter(seed, "blocks-recurrent")
    net, count = write.net, batch_size * write.choose(1, 1, 1, 2, 8)
    kind, ways, hidden = (
        write.choose("LSTM", "LSTM", "GRU", "GRU", "RNN"),
        write.choose(1, 1, 2),
        write.size(16, 384, 8),
    )
    steps = write.choose(1, write.size(4, 60), write.size(50, 600))
    if write.chance(0.4):
        stride = write.choose(2, 4, 8)
        data = net.input(count, write.choose(1, 1, 2, 40, 80), steps * stride**2 + stride)
        for _ in range(2):
            side = stride + write.choose(0, 1, 4)
            data = convolve(
                write, data, write.size(16, 256, 8), (side,), strides=(stride,), normalise=write.chance(0.5)
            )
            data = write.activation(data)
        data = net("Transpose", data, perm=[2, 0, 1])
    else:
        data = net.input(steps, count, write.size(8, 512))
    for _ in range(write.choose(1, 2, 2, 3)):
        data = recurrent(write, data, kind, hidden, ways)
        if write.chance(0.3):
            data = write.activation(linear(write, data, write.size(16, 512, 8)))
    if write.chance(0.5):
        data = net("Gather", data, net.constant(np.array(-1, dtype=np.int64)), axis=0)
    return net.model(net("Sigmoid", linear(write, data, write.choose(1, 10, 161))))


def _stem(write: BlockWriter, data: str, outputs: int) -> str:
    """Write the first convolution of a network, or two, and a pooling for large pictures."""
    net, (height, width) = write.net, write.net.shape(data)[2:]
    if height * width <= 50 * 50:
        return write.activation(convolve(write, data, outputs, (3, 3)))
    if write.chance(0.2):
        data = write.activation(convolve(write, data, max(4, outputs // 2), (3, 3), strides=(2, 2)))
        data = convolve(write, data, outputs, (3, 3))
    else:
        side = write.choose(3, 3, 3, 5, 7, 11)
        data = convolve(write, data, outputs, (side, side), strides=(4, 4) if side == 11 else (2, 2))
    data = write.activation(data)
    if height * width > 50_000 and write.chance(0.5):
        side = write.choose(2, 3)
        pads = [0] * 4 if side == 2 else write.choose([1] * 4, [0] * 4, [0, 0, 1, 1])
        data = net("MaxPool", data, kernel_shape=[side, side], strides=[2, 2], pads=pads)
    return data


def _kinds(write: BlockWriter, seed: int, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Draw the kinds of blocks of a network: few, because real networks repeat theirs; in turn, so that all are met."""
    first = blocks[seed % len(blocks)]
    return (first, first, *(write.choose(*blocks) for _ in range(write.choose(0, 1, 2, 3))))


def _stacked(write: BlockWriter, data: str, kinds: tuple[Block, ...], most: int | None = None) -> str:
    """Write blocks of the given kinds until there are enough operators, and maps are not too large."""
    net = write.net
    end = len(net) + (most or write.size(*_OPERATORS))
    while len(net) < end:
        data = write.choose(*kinds)(write, data)
        shape = net.shape(data)
        if len(shape) == 4 and math.prod(shape) > write.most_elements // 4:
            inputs = shape[1]
            data = convolve(write, data, min(inputs, 128), (3, 3) if inputs < 32 else (1, 1), strides=(2, 2))
        elif len(shape) == 3 and math.prod(shape) > write.most_elements:
            data = net("MaxPool", data, kernel_shape=[4], strides=[4])
    return data
