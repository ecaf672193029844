"""`OpSpec`: one operator or block with its attributes, input shapes and dtype."""

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

#: Numbers that files hold as texts.
_INFINITE = {str(value): value for value in (math.inf, -math.inf)}

#: Numbers that a tensor has at most: a terabyte of bytes.
LARGEST_TENSOR = 2**40


@dataclass(frozen=True)
class OpSpec:
    """One operator or block. Immutable and hashable; equal specs cost the same on one platform.

    Parameters
    ----------
    kind : str
        What it computes, such as ``conv2d`` or ``inverted_residual``.
    input_shapes : tuple of tuple of int
        Shapes of the inputs, batch first.
    attributes : tuple of (str, value)
        Everything else that decides the computation, sorted by name. Use `OpSpec.of` to give them as keywords.
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
        """Make a spec from plain lists and keywords; lists become tuples, attributes are sorted.

        The texts ``inf`` and ``-inf`` become numbers, as `as_dict` writes these; NaN becomes a text, since it equals
        nothing, not even itself.
        """
        shapes = tuple(tuple(int(size) for size in shape) for shape in input_shapes)
        plain = {name: _comparable(value) for name, value in attributes.items()}
        return cls(kind, shapes, tuple(sorted(plain.items())), dtype)

    def __getitem__(self, name: str) -> Any:
        """Return one attribute; `KeyError` if the operator has none of that name."""
        return self._lookup[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return one attribute or the default."""
        return self._lookup.get(name, default)

    @property
    def op_key(self) -> str:
        """Readable key, the same in every process and on every machine."""
        attributes = ",".join(f"{name}={_plain(value)}" for name, value in self.attributes)
        shapes = "+".join("x".join(map(str, shape)) for shape in self.input_shapes)
        return f"{self.kind}({attributes})@{shapes}:{self.dtype}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for a file; `OpSpec.of` takes them back. Infinite numbers are texts for JSON."""
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
    """Return an attribute in the form that equals what `OpSpec.as_dict` wrote of it."""
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, float) and math.isnan(value):
        return str(value)
    return _INFINITE.get(value, value) if isinstance(value, str) else value


def _plain(value: AttributeValue) -> str:
    """Write a value so that equal ones look alike and others do not."""
    if isinstance(value, tuple):
        return "x".join(map(str, value)) if len(value) > 1 else str(list(value))
    if isinstance(value, str):
        return value if _WORD.fullmatch(value) else json.dumps(value)
    return str(int(value)) if isinstance(value, int) or float(value).is_integer() else str(value)
