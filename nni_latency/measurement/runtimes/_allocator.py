"""The allocator of the processor's memory, which can cost more than the operators do."""

from __future__ import annotations

import ctypes
import functools

# Parameters of glibc's mallopt(3), and the highest values that it takes.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_NEVER, _LARGEST = 2**31 - 1, 32 * 2**20
_SETTINGS = {_MMAP_THRESHOLD: _LARGEST, _TRIM_THRESHOLD: _NEVER, _MMAP_MAX: 0}


@functools.cache
def keep_freed_memory() -> bool:
    """Ask the C library to keep freed memory for the next allocation, from now on, in this process.

    By default glibc may hand the buffers of activations back to the operating system after every run and ask for them
    again in the next. Each page then comes anew, and whether that happens depends on what else the process has ever
    allocated: the same layer of the same network took 1.8 ms in one process and 3.8 ms in another. Buffers of more than
    32 MiB would come anew whatever the threshold is, so none may be mapped by itself: a block with such buffers took
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
