"""The keys of Once-for-All and ProxylessNAS, such as ``expanded_conv-input:HxWxC-output:HxWxC-expand:..-kernel:..``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from nni_latency.errors import InvalidValueError
from nni_latency.operators import OpSpec
from nni_latency.units import whole_number

_KEY = re.compile(
    r"(?P<place>(?P<name>\w+)-input:(?P<inputs>\d+(?:x\d+){0,2})-output:(?P<outputs>\d+(?:x\d+){0,2}))"
    r"(?P<rest>(?:-\w+:\d+)*)",
    re.ASCII,
)

#: A size that no tensor has.
_TOO_LARGE = 10**6


@dataclass(frozen=True)
class OperatorKey:
    """A key taken apart. Immutable.

    Parameters
    ----------
    place : str
        Name, input and output: what all candidates of one place share.
    rest : str
        What tells its candidates apart, such as ``expand:72-kernel:3-stride:2-idskip:0``; may be empty.
    name : str
        Name of the operator.
    inputs, outputs : tuple of int
        Height, width and channels; or features alone.
    numbers : mapping of str to int
        The rest by name.
    """

    place: str
    rest: str
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    numbers: dict[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, key: str) -> OperatorKey:
        """Take a key apart.

        Raises
        ------
        InvalidValueError
            If it is no such key.

        Examples
        --------
        >>> OperatorKey.parse("Conv-input:224x224x3-output:112x112x24").outputs
        (112, 112, 24)
        """
        match = _KEY.fullmatch(key)
        if match is None:
            raise InvalidValueError(f"{key!r} is no key of the form 'NAME-input:HxWxC-output:HxWxC-...'")
        sizes = [tuple(whole_number(size) or 0 for size in match[part].split("x")) for part in ("inputs", "outputs")]
        pairs = [pair.split(":") for pair in match["rest"].split("-")[1:]]
        numbers = {name: number for name, text in pairs if (number := whole_number(text)) is not None}
        if not all(0 < size < _TOO_LARGE for shape in sizes for size in shape) or len(numbers) != len(pairs):
            raise InvalidValueError(f"{key[:200]!r} has a size or a number that no operator has, or a name twice")
        return cls(match["place"], match["rest"].lstrip("-"), match["name"], sizes[0], sizes[1], numbers)

    @property
    def stride(self) -> int:
        """How much smaller the output is than the input."""
        return -(-self.inputs[0] // self.outputs[0])

    def operator(self) -> OpSpec | None:
        """Return the operator for one input; None for a name that is not known.

        Raises
        ------
        InvalidValueError
            If the key contradicts itself.
        """
        make = _OPERATORS.get(self.name)
        if make is None:
            return None
        try:
            return make(self)
        except (KeyError, IndexError, ValueError) as error:
            raise InvalidValueError(
                f"{self.place!r} lacks a number that {self.name!r} needs, or contradicts itself"
            ) from error


def operator_key(op: OpSpec) -> str | None:
    """Write the key of an operator; None where the notation has none.

    Examples
    --------
    >>> operator_key(OpSpec.of("linear", [(1, 1536)], out_features=1000, bias=True))
    'Logits-input:1x1x1536-output:1000'
    """
    write = _KEYS.get(op.kind)
    return None if write is None else write(op)


def _block(key: OperatorKey) -> OpSpec:
    height, width, channels = key.inputs
    numbers = key.numbers
    kernel, stride, out = numbers["kernel"], numbers["stride"], key.outputs[2]
    # ProxylessNAS counts by how much the block widens, Once-for-All the channels inside.
    expand = numbers["expand"]
    middle = expand * channels if expand < channels else expand
    residual, gate, hard_swish = (bool(numbers.get(name, 0)) for name in ("idskip", "se", "hs"))
    if not (kernel and stride and middle) or key.outputs[:2] != (-(-height // stride), -(-width // stride)):
        raise ValueError(key.place)
    shapes = [(1, channels, height, width)]
    usual = residual == (stride == 1 and channels == out)
    if middle > channels and not middle % channels and usual and not gate and not hard_swish:
        return OpSpec.of(
            "inverted_residual",
            shapes,
            out_channels=out,
            kernel_size=kernel,
            stride=stride,
            expansion=middle // channels,
            groups=1,
        )
    return OpSpec.of(
        "expanded_conv",
        shapes,
        channels=middle,
        out_channels=out,
        kernel_size=kernel,
        stride=stride,
        residual=residual,
        squeeze_excite=gate,
        hard_swish=hard_swish,
    )


def _convolution(kernel: int) -> Callable[[OperatorKey], OpSpec]:
    def make(key: OperatorKey) -> OpSpec:
        height, width, channels = key.inputs
        stride, out = key.stride, key.outputs[2]
        if key.outputs[:2] != (-(-height // stride), -(-width // stride)):
            raise ValueError(key.place)
        shapes = [(1, channels, height, width)]
        return OpSpec.of("conv_block", shapes, out_channels=out, kernel_size=kernel, stride=stride, relu=True)

    return make


def _pool(key: OperatorKey) -> OpSpec:
    height, width, channels = key.inputs
    if key.outputs not in ((1, 1, channels), (channels,)):
        raise ValueError(key.place)
    return OpSpec.of("global_average_pool", [(1, channels, height, width)])


def _classifier(key: OperatorKey) -> OpSpec:
    return OpSpec.of("linear", [(1, math.prod(key.inputs))], out_features=math.prod(key.outputs), bias=True)


#: The names that published tables hold. The first convolution is one of 3x3, those behind the blocks are of 1x1.
_OPERATORS: dict[str, Callable[[OperatorKey], OpSpec]] = {
    "expanded_conv": _block,
    "Conv": _convolution(3),
    "Conv_1": _convolution(1),
    "Conv_2": _convolution(1),
    "AvgPool2D": _pool,
    "Logits": _classifier,
}


def _write_block(op: OpSpec) -> str | None:
    _, channels, height, width = op.input_shapes[0]
    stride, out = op["stride"], op["out_channels"]
    if op.kind == "inverted_residual":
        # Without widening this block still has its first convolution, and the one of the notation has not.
        if op["groups"] != 1 or op["expansion"] == 1:
            return None
        middle, residual, gate, hard_swish = channels * op["expansion"], stride == 1 and channels == out, False, False
    else:
        middle, residual, gate, hard_swish = (
            op[name] for name in ("channels", "residual", "squeeze_excite", "hard_swish")
        )
    return (
        f"expanded_conv-input:{height}x{width}x{channels}-output:{-(-height // stride)}x{-(-width // stride)}x{out}"
        f"-expand:{middle}-kernel:{op['kernel_size']}-stride:{stride}-idskip:{int(residual)}"
        f"-se:{int(gate)}-hs:{int(hard_swish)}"
    )


def _write_convolution(op: OpSpec) -> str | None:
    _, channels, height, width = op.input_shapes[0]
    name = {3: "Conv", 1: "Conv_1"}.get(op["kernel_size"])
    if name is None or not op["relu"]:
        return None
    stride, out = op["stride"], op["out_channels"]
    return f"{name}-input:{height}x{width}x{channels}-output:{-(-height // stride)}x{-(-width // stride)}x{out}"


def _write_pool(op: OpSpec) -> str:
    _, channels, height, width = op.input_shapes[0]
    return f"AvgPool2D-input:{height}x{width}x{channels}-output:1x1x{channels}"


def _write_classifier(op: OpSpec) -> str:
    return f"Logits-input:1x1x{op.input_shapes[0][-1]}-output:{op['out_features']}"


_KEYS: dict[str, Callable[[OpSpec], str | None]] = {
    "inverted_residual": _write_block,
    "expanded_conv": _write_block,
    "conv_block": _write_convolution,
    "global_average_pool": _write_pool,
    "linear": _write_classifier,
}
