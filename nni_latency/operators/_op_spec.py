# SPDX-License-Identifier: Apache-2.0
"""`OpSpec`: an operator or block with its attributes, input shapes and dtype; its key and family."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nni_latency.errors import InvalidValueError

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")

AttributeValue = bool | int | float | str | tuple[int, ...]
Shape = tuple[int, ...]

#: Numbers stored as text in files.
_INFINITE = {str(value): value for value in (math.inf, -math.inf)}

#: Largest number of elements of a tensor: a terabyte of bytes.
LARGEST_TENSOR = 2**40

_STRING = r'"(?:[^"\\]|\\.)*"'

#: Pattern of the key of an operator.
OP_KEY = re.compile(
    rf"(?P<kind>[^\s()@]+)\((?P<attributes>(?:[^()\"]|{_STRING})*)\)@(?P<shapes>[0-9x+]*):(?P<dtype>\w+)"
)

_ATTRIBUTE = re.compile(rf"(?P<name>\w+)=(?P<value>{_STRING}|\[\d*\]|[^,]*)(?:,|$)")

#: Length of the smallest 64-bit integer.
_MOST_CHARACTERS = len(str(-(2**63)))

_GROUPS = {
    "matrix product": ("linear", "matmul", "bmm", "mm", "addmm", "baddbmm", "einsum", "bilinear"),
    "attention": ("scaled_dot_product_attention", "multi_head_attention", "multi_head_attention_forward"),
    "normalisation": ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "local_response_norm"),
    "softmax": ("softmax", "log_softmax", "softmin"),
    "reduction": ("mean", "sum", "amax", "amin", "var", "std", "norm", "argmax", "argmin", "global_average_pool"),
    "lookup": ("index", "index_select", "embedding", "embedding_bag", "gather", "take_along_dim"),
    "movement": ("cat", "stack", "copy", "pad", "channel_shuffle", "pixel_shuffle", "pixel_unshuffle", "roll", "flip"),
}

_GROUP_OF = {kind: group for group, kinds in _GROUPS.items() for kind in kinds}


@dataclass(frozen=True)
class OpSpec:
    """One operator or block. Immutable and hashable; equal specs cost the same on one platform.

    Parameters
    ----------
    kind : str
        Kind of computation, such as ``conv2d`` or ``inverted_residual``.
    input_shapes : tuple of tuple of int
        Shapes of the inputs, batch first.
    attributes : tuple of (str, value)
        All other parameters of the computation, sorted by name. Use `OpSpec.of` to give them as keywords.
    dtype : str, default="float32"
        Element type.

    Examples
    --------
    >>> op = OpSpec.of("linear", [(1, 1504)], out_features=10, bias=True)
    >>> op.op_key
    'linear(bias=1,out_features=10)@1x1504:float32'
    """

    kind: str
    input_shapes: tuple[Shape, ...]
    attributes: tuple[tuple[str, AttributeValue], ...] = ()
    dtype: str = "float32"
    _lookup: Mapping[str, AttributeValue] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        names = [name for name, _ in self.attributes]
        if names != sorted(set(names)):
            raise InvalidValueError(f"The 'attributes' of an OpSpec must be sorted by name, each once. Got {names}.")
        object.__setattr__(self, "_lookup", dict(self.attributes))

    @classmethod
    def of(cls, kind: str, input_shapes: Any, *, dtype: str = "float32", **attributes: Any) -> OpSpec:
        """Create a spec from plain lists and keywords; lists become tuples, attributes are sorted.

        The texts ``inf`` and ``-inf``, as written by `as_dict`, become numbers; NaN becomes a text, because NaN is not
        equal to itself.

        Raises
        ------
        InvalidValueError
            If a size is no whole number.
        """
        given = [tuple(shape) for shape in input_shapes]
        shapes = tuple(tuple(int(size) for size in shape) for shape in given)
        if list(shapes) != given:
            raise InvalidValueError(f"The sizes of {kind!r} must be whole numbers. Got {given}.")
        plain = {name: _comparable(value) for name, value in attributes.items()}
        return cls(kind, shapes, tuple(sorted(plain.items())), dtype)

    def __getitem__(self, name: str) -> Any:
        """Return one attribute; raises `KeyError` if it is missing."""
        return self._lookup[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return one attribute or the default."""
        return self._lookup.get(name, default)

    @property
    def op_key(self) -> str:
        """Readable key, identical in every process and on every machine."""
        attributes = ",".join(f"{name}={_plain(value)}" for name, value in self.attributes)
        shapes = "+".join("x".join(map(str, shape)) for shape in self.input_shapes)
        return f"{self.kind}({attributes})@{shapes}:{self.dtype}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for a file, accepted by `OpSpec.of`. Infinite numbers are texts for JSON."""
        return {
            "kind": self.kind,
            "input_shapes": self.input_shapes,
            "attributes": {
                name: str(value) if isinstance(value, float) and math.isinf(value) else value
                for name, value in self.attributes
            },
            "dtype": self.dtype,
        }

    def replace(self, **attributes: AttributeValue) -> OpSpec:
        """Return the same operator with some attributes changed."""
        changed = {name: _comparable(value) for name, value in attributes.items()}
        return OpSpec(self.kind, self.input_shapes, tuple(sorted({**self._lookup, **changed}.items())), self.dtype)


def _comparable(value: Any) -> Any:
    """Return an attribute in a form that survives the round trip through `OpSpec.as_dict`."""
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, float) and math.isnan(value):
        return str(value)
    return _INFINITE.get(value, value) if isinstance(value, str) else value


def _plain(value: AttributeValue) -> str:
    """Format a value such that the text is equal if and only if the values are equal."""
    if isinstance(value, tuple):
        return "x".join(map(str, value)) if len(value) > 1 else str(list(value))
    if isinstance(value, str):
        return value if _WORD.fullmatch(value) else json.dumps(value)
    return str(int(value)) if isinstance(value, int) or float(value).is_integer() else str(value)


def parse_op_keys(text: str) -> list[OpSpec]:
    """Parse operators from keys as in `OpSpec.op_key`, separated by spaces.

    Raises
    ------
    InvalidValueError
        If the text contains anything else.

    Examples
    --------
    >>> op = OpSpec.of("conv2d", [(1, 3, 8, 8)], out_channels=4, kernel_size=(3, 1), stride=1, groups=1, bias=True)
    >>> parse_op_keys(op.op_key)[0].op_key == op.op_key
    True
    """
    found, place = [], 0
    while place < len(text):
        match = OP_KEY.match(text, place)
        if match is None:
            raise InvalidValueError(f"The key of an operator cannot be read: {text[place:][:60]!r}.")
        found.append(_op_of(match))
        place = match.end() + 1
    return found


def _op_of(match: re.Match[str]) -> OpSpec:
    try:
        attributes = {item["name"]: _value(item["value"]) for item in _ATTRIBUTE.finditer(match["attributes"])}
        shapes = [_sizes(shape) for shape in match["shapes"].split("+")] if match["shapes"] else []
    except ValueError as error:
        raise InvalidValueError(
            f"The key of an operator has a number or a text that cannot be read: {match[0][:60]!r}."
        ) from error
    return OpSpec.of(match["kind"], shapes, dtype=match["dtype"], **attributes)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(_whole, text.split("x"))) if text else ()


def _whole(text: str) -> int:
    """Parse a 64-bit integer, the range of frameworks; raises `ValueError` for a larger one."""
    if len(text) > _MOST_CHARACTERS or not -(2**63) <= (number := int(text)) < 2**63:
        raise ValueError(text)
    return number


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _value(text: str) -> AttributeValue:
    """Parse a value; true and false are written as 1 and 0."""
    if text.startswith('"'):
        return str(json.loads(text))
    if text.startswith("["):
        return (_whole(text[1:-1]),) if text != "[]" else ()
    if re.fullmatch(r"-?\d+(x-?\d+)+", text):
        return tuple(map(_whole, text.split("x")))
    if re.fullmatch(r"-?\d+", text):
        # Bounds such as the largest float may be written without an exponent.
        return _whole(text) if len(text) < _MOST_CHARACTERS else _finite(text)
    try:
        return float(text)
    except ValueError:
        return text


def form_of(op: OpSpec) -> str | None:
    """Return the form of a convolution: depthwise, grouped, pointwise or dense; None for any other operator."""
    groups, window = op.get("groups", 1 if op.kind.startswith("conv") else None), op.get("kernel_size")
    if not isinstance(groups, int) or window is None:
        return None
    if groups > 1:
        return "depthwise" if groups == op.input_shapes[0][1] else "grouped"
    return "pointwise" if size_of_attribute(window) == 1 else "dense"


def family_of(op: OpSpec) -> str:
    """Return the family of an operator: its kind, and for convolutions the form, which determines their code.

    Examples
    --------
    >>> family_of(OpSpec.of("conv2d", [(1, 8, 4, 4)], out_channels=8, kernel_size=3, stride=1, groups=8))
    'conv2d depthwise'
    """
    # A block that begins with a convolution and has no groups is a separate family.
    form = form_of(op) if isinstance(op.get("groups"), int) else None
    return op.kind if form is None else f"{op.kind} {form}"


def group_of(op: OpSpec) -> str:
    """Return the group of families of an operator: work of one group has the same efficiency.

    Examples
    --------
    >>> group_of(OpSpec.of("conv2d", [(1, 8, 4, 4)], out_channels=8, kernel_size=3, stride=1, groups=8))
    'depthwise convolution'
    """
    if op.kind.startswith("conv_transpose"):
        return "transposed convolution"
    if op.kind.startswith("conv"):
        return f"{form_of(op)} convolution"
    if "pool" in op.kind and op.kind != "global_average_pool":
        if op.kind.startswith("adaptive"):
            return "reduction"
        return "max pooling" if op.kind.startswith("max") else "average pooling"
    return _GROUP_OF.get(op.kind, "elementwise")


def size_of_attribute(value: object) -> float:
    """Return the product of a tuple attribute, or the value of a single number."""
    return math.prod(value) if isinstance(value, tuple) else float(value)  # type: ignore[arg-type]
