# SPDX-License-Identifier: Apache-2.0
"""What runtimes of this machine share: platform, inputs, and the processor's settings while they compute."""

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

#: Threads that a process starts at most; no machine has as many processors.
_MOST_THREADS = 1024

# Parameters of glibc's mallopt(3), and the highest values that it takes.
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
        """Where its numbers are taken; read once."""
        found = Platform.current(self.device, runtime=self.name, precision=self.precision, threads=self.threads)
        facts = {**found.facts, **self._facts()}
        if self._processors:
            facts["cpu_affinity"] = ",".join(map(str, self._processors))
        return replace(found, facts=facts)

    @cached_property
    def clock(self) -> Clock:
        """The processor's clock: a run is over when the call returns."""
        return PerfClock()

    def inputs(self, like: Sequence[int] | Inputs) -> Any:
        """Make normally distributed numbers, the same ones every time; or take tensors, whole numbers as they are."""
        if isinstance(like, Inputs):
            taken = tuple(self._take(_with_values(tensor)) for tensor in like.tensors)
            return taken[0] if _is_plain(like) else taken
        return self._take(_random(like))

    def conditions(self) -> Conditions:
        """Say what the device is like at this moment."""
        return read_conditions(self.device)

    def _facts(self) -> Mapping[str, Any]:
        """Return further facts of the platform."""
        return {}

    @abstractmethod
    def _take(self, tensor: torch.Tensor) -> Any:
        """Bring an input into the form in which a network takes it."""

    @cached_property
    def _processors(self) -> tuple[int, ...]:
        return choose_processors(self.threads)


def _is_plain(inputs: Inputs) -> bool:
    return len(inputs.args) == 1 and not inputs.kwargs and isinstance(inputs.args[0], torch.Tensor)


def _random(shape: Sequence[int]) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _with_values(tensor: torch.Tensor) -> torch.Tensor:
    """Give a tensor of torch's meta device values: random numbers, or zeros where they are whole."""
    if not tensor.is_meta:
        return tensor.detach().clone()
    if not tensor.is_floating_point():
        return torch.zeros(tensor.shape, dtype=tensor.dtype)
    return _random(tensor.shape).to(tensor.dtype)


def check_threads(threads: int) -> int:
    """Return a number of threads; `InvalidValueError` if it is out of range."""
    if not 1 <= threads <= _MOST_THREADS:
        raise InvalidValueError(f"The 'threads' of a runtime must be from 1 to {_MOST_THREADS}. Got {threads!r}.")
    return threads


@contextlib.contextmanager
def computing(threads: int, processors: Sequence[int], *, keeps_memory: bool = True) -> Iterator[None]:
    """Set the number of threads, switch off autograd; put all of it back afterwards.

    The calling thread, and those that it starts, stay on as many processors as there are threads, where the operating
    system allows it: a thread that is moved finds its caches cold. Numbers too small for the processor's fast path
    count as zero: untrained weights may shrink activations to that size, which trained ones do not, and a layer then
    takes up to 40 % longer. Freed memory is kept, for the rest of the process (see `keep_freed_memory`).
    """
    if keeps_memory:
        keep_freed_memory()
    with pinned(tuple(processors)), torch.inference_mode(), torch_threads(threads):
        yield


def choose_processors(count: int) -> tuple[int, ...]:
    """Choose processors out of those that the calling thread may use.

    Parameters
    ----------
    count : int
        How many are wanted.

    Returns
    -------
    tuple of int
        The last `count` of them, in ascending order, or all where fewer are there. The first processors serve most
        interrupts. Empty where the operating system does not let a process choose.
    """
    if not hasattr(os, "sched_setaffinity"):
        return ()
    usable = sorted(os.sched_getaffinity(0))
    try:
        # Some sandboxes know the call and refuse it.
        os.sched_setaffinity(0, usable)
    except OSError:
        return ()
    return tuple(usable[-count:])


@contextlib.contextmanager
def pinned(processors: Sequence[int]) -> Iterator[None]:
    """Keep the calling thread on the processors, and the threads that it starts; put all of them back afterwards.

    Linux binds each thread on its own, and a new one inherits from the thread that started it. Threads that are there
    already stay where they are.

    Parameters
    ----------
    processors : sequence of int
        Where it may run; with none nothing happens.
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
    """Ask the C library to keep freed memory for the next allocation, from now on, in this process.

    By default glibc may hand the buffers of activations back to the operating system after every run and ask for them
    again in the next. Each page then comes anew, and whether that happens depends on what else the process has ever
    allocated: the same layer of the same network took 1.8 ms in one process and 3.8 ms in another. Buffers of more than
    32 MiB would come anew whatever the threshold is, so none may be mapped separately: a block with such buffers took
    70 ms in one process and 250 ms in another, and takes 50 ms in all of them when they are kept.

    Returns
    -------
    bool
        Whether it does; False where the C library is not glibc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    done = [mallopt(name, value) for name, value in _SETTINGS.items()]
    return all(done)
