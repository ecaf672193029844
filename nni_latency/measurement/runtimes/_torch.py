# SPDX-License-Identifier: Apache-2.0
"""The runtimes of torch without its compiler: eager and TorchScript; with their clock on GPUs."""

from __future__ import annotations

import contextlib
import io
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement._bench import CandidateError
from nni_latency.measurement._subject import Subject
from nni_latency.measurement._timing import Clock, ProcessorClock, Stage
from nni_latency.measurement.runtimes._session import LocalRuntime, check_threads, choose_processors, computing
from nni_latency.operators import Inputs
from nni_latency.platforms import RUNTIME_FACT, resolve_device

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

#: Treatment of freed memory: it is kept for the next run, or left to the system's allocator.
ALLOCATORS = ("kept", "system")

# By the number of dimensions; others have no such layout.
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}

# TorchScript profiles in the first run and compiles in the second; the third executes the result.
_SETTLING_RUNS = 3


class _TorchRuntime(LocalRuntime):
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

    def _facts(self) -> Mapping[str, Any]:
        allocator = {} if self.allocator == ALLOCATORS[0] else {"runtime.allocator": self.allocator}
        has_tf32 = self._on_gpu and self.precision == "fp32"
        return {**allocator, **({f"{RUNTIME_FACT}tf32": _tf32(self.device)} if has_tf32 else {})}

    @cached_property
    def clock(self) -> Clock:
        """The processor's clock, or events on a GPU."""
        return CudaClock() if self._on_gpu else ProcessorClock()

    @property
    def _on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @cached_property
    def _processors(self) -> tuple[int, ...]:
        return () if self._on_gpu else choose_processors(self.threads)

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Enter `computing` and select the GPU; restore everything afterwards."""
        # Read it before the thread is pinned, because it contains the number of processors.
        _ = self.platform
        chosen = torch.cuda.device(self.device) if self._on_gpu else contextlib.nullcontext()
        with computing(self.threads, self._processors, keeps_memory=self.allocator == "kept"), chosen:
            yield

    def prepare(self, subject: Subject, inputs: Any) -> Stage:
        """Build a module, convert it to the device, precision and memory layout, and compile it if the runtime does."""
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
        """Return a callable that runs a module on such tensors."""
        return module

    def _take(self, tensor: torch.Tensor) -> torch.Tensor:
        found = tensor.to(self.device)
        return self._arrange(found.to(_DTYPES[self.precision]) if found.is_floating_point() else found)

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


def _tf32(device: str) -> str:
    """Return the operators that a GPU computes in TF32 although their tensors are fp32; by default convolutions."""
    settings = {
        "convolutions": torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        "matrix products": torch.backends.cuda.matmul.fp32_precision,
    }
    able = torch.cuda.get_device_capability(device) >= (8, 0)
    return ", ".join(name for name, setting in settings.items() if able and setting == "tf32") or "none"


class TorchEager(_TorchRuntime):
    """Run modules without compilation, in inference mode.

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
        in a plain script; the latter causes a larger spread of times.

    Raises
    ------
    UnknownNameError
        If this machine has no such device.
    InvalidValueError
        If the precision or the allocator is invalid.

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


class _CompiledRuntime(_TorchRuntime):
    """Base of the runtimes of torch without layer timing; see `TorchEager` for the parameters."""

    supports_layer_timing = False

    def stand_in(self) -> TorchEager:
        """Return torch without compiling, of the same device, threads, precision and layout."""
        return TorchEager(
            self.device,
            threads=self.threads,
            precision=self.precision,
            channels_last=self.channels_last,
            allocator=self.allocator,
        )


class TorchScript(_CompiledRuntime):
    """Trace modules with `torch.jit.trace` and run the result of `torch.jit.optimize_for_inference`.

    Weights become constants, batch normalisation is folded into the preceding convolution, and on the CPU neighbouring
    operators use the layout of oneDNN. Tracing takes long.

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
    # torch never frees modules that were traced in this process, and freezing adds the weights to them. A loaded module
    # is freed with its last reference.
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    optimised: Stage = torch.jit.optimize_for_inference(torch.jit.load(file).eval())
    return optimised


def settle(compile_module: Callable[..., Stage], module: nn.Module, tensors: tuple[torch.Tensor, ...]) -> Stage:
    """Compile a module for inputs, and run it until its times have settled."""
    with warnings.catch_warnings():
        # torch 2.13 says so of every function of TorchScript, which torch.compile calls as well.
        warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
        # torch 2.13 says so where torch.compile runs on Python 3.13.0.
        warnings.filterwarnings("ignore", r"Guards may run slower on Python 3\.13\.0", RuntimeWarning)
        # Copies, because the module may write into its input.
        ready = compile_module(module, _copies(tensors))
        for _ in range(_SETTLING_RUNS):
            ready(*_copies(tensors))
    return ready


def _copies(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.clone() for tensor in tensors)


class Unpacking(nn.Module):
    """A network that takes its tensors as separate arguments, whatever lists and keywords its forward pass takes.

    It calls the same torch functions as the network itself, and no others.

    Parameters
    ----------
    network : nn.Module
        The network.
    inputs : Inputs
        Inputs with the structure of those that it will run on.

    Examples
    --------
    >>> network = Unpacking(nn.Bilinear(2, 3, 4), Inputs((torch.ones(1, 2), torch.ones(1, 3))))
    >>> network(torch.ones(1, 2), torch.ones(1, 3)).shape
    torch.Size([1, 4])
    """

    def __init__(self, network: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.network = network
        self._count = 0
        self._args = tuple(self._place(item) for item in inputs.args)
        self._kwargs = {name: self._place(item) for name, item in inputs.kwargs.items()}

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Run the network."""
        args = [_fill(item, tensors) for item in self._args]
        return self.network(*args, **{name: _fill(item, tensors) for name, item in self._kwargs.items()})

    def _place(self, item: Any) -> Any:
        """Replace each tensor by its number, in the order of `Inputs.tensors`."""
        if not isinstance(item, torch.Tensor):
            return type(item)(self._place(part) for part in item)
        self._count += 1
        return self._count - 1


def _fill(item: Any, tensors: tuple[torch.Tensor, ...]) -> Any:
    return tensors[item] if isinstance(item, int) else type(item)(_fill(part, tensors) for part in item)


def time_calls(stage: Stage, value: Any, clock: Clock) -> list[float]:
    """Run a network and time its calls of torch functions.

    A mark costs one to three microseconds, so the sum slightly exceeds the time of an unmarked run.

    Returns
    -------
    list of float
        Time of every call since the end of the previous one [s], at least the clock's resolution.
    """
    marks = [clock.mark()]
    with _CallMarks(marks, clock.mark):
        stage(value)
    if len(marks) > 1:
        # The time after the last call belongs to it.
        marks[-1] = clock.mark()
    return [max(seconds, clock.resolution) for seconds in clock.intervals(marks)]


class _CallMarks(TorchFunctionMode):
    """Marks the end of every call of a torch function within its context."""

    def __init__(self, marks: list[Any], mark: Callable[[], Any]) -> None:
        super().__init__()
        self._marks = marks
        self._mark = mark

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **kwargs) if kwargs else func(*args)
        self._marks.append(self._mark())
        return result


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
        CandidateError
            If the work failed: kernels run asynchronously, so their errors appear here.
        MeasurementError
            If the device does not report the time between events.
        """
        try:
            marks[-1].synchronize()
        except RuntimeError as error:
            raise CandidateError(str(error).partition("\n")[0]) from error
        try:
            return [before.elapsed_time(after) / 1e3 for before, after in itertools.pairwise(marks)]
        except RuntimeError as error:
            raise MeasurementError(f"The GPU's clock events do not work: {error}") from error
