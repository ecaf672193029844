"""The inputs of a network, in every form in which a person may give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from nni_latency.errors import InvalidValueError
from nni_latency.operators._tensors import tensors_in


@dataclass(frozen=True)
class Inputs:
    """Positional and keyword inputs of a forward pass."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors, in order."""
        return tuple(tensors_in([self.args, dict(self.kwargs)]))


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


def freeze_shapes(example_inputs: Any) -> tuple[torch.Tensor, ...]:
    """Turn example inputs into a tuple of meta tensors of the same shapes and dtypes."""
    return freeze_inputs(example_inputs).tensors


def _is_input(item: Any) -> bool:
    if isinstance(item, (tuple, list)):
        return bool(item) and all(map(_is_input, item))
    return isinstance(item, torch.Tensor)


def _move(item: Any, device: str | None) -> Any:
    if isinstance(item, (tuple, list)):
        return type(item)(_move(part, device) for part in item)
    return item if device is None else torch.empty_like(item, device=device)
