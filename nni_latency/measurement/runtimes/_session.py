"""What holds while a runtime computes on processors of this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from nni_latency.errors import InvalidValueError
from nni_latency.measurement.runtimes._affinity import pinned
from nni_latency.measurement.runtimes._allocator import keep_freed_memory
from nni_latency.platforms import torch_threads

#: Threads that a process starts at most; no machine has as many processors.
_MOST_THREADS = 1024


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
