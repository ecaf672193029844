# SPDX-License-Identifier: Apache-2.0
"""`Tracer`: runs modules and functions without choices on tensors without data, once for every distinct call."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from nni_latency.operators import (
    By,
    Flow,
    Learned,
    describe_call,
    flow_of_call,
    is_parameter,
    run_traced,
    shares_memory_of,
    tensors_in,
)
from nni_latency.spaces._signatures import Signatures
from nni_latency.spaces._symbolic import TensorSpec, opened, pack, replace_symbols, shared_tensors
from nni_latency.spaces._varying import user_code


class Tracer:
    """Runs modules and functions without choices on tensors without data, once for every distinct call.

    Arguments come in nested lists and mappings, ``[args, kwargs]``; of the symbolic tensors in them only what they
    share memory with counts, because their specs are given.

    Parameters
    ----------
    by : {"module", "graph"}
        What counts as one operator.
    elastic : bool
        Give convolutions and linear layers as many input channels as their input has.

    Attributes
    ----------
    signatures : Signatures
        What tells modules apart.
    learned : callable
        Tells parameters of the space from other tensors.
    """

    def __init__(self, by: By, *, elastic: bool) -> None:
        self.signatures = Signatures()
        self.learned: Learned = is_parameter
        self._by, self._elastic = by, elastic
        self._traces: dict[Hashable, tuple[Flow, Any]] = {}
        self._shadows: dict[Hashable, nn.Module] = {}

    def function(self, function: Callable[..., Any], given: list[Any], specs: Sequence[TensorSpec]) -> tuple[Flow, Any]:
        """Call a function of torch; return its flow and a description of its result."""
        symbols, _, bare = opened(given)
        real = tuple(TensorSpec.of(tensor, self.learned) for tensor in tensors_in(bare))
        key = (function, self.signatures.of_value(bare), real, tuple(specs))
        if key not in self._traces:
            made, first = shared_tensors(symbols, specs)
            args, kwargs = _on_meta(replace_symbols(given, iter(made)), self.learned)
            learned = shares_memory_of([tensor for tensor in tensors_in([args, kwargs]) if is_parameter(tensor)])
            with user_code():
                result = function(*args, **kwargs)
            name = getattr(function, "__name__", str(function))
            op = describe_call(name, tuple(args), kwargs, result, learned)
            self._traces[key] = flow_of_call(op, [args, kwargs], result, first), pack(result, learned)
        return self._traces[key]

    def module(
        self, module: nn.Module, given: list[Any], specs: Sequence[TensorSpec], by: By | None = None
    ) -> tuple[Flow, Any]:
        """Run a module; return its flow and a description of its result."""
        symbols, _, bare = opened(given)
        signature = self.signatures.of(module)
        key = (signature, self.signatures.of_value(bare), tuple(specs), by)
        if key not in self._traces:
            if signature not in self._shadows:
                self._shadows[signature] = copy.deepcopy(module).to("meta").eval()
            shadow = self._shadows[signature]
            made, first = shared_tensors(symbols, specs)
            args, kwargs = replace_symbols(given, iter(made))
            with user_code():
                flow, result = self._run(shadow, tuple(args), kwargs, by or self._by, first)
            own = [tensor for tensor in (*shadow.parameters(), *tensors_in([args, kwargs])) if is_parameter(tensor)]
            self._traces[key] = flow, pack(result, shares_memory_of(own))
        return self._traces[key]

    def _run(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], by: By, given: Sequence[torch.Tensor]
    ) -> tuple[Flow, Any]:
        try:
            return run_traced(module, args, kwargs, by, given)
        except RuntimeError:  # torch has no other class for channels that do not fit
            if not self._elastic:
                raise
        _stretch(module, args, kwargs)
        return run_traced(module, args, kwargs, by, given)


def _on_meta(value: Any, learned: Learned) -> Any:
    """Replace real tensors by meta ones of their shape, and views of parameters by parameters."""
    if isinstance(value, torch.Tensor):
        spec = TensorSpec.of(value, learned)
        return value if value.is_meta and spec.learned == is_parameter(value) else spec.make()
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)([_on_meta(item, learned) for item in value])
    if isinstance(value, Mapping):
        return {name: _on_meta(item, learned) for name, item in value.items()}
    return torch.device("meta") if isinstance(value, torch.device) else value


def _stretch(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Make convolutions and linear layers without groups take as many channels as their input has."""

    def fit(part: Any, given: tuple[Any, ...]) -> None:
        channels = given[0].shape[-1 if isinstance(part, nn.Linear) else 1]
        if part.weight.shape[1] != channels:
            shape = (part.weight.shape[0], channels, *part.weight.shape[2:])
            part.weight = nn.Parameter(torch.empty(shape, device="meta"), requires_grad=False)

    handles = [
        part.register_forward_pre_hook(fit)
        for part in module.modules()
        if isinstance(part, nn.Linear) or (isinstance(part, nn.Conv2d) and part.groups == 1)
    ]
    module(*args, **kwargs)
    for handle in handles:
        handle.remove()
