"""Modules that a compiler prepares for the input that they see first."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import nn

from nni_latency.measurement._chain import Stage

# TorchScript profiles in the first run and compiles in the second; the third runs what came of it.
_SETTLING_RUNS = 3


class PreparedStage:
    """Runs a module that is prepared anew for every shape of input, in the first call with it.

    That call takes long: it prepares the module, runs it until the times have settled, and once more for the answer.

    Parameters
    ----------
    module : torch.nn.Module
        What is prepared.
    prepare : callable
        Makes something to call of the module and an example of its input.
    """

    def __init__(self, module: nn.Module, prepare: Callable[[nn.Module, Any], Stage]) -> None:
        self._module = module
        self._prepare = prepare
        self._ready: dict[tuple[int, ...], Stage] = {}

    def __call__(self, inputs: Any) -> Any:
        """Return the module's outputs."""
        ready = self._ready.get(inputs.shape)
        if ready is None:
            ready = self._ready[inputs.shape] = self._settle(inputs)
        return ready(inputs)

    def _settle(self, inputs: Any) -> Stage:
        with warnings.catch_warnings():
            # torch 2.13 says so of every function of TorchScript, which torch.compile calls as well.
            warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
            # Copies, because the module may write into its input.
            ready = self._prepare(self._module, inputs.clone())
            for _ in range(_SETTLING_RUNS):
                ready(inputs.clone())
        return ready
