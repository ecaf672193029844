# SPDX-License-Identifier: Apache-2.0
"""Networks in stages, written in ONNX: one kind of block and one style throughout, as published networks have them."""

from __future__ import annotations

import math

import numpy as np

import nni_latency.graphs._picture_blocks as pictures
from nni_latency.graphs._block_writer import Block, BlockWriter
from nni_latency.graphs._picture_blocks import convolve
from nni_latency.graphs._sequence_blocks import linear, recurrent

#: Largest number of elements of a map.
_MOST_ELEMENTS = 2_500_000


class StyledWriter(BlockWriter):
    """Writes the same activation and the same kind of normalisation throughout a network.

    Parameters
    ----------
    seed : int
        Seed of all choices.
    name : str
        Name of the family, added to the seed.
    """

    def __init__(self, seed: int, name: str) -> None:
        super().__init__(seed, name, most_elements=_MOST_ELEMENTS)
        self._style = int(self.random.integers(2**31))
        self._scaling = self.choose("batch", "batch", "batch", "bias", "channels", "numbers", "instance")

    def repeat(self, block: Block, data: str, seed: int) -> str:
        """Write a block with the choices of a seed."""
        before, self.random = self.random, np.random.default_rng(seed)
        try:
            return block(self, data)
        finally:
            self.random = before

    def activation(self, data: str) -> str:
        """Write the activation of this network."""
        return self.repeat(BlockWriter.activation, data, self._style)

    def batch_norm(self, data: str) -> str:
        """Write the normalisation of this network behind a convolution, or what a converter has left of it."""
        net, (channels, *sides) = self.net, self.net.shape(data)[1:]
        ones = [1] * len(sides)
        if self._scaling == "bias":
            return net("Add", data, net.weight(1, channels, *ones))
        if self._scaling == "channels":
            return net("Add", net("Mul", data, net.positive(1, channels, *ones)), net.weight(1, channels, *ones))
        if self._scaling == "numbers":
            made = super().batch_norm(data)
            return net("Add", net("Mul", made, net.constant(np.ones(1, np.float32))), net.constant([np.float32(0.1)]))
        if self._scaling == "instance" and math.prod(sides) > 1:
            return net("InstanceNormalization", data, net.positive(channels), net.weight(channels))
        return super().batch_norm(data)


def _basic(write: BlockWriter, data: str) -> str:
    """Write two convolutions with a shortcut (arXiv:1512.03385), or without one."""
    inputs = write.net.shape(data)[1]
    one = write.activation(convolve(write, data, inputs, (3, 3)))
    two = convolve(write, one, inputs, (3, 3))
    return write.activation(write.net("Add", two, data) if write.chance(0.7) else two)


def _fire(write: BlockWriter, data: str) -> str:
    """Squeeze, and expand by two windows (arXiv:1602.07360)."""
    net, inputs = write.net, write.net.shape(data)[1]
    squeezed = write.activation(convolve(write, data, max(4, inputs // 8), (1, 1)))
    both = [write.activation(convolve(write, squeezed, inputs // 2 or 1, side)) for side in ((1, 1), (3, 3))]
    return net("Concat", *both, axis=1)


def _large_window(write: BlockWriter, data: str) -> str:
    """Write a large depthwise convolution and a perceptron with channels last (arXiv:2201.03545)."""
    net, inputs = write.net, write.net.shape(data)[1]
    side = write.choose(5, 7, 7, 9)
    deep = convolve(write, data, inputs, (side, side), groups=inputs, normalise=False)
    normed = write.layer_norm(net("Transpose", deep, perm=[0, 2, 3, 1]))
    back = linear(write, write.activation(linear(write, normed, write.choose(2, 3, 4) * inputs)), inputs)
    return net("Add", data, net("Transpose", back, perm=[0, 3, 1, 2]))


def _grouped(write: BlockWriter, data: str) -> str:
    """Write a bottleneck with grouped convolutions (arXiv:1611.05431)."""
    inputs = write.net.shape(data)[1]
    groups = math.gcd(inputs, write.choose(2, 4, 8, 16, 32))
    one = write.activation(convolve(write, data, inputs, (1, 1)))
    two = write.activation(convolve(write, one, inputs, (3, 3), groups=groups))
    return write.activation(write.net("Add", convolve(write, two, inputs, (1, 1)), data))


def _local(write: BlockWriter, data: str) -> str:
    """Write a convolution with a local response normalisation."""
    inputs = write.net.shape(data)[1]
    made = write.net("Relu", convolve(write, data, inputs, write.choose((3, 3), (5, 5), (1, 1)), normalise=False))
    return write.net("LRN", made, size=5, alpha=1e-4, beta=0.75)


def _halves(write: BlockWriter, data: str) -> str:
    """Transform half of the channels, and shuffle (arXiv:1807.11164)."""
    net, shape = write.net, write.net.shape(data)
    half = shape[1] // 2
    if half * 2 != shape[1]:
        return _basic(write, data)
    one, two = net.split(data, 2, 1)
    two = write.activation(convolve(write, two, half, (1, 1)))
    two = convolve(write, two, half, (3, 3), groups=half)
    two = write.activation(convolve(write, two, half, (1, 1)))
    rows = net.reshape(net("Concat", one, two, axis=1), shape[0], 2, half, *shape[2:])
    return net.reshape(net("Transpose", rows, perm=[0, 2, 1, 3, 4]), *shape)


#: Blocks of stages; none changes the size of the map.
STAGED_BLOCKS: tuple[Block, ...] = (
    pictures.separable, pictures.inverted, pictures.residual, pictures.ghost, pictures.shuffling, pictures.branches,
    pictures.split, pictures.dense, pictures.inverted, pictures.convolution, _basic, _basic, _fire, _large_window,
    _grouped, _local, _halves,
)  # fmt: skip


def downsampled(write: BlockWriter, data: str, outputs: int) -> str:
    """Halve both sides of a map, or the height alone, as recognisers of text do."""
    net, shape = write.net, write.net.shape(data)
    strides = (2, 1) if shape[3] >= 4 * shape[2] else (2, 2)
    if write.chance(0.4):
        side = write.choose(2, 3)
        how = {"ceil_mode": 1} if write.chance(0.4) else {}
        pooled = net("MaxPool", data, kernel_shape=[side, side], strides=list(strides), **how)
        return write.activation(convolve(write, pooled, outputs, (1, 1)))
    return write.activation(convolve(write, data, outputs, write.choose((3, 3), (3, 3), (1, 1)), strides=strides))


def pyramid(write: BlockWriter, maps: list[str]) -> str:
    """Enlarge maps of all stages to the first one and join them: detection of text, segmentation, poses."""
    net, width = write.net, write.choose(16, 24, 32, 64)
    height, long = net.shape(maps[0])[2:]
    ways, mode = [], write.choose("nearest", "linear")
    for data in reversed(maps):
        data = convolve(write, data, width, (1, 1), normalise=write.chance(0.3))
        if net.shape(data)[2:] != (height, long):
            data = pictures.enlarged(write, data, height, long, mode)
        ways.append(convolve(write, data, max(4, width // 4), (3, 3), normalise=False))
    joined = write.activation(convolve(write, net("Concat", *ways, axis=1), width, (3, 3)))
    if write.chance(0.6) and math.prod(net.shape(joined)) < write.most_elements:
        for outputs in (max(1, width // 4), write.choose(1, 1, 2, 21)):
            if math.prod(net.shape(joined)[2:]) * outputs > write.most_elements:
                break
            inputs = net.shape(joined)[1]
            weights = net.weight(inputs, outputs, 2, 2), net.weight(outputs)
            joined = net("ConvTranspose", joined, *weights, strides=[2, 2], kernel_shape=[2, 2])
            joined = net("Sigmoid", joined) if outputs <= 2 else write.activation(write.batch_norm(joined))
        return joined
    return net("Sigmoid", convolve(write, joined, write.choose(1, 2, 17), (1, 1), normalise=False))


def detections(write: BlockWriter, maps: list[str]) -> str:
    """Predict boxes and classes at every place of several maps, and join them as rows."""
    net, classes, rows = write.net, write.choose(1, 20, 80), []
    for data in maps[-3:]:
        width = net.shape(data)[1]
        data = write.activation(convolve(write, data, width, (3, 3), groups=write.choose(1, width)))
        made = convolve(write, data, 4 + classes, (1, 1), normalise=False)
        shape = net.shape(made)
        rows.append(net("Transpose", net.reshape(made, shape[0], shape[1], -1), perm=[0, 2, 1]))
    joined = net("Concat", *rows, axis=1)
    scores = net.slice(joined, 2, 4, 4 + classes)
    scores = net("Softmax", scores, axis=2) if write.chance(0.5) else net("Sigmoid", scores)
    return net("Concat", net.slice(joined, 2, 0, 4), scores, axis=2)


def line_of_text(write: BlockWriter, maps: list[str]) -> str:
    """Read the columns of a map as a sequence: recurrent layers or none, and scores of characters."""
    net, data = write.net, maps[-1]
    columns = net.reduce("ReduceMean", data, [2], keep=False)
    steps = net("Transpose", columns, perm=[0, 2, 1])
    if write.chance(0.6):
        first = net("Transpose", steps, perm=[1, 0, 2])
        steps = recurrent(write, first, "LSTM", write.choose(32, 64, 128, 256), 2, keeps_order=False)
    return net("Softmax", linear(write, steps, write.choose(37, 97, 1000, 6625)), axis=2)


def classes(write: BlockWriter, maps: list[str]) -> str:
    """Classify, with an average over the places or large layers behind all of them; or embed."""
    net, data = write.net, maps[-1]
    if write.chance(0.25) and math.prod(net.shape(data)[1:]) <= 12_000:
        vector = net("Flatten", data, axis=1)
        vector = net("Relu", linear(write, vector, write.choose(512, 1024, 2048, 4096)))
        return net("Softmax", linear(write, vector, write.choose(10, 1000)), axis=1)
    pooled = net("GlobalAveragePool", data) if write.chance(0.6) else net.reduce("ReduceMean", data, [2, 3])
    vector = net("Flatten", pooled, axis=1)
    if write.chance(0.2):
        return net("LpNormalization", linear(write, vector, write.choose(128, 512)), axis=1, p=2)
    return linear(write, vector, write.choose(2, 10, 1000))


def enlarged_picture(write: BlockWriter, maps: list[str]) -> str:
    """Restore a picture at the first or twice the resolution: restoration, and super-resolution."""
    net, data = write.net, maps[-1]
    for other in reversed(maps[:-1]):
        height, width = net.shape(other)[2:]
        larger = pictures.enlarged(write, data, height, width, "nearest")
        both = net("Concat", other, larger, axis=1)
        data = write.activation(convolve(write, both, net.shape(other)[1], (3, 3)))
    if write.chance(0.5) and math.prod(net.shape(data)[2:]) * 12 <= write.most_elements:
        made = convolve(write, data, 12, (3, 3), normalise=False)
        return net("DepthToSpace", made, blocksize=2, mode=write.choose("DCR", "CRD"))
    return net("Tanh", convolve(write, data, 3, (3, 3), normalise=False))
