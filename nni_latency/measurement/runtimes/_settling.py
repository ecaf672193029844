"""Modules that a compiler prepares for the inputs that they are given first."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from nni_latency.measurement._chain import Stage
from nni_latency.operators import Inputs

# TorchScript profiles in the first run and compiles in the second; the third runs what came of it.
_SETTLING_RUNS = 3


def settle(compile_module: Callable[..., Stage], module: nn.Module, tensors: tuple[torch.Tensor, ...]) -> Stage:
    """Compile a module for inputs, and run it until its times have settled.

    Parameters
    ----------
    compile_module : callable
        Makes something to call of the module and a tuple of its input tensors.
    module : torch.nn.Module
        What is compiled.
    tensors : tuple of Tensor
        What it takes.
    """
    with warnings.catch_warnings():
        # torch 2.13 says so of every function of TorchScript, which torch.compile calls as well.
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
        # torch 2.13 says so where torch.compile runs on Python 3.13.0.
        warnings.filterwarnings("ignore", r"Guards may run slower on Python 3\.13\.0", RuntimeWarning)
        # Copies, because the module may write into its input.
        ready = compile_module(module, _copies(tensors))
        for _ in range(_SETTLING_RUNS):
            ready(*_copies(tensors))
    return ready


def _copies(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.clone() for tensor in tensors)


class Unpacking(nn.Module):
    """A network that takes its inputs one by one, whatever lists and keywords its own forward pass takes them in.

    It calls the same torch functions as the network itself, and no others.

    Parameters
    ----------
    network : nn.Module
        What runs.
    inputs : Inputs
        Inputs of the same structure as those to come.

    Examples
    --------
    >>> network = Unpacking(nn.Bilinear(2, 3, 4), Inputs((torch.ones(1, 2), torch.ones(1, 3))))
    >>> network(torch.ones(1, 2), torch.ones(1, 3)).shape
    torch.Size([1, 4])
    """

    def __init__(self, network: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.network = network
        self._count = 0
        self._args = tuple(self._place(item) for item in inputs.args)
        self._kwargs = {name: self._place(item) for name, item in inputs.kwargs.items()}

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Run the network."""
        args = [_fill(item, tensors) for item in self._args]
        return self.network(*args, **{name: _fill(item, tensors) for name, item in self._kwargs.items()})

    def _place(self, item: Any) -> Any:
        """Put the number of each tensor in its place, in the order of `Inputs.tensors`."""
        if not isinstance(item, torch.Tensor):
            return type(item)(self._place(part) for part in item)
        self._count += 1
        return self._count - 1


def _fill(item: Any, tensors: tuple[torch.Tensor, ...]) -> Any:
    return tensors[item] if isinstance(item, int) else type(item)(_fill(part, tensors) for part in item)


def with_values(tensor: torch.Tensor) -> torch.Tensor:
    """Give a tensor of torch's meta device values: random numbers, or zeros where they are whole."""
    if not tensor.is_meta:
        return tensor.detach().clone()
    if not tensor.is_floating_point():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    generator = torch.Generator().manual_seed(0)
    return torch.randn(tensor.shape, generator=generator).to(tensor.dtype)
