# SPDX-License-Identifier: Apache-2.0
"""Memory of a network: of its parameters, and of the tensors of one forward pass."""

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
    """Count the memory of a module's parameters and buffers, at their dtypes.

    Parameters
    ----------
    module : nn.Module
        The network.

    Returns
    -------
    int
        Size of their storages [byte]; a shared storage counts once, and in full.

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
    """Count the peak memory of the tensors of one forward pass.

    The pass runs in evaluation mode without autograd. The inputs count from its beginning to its end and the outputs
    from where they are made; parameters and buffers do not count. Tensors that share a storage count once and in full,
    and a storage counts until the last reference to it goes. A call refers to its arguments, so what goes into a module
    lives until that module returns.

    Operators are those of torch's dispatcher. Memory that is not a tensor there is not counted: workspaces of
    convolutions and matrix products, internal copies of kernels, and rounding by the allocator. Nor are the statistics
    that batch normalisation saves for training, whose size depends on the device. A few composite operators do not
    write in place while they are observed, and count one tensor too many: for example, a linear layer with a bias whose
    input is not contiguous.

    Without `compute` the pass runs on meta tensors, which have a shape and no content. Nothing is computed, so it takes
    as long for a large batch as for a small picture. The result is the same on every device, except where torch
    chooses operators by the device, as for recurrent layers and attention; `compute` then gives the result of the
    device of the network.

    Parameters
    ----------
    module : nn.Module
        The network; a copy of it is run.
    inputs : Tensor or sequence of Tensor
        Inputs of the forward pass. Only shapes, dtypes and shared storages matter, unless `compute` is set.
    compute : bool, default=False
        Whether to compute the pass, on the device of the network and the inputs. This is necessary if the control flow
        of the network depends on the values of its tensors.

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
    Input and output of 4000 byte each; in place, there is only one tensor.

    >>> activation_memory(nn.ReLU(), torch.zeros(1, 1000))
    8000
    >>> activation_memory(nn.ReLU(inplace=True), torch.zeros(1, 1000))
    4000
    """
    given = _as_tuple(inputs)
    copied = _copy_for_inference(module)
    if compute:
        # In one call, so that shared storages stay shared.
        own = copy.deepcopy(tuple(tensor.detach() for tensor in given))
    else:
        copied, own = copied.to("meta"), _on_meta(given)
    watch = _StorageWatch(copied, own)
    # Tensors that the network creates without naming a device belong on meta, too.
    place = contextlib.nullcontext() if compute else torch.device("meta")
    # Not inference mode: it would dispatch composite operators as a whole, which hides the tensors inside.
    with _explained(module, given), torch.no_grad(), place, watch:
        copied(*own)
    return watch.peak


def cuda_activation_memory(module: nn.Module, inputs: torch.Tensor | Sequence[torch.Tensor]) -> int:
    """Measure by how much one forward pass raises the memory that CUDA's caching allocator holds for tensors.

    In addition to what `activation_memory` counts, every tensor is rounded up to a multiple of 512 byte, and workspaces
    of single operators are included. Permanent workspaces, such as that of cuBLAS, are not, because the pass runs once
    before it is measured. The peak statistics of the allocator are reset.

    Parameters
    ----------
    module : nn.Module
        The network; a copy of it goes to the GPU.
    inputs : Tensor or sequence of Tensor
        Inputs of the forward pass; copies go to the GPU: to that of the first input, if it is on one.

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
        # The first pass creates permanent state: handles, workspaces, chosen algorithms.
        _run_on(device, copied, given)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        _run_on(device, copied, given)
        return torch.cuda.max_memory_allocated(device) - before


class _StorageWatch(TorchDispatchMode):
    """Track the live storages while operators run, and their peak size.

    References to storages are those of C++, because the Python object of a storage may be freed and created again while
    the storage lives. A weak one keeps the address from being reused, so the address identifies the storage. Dead
    storages are removed when an operator returns, the only time when the sum can grow.
    """

    #: Batch normalisation returns further tensors for the backward pass: empty ones on a CPU in evaluation mode, two
    #: numbers per channel on other devices. They are freed immediately.
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
        # Arguments as well: a result of torch.tensor on meta is not dispatched before an operator reads it.
        self._see((args, tuple(kwargs.values()), outputs[:1] if func in self._ONE_OUTPUT else outputs))
        return outputs

    def _see(self, tensors: tuple[Any, ...]) -> None:
        self._live = {key: entry for key, entry in self._live.items() if not entry[0].expired()}
        for storage in map(_storage_of, tensors_in(tensors)):
            if storage._cdata not in self._uncounted:
                # Known ones as well: an operator may have enlarged the storage.
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
    """Return tensors without content that have the same layout and shared storages as the given ones."""
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
    """Convert the exceptions of a module whose inputs do not match to one sentence."""
    try:
        yield
    except LatencyError:
        raise
    except torch.cuda.OutOfMemoryError as error:
        raise MeasurementError(f"The GPU has too little memory for {type(module).__name__}: {error}") from error
    # Not only errors of torch: a module may unpack a shape or look up an index itself.
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in inputs)
        raise InvalidValueError(f"The inputs of shape {shapes} do not fit {type(module).__name__}: {error}") from error
