# SPDX-License-Identifier: Apache-2.0
"""Kernels in networks of several, for runtimes that tell what every node took."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nni_latency.kernels import Kernel, Prior, Sampling, find_types
from nni_latency.kernels._kernel_schedule import _BLOCK, KernelSchedule
from nni_latency.kernels._visits import MOST, MOST_MACS, alike
from nni_latency.measurement import Failure, Protocol, Record, quantile

KERNELS = [Kernel.of("relu_block", HW=size, CIN=8) for size in range(4, 34)]
LARGE = [Kernel.of("conv_relu", HW=56, CIN=64, COUT=width, KERNEL_SIZE=3, STRIDES=1) for width in (128, 256)]


def _schedule(kernels=KERNELS):
    kinds = find_types(dict.fromkeys(kernel.kind for kernel in kernels))
    return KernelSchedule(kinds, Protocol(), Sampling(), Prior(), mode="parallel", kernels=kernels)


def _next(schedule):
    next(schedule.sessions(), None)
    return schedule.next_round()


def _records(chains, number, seconds=lambda _key: 1e-3, *, slow=lambda: 1.0, process=0):
    return [
        Record(
            1e-3,
            [[factor * seconds(part.key) for part in chain]] * 3,
            {"latency": [0.1]},
            [part.key for part in chain],
            number,
            process,
        )
        for chain, factor in ((chain, slow()) for chain in chains)
    ]


def _kernels_of(chain):
    return [part.key for part in chain]


def _work(kernel):
    return find_types([kernel.kind])[0].work(kernel)


def test_every_kernel_is_once_in_a_round_and_networks_are_small():
    chains = _next(_schedule())
    assert Counter(key for chain in chains for key in _kernels_of(chain)) == Counter(kernel.key for kernel in KERNELS)
    assert max(len(chain) for chain in chains) == MOST
    assert {part.kind for chain in chains for part in chain} == {"kernel"}


def test_kernels_run_among_others_of_their_size():
    chains = _next(_schedule(LARGE + KERNELS))
    sizes = [[key.count("conv_relu") for key in _kernels_of(chain)] for chain in chains]
    assert [sum(size) for size in sizes if any(size)] == [2]
    small = Kernel.of("relu_block", HW=4, CIN=8).key
    (company,) = [_kernels_of(chain) for chain in chains if small in _kernels_of(chain)]
    assert not {kernel.key for kernel in LARGE} & set(company)


@given(st.permutations(LARGE + KERNELS), st.integers(1, 32), st.integers(0, 99))
def test_networks_hold_every_kernel_once_and_none_is_by_itself(order, count, seed):
    kernels = order[:count]
    networks = alike(kernels, _work, random.Random(seed))
    assert Counter(kernel for network in networks for kernel in network) == Counter(kernels)
    assert min(map(len, networks)) >= min(4, len(kernels))
    assert max(map(len, networks)) <= MOST + 3
    for network in networks:
        macs = sorted(_work(kernel).macs for kernel in network)
        assert len(network) <= 7 or sum(macs[:-1]) < MOST_MACS


def test_visits_of_a_slow_machine_are_brought_to_its_usual_speed():
    # Of about one size, so that each of them meets all others.
    kernels = [Kernel.of("relu_block", HW=16, CIN=width) for width in range(64, 94)]
    schedule, generator = _schedule(kernels), random.Random(7)
    times = {kernel.key: 1e-6 * (1 + place) for place, kernel in enumerate(kernels)}
    for process in (0, 1):
        for number in range(3):
            records = _records(
                _next(schedule),
                3 * process + number,
                lambda key: times.get(key, 5e-5),
                slow=lambda: generator.choice([1.0, 1.0, 1.0, 1.7, 2.5]),
                process=process,
            )
            schedule.observe(records)
    found = {kernel.key: summary.value for kernel, summary in schedule.summaries().items()}
    ratios = [found[key] / times[key] for key in times]
    assert max(ratios) / min(ratios) < 1.001


def test_all_batches_are_planned_with_the_processes_in_which_they_return():
    schedule = _schedule()
    next(schedule.sessions())
    sessions = [[part.key for chain in chains for part in chain] for chains in schedule.planned()]
    # Twelve visits, three in a process.
    assert list(map(sorted, sessions)) == [sorted(kernel.key for kernel in KERNELS)] * 4
    large = _schedule(LARGE)
    next(large.sessions())
    assert {part.key for chains in large.planned() for chain in chains for part in chain} == {
        kernel.key for kernel in LARGE
    }


def test_kernel_comes_back_in_another_process():
    schedule = _schedule()
    sessions = schedule.sessions()
    for process in (0, 1):
        assert next(sessions) == process
        for number in range(3):
            schedule.observe(_records(schedule.next_round(), 3 * process + number, process=process))
        assert not schedule.next_round()
    assert not list(sessions)
    assert schedule.unsettled == 0


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
    schedule.observe(_records(_next(schedule), 0, lambda key: 1e-6 * (1 + keys.index(key)) if key in keys else 1e-5))
    found = {kernel.key: summary.value for kernel, summary in schedule.summaries().items()}
    assert found == pytest.approx({key: 1e-6 * (1 + place) for place, key in enumerate(keys)})


def test_kernels_add_up_to_what_their_network_takes():
    """Each is slow now and then, in other runs than the others: their lower quartiles would add up to a tenth less."""
    generator = random.Random(7)
    schedule, kernels = _schedule(KERNELS[:16]), KERNELS[:16]
    wholes = []
    for number in range(3):
        runs = [[1e-5 * generator.choice((1.0, 1.0, 1.3)) for _ in kernels] for _ in range(60)]
        (chain,) = _next(schedule) if not number else schedule.next_round()
        schedule.observe([Record(1e-3, runs, {"latency": [0.1]}, [part.key for part in chain], number, 0)])
        wholes.append(quantile([sum(run) for run in runs], 0.25))
    found = sum(summary.value for summary in schedule.summaries().values())
    assert found == pytest.approx(quantile(wholes, 0.25), rel=0.02)
    assert found > 1.05 * 1e-5 * len(kernels)


def test_kernel_that_fails_leaves_the_others():
    schedule = _schedule()
    chains = _next(schedule)
    schedule.fail(Failure(KERNELS[3].key, "it does not run"))
    left = {part.key for chain in schedule.next_round() for part in chain}
    assert left == {part.key for chain in chains for part in chain} - {KERNELS[3].key}


def test_kernel_that_failed_after_some_rounds_is_left_out_after_an_interruption_too():
    schedule = _schedule()
    schedule.replay(_records(_next(_schedule()), 0), [Failure(KERNELS[3].key, "it does not run")])
    assert set(schedule.summaries()) == set(KERNELS) - {KERNELS[3]}


def test_kernels_that_the_runtime_did_not_show_are_not_learned_from():
    """Shorter than its clock tells, or part of another one; of a kind that costs nothing at all, all of them count."""
    schedule = _schedule()
    hidden = KERNELS[:3]
    schedule.samples = {kernel: [(1e-9 if kernel in hidden else 1e-6, 0)] for kernel in KERNELS}
    assert schedule.learned_from == set(KERNELS) - set(hidden)
    schedule.samples = {kernel: [(1e-9, 0)] for kernel in KERNELS}
    assert schedule.learned_from == set(KERNELS)


def test_kernels_that_were_visited_too_rarely_are_not_learned_from():
    schedule = _schedule()
    schedule.samples = {kernel: [(1e-6 * kernel["HW"], 0)] for kernel in KERNELS}
    often = KERNELS[:20]
    schedule._visits.update({kernel: schedule._fewest if kernel in often else 3 for kernel in KERNELS})
    assert schedule.learned_from == set(often)
    # Better those that are poorly known than hardly any.
    schedule._visits.update(dict.fromkeys(often[:10], -1))
    assert schedule.learned_from == set(KERNELS)


def test_kernels_that_were_begun_come_before_new_ones():
    kernels = [Kernel.of("relu_block", HW=8, CIN=count) for count in range(1, _BLOCK + 101)]
    schedule = _schedule(kernels)
    first = kernels[:_BLOCK]
    schedule._visits.update({kernel: 3 - place % 2 for place, kernel in enumerate(first)})
    assert schedule._wanting()[:_BLOCK] == [*first[1::2], *first[::2]]
    schedule._visits.update(dict.fromkeys(first, schedule._most))
    assert schedule._wanting() == kernels[_BLOCK:]
