"""The tensors of a call, the memory that they share, and which of them are parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

#: Says whether a tensor is a parameter, or shares the memory of one.
Learned = Callable[[torch.Tensor], bool]


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of nested lists, tuples and dictionaries, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)


def packed_weights(value: Any) -> list[torch.Tensor]:
    """Return the weights and biases that torch has packed into objects for quantised layers, in order."""
    if isinstance(value, torch.ScriptObject):
        try:
            return list(tensors_in(value.unpack()))  # type: ignore[attr-defined]
        except (AttributeError, RuntimeError):
            return []
    if isinstance(value, Mapping):
        value = tuple(value.values())
    return [found for item in value for found in packed_weights(item)] if isinstance(value, (list, tuple)) else []


def memory_of(tensor: torch.Tensor) -> int:
    """Return a number that is equal for tensors that share memory."""
    return int(tensor.untyped_storage()._cdata)


def dtype_of(tensors: Sequence[torch.Tensor]) -> str:
    """Name the element type of an operator with these inputs: that of the first with a fraction."""
    fractions = [tensor for tensor in tensors if tensor.is_floating_point()] or tensors
    return str(fractions[0].dtype).removeprefix("torch.") if fractions else "float32"


def is_parameter(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a parameter itself, not a view of one."""
    return isinstance(tensor, nn.Parameter)


def shares_memory_of(parameters: Sequence[torch.Tensor]) -> Learned:
    """Return a test for parameters and for tensors that share the memory of the given ones."""
    memories = {memory_of(parameter) for parameter in parameters}
    return lambda tensor: is_parameter(tensor) or memory_of(tensor) in memories


def learned_attribute(inputs: Sequence[torch.Tensor], learned: Learned) -> dict[str, str]:
    """Say which inputs of an operator are parameters, as an attribute of it; nothing where none is.

    The attribute has a place for every input, with a ``+`` between them: the shape of the parameter, or nothing. What
    is stretched over a batch counts once.

    Examples
    --------
    >>> token = nn.Parameter(torch.zeros(1, 1, 8))
    >>> learned_attribute([token.expand(4, -1, -1), torch.zeros(4, 2, 8)], shares_memory_of([token]))
    {'learned': '1x1x8+'}
    """
    shapes = [_own_shape(tensor) if learned(tensor) else "" for tensor in inputs]
    return {"learned": "+".join(shapes)} if any(shapes) else {}


def _own_shape(tensor: torch.Tensor) -> str:
    """Write the shape of the stored elements; that of a single number is 1."""
    sizes = [1 if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return "x".join(map(str, sizes)) or "1"
