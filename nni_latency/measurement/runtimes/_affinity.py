"""On which processors a thread may run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence


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
