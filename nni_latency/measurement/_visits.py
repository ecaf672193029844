"""Whole networks that nothing else is known of, visited in turns by several processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from nni_latency.measurement._bench import Bench, Build, Visit, WorkerDiedError
from nni_latency.measurement._isolation import open_bench
from nni_latency.measurement._measurement import Measurement
from nni_latency.measurement._protocol import Protocol
from nni_latency.measurement._rounds import balanced_round
from nni_latency.measurement._trimming import fewest_samples, windows_agree
from nni_latency.measurement.runtimes import Runtime

#: A warm-up ends when a round takes as long as the one before, within this share, and after so many rounds at most.
_WARM, _LONGEST_WARMUP = 0.05, 10

#: Share of its time budget that a process warms up at most, besides it.
_MOST_OF_BUDGET = 0.25


@dataclass(frozen=True)
class NetworkVisits:
    """All that one process measured of one network.

    Parameters
    ----------
    references : tuple of float
        Time of the reference operator before every visit [s].
    parts : tuple of tuple of float
        Time of every part, or call of a torch function [s], by timed run; see `Visit`.
    whole : tuple of float
        Time of the whole network [s], by timed run without marks.
    """

    references: tuple[float, ...]
    parts: tuple[tuple[float, ...], ...]
    whole: tuple[float, ...]


def visit_networks(
    columns: Sequence[Sequence[Build]],
    networks: Sequence[Sequence[int]],
    input_shape: Sequence[int],
    runtime: Runtime,
    protocol: Protocol,
    *,
    calls: bool = False,
) -> list[list[NetworkVisits]]:
    """Measure networks in rounds, in which each is visited once, in an order that is drawn anew every time.

    The protocol's `processes` share its `rounds` and its `time_budget`; each goes on for a round at least, and ends
    early once every network's interval is as narrow as `half_width`. Rounds until the times have settled do not count.

    Parameters
    ----------
    columns, input_shape, runtime, protocol, calls
        As for `LocalBench`.
    networks : sequence of sequence of int
        The networks, an index per column each.

    Returns
    -------
    list of list of NetworkVisits
        By process, by network.

    Raises
    ------
    CandidateError
        If a network cannot be loaded or run; the message is the reason.
    """
    # Where a bench cannot be in a process of its own, a new one would find the same memory.
    count = protocol.processes if runtime.portable else 1
    rounds, budget = max(1, protocol.rounds // count), protocol.time_budget / count
    found = []
    for process in range(count):
        with open_bench(columns, input_shape, runtime, protocol, calls=calls) as bench:
            _admit(bench, networks)
            _warm_up(bench, networks, budget * _MOST_OF_BUDGET)
            found.append(_take_turns(bench, networks, protocol, process, rounds, budget))
    return found


def _admit(bench: Bench, networks: Sequence[Sequence[int]]) -> None:
    for layer, choice in sorted({place for network in networks for place in enumerate(network)}):
        try:
            bench.admit(layer, choice)
        except WorkerDiedError:
            # Somebody may have killed it; what crashes by itself does so again.
            bench.admit(layer, choice)


def _warm_up(bench: Bench, networks: Sequence[Sequence[int]], longest: float) -> None:
    totals: list[float] = []
    end = time.perf_counter() + longest
    while len(totals) < _LONGEST_WARMUP and not windows_agree(totals, 1, _WARM):
        if totals and time.perf_counter() >= end:
            return
        totals.append(sum(sum(bench.visit(network).whole) for network in networks))


def _take_turns(
    bench: Bench,
    networks: Sequence[Sequence[int]],
    protocol: Protocol,
    process: int,
    rounds: int,
    budget: float,
) -> list[NetworkVisits]:
    visits: list[list[Visit]] = [[] for _ in networks]
    begin = time.perf_counter()
    for index in range(rounds):
        for (turn,) in balanced_round([len(networks)], index, protocol.seed + process):
            visits[turn].append(bench.visit(networks[turn]))
        if time.perf_counter() - begin >= budget or all(_narrow(each, protocol) for each in visits):
            break
    return [
        NetworkVisits(
            tuple(visit.reference for visit in each),
            tuple(tuple(run) for visit in each for run in visit.parts),
            tuple(seconds for visit in each for seconds in visit.whole),
        )
        for each in visits
    ]


def _narrow(visits: list[Visit], protocol: Protocol) -> bool:
    """Whether a network is known well enough."""
    runs = tuple(seconds for visit in visits for seconds in visit.whole)
    enough = len(runs) >= fewest_samples(protocol.statistic, protocol.confidence)
    return enough and Measurement(runs, protocol).summary.spread <= protocol.half_width
