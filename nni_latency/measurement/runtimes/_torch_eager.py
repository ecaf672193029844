"""torch, eager: every operator is called from Python, as most people run a network."""

from __future__ import annotations

from nni_latency.measurement._chain import Stage
from nni_latency.measurement.runtimes._call_times import time_calls
from nni_latency.measurement.runtimes._torch_runtime import _TorchRuntime


class TorchEager(_TorchRuntime):
    """Run modules as they are, in inference mode.

    Parameters
    ----------
    device : str, default="cpu"
        ``cpu``, ``cuda`` or ``cuda:N``.
    threads : int, default=1
        Threads that compute one operator on the CPU.
    precision : str, default="fp32"
        ``fp32``, ``bf16`` or ``fp16``.
    channels_last : bool, default=False
        Whether the channels of inputs and weights of four or five dimensions lie next to each other in memory. The
        runtime's name then ends in ``-nhwc``.
    allocator : {"kept", "system"}, default="kept"
        Whether freed memory is kept for the next run (see `keep_freed_memory`), or left to the system's allocator, as
        in a plain script: times then spread more.

    Raises
    ------
    UnknownNameError
        If this machine has no such device.
    InvalidValueError
        If the precision or the allocator is none of those.

    Examples
    --------
    >>> TorchEager().name, TorchEager(channels_last=True).name
    ('torch', 'torch-nhwc')
    """

    name = "torch"
    sees_calls = True

    def time_calls(self, stage: Stage, value: object) -> list[float]:
        """Run a prepared network once and time its calls of torch functions."""
        return time_calls(stage, value, self.clock)
