# SPDX-License-Identifier: Apache-2.0
"""Networks that are run on one piece of a stream at a time, written in ONNX: their states are inputs and outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from nni_latency.graphs._block_writer import BlockWriter
from nni_latency.graphs._sequence_blocks import linear
from nni_latency.graphs._staged_blocks import StyledWriter
from nni_latency.graphs._task_networks import encoded, probability


def streaming_networks(seed: int, batch_size: int) -> Any:
    """Write networks of streams with their states: voice detection, filters of sound, convolutions, decoders."""
    kind = _STREAMS[seed % len(_STREAMS)]
    write = StyledWriter(seed, "blocks-streaming")
    return write.net.model(*kind(write, batch_size * write.choose(1, 1, 1, 1, 2, 8)))


def _voices(write: BlockWriter, count: int) -> list[str]:
    """Detect something in a few milliseconds of sound: a spectrum, convolutions, and recurrent layers."""
    net, size = write.net, write.choose(64, 128, 256, 256)
    signal = net.input(count, size * write.choose(1, 2, 2, 3, 4) + write.choose(0, size // 4))
    sizes = [write.size(32, 192, 16) for _ in range(write.choose(2, 3, 4))]
    data = encoded(write, signal, size, sizes, is_rectified=write.chance(0.7))
    steps, states = net("Transpose", data, perm=[2, 0, 1]), []
    for _ in range(write.choose(1, 1, 2)):
        steps, state = _recurrent(write, steps, write.choose("LSTM", "LSTM", "GRU"), write.size(32, 256, 32))
        states += state
    return [probability(write, net("Transpose", steps, perm=[1, 2, 0])), *states]


def _recurrent(write: BlockWriter, steps: str, kind: str, hidden: int) -> tuple[str, list[str]]:
    """Write a recurrent layer that begins with a state; return its steps, and the new state in one tensor or two."""
    net, (n_steps, count, channels) = write.net, write.net.shape(steps)
    gates, n_states = {"LSTM": (4, 2), "GRU": (3, 1)}[kind]
    is_joined = n_states > 1 and write.chance(0.5)
    if is_joined:
        joined = net.input(2, count, hidden)
        before = [net.unsqueeze(_row(write, joined, row), 0) for row in (0, 1)]
    else:
        before = [net.input(1, count, hidden) for _ in range(n_states)]
    sizes = (gates * hidden, channels), (gates * hidden, hidden), (2 * gates * hidden,)
    weights = [net.weight(1, *size) for size in sizes]
    how = {"hidden_size": hidden, **({"linear_before_reset": 1} if kind == "GRU" else {})}
    rows, *after = net.several(kind, steps, *weights, "", *before, count=1 + n_states, **how)
    return net.reshape(rows, n_steps, count, hidden), [net("Concat", *after, axis=0)] if is_joined else after


def _row(write: BlockWriter, data: str, place: int) -> str:
    net = write.net
    if write.chance(0.5):
        return net("Gather", data, net.constant(place), axis=0)
    return net.reshape(net.slice(data, 0, place, place + 1), *net.shape(data)[1:])


def _filtered(write: BlockWriter, count: int) -> list[str]:
    """Estimate which bands of a frame of sound are noise (arXiv:1709.08243), and weaken them."""
    net, bands = write.net, write.choose(22, 40, 65, 129, 161, 257)
    frame, states = net.input(1, count, bands), []
    data = write.activation(linear(write, frame, write.size(32, 256, 8))) if write.chance(0.5) else frame
    for _ in range(write.choose(1, 2, 2, 3)):
        data, state = _recurrent(write, data, write.choose("GRU", "GRU", "LSTM"), write.size(24, 384, 8))
        states += state
    return [net("Mul", frame, net("Sigmoid", linear(write, data, bands))), *states]


def _remembered(write: BlockWriter, count: int) -> list[str]:
    """Write causal convolutions, each of which remembers the frames before (arXiv:1803.01271)."""
    net, channels, frames = write.net, write.size(16, 256, 8), write.choose(1, 1, 2, 4, 16)
    side, states = write.choose(2, 3, 5), []
    data = net.input(count, channels, frames)
    for number in range(write.choose(3, 4, 6, 8)):
        dilation, groups = 2 ** (number % 4), write.choose(1, 1, channels)
        length = (side - 1) * dilation
        joined = net("Concat", net.input(count, channels, length), data, axis=2)
        states.append(net.slice(joined, 2, frames, frames + length))
        weights = net.weight(channels, channels // groups, side), net.weight(channels)
        made = net("Conv", joined, *weights, kernel_shape=[side], dilations=[dilation], group=groups)
        data = net("Add", data, write.activation(made))
    return [net("Conv", data, net.weight(write.choose(1, 10, 40), channels, 1), kernel_shape=[1]), *states]


def _decoded(write: BlockWriter, count: int) -> list[str]:
    """Decode one token by attention to all before it, whose keys and values are remembered (arXiv:1911.02150)."""
    net, heads, width = write.net, write.choose(2, 4, 8), write.choose(16, 32, 64)
    channels, past = heads * width, write.size(8, 512)
    data, states, wide = net.input(count, 1, channels), [], write.choose(2, 4) * channels
    for _ in range(write.choose(1, 2, 4, 6)):
        normed = write.layer_norm(data)
        parts = [net.reshape(linear(write, normed, channels), count, heads, 1, width) for _ in range(3)]
        keys, values = (net("Concat", net.input(count, heads, past, width), part, axis=2) for part in parts[1:])
        states += [keys, values]
        scores = net("MatMul", parts[0], net("Transpose", keys, perm=[0, 1, 3, 2]))
        scores = net("Softmax", net("Mul", scores, net.number(1 / math.sqrt(width))), axis=-1)
        mixed = net.reshape(net("MatMul", scores, values), count, 1, channels)
        data = net("Add", data, linear(write, mixed, channels))
        hidden = write.activation(linear(write, write.layer_norm(data), wide))
        data = net("Add", data, linear(write, hidden, channels))
    return [linear(write, write.layer_norm(data), write.choose(97, 1000, 5000)), *states]


_STREAMS: tuple[Callable[[BlockWriter, int], list[str]], ...] = (
    _voices, _filtered, _voices, _remembered, _voices, _decoded,
)  # fmt: skip
