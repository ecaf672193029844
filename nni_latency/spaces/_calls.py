"""Calls of the modules of a space while it is walked."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from nni_latency.spaces._symbolic_tensor import symbols_in

#: Where torch looks for another way to call one module (`nn.Module.compile` sets it). Copies of the module lose it.
_SLOT = "_compiled_call_impl"

_Call = Callable[..., Any]


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
