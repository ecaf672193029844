"""From visits to latencies: how fast the machine was at each visit is taken out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nni_latency.measurement import NetworkSummary, Protocol, Record, quantile, summarise_visits
from nni_latency.tables import Locations, locate

Visits = Mapping[str, Sequence[Record]]


def summarise_networks(visits: Visits, protocol: Protocol) -> dict[str, NetworkSummary]:
    """Return what visits say of networks, at the usual speed of the machine.

    How fast it was at a visit is told by the visits just before and after, of other networks, and by the reference
    operator: on a busy host it changes from one second to the next. The visit itself does not count, so that no network
    decides its own speed. The latency is the Huber location of what is left, as for the networks of a validation.

    Parameters
    ----------
    visits : mapping of str to sequence of Record
        By network, its visits, at least one; of several networks that were measured in turn.
    protocol : Protocol
        Which statistic stands for the runs of a visit, and the confidence of the intervals.
    """
    placed = _placed(visits)
    found = _located(visits, placed, protocol)
    runs: dict[str, list[list[float]]] = {key: [] for key in visits}
    for (key, record), speed in zip(placed, np.exp(found.speed).tolist(), strict=True):
        runs[key].append([seconds / speed for seconds in record.whole])
    summaries = {}
    for (key, mine), value, error in zip(runs.items(), found.values, found.errors, strict=True):
        pooled = summarise_visits(mine, protocol)
        # Runs of one visit have much in common, so they say too little of how well the network is known.
        width = max(_width(error, protocol), pooled.spread)
        low, middle, high = np.exp([value - width, value, value + width]).tolist()
        summaries[key] = replace(pooled, value=middle, low=low, high=high)
    return summaries


def widths_of(visits: Visits, protocol: Protocol) -> dict[str, float]:
    """Return half the widths of the intervals of networks as shares of their latencies, by how visits differ."""
    found = _located(visits, _placed(visits), protocol)
    return {key: _width(float(error), protocol) for key, error in zip(visits, found.errors, strict=True)}


def _placed(visits: Visits) -> list[tuple[str, Record]]:
    """Return all visits in the order in which they were."""
    found = [(key, record) for key, records in visits.items() for record in records]
    return sorted(found, key=lambda item: item[1].at)


def _located(visits: Visits, placed: Sequence[tuple[str, Record]], protocol: Protocol) -> Locations:
    numbers = {key: number for number, key in enumerate(visits)}
    return locate(
        np.log([quantile(record.whole, protocol.statistic) for _, record in placed]),
        np.log([record.reference for _, record in placed]),
        np.array([numbers[key] for key, _ in placed]),
        len(numbers),
        protocol.statistic,
        np.array([record.at for _, record in placed]),
    )


def _width(error: float, protocol: Protocol) -> float:
    return NormalDist().inv_cdf((1 + protocol.confidence) / 2) * error


def part_times(records: Sequence[Record], value: float) -> tuple[float, ...]:
    """Return what every part of a network took [s]; none where nobody knows.

    They add up to the network, or to as much less as they do in the visits that timed them: what lies outside of the
    nodes of a runtime belongs to no part. The time of a part is the mean of the middle half of its runs, because
    runtimes tell whole microseconds: a median would be one of these. Of several visits, the middle half of what each of
    them says counts as a share of the network, since the machine was not as fast in all of them.

    Parameters
    ----------
    records : sequence of Record
        Its visits.
    value : float
        Its latency [s].
    """
    divided = [record for record in records if record.parts]
    if len({len(run) for record in divided for run in record.parts}) != 1:
        # Never asked, or the network's control flow depends on data.
        return ()
    shares = _middle([_shares(record) for record in divided])
    return tuple((shares * (value / max(1.0, shares.sum()))).tolist())


def _shares(record: Record) -> NDArray[np.float64]:
    """Return what every part took in a visit, as a share of the network."""
    taken = _middle(record.parts)
    shares: NDArray[np.float64] = taken / max(float(np.median(record.whole)), taken.sum())
    return shares


def _middle(rows: Sequence[ArrayLike]) -> NDArray[np.float64]:
    """Return the mean of the middle half of every column."""
    ordered = np.sort(np.array(rows, dtype=np.float64), axis=0)
    outside = -(-len(ordered) // 4) if len(ordered) > 2 else 0
    found: NDArray[np.float64] = ordered[outside : len(ordered) - outside].mean(axis=0)
    return found
