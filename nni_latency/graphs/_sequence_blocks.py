# SPDX-License-Identifier: Apache-2.0
"""Blocks on tokens, signals and vectors, written in ONNX: attention, recurrent layers, one-dimensional convolutions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nni_latency.graphs._block_writer import Block, BlockWriter
from nni_latency.graphs._picture_blocks import convolve

#: Largest number of scores of an attention.
_MOST_SCORES = 1_000_000


def linear(write: BlockWriter, data: str, outputs: int, *, bias: bool = True) -> str:
    """Write a product with a weight over the last dimension, in one of the forms in which exporters write it."""
    net, shape = write.net, write.net.shape(data)
    inputs = shape[-1]
    if len(shape) == 2 or write.chance(0.15):
        flat = data if len(shape) == 2 else net.reshape(data, -1, inputs)
        is_turned = write.chance(0.7)
        weight = net.weight(outputs, inputs) if is_turned else net.weight(inputs, outputs)
        made = net("Gemm", flat, weight, *([net.weight(outputs)] if bias else []), transB=int(is_turned))
        return made if len(shape) == 2 else net.reshape(made, *shape[:-1], outputs)
    made = net("MatMul", data, net.weight(inputs, outputs))
    if not bias:
        return made
    return net("Add", *((net.weight(outputs), made) if write.chance(0.5) else (made, net.weight(outputs))))


def _width(write: BlockWriter, data: str, *, most: int = 3072) -> int:
    *rows, inputs = write.net.shape(data)
    return write.width(math.prod(rows), inputs, most=most)


def _attention(write: BlockWriter, data: str) -> str:
    """Write attention of several heads, with or without mask, rotation, and one product for all inputs."""
    net, (count, tokens, channels) = write.net, write.net.shape(data)
    heads = write.choose(1, 2, 4, 6, 8, 12)
    while heads > 1 and count * heads * tokens**2 > _MOST_SCORES:
        heads //= 2
    width = write.choose(16, 32, 64)
    normed = write.layer_norm(data) if write.chance(0.6) else data
    if write.chance(0.4):
        joined = linear(write, normed, 3 * heads * width)
        parts = [net.reshape(part, count, tokens, heads, width) for part in net.split(joined, 3, 2)]
    else:
        parts = [net.reshape(linear(write, normed, heads * width), count, tokens, heads, width) for _ in range(3)]
    queries, keys, values = (net("Transpose", part, perm=[0, 2, 1, 3]) for part in parts)
    if write.chance(0.25):
        queries, keys = _rotated(write, queries), _rotated(write, keys)
    if write.chance(0.2):
        scores = net("Einsum", queries, keys, equation="bhid,bhjd->bhij")
    else:
        scores = net("MatMul", queries, net("Transpose", keys, perm=[0, 1, 3, 2]))
    scores = net(write.choose("Mul", "Div"), scores, net.number(write.choose(0.125, 8.0)))
    mask = write.choose("none", "none", "add", "where")
    if mask == "add":
        scores = net("Add", scores, net.weight(*write.choose((1, 1, tokens, tokens), (1, heads, tokens, tokens))))
    elif mask == "where":
        lower = np.tril(np.ones((1, 1, tokens, tokens), dtype=bool))
        scores = net("Where", net.constant(lower), scores, net.number(-1e4))
    mixed = net("MatMul", net("Softmax", scores, axis=-1), values)
    back = net.reshape(net("Transpose", mixed, perm=[0, 2, 1, 3]), count, tokens, heads * width)
    found = net("Add", data, linear(write, back, channels))
    return write.layer_norm(found) if write.chance(0.4) else found


def _rotated(write: BlockWriter, data: str) -> str:
    """Rotate pairs of channels by the positions of the tokens (arXiv:2104.09864)."""
    net, (_, _, tokens, width) = write.net, write.net.shape(data)
    angles = np.random.default_rng(0).uniform(-1, 1, (2, 1, 1, tokens, width)).astype(np.float32)
    cosines, sines = map(net.constant, angles)
    one, two = net.slice(data, 3, 0, width // 2), net.slice(data, 3, width // 2, width)
    turned = net("Concat", net("Neg", two), one, axis=3)
    return net("Add", net("Mul", data, cosines), net("Mul", turned, sines))


def _perceptron(write: BlockWriter, data: str) -> str:
    net, channels = write.net, write.net.shape(data)[-1]
    normed = write.layer_norm(data) if write.chance(0.6) else data
    wide = _width(write, data)
    if write.chance(0.25):
        gate, value = linear(write, normed, wide, bias=False), linear(write, normed, wide, bias=False)
        hidden = net("Mul", net("Mul", gate, net("Sigmoid", gate)), value)
    else:
        hidden = write.activation(linear(write, normed, wide))
    return net("Add", data, linear(write, hidden, channels))


def _recurrent(write: BlockWriter, data: str) -> str:
    """Write a recurrent layer in one direction or both, on tokens."""
    net, channels = write.net, write.net.shape(data)[2]
    kind = write.choose("LSTM", "LSTM", "GRU", "RNN")
    hidden, ways = write.size(8, 256, write.choose(8, 1)), write.choose(1, 1, 2)
    rows = recurrent(write, net("Transpose", data, perm=[1, 0, 2]), kind, hidden, ways, keeps_order=False)
    return linear(write, rows, channels) if write.chance(0.4) else rows


def recurrent(write: BlockWriter, data: str, kind: str, hidden: int, ways: int, *, keeps_order: bool = True) -> str:
    """Write a recurrent layer behind steps.

    Parameters
    ----------
    write : BlockWriter
        Writer of the network.
    data : str
        Steps, (n_steps, n_sequences, n_channels).
    kind : {"LSTM", "GRU", "RNN"}
        Kind of the layer.
    hidden, ways : int
        Size of its state, and number of directions.
    keeps_order : bool, default=True
        Whether the result has the order of the input; otherwise sequences come first.
    """
    net, (steps, count, channels) = write.net, write.net.shape(data)
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    sizes = (gates * hidden, channels), (gates * hidden, hidden), (2 * gates * hidden,)
    weights = [net.weight(ways, *size) for size in sizes]
    how: dict[str, Any] = {"direction": "bidirectional" if ways == 2 else "forward", "hidden_size": hidden}
    if kind == "GRU":
        how["linear_before_reset"] = write.choose(0, 1)
    rows = net.several(kind, data, *weights, count=1, **how)[0]
    if keeps_order:
        return net.reshape(net("Transpose", rows, perm=[0, 2, 1, 3]), steps, count, ways * hidden)
    return net.reshape(net("Transpose", rows, perm=[2, 0, 1, 3]), count, steps, ways * hidden)


def _embedded(write: BlockWriter, data: str) -> str:
    """Look up rows of a table by indices that are computed."""
    net, (_, _, channels) = write.net, write.net.shape(data)
    words = write.size(64, 8000)
    index = net("Cast", net("ArgMax", data, axis=2, keepdims=0), to=7)
    found = net("Gather", net.weight(words, channels), net("Mod", index, net.whole(words)), axis=0)
    return net("Add", data, found)


def _mixed_tokens(write: BlockWriter, data: str) -> str:
    """Write a product over the tokens instead of the channels (arXiv:2105.01601), or a convolution over them."""
    net, (_, tokens, channels) = write.net, write.net.shape(data)
    turned = net("Transpose", write.layer_norm(data), perm=[0, 2, 1])
    if write.chance(0.5):
        hidden = write.activation(linear(write, turned, write.size(16, 256, 8)))
        turned = linear(write, hidden, tokens)
    else:
        side, groups = write.choose(3, 5, 7, 9, 15), write.choose(1, channels)
        side = side if groups > 1 else min(side, 5)
        turned = write.activation(convolve(write, turned, channels, (side,), groups=groups, normalise=False))
    return net("Add", data, net("Transpose", turned, perm=[0, 2, 1]))


def _windows(write: BlockWriter, data: str) -> str:
    """Write attention in windows, as in Swin: transposes of more than four dimensions around products."""
    net, (count, tokens, channels) = write.net, write.net.shape(data)
    side = next((side for side in (8, 7, 4, 3, 2) if tokens % side == 0), 1)
    heads = write.choose(1, 2, 4)
    width = max(heads, _width(write, data, most=512) // heads * heads)
    parts = net.reshape(linear(write, data, width), count, tokens // side, side, heads, width // heads)
    turned = net("Transpose", parts, perm=write.choose([0, 1, 3, 2, 4], [0, 3, 1, 2, 4]))
    scores = net("Softmax", net("MatMul", turned, net("Transpose", turned, perm=[0, 1, 2, 4, 3])), axis=-1)
    mixed = net("MatMul", scores, turned)
    back = net.reshape(net("Transpose", mixed, perm=[0, 1, 3, 2, 4]), count, tokens, width)
    return net("Add", data, linear(write, back, channels))


def _operated(write: BlockWriter, data: str) -> str:
    """Write elementwise operators, comparisons, reductions, running sums and selections."""
    net, shape = write.net, write.net.shape(data)
    last = len(shape) - 1
    for _ in range(write.choose(2, 3, 4)):
        kind = write.choose(
            "arithmetic", "function", "comparison", "sum", "top", "reduce", "hot", "soft", "tile", "part"
        )
        if kind == "arithmetic":
            data = write.arithmetic(data)
        elif kind == "function":
            data = write.function(data)
        elif kind == "comparison":
            data = write.comparison(data)
        elif kind == "sum":
            data = net("CumSum", data, net.constant(np.array(write.choose(1, last), dtype=np.int64)))
        elif kind == "top":
            values, _ = net.several("TopK", data, net.whole(min(8, shape[-1])), count=2, axis=last)
            data = net("Sub", data, net.reduce("ReduceMean", values, [last]))
        elif kind == "reduce":
            how = write.choose("ReduceMax", "ReduceMin", "ReduceSum", "ReduceProd", "ReduceL2", "ReduceLogSum")
            found = net.reduce(how, net("Add", net("Abs", data), net.number(0.5)), [write.choose(1, last)])
            data = net("Div", data, net("Add", found, net.number(1.0)))
        elif kind == "hot":
            index = net("ArgMax", data, axis=last, keepdims=0)
            values = net.constant(np.array([0, 1], dtype=np.float32))
            data = net("Add", data, net("OneHot", index, net.whole(shape[-1]), values, axis=-1))
        elif kind == "soft":
            data = net("Mul", data, net(write.choose("Softmax", "LogSoftmax"), data, axis=write.choose(1, last)))
        elif kind == "tile":
            mean = net.reduce("ReduceMean", data, [1])
            data = net("Add", data, net("Expand", mean, net.whole(*shape)))
        else:
            start = max(1, shape[-1] // 2)
            parts = net.slice(data, last, start, shape[-1]), net.slice(data, last, 0, start)
            data = net("Concat", *(part for part in parts if net.shape(part)[last]), axis=last)
    return data


def _projected(write: BlockWriter, data: str) -> str:
    """Write a product over the last dimension, with or without activation and normalisation."""
    made = linear(write, data, _width(write, data, most=2048), bias=write.chance(0.8))
    made = write.layer_norm(made) if write.chance(0.2) else made
    return write.activation(made) if write.chance(0.7) else made


def _shorter(write: BlockWriter, data: str) -> str:
    """Join neighbouring tokens, select some, or add a few."""
    net, (count, tokens, channels) = write.net, write.net.shape(data)
    kind = write.choose("joined", "selected", "added")
    if kind == "joined" and tokens % 2 == 0 and tokens > 8:
        return linear(write, net.reshape(data, count, tokens // 2, 2 * channels), channels)
    if kind == "selected" and tokens > 16:
        places = net.constant(np.sort(write.random.permutation(tokens)[: tokens // 2]).astype(np.int64))
        return net("Gather", data, places, axis=1)
    extra = net("Expand", net.weight(1, 1, channels), net.whole(count, write.choose(1, 4), channels))
    joined = net("Concat", extra, data, axis=1)
    return net("Add", joined, net.weight(*net.shape(joined)))


TOKEN_BLOCKS: tuple[Block, ...] = (
    _attention, _perceptron, _recurrent, _embedded, _mixed_tokens, _windows, _operated, _projected, _shorter,
)  # fmt: skip


def _convolution(write: BlockWriter, data: str) -> str:
    """Write a one-dimensional convolution: windows, strides, dilation, groups."""
    _, inputs, length = write.net.shape(data)
    side = write.choose(1, 2, 3, 3, 5, 7, 9, 15, 31)
    side = min(side, max(1, length // 4))
    kind = write.choose("dense", "dense", "grouped", "depthwise")
    groups = {"dense": 1, "depthwise": inputs}.get(kind, math.gcd(inputs, write.choose(2, 4, 8)))
    outputs = inputs if kind == "depthwise" else write.width(length, inputs // groups, side)
    outputs = max(groups, outputs // groups * groups)
    dilation = write.choose(1, 1, 2, 4, 8) if length > 64 else 1
    strides = write.choose((1,), (1,), (2,), (4,)) if length > 64 else (1,)
    normalise = write.chance(0.5)
    made = convolve(
        write, data, outputs, (side,), strides=strides, dilation=dilation, groups=groups, normalise=normalise
    )
    return write.activation(made)


def _gated(write: BlockWriter, data: str) -> str:
    """Write a dilated convolution with a gate and a residual, as in WaveNet."""
    net, (_, channels, length) = write.net, write.net.shape(data)
    width = write.width(length, channels, 3, most=256)
    dilation = write.choose(1, 2, 4, 8) if length > 64 else 1
    both = convolve(write, data, 2 * width, (3,), dilation=dilation, normalise=False)
    one, two = net.split(both, 2, 1)
    mixed = net("Mul", net(write.choose("Tanh", "Identity"), one), net("Sigmoid", two))
    return net("Add", data, convolve(write, mixed, channels, (1,), normalise=False))


def _stretched(write: BlockWriter, data: str) -> str:
    """Make a signal longer, by a transposed convolution or an interpolation."""
    net, (count, channels, length) = write.net, write.net.shape(data)
    factor = write.choose(2, 4)
    outputs = write.width(length * factor, channels, 4, most=256)
    if write.chance(0.6):
        weights = net.weight(channels, outputs, 2 * factor), net.weight(outputs)
        pads = [factor // 2] * 2
        return net("ConvTranspose", data, *weights, kernel_shape=[2 * factor], strides=[factor], pads=pads)
    longer = net(
        "Resize", data, "", "", net.whole(count, channels, length * factor), mode=write.choose("nearest", "linear")
    )
    return convolve(write, longer, outputs, (3,))


def _pooled(write: BlockWriter, data: str) -> str:
    net, (_, _, length) = write.net, write.net.shape(data)
    if length < 8:
        return write.channel_norm(data)
    kind, side = write.choose("MaxPool", "AveragePool"), write.choose(2, 3, 4)
    return net(kind, data, kernel_shape=[side], strides=[write.choose(1, 2, side)], pads=[side // 2] * 2)


def _normalised(write: BlockWriter, data: str) -> str:
    made = write.channel_norm(data)
    return write.activation(made)


def _spectrum(write: BlockWriter, data: str) -> str:
    """Write frames, their Fourier transform as a convolution, and the logarithm of its magnitude."""
    net, (_, channels, length) = write.net, write.net.shape(data)
    if length < 256:
        return _convolution(write, data)
    size = write.choose(64, 128, 256)
    one = convolve(write, data, 1, (1,), normalise=False) if channels > 1 else data
    padded = net("Pad", one, net.whole(0, 0, size // 2, 0, 0, size // 2), mode=write.choose("reflect", "constant"))
    basis = net("Conv", padded, net.weight(size + 2, 1, size), kernel_shape=[size], strides=[size // 4])
    parts = [net("Pow", part, net.number(2.0)) for part in net.split(basis, 2, 1)]
    return net("Log", net("Add", net("Sqrt", net("Add", *parts)), net.number(1e-3)))


def _turned(write: BlockWriter, data: str) -> str:
    """Write a block of tokens inside of a signal."""
    net, (_, _, length) = write.net, write.net.shape(data)
    if length > 512:
        data = net("MaxPool", data, kernel_shape=[8], strides=[8])
    tokens = net("Transpose", data, perm=[0, 2, 1])
    made = write.choose(_recurrent, _perceptron, _attention, _mixed_tokens)(write, tokens)
    return net("Transpose", made, perm=[0, 2, 1])


SIGNAL_BLOCKS: tuple[Block, ...] = (
    _convolution, _convolution, _gated, _stretched, _pooled, _normalised, _spectrum, _turned, _operated,
)  # fmt: skip


def _crossed(write: BlockWriter, data: str) -> str:
    """Multiply parts of a vector with each other, as recommenders do."""
    net, (rows, width) = write.net, write.net.shape(data)
    fields, size = write.choose(4, 8, 16), write.choose(8, 16, 32)
    parts = net.reshape(linear(write, data, fields * size), rows, fields, size)
    products = net("MatMul", parts, net("Transpose", parts, perm=[0, 2, 1]))
    return net("Concat", data, net.reshape(products, rows, fields * fields), axis=1) if width < 4096 else data


def _looked_up(write: BlockWriter, data: str) -> str:
    """Look up rows of several tables by indices that are computed, and join them to the vector."""
    net, (rows, width) = write.net, write.net.shape(data)
    found = [data]
    for _ in range(write.choose(2, 4, 8)):
        words, size = write.size(100, 20_000), write.choose(8, 16, 64)
        part = net.slice(data, 1, 0, max(1, width // 2))
        index = net("Mod", net("ArgMax", part, axis=1, keepdims=0), net.whole(words))
        found.append(net.reshape(net("Gather", net.weight(words, size), index, axis=0), rows, size))
    return net("Concat", *found, axis=1)


VECTOR_BLOCKS: tuple[Block, ...] = (_projected, _projected, _operated, _crossed, _looked_up)
