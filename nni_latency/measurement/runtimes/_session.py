# SPDX-License-Identifier: Apache-2.0
"""Base of the runtimes of this machine: platform, inputs, and settings of the process while they compute."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from nni_latency.errors import InvalidValueError
from nni_latency.measurement._timing import Clock, PerfClock
from nni_latency.measurement.runtimes._base import Runtime
from nni_latency.operators import Inputs
from nni_latency.platforms import Conditions, Platform, read_conditions, torch_threads

#: Largest number of threads; no machine has as many processors.
_MOST_THREADS = 1024

# Parameters of glibc's mallopt(3), and their largest values.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4

_NEVER, _LARGEST = 2**31 - 1, 32 * 2**20

_SETTINGS = {_MMAP_THRESHOLD: _LARGEST, _TRIM_THRESHOLD: _NEVER, _MMAP_MAX: 0}


class LocalRuntime(Runtime):
    """Base of the runtimes that compute in this process, on its processors or a GPU."""

    device: str
    threads: int
    precision: str

    @cached_property
    def platform(self) -> Platform:
        """Platform of its measurements; read once."""
        found = Platform.current(self.device, runtime=self.name, precision=self.precision, threads=self.threads)
        facts = {**found.facts, **self._facts()}
        if self._processors:
            facts["cpu_affinity"] = ",".join(map(str, self._processors))
        return replace(found, facts=facts)

    @cached_property
    def clock(self) -> Clock:
        """The clock of the operating system: a run ends when the call returns."""
        return PerfClock()

    def inputs(self, like: Sequence[int] | Inputs) -> Any:
        """Make normally distributed numbers, always the same; or convert tensors, except the values of integer ones."""
        if isinstance(like, Inputs):
            taken = tuple(self._take(_with_values(tensor)) for tensor in like.tensors)
            return taken[0] if _is_plain(like) else taken
        return self._take(_random(like))

    def conditions(self) -> Conditions:
        """Return the conditions of the device at this moment."""
        return read_conditions(self.device)

    def _facts(self) -> Mapping[str, Any]:
        """Return further facts of the platform."""
        return {}

    @abstractmethod
    def _take(self, tensor: torch.Tensor) -> Any:
        """Convert a tensor to an input of networks."""

    @cached_property
    def _processors(self) -> tuple[int, ...]:
        return choose_processors(self.threads)


def _is_plain(inputs: Inputs) -> bool:
    return len(inputs.args) == 1 and not inputs.kwargs and isinstance(inputs.args[0], torch.Tensor)


def _random(shape: Sequence[int]) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _with_values(tensor: torch.Tensor) -> torch.Tensor:
    """Replace a tensor on torch's meta device by one with values: random numbers, or zeros for integers."""
    if not tensor.is_meta:
        return tensor.detach().clone()
    if not tensor.is_floating_point():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    return _random(tensor.shape).to(tensor.dtype)


def check_threads(threads: int) -> int:
    """Return a number of threads; raise `InvalidValueError` if it is out of range."""
    if not 1 <= threads <= _MOST_THREADS:
        raise InvalidValueError(f"The 'threads' of a runtime must be from 1 to {_MOST_THREADS}. Got {threads!r}.")
    return threads


@contextlib.contextmanager
def computing(threads: int, processors: Sequence[int], *, keeps_memory: bool = True) -> Iterator[None]:
    """Set the number of threads and disable autograd; restore both afterwards.

    The calling thread, and those that it starts, are pinned to as many processors as there are threads, if the
    operating system permits it: a thread that moves finds cold caches. Denormal numbers are flushed to zero:
    activations of untrained networks may become that small, unlike those of trained ones, and a layer then takes up to
    40 % longer. Freed memory is kept for the rest of the process (see `keep_freed_memory`).
    """
    if keeps_memory:
        keep_freed_memory()
    with pinned(tuple(processors)), torch.inference_mode(), torch_threads(threads):
        yield


def choose_processors(count: int) -> tuple[int, ...]:
    """Choose processors among those that the calling thread may use.

    Parameters
    ----------
    count : int
        Number of processors.

    Returns
    -------
    tuple of int
        The last `count` of them in ascending order, or all if there are fewer; the first processors serve most
        interrupts. Empty if the operating system does not let a process choose.
    """
    if not hasattr(os, "sched_setaffinity"):
        return ()
    usable = sorted(os.sched_getaffinity(0))
    try:
        # Some sandboxes refuse the call.
        os.sched_setaffinity(0, usable)
    except OSError:
        return ()
    return tuple(usable[-count:])


@contextlib.contextmanager
def pinned(processors: Sequence[int]) -> Iterator[None]:
    """Pin the calling thread, and the threads that it starts, to processors if there are any; restore all afterwards.

    Linux pins every thread separately, and a new thread inherits from the one that started it. Other existing threads
    are not affected.
    """
    if not processors:
        yield
        return
    before, others = os.sched_getaffinity(0), _threads()
    os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        for thread in {0} | (_threads() - others):
            # It may have ended since it was listed.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, before)


def _threads() -> set[int]:
    try:
        return {int(name) for name in os.listdir("/proc/self/task")}  # noqa: PTH208
    except OSError:
        return set()


@functools.cache
def keep_freed_memory() -> bool:
    """Make the C library keep freed memory for later allocations, for the rest of this process.

    By default glibc may return the buffers of activations to the operating system after every run and request them
    again in the next, with page faults. Whether it does depends on all earlier allocations of the process: the same
    layer of the same network took 1.8 ms in one process and 3.8 ms in another. Buffers of more than 32 MiB are mapped
    separately at any threshold, unless that is disabled: a block with such buffers took 70 ms in one process and 250 ms
    in another, and takes 50 ms in all of them if they are kept.

    Returns
    -------
    bool
        Whether it was successful; False if the C library is not glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    done = [mallopt(name, value) for name, value in _SETTINGS.items()]
    return all(done)
