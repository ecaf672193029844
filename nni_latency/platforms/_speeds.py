"""`measure_speeds`: how much a device computes and moves per second, at most."""

from __future__ import annotations

import time
from collections.abc import Callable

from nni_latency.platforms._devices import resolve_device
from nni_latency.platforms._threads import torch_threads

#: Rows and columns of the matrices that are multiplied, on a processor and on a GPU.
_SIDE, _SIDE_ON_GPU = 1024, 4096

#: Numbers that are copied: 128 MiB, several times the largest caches.
_COPIED = 2**25

#: How long each is repeated [s].
_LONG = 0.3


def measure_speeds(device: str = "cpu", threads: int = 1) -> dict[str, float]:
    """Measure how many operations a device computes per second, and how many bytes it moves, as torch does it.

    Parameters
    ----------
    device : str, default="cpu"
        ``cpu``, ``cuda`` or ``cuda:N``.
    threads : int, default=1
        Threads of a processor.

    Returns
    -------
    dict
        ``peak_flops``: operations of the fastest product of two large matrices of single precision [FLOP/s].
        ``memory_bandwidth``: bytes read and written by the fastest copy of 128 MiB [byte/s].

    Raises
    ------
    UnknownNameError
        If there is no such device.

    Examples
    --------
    >>> sorted(measure_speeds())
    ['memory_bandwidth', 'peak_flops']
    """
    import torch

    where = resolve_device(device)
    on_gpu = where.startswith("cuda")
    side = _SIDE_ON_GPU if on_gpu else _SIDE

    def wait() -> None:
        if on_gpu:
            torch.cuda.synchronize(where)

    with torch_threads(threads), torch.inference_mode():
        factor, product = torch.ones(side, side, device=where), torch.empty(side, side, device=where)
        computed = 2 * side**3 / _fastest(lambda: torch.mm(factor, factor, out=product), wait)
        source = torch.ones(_COPIED, device=where)
        copy = torch.empty_like(source)
        moved = 2 * source.nbytes / _fastest(lambda: copy.copy_(source), wait)
    return {"peak_flops": float(f"{computed:.3g}"), "memory_bandwidth": float(f"{moved:.3g}")}


def _fastest(run: Callable[[], object], wait: Callable[[], object]) -> float:
    """Return the time of the fastest run [s]; the first one, which touches new memory, does not count."""
    run()
    wait()
    end, fastest = time.perf_counter() + _LONG, float("inf")
    while time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        wait()
        fastest = min(fastest, time.perf_counter() - begin)
    return fastest
