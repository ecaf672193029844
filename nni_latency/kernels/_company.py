"""Which kernels run together in one network: those of about one size, as in the stages of a network."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from nni_latency.kernels._kernel import Kernel
from nni_latency.operators import Features

#: Kernels of a network at least and at most, and the multiply-adds from which it takes no more.
_FEWEST, MOST, MOST_MACS = 4, 16, 4 * 10**8

#: A plain machine, whose times say which kernels are alike: multiply-adds and bytes a second.
_MACS_A_SECOND, _BYTES_A_SECOND = 3e10, 1e10

#: The shortest time that is told from others [s].
_SHORTEST = 1e-6

#: How far kernels move among others from round to round, as a logarithm of their size.
_JITTER = 0.7


def alike(
    kernels: Sequence[Kernel], work: Callable[[Kernel], Features], generator: random.Random
) -> list[list[Kernel]]:
    """Divide kernels into networks of kernels of about one size, other ones every time.

    A kernel of a few microseconds takes up to twice as long behind one of a millisecond as among others like it, which
    leave caches and page tables to it. In a network, the kernels before and behind it are about as large as it is.

    Parameters
    ----------
    kernels : sequence of Kernel
        What is measured.
    work : callable
        Says what a kernel computes and moves.
    generator : random.Random
        Moves kernels a little, and puts the networks in order.

    Returns
    -------
    list of list of Kernel
        Networks in random order: what changes with time is not taken for what changes with size.
    """
    places = {kernel: math.log(_size(work(kernel))) + _JITTER * generator.uniform(-1, 1) for kernel in kernels}
    networks: list[list[Kernel]] = []
    macs = 0
    for kernel in sorted(places, key=places.__getitem__):
        if not networks or len(networks[-1]) == MOST or (macs >= MOST_MACS and len(networks[-1]) >= _FEWEST):
            networks.append([])
            macs = 0
        networks[-1].append(kernel)
        macs += work(kernel).macs
    if len(networks) > 1 and len(networks[-1]) < _FEWEST:
        few = networks.pop()
        networks[-1] += few
    for network in networks:
        generator.shuffle(network)
    generator.shuffle(networks)
    return networks


def _size(work: Features) -> float:
    """Return what a kernel takes on a plain machine [s]."""
    numbers = work.inputs + work.outputs + work.params
    return max(_SHORTEST, work.macs / _MACS_A_SECOND + 4 * numbers / _BYTES_A_SECOND)
