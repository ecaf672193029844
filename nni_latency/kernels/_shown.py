"""Which kernels a runtime has shown at all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from nni_latency.kernels._kernel import Kernel
from nni_latency.measurement import quantile

#: What takes less was not shown by a runtime, most of which tell whole microseconds [s].
_SHOWN = 1e-8


def shown(times: Mapping[Kernel, float]) -> dict[Kernel, float]:
    """Leave out kernels that take no time where others of their kind do.

    They are shorter than the runtime's clock tells, or part of another kernel. Of a kind that costs nothing, such as
    dividing a tensor into views, all are kept.

    Parameters
    ----------
    times : mapping of Kernel to float
        What kernels take [s].

    Returns
    -------
    dict of Kernel to float
        In the same order.
    """
    by_kind = defaultdict[str, list[float]](list)
    for kernel, seconds in times.items():
        by_kind[kernel.kind].append(seconds)
    usual = {kind: quantile(found, 0.5) for kind, found in by_kind.items()}
    return {kernel: seconds for kernel, seconds in times.items() if seconds >= _SHOWN or usual[kernel.kind] < _SHOWN}
