"""`Nested`: lists, tuples and dictionaries that modules return."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nni_latency.operators import Learned
from nni_latency.spaces._symbolic_tensor import NotSymbolicError, TensorSpec


@dataclass(frozen=True)
class Nested:
    """A list, tuple or dictionary of what a module returned."""

    kind: type
    names: tuple[Any, ...]
    items: tuple[Any, ...]

    def is_like(self, other: Any) -> bool:
        """Whether another one has the same kind and names."""
        return isinstance(other, Nested) and (self.kind, self.names) == (other.kind, other.names)

    def made(self, items: Sequence[Any]) -> Any:
        """Make a list, tuple or dictionary of the same kind from other items."""
        return dict(zip(self.names, items, strict=True)) if self.kind is dict else self.kind(items)


def open_nested(value: Any) -> Nested | None:
    """Open a list, tuple or dictionary; None if it is none of them."""
    if isinstance(value, Mapping):
        return Nested(dict, tuple(value), tuple(value.values()))
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return Nested(list if isinstance(value, list) else tuple, tuple(range(len(value))), tuple(value))
    return None


def pack(result: Any, learned: Learned) -> Any:
    """Describe what a module returned, so that equal descriptions mean the same."""
    if isinstance(result, torch.Tensor):
        return TensorSpec.of(result, learned)
    opened = open_nested(result)
    if opened is not None:
        return Nested(opened.kind, opened.names, tuple(pack(item, learned) for item in opened.items))
    if not isinstance(result, Hashable):
        raise NotSymbolicError(f"It returns a {type(result).__name__}.")
    return result
