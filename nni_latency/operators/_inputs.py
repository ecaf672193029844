# SPDX-License-Identifier: Apache-2.0
"""Inputs of a network, its tensors, and the preparation of networks for tracing."""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from nni_latency.errors import InvalidValueError, reason_of
from nni_latency.operators._op_spec import LARGEST_TENSOR
from nni_latency.units import whole_number

Item = TypeVar("Item")

#: Placeholder of the batch in a written shape.
_BATCH = "N"

_WRITTEN = re.compile(r"(?:(?P<name>[^=]+)=)?(?P<sizes>[\dN]+(?:\s*,\s*[\dN]+)*)?(?::(?P<dtype>\w+))?")

#: Predicate: whether a tensor is a parameter or shares memory with one.
Learned = Callable[[torch.Tensor], bool]


@dataclass(frozen=True)
class Inputs:
    """Positional and keyword inputs of a forward pass."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors, in order."""
        return tuple(tensors_in([self.args, dict(self.kwargs)]))


@dataclass(frozen=True)
class InputShape:
    """The shape of an input as written by a user, with or without the batch. Immutable.

    Parameters
    ----------
    sizes : tuple of int or None
        None denotes the batch. Without it, the batch is prepended, unless the network takes as many dimensions as there
        are sizes.
    name : str, default=""
        Name of the input; inputs without a name are matched by order.
    dtype : str, default=""
        Element type in torch's notation; by default that of the network if known, otherwise float32.

    Examples
    --------
    >>> InputShape.parse("words=16:int64").shape(8)
    (8, 16)
    >>> InputShape.parse("2,N,128").shape(8), InputShape.parse("2,1,128").shape(8, rank=3)
    ((2, 8, 128), (2, 1, 128))
    """

    sizes: tuple[int | None, ...]
    name: str = ""
    dtype: str = ""

    @classmethod
    def parse(cls, text: str) -> InputShape:
        """Read a text such as ``3,224,224``, ``words=16:int64``, ``state=2,N,128`` or ``rate=:int64``.

        Raises
        ------
        InvalidValueError
            If the text has another format.
        """
        match = _WRITTEN.fullmatch(text.strip())
        parts = [part.strip() for part in ((match and match["sizes"]) or "").split(",") if part.strip()]
        sizes = tuple(None if part == _BATCH else whole_number(part) or 0 for part in parts)
        dtype = (match and match["dtype"]) or ""
        if not text.strip() or match is None or 0 in sizes or (dtype and not _is_dtype(dtype)):
            raise InvalidValueError(
                "An input must be sizes >= 1 separated by commas, such as 3,224,224 or with the batch 1,3,224,224, "
                "optionally with a name before and an element type after them, such as words=16:int64; N stands for "
                f"the batch where it is not the first, such as state=2,N,128. Got {text[:60]!r}."
            )
        return cls(sizes, match["name"] or "", dtype)

    def shape(self, batch_size: int, rank: int | None = None) -> tuple[int, ...]:
        """Return all sizes; ``rank`` is the number of dimensions that the network takes, if known.

        Raises
        ------
        InvalidValueError
            If the tensor has more than 2^40 elements.
        """
        sizes = self.sizes if self.is_whole(rank) else (None, *self.sizes)
        shape = tuple(batch_size if size is None else size for size in sizes)
        if math.prod(shape) > LARGEST_TENSOR:
            raise InvalidValueError(f"An input must have at most 2^40 numbers. Got {'x'.join(map(str, shape))}.")
        return shape

    def is_whole(self, rank: int | None = None) -> bool:
        """Whether the sizes are complete for an input with ``rank`` dimensions."""
        return None in self.sizes or len(self.sizes) == rank


def freeze_inputs(example_inputs: Any, device: str | None = "meta") -> Inputs:
    """Split example inputs into positional and keyword ones, as tensors of the same shapes and dtypes on a device.

    Parameters
    ----------
    example_inputs : Tensor, sequence or dict
        A tensor; a sequence of them (each may be a list or tuple of tensors too), whose last item may be a dictionary
        of keyword inputs; or such a dictionary alone.
    device : str or None, default="meta"
        Target device; None keeps the tensors unchanged.

    Raises
    ------
    InvalidValueError
        If the inputs are of another type.

    Examples
    --------
    >>> inputs = freeze_inputs((torch.zeros(2, 3), {"mask": torch.zeros(2)}))
    >>> inputs.args[0].shape, list(inputs.kwargs)
    (torch.Size([2, 3]), ['mask'])
    """
    items = tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    kwargs = items[-1] if items and isinstance(items[-1], Mapping) else {}
    args = items[:-1] if isinstance(items[-1] if items else None, Mapping) else items
    if not (args or kwargs) or not all(_is_input(item) for item in (*args, *kwargs.values())):
        raise InvalidValueError(
            "The 'example_inputs' must be a tensor or a tuple of tensors, the last of which may be a dictionary of "
            f"keyword inputs. Got {type(example_inputs).__name__}."
        )
    return Inputs(tuple(_move(item, device) for item in args), {k: _move(v, device) for k, v in kwargs.items()})


def with_zeros(inputs: Inputs) -> Inputs:
    """Return inputs with values: tensors on torch's device ``meta`` become zeros, others are unchanged."""
    if not any(tensor.is_meta for tensor in inputs.tensors):
        return inputs
    kwargs = {name: _filled(item) for name, item in inputs.kwargs.items()}
    return Inputs(tuple(map(_filled, inputs.args)), kwargs)


def freeze_shapes(example_inputs: Any) -> tuple[torch.Tensor, ...]:
    """Convert example inputs to a tuple of meta tensors of the same shapes and dtypes."""
    return freeze_inputs(example_inputs).tensors


def _is_dtype(name: str) -> bool:
    return isinstance(getattr(torch, name, None), torch.dtype)


def _is_input(item: Any) -> bool:
    if isinstance(item, (tuple, list)):
        return bool(item) and all(map(_is_input, item))
    return isinstance(item, torch.Tensor)


def _filled(item: Any) -> Any:
    if isinstance(item, (tuple, list)):
        return type(item)(map(_filled, item))
    return torch.zeros_like(item, device="cpu") if item.is_meta else item


def _move(item: Any, device: str | None) -> Any:
    if isinstance(item, (tuple, list)):
        return type(item)(_move(part, device) for part in item)
    return item if device is None else torch.empty_like(item, device=device)


def instances_in(value: Any, kind: type[Item]) -> Iterator[Item]:
    """Yield the instances of a class in nested lists, tuples and dictionaries, in order."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from instances_in(item, kind)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from instances_in(item, kind)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of nested lists, tuples and dictionaries, in order."""
    return instances_in(value, torch.Tensor)


def packed_weights(value: Any) -> list[torch.Tensor]:
    """Return the weights and biases in torch's packed objects of quantised layers, in order."""
    if isinstance(value, torch.ScriptObject):
        try:
            return list(tensors_in(value.unpack()))  # type: ignore[attr-defined]
        except (AttributeError, RuntimeError):
            return []
    if isinstance(value, Mapping):
        value = tuple(value.values())
    return [found for item in value for found in packed_weights(item)] if isinstance(value, (list, tuple)) else []


def memory_of(tensor: torch.Tensor) -> int:
    """Return an identifier that is equal for tensors that share memory."""
    return int(tensor.untyped_storage()._cdata)


def dtype_of(tensors: Sequence[torch.Tensor]) -> str:
    """Return the element type of an operator with these inputs: that of the first floating-point input."""
    fractions = [tensor for tensor in tensors if tensor.is_floating_point()] or tensors
    return str(fractions[0].dtype).removeprefix("torch.") if fractions else "float32"


def is_parameter(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a parameter, as opposed to a view of one."""
    return isinstance(tensor, nn.Parameter)


def shares_memory_of(parameters: Sequence[torch.Tensor]) -> Learned:
    """Return a predicate for parameters and tensors that share memory with the given ones."""
    memories = {memory_of(parameter) for parameter in parameters}
    return lambda tensor: is_parameter(tensor) or memory_of(tensor) in memories


def learned_attribute(inputs: Sequence[torch.Tensor], learned: Learned) -> dict[str, str]:
    """Return the attribute that marks the inputs of an operator that are parameters; empty if none is.

    The attribute has a place for every input, separated by ``+``: the shape of the parameter, or nothing. Batch
    broadcasts count once.

    Examples
    --------
    >>> token = nn.Parameter(torch.zeros(1, 1, 8))
    >>> learned_attribute([token.expand(4, -1, -1), torch.zeros(4, 2, 8)], shares_memory_of([token]))
    {'learned': '1x1x8+'}
    """
    shapes = [_own_shape(tensor) if learned(tensor) else "" for tensor in inputs]
    return {"learned": "+".join(shapes)} if any(shapes) else {}


def _own_shape(tensor: torch.Tensor) -> str:
    """Format the shape of the stored elements; that of a scalar is 1."""
    sizes = [1 if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return "x".join(map(str, sizes)) or "1"


def has_lazy_weights(model: nn.Module) -> bool:
    """Return whether a network has uninitialised lazy weights."""
    return any(map(is_lazy, itertools.chain(model.parameters(), model.buffers())))


def initialised(model: nn.Module, example_inputs: Any) -> nn.Module:
    """Return a network with initialised weights: a copy run once if it has lazy modules, otherwise the network.

    Parameters
    ----------
    model : nn.Module
        The network; it is not changed.
    example_inputs : Tensor, tuple, dict or Inputs
        As for `nni_latency.operators.trace`. On torch's device ``meta`` the weights of a copy have no values.

    Raises
    ------
    InvalidValueError
        If the network cannot be run on the inputs.

    Examples
    --------
    >>> initialised(nn.LazyLinear(2), torch.zeros(1, 3)).weight.shape
    torch.Size([2, 3])
    """
    if not has_lazy_weights(model):
        return model
    made = copy.deepcopy(model)
    inputs = example_inputs if isinstance(example_inputs, Inputs) else freeze_inputs(example_inputs, device=None)
    modes = {module: module.training for module in made.modules()}
    if any(tensor.is_meta for tensor in inputs.tensors):
        made = without_values(made)
    try:
        # Weights are drawn without changing the caller's random state.
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            made.eval()(*inputs.args, **inputs.kwargs)
    except Exception as error:  # the forward pass of a network may raise anything
        raise InvalidValueError(
            f"The lazy modules of {type(model).__name__} cannot be initialised by a run on the example inputs: "
            f"{reason_of(error)}"
        ) from error
    for module, training in modes.items():
        module.training = training
    return made


def without_values(model: nn.Module) -> nn.Module:
    """Return a network moved to torch's device ``meta``, including lazy weights, which torch would lose."""
    tables = [table for module in model.modules() for table in (module._parameters, module._buffers)]
    lazy = [
        (table, name, value)
        for table in tables
        for name, value in table.items()
        if value is not None and is_lazy(value)
    ]
    model.to("meta")
    for table, name, value in lazy:
        kind: Any = nn.UninitializedParameter if isinstance(value, nn.Parameter) else nn.UninitializedBuffer
        table[name] = kind(requires_grad=value.requires_grad, device="meta", dtype=value.dtype)
    return model


def check_not_scripted(model: nn.Module) -> None:
    """Raise `InvalidValueError` if a network is or contains a TorchScript module, which runs outside Python."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            where = f"Its module {name!r}" if name else f"The network {type(model).__name__}"
            raise InvalidValueError(
                f"{where} was compiled by torch.jit.script or torch.jit.trace, so its operators cannot be seen. Pass "
                "the module that it was compiled from, or an ONNX file of it."
            )
