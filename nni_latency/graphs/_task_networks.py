# SPDX-License-Identifier: Apache-2.0
"""Networks of tasks, written in ONNX: short signals, windows of attention, wide views, faces, long sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import nni_latency.graphs._staged_blocks as staged
from nni_latency.graphs._block_writer import BlockWriter
from nni_latency.graphs._picture_blocks import convolve, enlarged, inverted, residual, separable
from nni_latency.graphs._sequence_blocks import linear, recurrent

#: Largest number of values of a sequence.
_MOST_VALUES = 300_000


def task_networks(seed: int, batch_size: int) -> Any:
    """Write networks of tasks: voice detection, windows of attention, segmentation, faces, long sequences."""
    kind = _TASKS[seed % len(_TASKS)]
    write = staged.StyledWriter(seed, "blocks-task")
    return write.net.model(kind(write, batch_size))


def _short_signals(write: staged.StyledWriter, batch_size: int) -> str:
    """Detect something in a few milliseconds of sound: a spectrum, convolutions, and a recurrent step."""
    net, count = write.net, batch_size * write.choose(1, 1, 1, 2, 8, 16, 32, 64)
    size = write.choose(64, 128, 256, 256)
    length = size * write.choose(1, 2, 2, 3, 4)
    data = net.input(count, length)
    choices = int(write.random.integers(2**31))
    sizes = [write.size(32, 256, 16) for _ in range(write.choose(2, 3, 4))]
    hidden, is_rectified = write.size(32, 256, 32), write.chance(0.7)

    def detect(writer: BlockWriter, signal: str) -> str:
        return _detected(writer, signal, size, sizes, hidden, is_rectified=is_rectified)

    if write.chance(0.5):
        mean = net.reduce("ReduceMean", data, [0, 1], keep=False)
        condition = net("Greater", mean, net.number(0.0))
        return net.either(condition, *(lambda: write.repeat(detect, data, choices) for _ in "12"))
    return write.repeat(detect, data, choices)


def _detected(write: BlockWriter, signal: str, size: int, sizes: list[int], hidden: int, *, is_rectified: bool) -> str:
    net = write.net
    data = encoded(write, signal, size, sizes, is_rectified=is_rectified)
    kind = write.choose("LSTM", "LSTM", "GRU", "none")
    if kind != "none":
        steps = net("Transpose", data, perm=[2, 0, 1])
        data = net("Transpose", recurrent(write, steps, kind, hidden, 1), perm=[1, 2, 0])
    return probability(write, data)


def encoded(write: BlockWriter, signal: str, size: int, sizes: list[int], *, is_rectified: bool) -> str:
    """Write the spectrum of a signal (n_signals, n_samples), and convolutions over its frames."""
    net = write.net
    padded = net("Pad", signal, net.whole(0, 0, 0, size // 4), mode=write.choose("reflect", "reflect", "constant"))
    basis = net.weight(size + 2, 1, size)
    spectrum = net("Conv", net.unsqueeze(padded, 1), basis, kernel_shape=[size], strides=[size // 2])
    powers = [net("Pow", part, net.number(2.0)) for part in net.split(spectrum, 2, 1)]
    data = net("Sqrt", net("Add", *powers))
    for outputs in sizes:
        stride = 2 if net.shape(data)[2] > 1 and write.chance(0.5) else 1
        data = convolve(write, data, outputs, (3,), strides=(stride,), normalise=False)
        data = net("Relu", data) if is_rectified else write.activation(data)
    return data


def probability(write: BlockWriter, data: str) -> str:
    """Write a probability for each signal from its frames (n_signals, n_channels, n_frames)."""
    net = write.net
    made = net("Sigmoid", convolve(write, net("Relu", data), 1, (1,), normalise=False))
    return net.reshape(net.reduce("ReduceMean", made, [2], keep=False), net.shape(data)[0], 1)


def _windows(write: staged.StyledWriter, batch_size: int) -> str:
    """Attend within windows of a map, every other time moved by half a window (arXiv:2103.14030)."""
    net, side = write.net, write.choose(4, 7, 7, 8)
    patch, places = write.choose(2, 4, 4), write.choose(2, 4, 8, 8)
    width = write.choose(32, 48, 64, 96)
    picture = side * places * patch
    data = convolve(write, net.input(batch_size, 3, picture, picture), width, (patch, patch), strides=(patch, patch))
    data = net.slice(net.slice(data, 2, 0, side * places), 3, 0, side * places)
    data = net("Transpose", data, perm=[0, 2, 3, 1])
    heads, has_mask = write.choose(2, 3, 4), write.chance(0.6)
    for _ in range(4):
        for number in range(write.choose(2, 2, 4)):
            moved = side // 2 if number % 2 and places > 1 else 0
            data = _attended(write, data, side, heads, moved if has_mask else 0)
            wide = linear(write, write.layer_norm(data), write.choose(2, 4) * net.shape(data)[3])
            data = net("Add", data, linear(write, write.activation(wide), net.shape(data)[3]))
        if places < 2 or places % 2:
            break
        places //= 2
        rows = [net.slice(data, 1, first, 2**31, 2) for first in (0, 1)]
        parts = [net.slice(row, 2, first, 2**31, 2) for first in (0, 1) for row in rows]
        data = write.layer_norm(net("Concat", *parts, axis=3))
        data = linear(write, data, net.shape(data)[3] // 2, bias=False)
        heads *= 2
    return linear(write, net.reduce("ReduceMean", write.layer_norm(data), [1, 2], keep=False), 1000)


def _attended(write: BlockWriter, data: str, side: int, heads: int, moved: int) -> str:
    """Write attention within the windows of a map with channels last."""
    net, (count, height, width, channels) = write.net, write.net.shape(data)
    rows, columns, each = height // side, width // side, channels // heads
    normed = _rolled(write, write.layer_norm(data), moved)
    parts = net.reshape(normed, count, rows, side, columns, side, channels)
    windows = net.reshape(net("Transpose", parts, perm=[0, 1, 3, 2, 4, 5]), -1, side * side, channels)
    n_windows = count * rows * columns
    joined = net.reshape(linear(write, windows, 3 * heads * each), n_windows, side * side, 3, heads, each)
    turned = net("Transpose", joined, perm=[2, 0, 3, 1, 4])
    queries, keys, values = (
        net("Gather", turned, net.constant(np.array(place, dtype=np.int64)), axis=0) for place in range(3)
    )
    scores = net("MatMul", net("Mul", queries, net.number(each**-0.5)), net("Transpose", keys, perm=[0, 1, 3, 2]))
    scores = net("Add", scores, net.weight(1, heads, side * side, side * side))
    if moved:
        shape = net.shape(scores)
        apart = net.reshape(scores, count, rows * columns, heads, side * side, side * side)
        apart = net("Add", apart, net.weight(1, rows * columns, 1, side * side, side * side))
        scores = net.reshape(apart, *shape)
    mixed = net("Transpose", net("MatMul", net("Softmax", scores, axis=-1), values), perm=[0, 2, 1, 3])
    back = linear(write, net.reshape(mixed, n_windows, side * side, heads * each), channels)
    back = net.reshape(back, count, rows, columns, side, side, channels)
    back = net.reshape(net("Transpose", back, perm=[0, 1, 3, 2, 4, 5]), count, height, width, channels)
    return net("Add", data, _rolled(write, back, -moved))


def _rolled(write: BlockWriter, data: str, moved: int) -> str:
    """Move a map cyclically along its sides, in slices as exporters write it."""
    net = write.net
    for axis in (1, 2) if moved else ():
        place = moved % net.shape(data)[axis]
        data = net("Concat", net.slice(data, axis, place, 2**31), net.slice(data, axis, 0, place), axis=axis)
    return data


def _wide_views(write: staged.StyledWriter, batch_size: int) -> str:
    """Segment a picture: dilated convolutions side by side, and a decoder (arXiv:1706.05587)."""
    net = write.net
    height, width = write.choose((128, 128), (192, 256), (256, 256), (321, 321), (256, 512))
    block = write.choose(residual, inverted, separable)
    data = net.input(batch_size, 3, height, width)
    maps, outputs = [], write.choose(16, 24, 32)
    for place in range(write.choose(3, 3, 4)):
        data = write.activation(convolve(write, data, outputs, (3, 3), strides=(2, 2)))
        for _ in range(write.choose(0, 1, 2)):
            data = block(write, data)
        maps.append(data)
        outputs = min(256, outputs * 2) if place else outputs
    inner, dilations = write.choose(64, 96, 128, 256), write.choose((6, 12, 18), (2, 4, 8), (12, 24, 36), (3, 6, 9))
    rows, columns = net.shape(data)[2:]
    is_separable = write.chance(0.4)
    ways = [write.activation(convolve(write, data, inner, (1, 1)))]
    for step in (step for step in dilations if step < min(rows, columns)):
        inputs = net.shape(data)[1]
        if is_separable:
            deep = convolve(write, data, inputs, (3, 3), dilation=step, groups=inputs)
            ways.append(write.activation(convolve(write, write.activation(deep), inner, (1, 1))))
        else:
            ways.append(write.activation(convolve(write, data, inner, (3, 3), dilation=step)))
    if write.chance(0.7):
        mean = write.net("GlobalAveragePool", data)
        mean = net("Relu", convolve(write, mean, inner, (1, 1), normalise=False))
        ways.append(enlarged(write, mean, rows, columns, write.choose("nearest", "linear")))
    data = write.activation(convolve(write, net("Concat", *ways, axis=1), inner, (1, 1)))
    if write.chance(0.6):
        early = write.activation(convolve(write, maps[1], write.choose(24, 48), (1, 1)))
        larger = enlarged(write, data, net.shape(early)[2], net.shape(early)[3], "linear")
        data = write.activation(convolve(write, net("Concat", larger, early, axis=1), inner, (3, 3)))
    classes = write.choose(2, 19, 21)
    made = convolve(write, data, classes, (1, 1), normalise=False)
    if classes * height * width <= write.most_elements and write.chance(0.7):
        made = enlarged(write, made, height, width, "linear")
    return made


def _parametric(write: staged.StyledWriter, batch_size: int) -> str:
    """Embed faces or restore pictures: parametric rectifiers behind convolutions (arXiv:1801.07698)."""
    net, has_face = write.net, write.chance(0.6)

    def rectified(data: str) -> str:
        return net("PRelu", data, net.weight(net.shape(data)[1], 1, 1))

    side = write.choose(56, 112, 112, 128) if has_face else write.choose(96, 128, 160, 224)
    data, outputs = net.input(batch_size, write.choose(1, 3), side, side), write.choose(16, 32, 48, 64)
    data = rectified(convolve(write, data, outputs, (3, 3) if has_face else (5, 5)))
    if not has_face:
        for _ in range(write.choose(2, 4, 6)):
            data = rectified(convolve(write, data, write.choose(12, 16, 32, outputs), (3, 3), normalise=False))
        factor = write.choose(2, 3)
        made = convolve(write, data, 3 * factor**2, (3, 3), normalise=False)
        return net("DepthToSpace", made, blocksize=factor, mode="CRD")
    is_deep = write.chance(0.5)
    for _ in range(write.choose(3, 4, 4)):
        outputs = min(256, outputs * 2)
        data = rectified(convolve(write, data, outputs, (3, 3), strides=(2, 2)))
        for _ in range(write.choose(1, 1, 2, 3)):
            groups = outputs if is_deep else 1
            first = write.batch_norm(data) if write.chance(0.5) else data
            middle = rectified(convolve(write, first, outputs, (3, 3), groups=groups))
            data = net("Add", data, convolve(write, middle, outputs, (1, 1) if is_deep else (3, 3)))
    vector = net("Flatten", data, axis=1)
    if net.shape(vector)[1] > 40_000:
        vector = net("Flatten", net("GlobalAveragePool", data), axis=1)
    return linear(write, vector, write.choose(128, 256, 512))


def _long_sequences(write: staged.StyledWriter, batch_size: int) -> str:
    """Transcribe or enhance seconds of sound by recurrent layers of hundreds of steps (arXiv:1512.02595)."""
    net, count = write.net, batch_size * write.choose(1, 1, 1, 2, 4)
    kind, ways = write.choose("GRU", "GRU", "LSTM"), write.choose(1, 2, 2)
    steps, bands = write.size(64, 500), write.choose(40, 64, 80, 128, 161, 257)
    hidden = min(write.size(48, 640, 16), max(32, _MOST_VALUES // steps // 16 * 16))
    if write.chance(0.5):
        data = net.input(count, 1, bands, steps)
        for _ in range(write.choose(1, 2)):
            data = write.activation(
                convolve(write, data, write.choose(16, 32), (3, 5), strides=(2, write.choose(1, 2)))
            )
        shape = net.shape(data)
        data = net("Transpose", net.reshape(data, shape[0], shape[1] * shape[2], shape[3]), perm=[2, 0, 1])
    else:
        data = net("Transpose", net.input(count, steps, bands), perm=[1, 0, 2])
        if write.chance(0.5):
            data = write.activation(linear(write, data, hidden))
    for _ in range(write.choose(1, 2, 2, 3)):
        data = recurrent(write, data, kind, hidden, ways)
        if write.chance(0.2):
            data = write.layer_norm(data)
    made = linear(write, data, write.choose(29, 32, bands))
    return net("LogSoftmax", made, axis=2) if write.chance(0.5) else net("Sigmoid", made)


_TASKS: tuple[Callable[[staged.StyledWriter, int], str], ...] = (
    _short_signals, _windows, _short_signals, _wide_views, _parametric, _long_sequences,
)  # fmt: skip
