# SPDX-License-Identifier: Apache-2.0
"""The memory of a network: its parameters, and the most that the tensors of one forward pass take together."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from nni_latency.errors import InvalidValueError, LatencyError, MeasurementError
from nni_latency.operators import tensors_in
from nni_latency.platforms import resolve_device

_ATEN = torch.ops.aten


def parameter_memory(module: nn.Module) -> int:
    """Count the memory of a module's parameters and buffers, at the dtypes that they have.

    Parameters
    ----------
    module : nn.Module
        The network.

    Returns
    -------
    int
        Size of their storages [byte]; one that several of them share counts once, and in full.

    Raises
    ------
    InvalidValueError
        If a parameter has no shape yet or is not dense.

    Examples
    --------
    >>> parameter_memory(nn.Linear(100, 10))
    4040
    >>> parameter_memory(nn.Linear(100, 10).to(torch.bfloat16))
    2020
    """
    _refuse_lazy(module)
    return sum(storage.nbytes() for storage in _own_storages(module).values())


def activation_memory(
    module: nn.Module, inputs: torch.Tensor | Sequence[torch.Tensor], *, compute: bool = False
) -> int:
    """Count the most memory that the tensors of one forward pass take at the same time.

    The pass runs in evaluation mode without autograd. The inputs count from its beginning to its end and the outputs
    from where they are made; parameters and buffers do not count. Tensors that share a storage count once and in full,
    and a storage counts until the last reference to it goes. A call refers to its arguments, so what goes into a module
    lives until that module returns.

    An operator is seen as torch's dispatcher sees it. Memory that is not a tensor there is not counted: workspaces of
    convolutions and matrix products, copies that a kernel makes for itself, and what the allocator rounds up. Nor are
    the statistics that batch normalisation saves for training, which have another size on every device. A few composite
    operators avoid writing in place while they are watched, and count one tensor more than they take otherwise: so does
    a linear layer with a bias whose input is not contiguous.

    Without `compute` the pass runs on meta tensors, which have a shape and no content: nothing is computed, and the
    time goes to working out shapes, the same for a small picture as for a large batch. The number is that of every
    device, except where torch chooses operators by the device, as it does for recurrent layers and attention;
    `compute` then gives the number of the device where the network is.

    Parameters
    ----------
    module : nn.Module
        The network; a copy of it is run.
    inputs : Tensor or sequence of Tensor
        What the forward pass takes. Only shapes, dtypes and shared storages matter, unless `compute` is set.
    compute : bool, default=False
        Whether to run the pass for real, where the network and the inputs are. It is needed where the network's course
        depends on the numbers in its tensors.

    Returns
    -------
    int
        Peak [byte].

    Raises
    ------
    InvalidValueError
        If the inputs do not fit the network, a parameter has no shape yet, a tensor is not dense, or the network asks
        for a number in a meta tensor.
    MeasurementError
        If the network is computed on a GPU that has too little memory.

    Examples
    --------
    Input and output of 4000 byte each; in place, there is one tensor alone.

    >>> activation_memory(nn.ReLU(), torch.zeros(1, 1000))
    8000
    >>> activation_memory(nn.ReLU(inplace=True), torch.zeros(1, 1000))
    4000
    """
    given = _as_tuple(inputs)
    copied = _copy_for_inference(module)
    if compute:
        # In one call, so that tensors which share a storage go on sharing it.
        own = copy.deepcopy(tuple(tensor.detach() for tensor in given))
    else:
        copied, own = copied.to("meta"), _on_meta(given)
    watch = _StorageWatch(copied, own)
    # What the network makes itself belongs on meta too, even where it names no device.
    place = contextlib.nullcontext() if compute else torch.device("meta")
    # Not inference mode: it would hand composite operators to the watch whole and hide the tensors inside.
    with _explained(module, given), torch.no_grad(), place, watch:
        copied(*own)
    return watch.peak


def cuda_activation_memory(module: nn.Module, inputs: torch.Tensor | Sequence[torch.Tensor]) -> int:
    """Measure by how much one forward pass raises what CUDA's caching allocator holds for tensors.

    It is what `activation_memory` counts, and what the allocator and the kernels add: every tensor is rounded up to a
    multiple of 512 byte, and workspaces that live no longer than an operator are included. Workspaces that stay, such
    as that of cuBLAS, are not, because the pass runs once before it is measured. The statistics of the allocator's peak
    are reset.

    Parameters
    ----------
    module : nn.Module
        The network; a copy of it goes to the GPU.
    inputs : Tensor or sequence of Tensor
        What the forward pass takes; copies go to the GPU. The first one says which GPU, if it is on one.

    Returns
    -------
    int
        Peak of the pass, its inputs included, less what was allocated before [byte].

    Raises
    ------
    InvalidValueError
        If the inputs do not fit the network.
    MeasurementError
        If the GPU has too little memory.
    UnknownNameError
        If this machine has no GPU.
    """
    given = _as_tuple(inputs)
    device = resolve_device(str(given[0].device) if given[0].is_cuda else "cuda")
    with _explained(module, given), torch.inference_mode():
        copied = _copy_for_inference(module).to(device)
        # The first pass makes what stays: handles, workspaces, chosen algorithms.
        _run_on(device, copied, given)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        _run_on(device, copied, given)
        return torch.cuda.max_memory_allocated(device) - before


class _StorageWatch(TorchDispatchMode):
    """Follow which storages live while operators run, and remember the most that they took together.

    References to storages are those of C++: a storage's Python object may go and come back while the storage lives. A
    weak one keeps the address from being used again, so the address can stand for the storage. No storage has to say
    when it dies, because the sum only grows where an operator returns: there the dead are struck off.
    """

    #: Batch normalisation returns further tensors for the backward pass: empty ones on a CPU in evaluation mode, two
    #: numbers a channel on other devices. They go at once.
    _ONE_OUTPUT = frozenset({_ATEN.native_batch_norm.default})

    def __init__(self, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._uncounted = _own_storages(module)
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        self._see(inputs)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        outputs = func(*args, **kwargs)
        # Arguments too: what torch.tensor makes on meta is not seen before an operator reads it.
        self._see((args, tuple(kwargs.values()), outputs[:1] if func in self._ONE_OUTPUT else outputs))
        return outputs

    def _see(self, tensors: tuple[Any, ...]) -> None:
        self._live = {key: entry for key, entry in self._live.items() if not entry[0].expired()}
        for storage in map(_storage_of, tensors_in(tensors)):
            if storage._cdata not in self._uncounted:
                # Known ones too: an operator may have made the storage larger.
                self._live[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, sum(size for _, size in self._live.values()))


def _copy_for_inference(module: nn.Module) -> nn.Module:
    _refuse_lazy(module)
    return copy.deepcopy(module).eval().requires_grad_(False)


def _refuse_lazy(module: nn.Module) -> None:
    if any(is_lazy(tensor) for tensor in _own_tensors(module)):
        raise InvalidValueError(f"A parameter of {type(module).__name__} has no shape yet: run the network once.")


def _own_tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    return itertools.chain(module.parameters(), module.buffers())


def _own_storages(module: nn.Module) -> dict[int, torch.UntypedStorage]:
    """Map the addresses of the storages of a module's parameters and buffers to the storages."""
    return {storage._cdata: storage for storage in map(_storage_of, _own_tensors(module))}


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    if tensor.layout is not torch.strided:
        raise InvalidValueError(f"Memory can be counted of dense tensors alone. Got one of layout {tensor.layout}.")
    return tensor.untyped_storage()


def _as_tuple(inputs: Any) -> tuple[torch.Tensor, ...]:
    given = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    if not given or not all(isinstance(tensor, torch.Tensor) for tensor in given):
        raise InvalidValueError(f"The 'inputs' must be a tensor or a tuple of tensors. Got {type(inputs).__name__}.")
    return given


def _on_meta(tensors: Iterable[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Make tensors without content that lie in their storages, and share them, as the given ones do."""
    storages: dict[int, torch.UntypedStorage] = {}

    def follow(tensor: torch.Tensor) -> torch.Tensor:
        storage = _storage_of(tensor)
        own = storages.setdefault(storage._cdata, torch.UntypedStorage(storage.nbytes(), device="meta"))
        empty = torch.empty(0, dtype=tensor.dtype, device="meta")
        return empty.set_(own, tensor.storage_offset(), tensor.size(), tensor.stride())

    return tuple(follow(tensor) for tensor in tensors)


def _run_on(device: str, module: nn.Module, inputs: Iterable[torch.Tensor]) -> None:
    module(*(tensor.to(device, copy=True) for tensor in inputs))


@contextlib.contextmanager
def _explained(module: nn.Module, inputs: Sequence[torch.Tensor]) -> Iterator[None]:
    """Turn what a module raises when its inputs do not fit into one sentence."""
    try:
        yield
    except LatencyError:
        raise
    except torch.cuda.OutOfMemoryError as error:
        raise MeasurementError(f"The GPU has too little memory for {type(module).__name__}: {error}") from error
    # Not errors of torch alone: a module may unpack a shape or look up an index itself.
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in inputs)
        raise InvalidValueError(f"The inputs of shape {shapes} do not fit {type(module).__name__}: {error}") from error
