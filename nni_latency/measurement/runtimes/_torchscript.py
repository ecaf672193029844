"""TorchScript: a network traced, frozen and fused, as it runs without Python."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import nn

from nni_latency.measurement._chain import Stage
from nni_latency.measurement.runtimes._compiled import _CompiledRuntime
from nni_latency.measurement.runtimes._prepared import PreparedStage


class TorchScript(_CompiledRuntime):
    """Trace modules with `torch.jit.trace` and run what `torch.jit.optimize_for_inference` makes of them.

    Weights become constants, batch normalisation goes into the convolution before it, and on the CPU neighbouring
    operators work in oneDNN's own layout. A module is traced in the first call with an input of a new shape, which
    takes long.

    Parameters
    ----------
    device, threads, precision, channels_last
        As for `TorchEager`.

    Raises
    ------
    UnknownNameError
        If this machine has no such device.

    Examples
    --------
    >>> runtime = TorchScript()
    >>> with runtime.session():
    ...     outputs = runtime.load(nn.Conv2d(3, 8, 1))(runtime.inputs((1, 3, 4, 4)))
    >>> runtime.name, tuple(outputs.shape)
    ('torchscript', (1, 8, 4, 4))
    """

    name = "torchscript"

    def load(self, module: Any) -> Stage:
        """Move a module to the device, precision and memory layout; it is traced when it is first called."""
        return PreparedStage(self._place(module), _trace)


def _trace(module: nn.Module, example: Any) -> Stage:
    traced = torch.jit.trace(module, example, check_trace=False)
    # torch never frees what was traced in this process, and freezing puts the weights into it. Something that was
    # loaded is freed with its last user.
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    optimised: Stage = torch.jit.optimize_for_inference(torch.jit.load(file).eval())
    return optimised
