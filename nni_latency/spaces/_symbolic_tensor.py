"""`SymbolicTensor`: stands for the tensors that all networks of a space have at one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import torch

from nni_latency.operators import Learned, is_parameter
from nni_latency.spaces._varying import ImpossibleError, Poison, Varying


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

    def make(self) -> torch.Tensor:
        """Make such a tensor, without memory."""
        made = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
        return torch.nn.Parameter(made, requires_grad=False) if self.learned else made


class SymbolicTensor:
    """A tensor whose shape depends on the choices of a space.

    Functions of torch and methods of tensors work on it: they run once for every distinct shape, on meta tensors, and
    the walker notes which operators they are. What cannot be said for all networks at once raises `NotSymbolicError`.
    """

    def __init__(self, caller: Caller, spec: Varying) -> None:
        self._caller = caller
        self.spec = spec

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
            return self._known(lambda spec: getattr(spec.make(), name))
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
        found = {look(spec) for spec in self.spec.values if not isinstance(spec, Poison)}
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


def symbols_in(value: Any) -> Iterator[SymbolicTensor]:
    """Yield the symbolic tensors of nested lists, tuples and dictionaries, in order."""
    if isinstance(value, SymbolicTensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from symbols_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from symbols_in(item)


def replace_symbols(value: Any, new: Iterator[Any]) -> Any:
    """Return the same nested value with the symbolic tensors replaced, in order."""
    if isinstance(value, SymbolicTensor):
        return next(new)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)([replace_symbols(item, new) for item in value])
    if isinstance(value, Mapping):
        return {name: replace_symbols(item, new) for name, item in value.items()}
    return value
