# SPDX-License-Identifier: Apache-2.0
"""`Signatures`: what tells modules apart that compute different things."""

from __future__ import annotations

import functools
import types
from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import nn

from nni_latency.spaces._nni import CellBuilder, LabeledMutable, label_scope

#: Attributes that do not change what a module computes.
_NEEDLESS = frozenset(
    {
        *("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training", "_is_full_backward_hook"),
        *("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_hooks_with_kwargs"),
        *("_forward_hooks_always_called", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
        *("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
        *("trace_symbol", "_frozen_context", "_label_scope", "call_super_init", "_compiled_call_impl"),
    }
)


class Signatures:
    """Computes and remembers signatures of modules. Not thread-safe."""

    def __init__(self) -> None:
        self._modules: dict[int, Hashable] = {}
        self._numbers: dict[Hashable, int] = {}
        # Objects that are identified by `id` stay alive.
        self._kept: list[Any] = []

    def of(self, module: nn.Module) -> Hashable:
        """Return a value that is equal for modules that compute the same on the same inputs."""
        if id(module) not in self._modules:
            self._kept.append(module)
            # A cycle of modules ends here.
            self._modules[id(module)] = ("itself", len(self._modules))
            attributes = [
                (name, self.of_value(value))
                for name, value in sorted(vars(module).items())
                # NNI makes an empty list of mutables when it is asked for one.
                if name not in _NEEDLESS and (name != "_mutables" or value)
            ]
            tensors = [
                (name, None if tensor is None else (tuple(tensor.shape), tensor.dtype))
                for store in (module._parameters, module._buffers)
                for name, tensor in store.items()
            ]
            parts = [(name, None if part is None else self.of(part)) for name, part in module._modules.items()]
            whole = (type(module), tuple(attributes), tuple(tensors), tuple(parts))
            # A number instead, so that keys stay short however deep the module is.
            self._modules[id(module)] = self._numbers.setdefault(whole, len(self._numbers))
        return self._modules[id(module)]

    def of_value(self, value: Any) -> Hashable:
        """Return the same for an attribute or argument."""
        if value is None or isinstance(value, (bool, int, float, str, bytes, torch.dtype, torch.device)):
            return type(value).__name__, value
        if isinstance(value, (list, tuple, set, frozenset)):
            return type(value).__name__, tuple(self.of_value(item) for item in value)
        if isinstance(value, Mapping):
            return "mapping", tuple((str(name), self.of_value(item)) for name, item in value.items())
        if isinstance(value, nn.Module):
            return "module", self.of(value)
        if isinstance(value, torch.Tensor):
            return "tensor", tuple(value.shape), str(value.dtype)
        if isinstance(value, LabeledMutable):
            return "mutable", repr(value)
        if isinstance(value, label_scope):
            return "scope", value.name
        if isinstance(value, functools.partial):
            return "partial", self.of_value(value.func), self.of_value(value.args), self.of_value(value.keywords)
        if isinstance(value, types.MethodType) and isinstance(value.__self__, CellBuilder):
            # Nothing else of the builder of NNI's own cells goes into an operator.
            return (
                "builder",
                value.__func__.__qualname__,
                value.__self__.drop_path_prob,
                value.__self__.num_predecessors,
            )
        if isinstance(value, types.MethodType):
            return "method", value.__func__.__qualname__, self._identity(value.__self__)
        return self._identity(value)

    def _identity(self, value: Any) -> Hashable:
        self._kept.append(value)
        return "object", id(value)
