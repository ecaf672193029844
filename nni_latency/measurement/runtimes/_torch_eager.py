"""torch, eager: every operator is called from Python, as most people run a network."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch

from nni_latency.errors import MeasurementError
from nni_latency.measurement._chain import Clock, PerfClock, Stage
from nni_latency.measurement.runtimes._allocator import keep_freed_memory
from nni_latency.measurement.runtimes._base import Runtime
from nni_latency.platforms import Platform, current_platform, resolve_device

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class CudaClock:
    """Events on the current stream: time on the GPU, read after it has caught up."""

    # CUDA documents about half a microsecond for the time between two events.
    resolution = 5e-7

    def mark(self) -> Any:
        """Record an event."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def intervals(self, marks: Sequence[Any]) -> list[float]:
        """Wait for the last event and return the times between neighbours [s].

        Raises
        ------
        MeasurementError
            If the device can not tell the time between events.
        """
        try:
            marks[-1].synchronize()
            return [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(marks)]
        except RuntimeError as error:
            raise MeasurementError(f"The GPU's clock events do not work: {error}") from error


class TorchEager(Runtime):
    """Run modules as they are, in inference mode.

    Parameters
    ----------
    device : str, default="cpu"
        ``cpu``, ``cuda`` or ``cuda:N``.
    threads : int, default=1
        Threads that compute one operator on the CPU.
    precision : str, default="fp32"
        ``fp32``, ``bf16`` or ``fp16``.

    Raises
    ------
    UnknownNameError
        If this machine has no such device.
    """

    name = "torch"

    def __init__(self, device: str = "cpu", *, threads: int = 1, precision: str = "fp32") -> None:
        self.device = resolve_device(device)
        self.threads = threads
        self.precision = precision

    @cached_property
    def platform(self) -> Platform:
        """Where its numbers are taken; read once."""
        return current_platform(self.device, runtime=self.name, precision=self.precision, threads=self.threads)

    @cached_property
    def clock(self) -> Clock:
        """The processor's clock, or events on a GPU."""
        return CudaClock() if self.device.startswith("cuda") else PerfClock()

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Set the number of threads, switch off autograd, choose the GPU; put all of it back afterwards.

        Numbers too small for the processor's fast path count as zero: untrained weights may shrink activations to that
        size, which trained ones do not, and a layer then takes up to 40 % longer. Freed memory is kept, for the rest of
        the process (see `keep_freed_memory`).
        """
        keep_freed_memory()
        threads = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        torch.set_flush_denormal(True)
        chosen = torch.cuda.device(self.device) if self.device.startswith("cuda") else contextlib.nullcontext()
        try:
            with torch.inference_mode(), chosen:
                yield
        finally:
            torch.set_flush_denormal(False)
            torch.set_num_threads(threads)

    def load(self, module: Any) -> Stage:
        """Move a module to the device and precision, in evaluation mode."""
        loaded: Stage = module.eval().requires_grad_(False).to(self.device, _DTYPES[self.precision])
        return loaded

    def inputs(self, shape: Sequence[int]) -> Any:
        """Make normally distributed numbers, the same ones every time."""
        generator = torch.Generator().manual_seed(0)
        return torch.randn(*shape, generator=generator).to(self.device, _DTYPES[self.precision])
