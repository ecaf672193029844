"""`torch_threads`: how many threads of this process torch computes with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the threads of torch, and treat numbers too small for the processor's fast path as zero.

    Numbers of that size make a layer take up to 40 % longer, and an epoch of a search several times as long: untrained
    weights shrink activations to it, and candidates that a mask hardly uses get such gradients.

    Parameters
    ----------
    count : int
        Threads within the context; those of before are set again behind it.

    Examples
    --------
    >>> import torch
    >>> with torch_threads(1):
    ...     torch.get_num_threads()
    1
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)
