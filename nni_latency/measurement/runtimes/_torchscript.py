"""TorchScript: a network traced, frozen and fused, as it runs without Python."""

from __future__ import annotations

import io

import torch
from torch import nn

from nni_latency.measurement._chain import Stage
from nni_latency.measurement.runtimes._compiled import _CompiledRuntime
from nni_latency.measurement.runtimes._settling import settle


class TorchScript(_CompiledRuntime):
    """Trace modules with `torch.jit.trace` and run what `torch.jit.optimize_for_inference` makes of them.

    Weights become constants, batch normalisation goes into the convolution before it, and on the CPU neighbouring
    operators work in oneDNN's own layout. Tracing takes long.

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
    >>> from nni_latency.measurement import Subject
    >>> runtime = TorchScript()
    >>> with runtime.session():
    ...     inputs = runtime.inputs((1, 3, 4, 4))
    ...     outputs = runtime.prepare(Subject("conv", lambda: nn.Conv2d(3, 8, 1)), inputs)(inputs)
    >>> runtime.name, tuple(outputs.shape)
    ('torchscript', (1, 8, 4, 4))
    """

    name = "torchscript"

    def _ready(self, module: nn.Module, tensors: tuple[torch.Tensor, ...]) -> Stage:
        return settle(_trace, module, tensors)


def _trace(module: nn.Module, example: tuple[torch.Tensor, ...]) -> Stage:
    traced = torch.jit.trace(module, example, check_trace=False)
    # torch never frees what was traced in this process, and freezing puts the weights into it. Something that was
    # loaded is freed with its last user.
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    optimised: Stage = torch.jit.optimize_for_inference(torch.jit.load(file).eval())
    return optimised
