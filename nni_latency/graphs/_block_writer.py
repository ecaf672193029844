# SPDX-License-Identifier: Apache-2.0
"""`BlockWriter`: random sizes, activations and normalisations of networks that are written in ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from nni_latency.graphs._onnx_builder import OnnxBuilder

T = TypeVar("T")

#: Versions of the operator set in which networks are written.
_OPSETS = (13, 14, 16, 17, 18, 20)

#: Activations with their attributes, and the version of the operator set that brought each.
_ACTIVATIONS: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("Relu", {}, 13),
    ("LeakyRelu", {"alpha": 0.1}, 13),
    ("Elu", {"alpha": 1.0}, 13),
    ("Selu", {}, 13),
    ("Celu", {}, 13),
    ("Sigmoid", {}, 13),
    ("Tanh", {}, 13),
    ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}, 13),
    ("Softplus", {}, 13),
    ("Softsign", {}, 13),
    ("ThresholdedRelu", {"alpha": 0.2}, 13),
    ("HardSwish", {}, 14),
    ("Mish", {}, 18),
    ("Gelu", {}, 20),
)

#: Elementwise functions of one input.
_FUNCTIONS = (
    *("Abs", "Neg", "Exp", "Erf", "Sin", "Cos", "Atan", "Floor", "Ceil", "Round", "Sign", "Reciprocal", "Sqrt", "Log"),
    *("Sinh", "Cosh", "Asinh", "Tan"),
)

#: Functions whose input must be positive.
_OF_POSITIVE = frozenset(("Log", "Sqrt", "Reciprocal"))

#: Usual largest number of elements of a tensor, and multiply-adds of a layer for each of them.
MOST_ELEMENTS, _MACS_PER_ELEMENT = 500_000, 300


class BlockWriter:
    """Draws sizes and kinds, and writes activations and normalisations.

    Parameters
    ----------
    seed : int
        Seed of all choices.
    name : str
        Name of the family, added to the seed.
    opset : int, optional
        Version of the operator set; by default drawn.
    most_elements : int
        Largest number of elements of a tensor.
    """

    def __init__(self, seed: int, name: str, *, opset: int | None = None, most_elements: int = MOST_ELEMENTS) -> None:
        self.most_elements = most_elements
        self.random = np.random.default_rng([seed, *name.encode()])
        self.net = OnnxBuilder(self.random, opset or self.choose(*_OPSETS))

    def choose(self, *options: T) -> T:
        """Draw one of several values."""
        return options[int(self.random.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return bool(self.random.random() < probability)

    def size(self, low: float, high: float, multiple: int = 1) -> int:
        """Draw a size, uniformly on a logarithmic scale, rounded to a multiple."""
        drawn = math.exp(self.random.uniform(math.log(low), math.log(max(low, high))))
        return max(multiple, round(drawn / multiple) * multiple)

    def width(self, places: int, taken: int = 1, window: int = 1, *, most: int = 768) -> int:
        """Draw a number of channels for a map with so many places, such that neither the map nor the work is too large.

        Parameters
        ----------
        places : int
            Places of the map.
        taken : int
            Channels that are read.
        window : int
            Weights that a channel of the result has for each channel that is read.
        most : int
            Largest number of channels.
        """
        most_macs = _MACS_PER_ELEMENT * self.most_elements
        high = min(most, self.most_elements / places, most_macs / (places * taken * window))
        return self.size(max(min(8, high), high / 48), high, self.choose(16, 8, 8, 4, 1))

    def activation(self, data: str) -> str:
        """Write an activation: one operator, or several that make one."""
        net = self.net
        if self.chance(0.25):
            return self._written_out(data)
        if self.chance(0.25):
            return net("Clip", data, net.number(0.0), net.number(self.choose(6.0, 1.0, 20.0)))
        if self.chance(0.3):
            return net("Relu", data)
        if self.chance(0.1):
            channels = net.shape(data)[1]
            return net("PRelu", data, net.weight(channels, *[1] * (len(net.shape(data)) - 2)))
        kind, attributes, _ = self.choose(*(item for item in _ACTIVATIONS if item[2] <= net.opset))
        return net(kind, data, **attributes)

    def _written_out(self, data: str) -> str:
        """Write an activation as the operators of which it consists."""
        net = self.net
        kind = self.choose("silu", "hard swish", "gelu", "tanh gelu", "mish", "hard sigmoid", "square")
        if kind == "silu":
            return net("Mul", data, net("Sigmoid", data))
        if kind == "hard swish":
            gate = net("Clip", net("Add", data, net.number(3.0)), net.number(0.0), net.number(6.0))
            return net("Div", net("Mul", data, gate), net.number(6.0))
        if kind == "gelu":
            # Runtimes look for this constant to four decimals.
            inner = net("Erf", net("Div", data, net.number(math.sqrt(2.0))))
            return net("Mul", net("Mul", data, net("Add", inner, net.number(1.0))), net.number(0.5))
        if kind == "tanh gelu":
            cube = net("Mul", net("Pow", data, net.number(3.0)), net.number(0.044715))
            inner = net("Tanh", net("Mul", net("Add", data, cube), net.number(math.sqrt(2.0 / math.pi))))
            return net("Mul", net("Mul", data, net("Add", inner, net.number(1.0))), net.number(0.5))
        if kind == "mish":
            return net("Mul", data, net("Tanh", net("Softplus", data)))
        if kind == "square":
            rectified = net("Relu", data)
            return net("Mul", rectified, rectified)
        moved = net("Add", net("Mul", data, net.number(0.2)), net.number(0.5))
        return net("Mul", data, net("Clip", moved, net.number(0.0), net.number(1.0)))

    def function(self, data: str) -> str:
        """Write an elementwise function."""
        net, kind = self.net, self.choose(*_FUNCTIONS)
        if kind in _OF_POSITIVE:
            data = net("Add", net("Abs", data), net.number(0.1))
        elif kind in ("Exp", "Sinh", "Cosh", "Tan"):
            data = net("Clip", data, net.number(-1.0), net.number(1.0))
        return net(kind, data)

    def arithmetic(self, data: str) -> str:
        """Write an arithmetic operation with a constant, a parameter, or a tensor of the same or of a smaller size."""
        net, shape = self.net, self.net.shape(data)
        kind = self.choose("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Sum", "Mean")
        if kind == "Pow":
            base = net("Add", net("Abs", data), net.number(0.1))
            return net("Pow", base, net.number(self.choose(2.0, 3.0, 0.5, 1.5, -1.0)))
        if kind in ("Sum", "Mean"):
            return net(kind, data, net("Relu", data), net("Neg", data))
        if self.chance(0.4):
            other = net.positive(*(size if self.chance(0.5) else 1 for size in shape))
        elif self.chance(0.5):
            other = net("Add", net("Abs", data), net.number(0.5))
        else:
            axes = [axis for axis in range(1, len(shape)) if self.chance(0.5)] or [len(shape) - 1]
            other = net("Add", net("Abs", net.reduce("ReduceMean", data, axes)), net.number(0.5))
        return net(kind, data, other)

    def comparison(self, data: str) -> str:
        """Write a choice between two tensors by a comparison."""
        net = self.net
        mean = net.reduce("ReduceMean", data, [len(net.shape(data)) - 1])
        # Older versions define the other two as functions, whose shapes are not inferred.
        mask = net(self.choose("Greater", "Less", *(("GreaterOrEqual", "LessOrEqual") * (net.opset >= 16))), data, mean)
        if self.chance(0.4):
            mask = net(self.choose("And", "Or", "Xor"), mask, net("Less", data, net.number(0.3)))
        if self.chance(0.3):
            mask = net("Not", mask)
        if self.chance(0.3):
            return net("Mul", data, net("Cast", mask, to=1))
        return net("Where", mask, data, self.choose(net.number(0.0), net("Neg", data)))

    def layer_norm(self, data: str) -> str:
        """Write a normalisation over the last dimension: one operator, or several that make one."""
        net, width = self.net, self.net.shape(data)[-1]
        if net.opset >= 17 and self.chance(0.6):
            return net("LayerNormalization", data, net.positive(width), net.weight(width), axis=-1)
        if self.chance(0.4):
            square = net("Mul", data, data) if self.chance(0.5) else net("Pow", data, net.number(2.0))
            mean = net("Add", net.reduce("ReduceMean", square, [-1]), net.number(1e-5))
            root = net("Sqrt", mean)
            scaled = net("Mul", data, net("Reciprocal", root)) if self.chance(0.5) else net("Div", data, root)
            return net("Mul", scaled, net.positive(width))
        centred = net("Sub", data, net.reduce("ReduceMean", data, [-1]))
        variance = net.reduce("ReduceMean", net("Pow", centred, net.number(2.0)), [-1])
        scaled = net("Div", centred, net("Sqrt", net("Add", variance, net.number(1e-5))))
        return net("Add", net("Mul", scaled, net.positive(width)), net.weight(width))

    def channel_norm(self, data: str) -> str:
        """Write a normalisation of channels, the second dimension."""
        net, shape = self.net, self.net.shape(data)
        channels, ones = shape[1], [1] * (len(shape) - 2)
        kind = self.choose("batch", "batch", "instance", "group", "lp", "scale", "written out", "local", "local")
        if kind == "local" and len(shape) == 4:
            return net("LRN", data, size=self.choose(3, 5, 7), alpha=1e-4, beta=0.75)
        if kind == "instance":
            return net("InstanceNormalization", data, net.positive(channels), net.weight(channels))
        if kind == "group":
            groups = math.gcd(channels, self.choose(1, 2, 4, 8, 32))
            rows = net.reshape(data, shape[0], groups, -1)
            rows = net("InstanceNormalization", rows, net.positive(groups), net.weight(groups))
            back = net.reshape(rows, *shape)
            return net("Add", net("Mul", back, net.positive(channels, *ones)), net.weight(channels, *ones))
        if kind == "lp":
            return net("LpNormalization", data, axis=1, p=2)
        if kind == "scale":
            return net("Add", net("Mul", data, net.positive(1, channels, *ones)), net.weight(1, channels, *ones))
        if kind == "written out":
            axes = list(range(2, len(shape))) if self.chance(0.5) else [1]
            norm = net.reduce(self.choose("ReduceL2", "ReduceL1", "ReduceSumSquare"), data, axes)
            return net("Div", data, net("Add", norm, net.number(1e-3)))
        return self.batch_norm(data)

    def batch_norm(self, data: str) -> str:
        """Write a batch normalisation."""
        net, channels = self.net, self.net.shape(data)[1]
        statistics = (net.weight(channels), net.positive(channels))
        return net("BatchNormalization", data, net.positive(channels), net.weight(channels), *statistics)

    def quantised(self, data: str) -> str:
        """Write a quantisation to eight bits and back."""
        net = self.net
        scale, zero = net.number(0.05), net.constant(np.array(0, dtype=np.int8))
        return net("DequantizeLinear", net("QuantizeLinear", data, scale, zero), scale, zero)


#: Writes a block behind a tensor and returns its result.
Block = Callable[[BlockWriter, str], str]
