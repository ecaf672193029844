"""Networks of torch that are not ready to be looked into: lazy modules without weights, and compiled ones."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from nni_latency.errors import InvalidValueError, reason_of
from nni_latency.operators._inputs import Inputs, freeze_inputs


def has_lazy_weights(model: nn.Module) -> bool:
    """Return whether weights of a network get their shapes from its first input, and have none yet."""
    return any(map(is_lazy, itertools.chain(model.parameters(), model.buffers())))


def initialised(model: nn.Module, example_inputs: Any) -> nn.Module:
    """Return a network all of whose weights have shapes: a copy that was run once if it has lazy modules, or itself.

    Parameters
    ----------
    model : nn.Module
        The network; it is not changed.
    example_inputs : Tensor, tuple, dict or Inputs
        As for `nni_latency.operators.trace`. On torch's device ``meta`` the weights of a copy have no values.

    Raises
    ------
    InvalidValueError
        If it cannot be run on them.

    Examples
    --------
    >>> initialised(nn.LazyLinear(2), torch.zeros(1, 3)).weight.shape
    torch.Size([2, 3])
    """
    if not has_lazy_weights(model):
        return model
    made = copy.deepcopy(model)
    inputs = example_inputs if isinstance(example_inputs, Inputs) else freeze_inputs(example_inputs, device=None)
    modes = {module: module.training for module in made.modules()}
    if any(tensor.is_meta for tensor in inputs.tensors):
        made = without_values(made)
    try:
        # Weights are drawn without a trace in the random numbers of whoever asks.
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            made.eval()(*inputs.args, **inputs.kwargs)
    except Exception as error:  # the forward pass of a network may raise anything
        raise InvalidValueError(
            f"The lazy modules of {type(model).__name__} cannot be initialised by a run on the example inputs: "
            f"{reason_of(error)}"
        ) from error
    for module, training in modes.items():
        module.training = training
    return made


def without_values(model: nn.Module) -> nn.Module:
    """Return a network moved to torch's device ``meta``, lazy weights included, which torch itself would lose."""
    tables = [table for module in model.modules() for table in (module._parameters, module._buffers)]
    lazy = [
        (table, name, value)
        for table in tables
        for name, value in table.items()
        if value is not None and is_lazy(value)
    ]
    model.to("meta")
    for table, name, value in lazy:
        kind: Any = nn.UninitializedParameter if isinstance(value, nn.Parameter) else nn.UninitializedBuffer
        table[name] = kind(requires_grad=value.requires_grad, device="meta", dtype=value.dtype)
    return model


def check_not_scripted(model: nn.Module) -> None:
    """Raise `InvalidValueError` if a network is, or holds, a module of TorchScript, which runs outside of Python."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            where = f"Its module {name!r}" if name else f"The network {type(model).__name__}"
            raise InvalidValueError(
                f"{where} was compiled by torch.jit.script or torch.jit.trace, so its operators cannot be seen. Pass "
                "the module that it was compiled from, or an ONNX file of it."
            )
