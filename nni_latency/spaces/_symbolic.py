# SPDX-License-Identifier: Apache-2.0
"""Symbolic tensors: tensors that depend on some of a space's choices, and calls with them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import torch
from torch import nn

from nni_latency.operators import Learned, instances_in, is_parameter
from nni_latency.spaces._steps import Memory
from nni_latency.spaces._varying import ImpossibleError, Invalid, Varying

#: Where torch looks for another way to call one module (`nn.Module.compile` sets it). Copies of the module lose it.
_SLOT = "_compiled_call_impl"

_Call = Callable[..., Any]


class NotSymbolicError(Exception):
    """Raised when code asks for something that differs between networks, such as a size that is searched."""


class Caller(Protocol):
    """Calls functions of torch with symbolic tensors."""

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function for all networks at once."""


@dataclass(frozen=True)
class TensorSpec:
    """Everything about a tensor except its values, and whether it shares the memory of a parameter."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    learned: bool = False

    @classmethod
    def of(cls, tensor: torch.Tensor, learned: Learned = is_parameter) -> TensorSpec:
        """Describe a tensor."""
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, learned(tensor))

    def make(self, other: torch.Tensor | None = None) -> torch.Tensor:
        """Make such a tensor, without data; it shares memory with another one if given."""
        made = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
        if other is not None:
            # Not the same elements: torch refuses to write to what overlaps.
            shared = other.untyped_storage()
            made.set_(shared, -(-shared.nbytes() // made.element_size()), self.shape, self.stride)
        return torch.nn.Parameter(made, requires_grad=False) if self.learned else made


class SymbolicTensor:
    """A tensor whose shape depends on the choices of a space.

    Functions of torch and methods of tensors work on it: they run once for every distinct shape, on meta tensors, and
    the walker notes which operators they are. What cannot be said for all networks at once raises `NotSymbolicError`.
    """

    def __init__(self, caller: Caller, spec: Varying, memory: Memory | None = None) -> None:
        self._caller = caller
        self.spec = spec
        self.memory = memory or Memory()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # Code that checks its inputs with isinstance takes it for a tensor.
        return torch.Tensor

    __hash__ = object.__hash__

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        caller = next(item for item in symbols_in([args, kwargs or {}]))._caller
        return caller.call(func, args, dict(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(torch.Tensor, name):
            raise AttributeError(f"A tensor has no attribute {name!r}.")
        attribute = getattr(torch.Tensor, name)
        if not callable(attribute):
            return self._caller.call(attribute.__get__, (self,), {})
        return lambda *args, **kwargs: self._caller.call(attribute, (self, *args), kwargs)

    @property
    def shape(self) -> Sizes:
        """Its sizes; reading one that differs between networks raises `NotSymbolicError`."""
        return Sizes(self)

    def size(self, dim: int | None = None) -> Any:
        """Return its sizes, or one of them."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Return the number of dimensions."""
        return int(self._known(lambda spec: len(spec.shape)))

    ndimension = dim

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.dim()

    @property
    def dtype(self) -> torch.dtype:
        """Type of its elements."""
        found: torch.dtype = self._known(lambda spec: spec.dtype)
        return found

    @property
    def device(self) -> torch.device:
        """Always the meta device."""
        return torch.device("meta")

    def __len__(self) -> int:
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Any]:
        take = _operator("__getitem__")
        return iter([take(self, index) for index in range(len(self))])

    def _known(self, look: Callable[[TensorSpec], Any]) -> Any:
        """Return a property that is the same for all networks."""
        found = {look(spec) for spec in self.spec.values if not isinstance(spec, Invalid)}
        if len(found) != 1:
            raise NotSymbolicError(f"It depends on {', '.join(self.spec.labels)}.")
        return found.pop()


def _operator(name: str) -> Callable[..., Any]:
    def apply(self: SymbolicTensor, *args: Any) -> Any:
        return self._caller.call(getattr(torch.Tensor, name), (self, *args), {})

    return apply


def _needs_data(self: SymbolicTensor, *_: Any) -> NoReturn:
    raise ImpossibleError("its control flow depends on the data")


for _name in (
    *("add", "radd", "iadd", "sub", "rsub", "isub", "mul", "rmul", "imul", "truediv", "rtruediv", "itruediv"),
    *("matmul", "rmatmul", "pow", "rpow", "neg", "abs", "getitem", "setitem", "floordiv", "rfloordiv", "mod", "rmod"),
    *("gt", "lt", "ge", "le", "eq", "ne", "and", "or", "xor", "invert"),
):
    setattr(SymbolicTensor, f"__{_name}__", _operator(f"__{_name}__"))

for _name in ("bool", "int", "float", "complex", "index", "contains", "array"):
    setattr(SymbolicTensor, f"__{_name}__", _needs_data)


class Sizes(Sequence[int]):
    """The sizes of a symbolic tensor."""

    def __init__(self, tensor: SymbolicTensor) -> None:
        self._tensor = tensor

    def __len__(self) -> int:
        return self._tensor.dim()

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        return self._tensor._known(lambda spec: spec.shape[index])


def shared_tensors(
    symbols: Sequence[SymbolicTensor], specs: Sequence[TensorSpec]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Make tensors that share memory where symbolic ones do; return them, and the first of each memory."""
    first: dict[Memory, torch.Tensor] = {}
    made = []
    for symbol, spec in zip(symbols, specs, strict=True):
        made.append(spec.make(first.get(symbol.memory)))
        first.setdefault(symbol.memory, made[-1])
    return made, list(first.values())


def symbols_in(value: Any) -> Iterator[SymbolicTensor]:
    """Yield the symbolic tensors of nested lists, tuples and dictionaries, in order."""
    return instances_in(value, SymbolicTensor)


def replace_symbols(value: Any, new: Iterator[Any]) -> Any:
    """Return the same nested value with the symbolic tensors replaced, in order."""
    if isinstance(value, SymbolicTensor):
        return next(new)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)([replace_symbols(item, new) for item in value])
    if isinstance(value, Mapping):
        return {name: replace_symbols(item, new) for name, item in value.items()}
    return value


def opened(value: Any) -> tuple[list[SymbolicTensor], list[Memory], Any]:
    """Return the symbolic tensors of a nested value, their memory, and the value with numbers of it in their place."""
    symbols = list(symbols_in(value))
    memories = list(dict.fromkeys(symbol.memory for symbol in symbols))
    return symbols, memories, replace_symbols(value, iter([memories.index(symbol.memory) for symbol in symbols]))


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


@contextlib.contextmanager
def calls_to(run: _Call, root: nn.Module) -> Iterator[None]:
    """Let ``run(module, args, kwargs)`` take the calls of the modules in `root` that are given a symbolic tensor."""
    before = [(module, vars(module).get(_SLOT)) for module in root.modules()]
    for module, own in before:
        vars(module)[_SLOT] = functools.partial(_call, run, module, own or module._call_impl)
    try:
        yield
    finally:
        for module, own in before:
            del vars(module)[_SLOT]
            if own is not None:
                vars(module)[_SLOT] = own


def _call(run: _Call, module: nn.Module, plain: _Call, *args: Any, **kwargs: Any) -> Any:
    if next(symbols_in([args, kwargs]), None) is not None:
        return run(module, args, kwargs)
    return plain(*args, **kwargs)


@contextlib.contextmanager
def in_evaluation(space: nn.Module) -> Iterator[None]:
    """Put a space into evaluation mode, then restore the mode of every module."""
    before = [(module, module.training) for module in space.modules()]
    space.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
