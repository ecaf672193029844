"""What all runtimes of torch share: the session, the clock, inputs, and where modules go."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import nn

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement._chain import Clock, PerfClock, Stage
from nni_latency.measurement._subject import Subject
from nni_latency.measurement.runtimes._affinity import choose_processors
from nni_latency.measurement.runtimes._base import Runtime
from nni_latency.measurement.runtimes._cuda_clock import CudaClock
from nni_latency.measurement.runtimes._session import check_threads, computing
from nni_latency.measurement.runtimes._settling import Unpacking, with_values
from nni_latency.operators import Inputs
from nni_latency.platforms import RUNTIME_FACT, Conditions, Platform, current_platform, read_conditions, resolve_device

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

#: What becomes of freed memory: it is kept for the next run, or goes where the system's allocator wants it.
ALLOCATORS = ("kept", "system")

# By the number of dimensions; others have no such layout.
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class _TorchRuntime(Runtime):
    """Base of the runtimes of torch; see `TorchEager` for the parameters."""

    def __init__(
        self,
        device: str = "cpu",
        *,
        threads: int = 1,
        precision: str = "fp32",
        channels_last: bool = False,
        allocator: str = "kept",
    ) -> None:
        if precision not in _DTYPES:
            raise InvalidValueError(
                f"The runtime {type(self).name!r} computes in {', '.join(_DTYPES)}. Got the precision {precision!r}."
            )
        if allocator not in ALLOCATORS:
            raise InvalidValueError(f"The 'allocator' must be one of {', '.join(ALLOCATORS)}. Got {allocator!r}.")
        self.device = resolve_device(device)
        self.allocator = allocator
        self.threads = check_threads(threads)
        self.precision = precision
        self.channels_last = channels_last
        if channels_last:
            self.name = f"{type(self).name}-nhwc"

    @cached_property
    def platform(self) -> Platform:
        """Where its numbers are taken; read once."""
        found = current_platform(self.device, runtime=self.name, precision=self.precision, threads=self.threads)
        facts = dict(found.facts)
        if self._processors:
            facts["cpu_affinity"] = ",".join(map(str, self._processors))
        if self.allocator != ALLOCATORS[0]:
            facts["runtime.allocator"] = self.allocator
        if self._on_gpu and self.precision == "fp32":
            facts[f"{RUNTIME_FACT}tf32"] = _tf32(self.device)
        return dataclasses.replace(found, facts=facts)

    @cached_property
    def clock(self) -> Clock:
        """The processor's clock, or events on a GPU."""
        return CudaClock() if self._on_gpu else PerfClock()

    @property
    def _on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @cached_property
    def _processors(self) -> tuple[int, ...]:
        return () if self._on_gpu else choose_processors(self.threads)

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Hold what `computing` sets, and choose the GPU; put all of it back afterwards."""
        # Read before the processors are taken away: it says how many there are.
        _ = self.platform
        chosen = torch.cuda.device(self.device) if self._on_gpu else contextlib.nullcontext()
        with computing(self.threads, self._processors, keeps_memory=self.allocator == "kept"), chosen:
            yield

    def inputs(self, like: Sequence[int] | Inputs) -> Any:
        """Make normally distributed numbers, the same ones every time; or take tensors, whole numbers as they are."""
        if isinstance(like, Inputs):
            tensors = tuple(self._take(tensor) for tensor in like.tensors)
            return tensors[0] if _is_plain(like) else tensors
        generator = torch.Generator().manual_seed(0)
        return self._take(torch.randn(*like, generator=generator))

    def prepare(self, subject: Subject, inputs: Any) -> Stage:
        """Build a module, move it to the device, precision and memory layout, and compile it where that is done."""
        built = subject.build()
        if not isinstance(built, nn.Module):
            raise MeasurementError(
                f"the runtime {self.name!r} runs modules of torch. Give the network as a module, or take a runtime for "
                "ONNX files, such as 'onnxruntime'"
            )
        module = self._place(built)
        if not isinstance(inputs, tuple):
            return self._ready(module, (inputs,))
        ready = self._ready(Unpacking(module, subject.inputs).eval(), inputs)
        return lambda tensors: ready(*tensors)

    def _ready(self, module: nn.Module, tensors: tuple[torch.Tensor, ...]) -> Stage:
        """Return what runs a module on such tensors."""
        return module

    def _take(self, tensor: torch.Tensor) -> torch.Tensor:
        found = with_values(tensor).to(self.device)
        return self._arrange(found.to(_DTYPES[self.precision]) if found.is_floating_point() else found)

    def conditions(self) -> Conditions:
        """Say what the device is like at this moment."""
        return read_conditions(self.device)

    def _place(self, module: nn.Module) -> nn.Module:
        """Move a module to the device, precision and memory layout, in evaluation mode."""
        placed = module.eval().requires_grad_(False).to(self.device, _DTYPES[self.precision])
        # Not `to(memory_format=...)`, which takes one layout for all weights and fails on those of other dimensions.
        arranged: nn.Module = placed._apply(self._arrange)
        return arranged

    def _arrange(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.channels_last and tensor.dim() in _CHANNELS_LAST:
            return tensor.contiguous(memory_format=_CHANNELS_LAST[tensor.dim()])
        return tensor


def _is_plain(inputs: Inputs) -> bool:
    return len(inputs.args) == 1 and not inputs.kwargs and isinstance(inputs.args[0], torch.Tensor)


def _tf32(device: str) -> str:
    """Name the operators that a GPU computes in TF32 although their numbers are fp32: by default its convolutions."""
    settings = {
        "convolutions": torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        "matrix products": torch.backends.cuda.matmul.fp32_precision,
    }
    able = torch.cuda.get_device_capability(device) >= (8, 0)
    return ", ".join(name for name, setting in settings.items() if able and setting == "tf32") or "none"
