"""The inputs of a network, in every form in which a person may give them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from nni_latency.errors import InvalidValueError
from nni_latency.operators._op_spec import LARGEST_TENSOR
from nni_latency.operators._tensors import tensors_in
from nni_latency.units import whole_number

#: What stands for the batch in a written shape.
_BATCH = "N"

_WRITTEN = re.compile(r"(?:(?P<name>[^=]+)=)?(?P<sizes>[\dN]+(?:\s*,\s*[\dN]+)*)?(?::(?P<dtype>\w+))?")


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
    """The shape of an input as a person writes it: with the batch, or without it. Immutable.

    Parameters
    ----------
    sizes : tuple of int or None
        None stands for the batch. Without it the batch comes first, unless the network is known to take as many
        dimensions as there are sizes.
    name : str, default=""
        Of the input; those without a name are in the order of the network.
    dtype : str, default=""
        Element type, as torch names it; without one that of the network where it is known, or float32.

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
            If it is of another form.
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
        """Return all sizes; ``rank`` is how many dimensions the network takes, where that is known.

        Raises
        ------
        InvalidValueError
            If that are more than 2^40 numbers.
        """
        sizes = self.sizes if self.is_whole(rank) else (None, *self.sizes)
        shape = tuple(batch_size if size is None else size for size in sizes)
        if math.prod(shape) > LARGEST_TENSOR:
            raise InvalidValueError(f"An input must have at most 2^40 numbers. Got {'x'.join(map(str, shape))}.")
        return shape

    def is_whole(self, rank: int | None = None) -> bool:
        """Whether the sizes are all those of an input with ``rank`` dimensions."""
        return None in self.sizes or len(self.sizes) == rank


def freeze_inputs(example_inputs: Any, device: str | None = "meta") -> Inputs:
    """Sort example inputs into positional and keyword ones, as tensors of the same shapes and dtypes on a device.

    Parameters
    ----------
    example_inputs : Tensor, sequence or dict
        A tensor; a sequence of them (each may be a list or tuple of tensors too), whose last item may be a dictionary
        of keyword inputs; or such a dictionary alone.
    device : str or None, default="meta"
        Where to; None leaves the tensors as they are.

    Raises
    ------
    InvalidValueError
        If it is anything else.

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
    """Return inputs with values: zeros where a tensor is on torch's device ``meta``; the same ones if none is."""
    if not any(tensor.is_meta for tensor in inputs.tensors):
        return inputs
    kwargs = {name: _filled(item) for name, item in inputs.kwargs.items()}
    return Inputs(tuple(map(_filled, inputs.args)), kwargs)


def freeze_shapes(example_inputs: Any) -> tuple[torch.Tensor, ...]:
    """Turn example inputs into a tuple of meta tensors of the same shapes and dtypes."""
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
