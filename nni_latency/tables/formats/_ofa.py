# SPDX-License-Identifier: Apache-2.0
"""Tables of Once-for-All and ProxylessNAS, JSON or YAML, and the operator keys in them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import nni_latency.tables as tables
from nni_latency.costs import NORMAL
from nni_latency.errors import FileFormatError, InvalidValueError
from nni_latency.operators import OpSpec
from nni_latency.tables._entries import Entry
from nni_latency.tables.formats._sheet import Row, Sheet, Written, shared_entries
from nni_latency.tables.formats._text import decode, from_si, load_json, load_yaml, power_of, read_number
from nni_latency.units import whole_number

_KEY = re.compile(
    r"(?P<place>(?P<name>\w+)-input:(?P<inputs>\d+(?:x\d+){0,2})-output:(?P<outputs>\d+(?:x\d+){0,2}))"
    r"(?P<rest>(?:-\w+:\d+)*)",
    re.ASCII,
)

#: Exclusive upper bound of a size.
_TOO_LARGE = 10**6


def is_ofa(data: bytes) -> bool:
    """Whether a file looks like a table of this format."""
    return b"-input:" in data[:65536] and b"-output:" in data[:65536]


def read_ofa(data: bytes) -> Sheet:
    """Read a table from JSON or YAML.

    Raises
    ------
    FileFormatError
        If it is truncated, of another form, or has a key with two values.
    """
    text = decode(data)
    content = load_json(text) if text.lstrip()[:1] in ("{", "[") else load_yaml(text)
    if not isinstance(content, dict):
        raise FileFormatError(f"it must be one object of operator keys. Got {type(content).__name__}")
    rows, unread = [], []
    for key, value in content.items():
        try:
            rows.append(_row(OperatorKey.parse(key), key, value))
        except InvalidValueError as error:
            unread.append(f"{key} ({error})" if key not in str(error) else str(error))
    return Sheet(tuple(rows), keyed=True, unread=tuple(unread))


def _row(key: OperatorKey, text: str, value: Any) -> Row:
    given = value if isinstance(value, dict) else {"mean": value}
    unknown = sorted(set(given) - {"mean", "std", "count"})
    if "mean" not in given or unknown:
        raise FileFormatError(f"key {text!r}: its value must be a number, or mean, std and count. Got {sorted(given)}")
    place = f"key {text!r}"
    count = read_number(given.get("count", 0), f"{place}, count")
    if not (count.is_finite() and count == count.to_integral_value() and 0 <= count < 10**12):
        raise FileFormatError(f"{place}: 'count' must be a whole number >= 0. Got {count}")
    deviation = read_number(given["std"], f"{place}, std") if "std" in given else None
    if deviation is not None and not (deviation.is_finite() and deviation >= 0):
        raise FileFormatError(f"{place}: 'std' must be a number >= 0. Got {deviation}")
    return Row(
        place,
        read_number(given["mean"], place),
        key.place,
        key.rest or key.name,
        key.operator(),
        deviation=deviation,
        n_samples=int(count),
    )


def write_ofa(table: tables.LookupTable, unit: str) -> Written:
    """Write a table as JSON by operator key."""
    return _write(table, unit, _render_json)


def write_ofa_yaml(table: tables.LookupTable, unit: str) -> Written:
    """Write a table as YAML by operator key."""
    return _write(table, unit, _render_yaml)


def _write(
    table: tables.LookupTable,
    unit: str,
    render: Callable[[Iterable[tuple[str, dict[str, str]]]], str],
) -> Written:
    power = power_of(unit, table.metric)
    entries, remarks = shared_entries(table, _key_of)
    rows = [(key, _numbers(entry, power)) for key, entry in entries.items()]
    return Written(render(rows).encode(), remarks)


def _key_of(name: str, op: OpSpec | None) -> str | None:
    """Return the key of an entry: the imported one, or that of its operator."""
    try:
        OperatorKey.parse(name)
    except InvalidValueError:
        return None if op is None else operator_key(op)
    return name


def _numbers(entry: Entry, power: int) -> dict[str, str]:
    found = {"mean": from_si(entry.value, power)}
    if entry.n_samples:
        # Use the upper end: the lower one may have been clipped at zero.
        deviation = (entry.high - entry.value) / NORMAL * math.sqrt(entry.n_samples)
        found = {"count": str(entry.n_samples), **found, "std": from_si(float(f"{deviation:.12g}"), power)}
    return found


def _render_json(rows: Iterable[tuple[str, dict[str, str]]]) -> str:
    lines = []
    for key, row in rows:
        numbers = ", ".join(f"{json.dumps(name)}: {text}" for name, text in row.items())
        lines.append(f" {json.dumps(key)}: {{{numbers}}}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _render_yaml(rows: Iterable[tuple[str, dict[str, str]]]) -> str:
    return "".join(
        f"{json.dumps(key)}:\n" + "".join(f"  {name}: {text}\n" for name, text in row.items()) for key, row in rows
    )


@dataclass(frozen=True)
class OperatorKey:
    """A parsed operator key. Immutable.

    Parameters
    ----------
    place : str
        Name, input and output: the part common to all candidates of a place.
    rest : str
        The part that distinguishes candidates, such as ``expand:72-kernel:3-stride:2-idskip:0``; may be empty.
    name : str
        Name of the operator.
    inputs, outputs : tuple of int
        Height, width and channels; or only the number of features.
    numbers : mapping of str to int
        Numbers of `rest` by name.
    """

    place: str
    rest: str
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    numbers: dict[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, key: str) -> OperatorKey:
        """Parse a key.

        Raises
        ------
        InvalidValueError
            If the key is malformed.

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
        """Ratio of the height of the input to that of the output."""
        return -(-self.inputs[0] // self.outputs[0])

    def operator(self) -> OpSpec | None:
        """Return the operator for one input; None for an unknown name.

        Raises
        ------
        InvalidValueError
            If the key is inconsistent.
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
    """Return the key of an operator; None if the notation has none.

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
    # In ProxylessNAS the number is an expansion factor, in Once-for-All the number of inner channels.
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


#: Operators by the names in published tables. The first convolution is 3x3, those after the blocks are 1x1.
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
        # Without expansion this block keeps its first convolution, unlike the block of the notation.
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
