"""A network together with its inputs, so that a bench can run any network."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from nni_latency.errors import InvalidValueError
from nni_latency.operators import Inputs, freeze_inputs


class ModuleWithInputs(nn.Module):
    """A module that holds its own inputs, several and keyword ones among them, and ignores what it is given.

    The inputs are buffers: they go to the device with the module, and those with a fraction take its precision, while
    whole numbers stay whole. Running it calls the same torch functions as the module itself, and no others.

    Parameters
    ----------
    module : nn.Module
        The network; a copy of it is held.
    example_inputs : Tensor, tuple or dict
        As for `nni_latency.operators.trace`. Inputs without values, on torch's meta device, get some: random numbers,
        or zeros where they are whole.

    Raises
    ------
    InvalidValueError
        If the network has weights without values, so that it cannot be run.

    Examples
    --------
    >>> carrier = ModuleWithInputs(nn.Bilinear(2, 3, 4), (torch.ones(1, 2), torch.ones(1, 3)))
    >>> carrier(None).shape
    torch.Size([1, 4])
    """

    def __init__(self, module: nn.Module, example_inputs: Any) -> None:
        super().__init__()
        weights = [name for name, weight in _state(module) if weight.is_meta]
        if weights:
            raise InvalidValueError(
                f"{type(module).__name__} cannot be measured: {weights[0]!r} has no values (it is on torch's device "
                "'meta'). Move the network to the CPU with 'to_empty' and fill it."
            )
        self.network = copy.deepcopy(module)
        self._tensors: list[str] = []
        inputs = freeze_inputs(example_inputs, device=None)
        self._args = tuple(self._keep(item) for item in inputs.args)
        self._kwargs = {name: self._keep(item) for name, item in inputs.kwargs.items()}

    def forward(self, *_: Any) -> Any:
        """Run the network on its inputs."""
        inputs = self.inputs
        return self.network(*inputs.args, **inputs.kwargs)

    @property
    def inputs(self) -> Inputs:
        """What the network is run on."""
        return Inputs(
            tuple(self._give(item) for item in self._args), {name: self._give(i) for name, i in self._kwargs.items()}
        )

    def _keep(self, item: Any) -> Any:
        """Make buffers of tensors, and put their numbers in their places."""
        if not isinstance(item, torch.Tensor):
            return type(item)(self._keep(part) for part in item)
        place = f"input{len(self._tensors)}"
        self.register_buffer(place, _with_values(item))
        self._tensors.append(place)
        return place

    def _give(self, item: Any) -> Any:
        return self._buffers[item] if isinstance(item, str) else type(item)(self._give(part) for part in item)


def _with_values(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_meta:
        return tensor.detach().clone()
    if not tensor.is_floating_point():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    generator = torch.Generator().manual_seed(0)
    return torch.randn(tensor.shape, generator=generator).to(tensor.dtype)


def _state(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
