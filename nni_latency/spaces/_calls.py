"""Who takes the call of a module while a space is walked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from nni_latency.spaces._symbolic_tensor import symbols_in

_plain_call = nn.Module.__call__


@contextlib.contextmanager
def calls_to(run: Callable[..., Any]) -> Iterator[None]:
    """Let `run` take every module that is called with a symbolic tensor, as `torch.fx` does when it traces."""

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if next(symbols_in([args, kwargs]), None) is not None:
            return run(module, args, kwargs)
        return _plain_call(module, *args, **kwargs)

    before = nn.Module.__call__
    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = before  # type: ignore[method-assign]


@contextlib.contextmanager
def in_evaluation(space: nn.Module) -> Iterator[None]:
    """Put a space into evaluation mode and back, every module on its own."""
    before = [(module, module.training) for module in space.modules()]
    space.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
