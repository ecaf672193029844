"""From visits to latencies: the speed of the machine by networks that are in every batch, and what is left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nni_latency.measurement import NetworkSummary, Protocol, Record, quantile, summarise_visits

#: How far in time a visit of an anchor tells the speed of the machine [s], and how much of it visits beyond that tell.
_REACH, _FAR_REACH, _FAR = 15.0, 300.0, 0.02

#: How far one visit of an anchor is believed, as the logarithm of a ratio.
_MOST = 0.4


class Speed:
    """How slow the machine was at every moment, from networks that were visited again and again.

    Parameters
    ----------
    visits : mapping of str to sequence of Record
        By anchor, its visits.
    """

    def __init__(self, visits: Mapping[str, Sequence[Record]]) -> None:
        moments: list[float] = []
        logs: list[float] = []
        for records in visits.values():
            times = [quantile(record.whole, 0.5) for record in records]
            usual = quantile(times, 0.5) if times else 0.0
            moments += [record.at for record in records]
            logs += [min(_MOST, max(-_MOST, math.log(seconds / usual))) for seconds in times]
        self._moments, self._logs = np.array(moments), np.array(logs)

    def factor(self, moment: float) -> float:
        """Return how much longer than usual a run took at a moment [s since 1970]; 1 where nothing tells it."""
        if not len(self._moments):
            return 1.0
        gaps = np.abs(self._moments - moment)
        # A visit of an anchor says little of itself, so its own moment is no exception.
        weights = np.exp(-gaps / _REACH) + _FAR * np.exp(-gaps / _FAR_REACH) + 1e-9
        return math.exp(float(weights @ self._logs / weights.sum()))


def summarise_network(records: Sequence[Record], speed: Speed, protocol: Protocol) -> NetworkSummary:
    """Return what visits say of a network, at the usual speed of the machine.

    Parameters
    ----------
    records : sequence of Record
        Its visits, at least one.
    speed : Speed
        How slow the machine was.
    protocol : Protocol
        Which statistic.
    """
    visits = [[seconds / speed.factor(record.at) for seconds in record.whole] for record in records]
    return summarise_visits(visits, protocol)


def part_times(records: Sequence[Record], value: float) -> tuple[float, ...]:
    """Return what every part of a network took [s]; none where nobody knows.

    They add up to the network, or to as much less as they do in the visits that timed them: what lies outside of the
    nodes of a runtime belongs to no part. The time of a part is the mean of the middle half of its runs, because
    runtimes tell whole microseconds: a median would be one of these.

    Parameters
    ----------
    records : sequence of Record
        Its visits.
    value : float
        Its latency [s].
    """
    runs: list[ArrayLike] = [run for record in records for run in record.parts]
    if len({len(run) for record in records for run in record.parts}) != 1:
        # Never asked, or the network's control flow depends on data.
        return ()
    ordered = np.sort(np.array(runs, dtype=np.float64), axis=0)
    outside = -(-len(ordered) // 4) if len(ordered) > 2 else 0
    taken: NDArray[np.float64] = ordered[outside : len(ordered) - outside].mean(axis=0)
    whole = float(np.median([seconds for record in records if record.parts for seconds in record.whole]))
    return tuple((taken * value / max(whole, taken.sum())).tolist())
