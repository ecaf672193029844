# SPDX-License-Identifier: Apache-2.0
"""torch.compile: networks compiled to C++ or Triton by Inductor."""

from __future__ import annotations

import shutil
import sys
import weakref
from types import FunctionType
from typing import Any

import torch
import torch._dynamo as dynamo
import torch._inductor.config as inductor
from torch import nn
from torch._C._dynamo.eval_frame import reset_code
from torch._inductor.codecache import PyCodeCache

from nni_latency.errors import MeasurementError
from nni_latency.measurement._timing import Stage
from nni_latency.measurement.runtimes._session import choose_processors, pinned
from nni_latency.measurement.runtimes._torch import _CompiledRuntime, settle

# Effectively no limit: beyond it, torch runs a network without compiling it, and reports that only in its log.
_NO_LIMIT = 2**31 - 1


class TorchCompile(_CompiledRuntime):
    """Compile modules with `torch.compile` and its backend Inductor, the weights as constants.

    Compiling a module takes seconds to a minute. Compiled code is never shared between modules.

    Parameters
    ----------
    device, threads, precision, channels_last
        As for `TorchEager`. The CPU needs a C++ compiler.

    Raises
    ------
    UnknownNameError
        If this machine has no such device.

    Examples
    --------
    >>> TorchCompile(threads=2).platform.id.endswith(".torch-compile.fp32.t2")
    True
    """

    name = "torch-compile"

    def __init__(self, device: str = "cpu", **options: Any) -> None:
        super().__init__(device, **options)
        self._all_processors = choose_processors(sys.maxsize)

    def _ready(self, module: nn.Module, tensors: tuple[torch.Tensor, ...]) -> Stage:
        if not self._on_gpu:
            _require_compiler()
        return settle(self._compile, module, tensors)

    def _compile(self, module: nn.Module, example: tuple[torch.Tensor, ...]) -> Stage:
        compiled: Stage = torch.compile(_with_own_code(module), backend="inductor", dynamic=False)
        loaded = len(PyCodeCache.modules)
        # Freezing is switched on here and not in the options of torch.compile, because those hold in the backend
        # alone: the frontend would hand it the weights as inputs, and nothing would be frozen. The compiler is free to
        # run on every processor.
        with (
            inductor.patch(freezing=True),
            dynamo.config.patch(cache_size_limit=_NO_LIMIT, accumulated_cache_size_limit=_NO_LIMIT),
            pinned(self._all_processors),
        ):
            compiled(*example)
        _forget_modules(loaded)
        return compiled


def _with_own_code(module: nn.Module) -> FunctionType:
    """Return a function that runs the module and shares its code object with no other.

    torch attaches compiled code to the code object, which all modules of a class share: it would search each module
    among all earlier ones, and stop compiling beyond a limit.
    """

    def run(*inputs: Any) -> Any:
        return module(*inputs)

    own = FunctionType(run.__code__.replace(), run.__globals__, run.__name__, None, run.__closure__)
    # Code and compiled code refer to each other in a way that the garbage collector does not see.
    weakref.finalize(own, reset_code, own.__code__)
    return own


def _forget_modules(count: int) -> None:
    """Remove generated Python modules from torch's list, except the first ones.

    Each holds the weights of a network. Those in use remain referenced by their users.
    """
    for generated in PyCodeCache.modules[count:]:
        sys.modules.pop(generated.__name__, None)
    del PyCodeCache.modules[count:]


def _require_compiler() -> None:
    names = [inductor.cpp.cxx] if isinstance(inductor.cpp.cxx, str) else [name for name in inductor.cpp.cxx if name]
    if not any(map(shutil.which, names)):
        raise MeasurementError(
            f"torch.compile needs the C++ compiler {' or '.join(map(repr, names))} on the CPU, which is not here: "
            "install it, such as with 'apt-get install g++', or name another in the environment variable CXX, such as "
            "clang++."
        )
