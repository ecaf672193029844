# SPDX-License-Identifier: Apache-2.0
"""Symbolic tensors: values and tensors that depend on some of a space's choices, and calls with them."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from nni_latency.errors import InvalidValueError
from nni_latency.operators import Learned, instances_in, is_parameter

#: Combinations of choices that one value may depend on.
MOST_CASES = 2_000_000

#: Where torch looks for another way to call one module (`nn.Module.compile` sets it). Copies of the module lose it.
_SLOT = "_compiled_call_impl"

_Call = Callable[..., Any]


class TooManyChoicesError(InvalidValueError):
    """Raised when something depends on more combinations of choices than can be listed."""


class ImpossibleError(Exception):
    """Raised when user code fails without data for a combination of choices, or for all of them."""


@contextlib.contextmanager
def user_code() -> Iterator[None]:
    """Raise `ImpossibleError` for whatever a module, a function of torch or an expression of the space raises."""
    try:
        yield
    except Exception as error:  # user code may raise anything
        raise ImpossibleError(f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Invalid:
    """Stands for a value that cannot be computed for some choices; an error only for networks that need it."""

    reason: str


@dataclass(frozen=True, eq=False)
class Varying:
    """A value by choices. Immutable.

    Parameters
    ----------
    labels : tuple of str
        What it depends on, in the order of the space.
    ids : ndarray of int of shape (n_choices of the first label, ...)
        Number of the value for every combination of choices.
    values : tuple
        The distinct values, all hashable.
    """

    labels: tuple[str, ...]
    ids: NDArray[np.int64]
    values: tuple[Any, ...]

    @classmethod
    def constant(cls, value: Hashable) -> Varying:
        """Make one that depends on nothing."""
        return cls((), np.zeros((), dtype=np.int64), (value,))

    @property
    def key(self) -> Hashable:
        """A value that is equal for equal ones."""
        return self.labels, self.ids.tobytes(), self.values

    def at(self, indices: Mapping[str, int]) -> Any:
        """Return the value for choices given as ``{label: index}``."""
        return self.values[int(self.ids[tuple(indices[label] for label in self.labels)])]


def as_key(value: Any) -> Any:
    """Turn a choice into something hashable: lists become tuples."""
    return tuple(map(as_key, value)) if isinstance(value, (list, tuple)) else value


class Choices:
    """The labels of a space with their values, in order; combines varying values.

    Parameters
    ----------
    values : mapping of str to sequence
        Choices of every label, hashable.
    """

    def __init__(self, values: Mapping[str, Sequence[Any]]) -> None:
        self.values = {label: tuple(items) for label, items in values.items()}
        self._ranks = {label: rank for rank, label in enumerate(self.values)}

    def add(self, label: str, values: Sequence[Any]) -> None:
        """Add a label that follows from others."""
        self._ranks.setdefault(label, len(self._ranks))
        self.values[label] = tuple(values)

    def label(self, label: str) -> Varying:
        """Return the choice of a label itself, as a varying value."""
        items = self.values[label]
        return Varying((label,), np.arange(len(items)), items)

    def combine(self, parts: Sequence[Varying], function: Callable[..., Any]) -> Varying:
        """Apply a function to varying values, once for every distinct combination of them.

        Where the function raises `ImpossibleError`, or a value is a `Invalid`, the result is one.

        Raises
        ------
        TooManyChoicesError
            If the values depend on too many choices together.
        """
        labels, shape = self._together(parts)
        codes = np.zeros(shape, dtype=np.int64)
        for part in parts:
            codes = codes * len(part.values) + self._spread(part, labels)
        distinct, places = np.unique(codes, return_inverse=True)
        numbers: dict[Any, int] = {}
        found = np.empty(len(distinct), dtype=np.int64)
        for place, code in enumerate(distinct.tolist()):
            result = _apply(function, _decode(code, parts))
            found[place] = numbers.setdefault(result, len(numbers))
        return _reduce(labels, found[places].reshape(shape), tuple(numbers))

    def switch(self, choice: Varying, cases: Mapping[Any, Varying]) -> Varying:
        """Return the case of every value of a choice."""
        labels, shape = self._together([choice, *cases.values()])
        chosen = self._spread(choice, labels)
        numbers: dict[Any, int] = {}
        ids = np.zeros(shape, dtype=np.int64)
        for place, value in enumerate(choice.values):
            case = Varying.constant(value) if isinstance(value, Invalid) else cases[value]
            renumbered = np.array([numbers.setdefault(item, len(numbers)) for item in case.values])
            ids = np.where(chosen == place, renumbered[self._spread(case, labels)], ids)
        used, compact = np.unique(ids, return_inverse=True)
        values = list(numbers)
        return _reduce(labels, compact.reshape(shape), tuple(values[number] for number in used))

    def _together(self, parts: Sequence[Varying]) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Return all labels that some values depend on, in order, and how many choices each has."""
        labels = tuple(sorted({label for part in parts for label in part.labels}, key=self._ranks.__getitem__))
        shape = tuple(len(self.values[label]) for label in labels)
        if math.prod(shape) > MOST_CASES:
            raise TooManyChoicesError(
                f"Something in the space depends on {math.prod(shape):,} combinations of {', '.join(labels)}; "
                f"at most {MOST_CASES:,} can be listed."
            )
        return labels, shape

    def _spread(self, part: Varying, labels: Sequence[str]) -> NDArray[np.int64]:
        """Return the numbers of a value with an axis for every label."""
        return part.ids.reshape([len(self.values[label]) if label in part.labels else 1 for label in labels])

    def joined(self, parts: Sequence[Varying]) -> list[Varying]:
        """Join tuples that depend on the same labels end to end, so that one is left for every set of labels."""
        by_labels: dict[tuple[str, ...], list[Varying]] = {}
        for part in parts:
            by_labels.setdefault(part.labels, []).append(part)
        return [_join(group) if len(group) > 1 else group[0] for group in by_labels.values()]

    def enumerated(self, labels: Sequence[str], function: Callable[[dict[str, Any]], Any]) -> Varying:
        """Apply a function to every combination of choices of some labels, given as ``{label: choice}``."""
        parts = [self.label(label) for label in labels]
        return self.combine(parts, lambda *items: function(dict(zip(labels, items, strict=True))))


def _join(parts: Sequence[Varying]) -> Varying:
    rows = np.stack([part.ids.ravel() for part in parts], axis=1)
    distinct, places = np.unique(rows, axis=0, return_inverse=True)
    numbers: dict[Any, int] = {}
    found = np.empty(len(distinct), dtype=np.int64)
    for place, row in enumerate(distinct.tolist()):
        items = [part.values[number] for part, number in zip(parts, row, strict=True)]
        invalid = next((item for item in items if isinstance(item, Invalid)), None)
        whole = invalid if invalid is not None else tuple(itertools.chain.from_iterable(items))
        found[place] = numbers.setdefault(whole, len(numbers))
    return _reduce(parts[0].labels, found[places.ravel()].reshape(parts[0].ids.shape), tuple(numbers))


def _decode(code: int, parts: Sequence[Varying]) -> list[Any]:
    items = []
    for part in reversed(parts):
        code, number = divmod(code, len(part.values))
        items.append(part.values[number])
    return items[::-1]


def _apply(function: Callable[..., Any], items: list[Any]) -> Any:
    for item in items:
        if isinstance(item, Invalid):
            return item
    try:
        return function(*items)
    except ImpossibleError as error:
        return Invalid(str(error))


def _reduce(labels: tuple[str, ...], ids: NDArray[np.int64], values: tuple[Any, ...]) -> Varying:
    """Drop the labels that the values do not depend on."""
    kept: list[str] = []
    for label in labels:
        axis = len(kept)
        first = ids.take([0], axis=axis)
        if ids.shape[axis] == 1 or bool((ids == first).all()):
            ids = np.asarray(ids.take(0, axis=axis))
        else:
            kept.append(label)
    return Varying(tuple(kept), ids.copy(), values)


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
