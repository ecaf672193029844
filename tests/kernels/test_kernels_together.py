"""Kernels in networks of several, for runtimes that tell what every node took."""

from __future__ import annotations

from collections import Counter

import pytest

from nni_latency.kernels import Kernel, Prior, Sampling, find_types
from nni_latency.kernels._kernel_schedule import _MACS_TOGETHER, _TOGETHER, KernelSchedule
from nni_latency.measurement import Failure, Protocol, Record

KERNELS = [Kernel.of("relu_block", HW=size, CIN=8) for size in range(4, 34)]
LARGE = [Kernel.of("conv_relu", HW=56, CIN=64, COUT=width, KERNEL_SIZE=3, STRIDES=1) for width in (128, 256)]


def _schedule(kernels=KERNELS):
    kinds = find_types(dict.fromkeys(kernel.kind for kernel in kernels))
    return KernelSchedule(
        kinds, Protocol(), Sampling(), Prior(), inside=True, together=True, adds_constant=False, kernels=kernels
    )


def _next(schedule):
    next(schedule.sessions(), None)
    return schedule.next_round()


def _records(chains, number, seconds=lambda _key: 1e-3):
    return [
        Record(
            1e-3, [[seconds(part.key) for part in chain]] * 3, {"latency": [0.1]}, [part.key for part in chain], number
        )
        for chain in chains
    ]


def test_every_kernel_is_once_in_a_round_and_networks_are_small():
    chains = _next(_schedule())
    assert Counter(part.key for chain in chains for part in chain) == Counter(kernel.key for kernel in KERNELS)
    assert max(map(len, chains)) == _TOGETHER
    assert {part.kind for chain in chains for part in chain} == {"kernel"}


def test_network_that_computes_much_has_few_kernels():
    schedule = _schedule(LARGE + KERNELS)
    heavy = {kernel.key: schedule.kinds[kernel.kind].work(kernel).macs for kernel in LARGE}
    for chain in _next(schedule):
        first, *others = [heavy.get(part.key, 0) for part in chain]
        assert sum(others) <= max(0, _MACS_TOGETHER - first)


def test_neighbours_change_from_round_to_round():
    schedule = _schedule()
    first = _next(schedule)
    schedule.observe(_records(first, 0))
    assert [[part.key for part in chain] for chain in schedule.next_round()] != [
        [part.key for part in chain] for chain in first
    ]


def test_kernel_takes_what_its_place_in_the_run_took():
    schedule = _schedule()
    keys = [kernel.key for kernel in KERNELS]
    schedule.observe(_records(_next(schedule), 0, lambda key: 1e-6 * (1 + keys.index(key))))
    found = {kernel.key: summary.value for kernel, summary in schedule.summaries().items()}
    assert found == pytest.approx({key: 1e-6 * (1 + place) for place, key in enumerate(keys)})


def test_kernel_that_fails_leaves_the_others():
    schedule = _schedule()
    chains = _next(schedule)
    schedule.fail(Failure(KERNELS[3].key, "it does not run"))
    left = {part.key for chain in schedule.next_round() for part in chain}
    assert left == {part.key for chain in chains for part in chain} - {KERNELS[3].key}
