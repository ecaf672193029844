# SPDX-License-Identifier: Apache-2.0
"""Probes: small networks of a few operators to detect whether a runtime fuses them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.measurement import Subject
from nni_latency.operators import ChannelShuffle, Inputs

Shape = tuple[int, ...]

#: A feature map and tokens with equal numbers of elements: enough for the time of a single operator to exceed the
#: overhead of a run. Channels are few, so that a convolution does not hide the next operator.
MAP, TOKENS = (1, 16, 112, 112), (1, 6272, 32)

#: Height and width of the images used to detect memory layouts.
_LAYOUT_SIZE = (28, 28)

#: Key of the network that measures the overhead of a run.
CONSTANT = "one number"

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "hardswish": nn.Hardswish,
    "hardsigmoid": nn.Hardsigmoid,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


class Function(nn.Module):
    """Calls a function of two tensors of the same shape.

    Parameters
    ----------
    function : callable
        The function.
    """

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Return the result of the function."""
        return self.function(value, other)


def _cat(value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.cat((value, other), 1)


#: Operators that take two tensors.
_JOINING: dict[str, Callable[..., torch.Tensor]] = {"add": torch.add, "mul": torch.mul, "cat": _cat}


def _norm(channels: int) -> nn.Module:
    """Return a batch normalisation with non-trivial statistics, so that it cannot be optimised away."""
    norm = nn.BatchNorm2d(channels)
    for tensor in (norm.running_mean, norm.running_var, norm.weight.data, norm.bias.data):
        if tensor is not None:
            tensor.uniform_(0.5, 1.5)
    return norm


#: Builders of operators on feature maps and on tokens by kind or family, given the number of channels. Fusion does not
#: depend on window sizes, so the fastest ones are used.
_ON_MAPS: dict[str, Callable[[int], nn.Module]] = {
    "conv2d": lambda channels: nn.Conv2d(channels, channels, 1),
    "conv2d depthwise": lambda channels: nn.Conv2d(channels, channels, 3, padding=1, groups=channels),
    "batch_norm": _norm,
    "max_pool2d": lambda _: nn.MaxPool2d(2),
    "avg_pool2d": lambda _: nn.AvgPool2d(2),
    "adaptive_avg_pool2d": lambda _: nn.AdaptiveAvgPool2d(1),
    "copy": lambda _: ChannelShuffle(),
}
_ON_TOKENS: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda channels: nn.Linear(channels, channels),
    "layer_norm": nn.LayerNorm,
    "softmax": lambda _: nn.Softmax(-1),
}
_ANYWHERE = (*_ACTIVATIONS, *_JOINING)

#: Operators with weights, used for both branches of a network.
_WEIGHTED = ("conv2d", "conv2d depthwise", "linear")


class Stack(nn.Module):
    """A sequence of operators; those with two operands also get the second input.

    Parameters
    ----------
    kinds : sequence of str
        Kinds of the operators.
    shape : tuple of int
        Shape of the input.
    branch : bool, default=False
        Whether to add a copy of the first operator before the second input, as in a network with two branches.
    fed : bool, default=False
        Whether to add a convolution before both inputs: a runtime may concatenate maps that it did not compute without
        a copy.
    """

    def __init__(self, kinds: Sequence[str], shape: Shape, branch: bool = False, fed: bool = False) -> None:
        super().__init__()
        self.branch = _make(kinds[0], shape) if branch else None
        self.feeders = nn.ModuleList(_make("conv2d", shape) for _ in range(2)) if fed else None
        self.parts = nn.ModuleList(map(_make, kinds, shapes_of(kinds, shape)))

    def forward(self, value: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        """Return the output of the last operator."""
        if self.branch is not None:
            other = self.branch(other)
        if self.feeders is not None:
            value, other = (feeder(given) for feeder, given in zip(self.feeders, (value, other), strict=True))
        for part in self.parts:
            value = part(value, other) if isinstance(part, Function) else part(value)
        return value


def shapes_of(kinds: Sequence[str], shape: Shape) -> list[Shape]:
    """Return the input shape of each operator, followed by the output shape of the last one."""
    value, found = torch.empty(shape, device="meta"), [shape]
    for kind in kinds:
        with torch.device("meta"):
            part = _make(kind, found[-1])
            value = part(value, value) if isinstance(part, Function) else part(value)
        found.append(tuple(value.shape))
    return found


def _make(kind: str, shape: Shape) -> nn.Module:
    if kind in _ACTIVATIONS:
        return _ACTIVATIONS[kind]()
    if kind in _JOINING:
        return Function(_JOINING[kind])
    if kind in _ON_TOKENS:
        return _ON_TOKENS[kind](shape[-1])
    return _ON_MAPS[kind](shape[1])


@dataclass(frozen=True)
class Probe:
    """A sequence of operators whose last one may be fused with those before it. Immutable.

    Parameters
    ----------
    kinds : tuple of str
        Two or more kinds or families of operators.

    Raises
    ------
    UnknownNameError
        If a kind is unknown.
    InvalidValueError
        If there are fewer than two kinds, or feature maps and tokens are mixed.

    Examples
    --------
    >>> Probe(("conv2d", "relu")).name
    'conv2d + relu'
    """

    kinds: tuple[str, ...]

    def __post_init__(self) -> None:
        known = [*_ON_MAPS, *_ON_TOKENS, *_ANYWHERE]
        for kind in self.kinds:
            if kind not in known:
                raise UnknownNameError.of("operator", kind, known)
        if len(self.kinds) < 2:
            raise InvalidValueError(f"A probe must name two operators or more, such as conv2d+relu. Got {self.name!r}.")
        if set(self.kinds) & {*_ON_MAPS, "cat"} and set(self.kinds) & set(_ON_TOKENS):
            raise InvalidValueError(f"The operators of a probe must all take feature maps, or tokens. Got {self.name}.")
        if len(self._joined) > 1:
            raise InvalidValueError(f"Operators of two tensors must all take one shape. Got {self.name}.")

    @property
    def name(self) -> str:
        """The kinds in readable form."""
        return " + ".join(self.kinds)

    @property
    def folds(self) -> bool:
        """Whether the last operator can be folded into the weights before it."""
        return self.kinds[-1] == "batch_norm" and self.kinds[-2].startswith(("conv", "linear"))

    @cached_property
    def shape(self) -> Shape:
        """Shape of the input."""
        return TOKENS if set(self.kinds) & set(_ON_TOKENS) else MAP

    @cached_property
    def _shapes(self) -> list[Shape]:
        return shapes_of(self.kinds, self.shape)

    @property
    def _joined(self) -> set[Shape]:
        """Input shapes of operators with two operands."""
        return {shape for kind, shape in zip(self.kinds, self._shapes, strict=False) if kind in _JOINING}

    @cached_property
    def networks(self) -> tuple[Subject, Subject, Subject]:
        """Networks to measure: the operators before the last one, the last one, and all of them."""
        return (_network(self.kinds[:-1], self.shape), _network(self.kinds[-1:], self._shapes[-2]), self.whole)

    @cached_property
    def whole(self) -> Subject:
        """The network of all operators."""
        return _network(self.kinds, self.shape)

    @cached_property
    def asked(self) -> Subject:
        """Network for a query to a runtime: the operand added to a convolution comes from another convolution.

        A runtime may use its own memory layout for convolutions, and only fuse additions in the same layout.
        Concatenated operands also come from convolutions.
        """
        branch = self.kinds[0] in _WEIGHTED and self._joined == {self.shape}
        return _network(self.kinds, self.shape, branch=branch, fed=self.kinds[0] == "cat")


def _network(kinds: tuple[str, ...], shape: Shape, *, branch: bool = False, fed: bool = False) -> Subject:
    key = f"{'+'.join(kinds)}@{'x'.join(map(str, shape))}"
    specification = {"kinds": list(kinds), "input_shape": list(shape)}
    joined = [place for kind, place in zip(kinds, shapes_of(kinds, shape), strict=False) if kind in _JOINING]
    like: Any = shape
    if joined:
        like = Inputs(tuple(torch.empty(item, device="meta") for item in (shape, joined[0])))
    return Subject(key, partial(Stack, kinds, shape, branch, fed), like, "block", f"stack {key}", specification)


def layout_networks(channels: int) -> dict[str, Subject]:
    """Return networks of an operator between two convolutions by kind, and of the convolutions under an empty name.

    Parameters
    ----------
    channels : int
        Channels of the input image and of all convolutions except one after a concatenation.
    """
    kinds = [kind for kind in (*_ON_MAPS, *_ANYWHERE) if not kind.startswith("conv2d")]
    shape = (1, channels, *_LAYOUT_SIZE)
    between = {kind: _network(("conv2d", kind, "conv2d"), shape, branch=kind in _JOINING) for kind in kinds}
    return {"": _network(("conv2d", "conv2d"), shape), **between}


def constant_network() -> Subject:
    """Return a nearly empty network, which measures the overhead of a run."""
    return Subject(CONSTANT, partial(Stack, ("relu",), (1, 1, 1, 1)), (1, 1, 1, 1), "block", f"stack {CONSTANT}")


def operator_names(subject: Subject) -> dict[str, int]:
    """Return the indices of the operators of a probe's network by their name in `nni_latency.operators.trace`.

    The operator before the second input, if any, has the index of the first one, which it copies.
    """
    return {"branch": 0, **{f"parts.{number}": number for number in range(len(subject.specification["kinds"]))}}


def _followed(firsts: Iterable[str], seconds: Iterable[str]) -> list[Probe]:
    after = tuple(seconds)
    return [Probe((first, second)) for first in firsts for second in after]


#: Default probes: neighbours common in networks. Pairs of convolutions or linear layers are excluded, because shared
#: work, such as a layout conversion of the input, would look like fusion.
PROBES: tuple[Probe, ...] = (
    *_followed(("conv2d", "conv2d depthwise"), ("batch_norm", *_ACTIVATIONS, "add", "max_pool2d")),
    *_followed(("conv2d",), ("adaptive_avg_pool2d", "mul", "cat")),
    *_followed(("linear",), ("relu", "gelu", "silu", "hardswish", "sigmoid", "add", "layer_norm")),
    *_followed(("batch_norm",), ("relu", "relu6", "hardswish", "silu", "conv2d")),
    *_followed(("add",), ("relu", "relu6", "batch_norm", "layer_norm", "add")),
    *_followed(("relu",), ("add", "batch_norm", "conv2d", "max_pool2d", "adaptive_avg_pool2d")),
    *_followed(("hardsigmoid", "sigmoid"), ("mul",)),
    *_followed(("mul",), ("relu",)),
    *_followed(("cat",), ("batch_norm", "relu", "conv2d")),
    *_followed(("gelu", "layer_norm"), ("linear",)),
    *(Probe((first, *rest)) for first in ("conv2d", "conv2d depthwise") for rest in (("add", "relu"), ("relu", "add"))),
    Probe(("linear", "add", "layer_norm")),
    Probe(("linear", "gelu", "add")),
)


def parse_probes(text: str) -> tuple[Probe, ...]:
    """Parse probes such as ``conv2d+relu,linear+gelu``.

    Raises
    ------
    UnknownNameError
        If an operator is unknown.
    InvalidValueError
        If the text has another format.

    Examples
    --------
    >>> [probe.name for probe in parse_probes("conv2d + relu, conv2d+add+relu")]
    ['conv2d + relu', 'conv2d + add + relu']
    """
    probes = (Probe(tuple(kind.strip() for kind in part.split("+"))) for part in text.split(","))
    return tuple(dict.fromkeys(probes))
