# SPDX-License-Identifier: Apache-2.0
"""Measurement of many networks in batches that fit into one process, and latencies from their visits."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nni_latency.errors import MeasurementError
from nni_latency.measurement import (
    Chain,
    NetworkSummary,
    Protocol,
    Record,
    Schedule,
    Subject,
    quantile,
    summarise_visits,
)
from nni_latency.tables import Locations, locate

#: Largest number of networks in a process, and of their weights.
_BATCH, _MOST_WEIGHTS = 24, 2**28

#: Smallest and largest number of visits of a network.
_FEWEST_VISITS, _MOST_VISITS = 3, 12

#: Total time of visits after which a network gets no more than the minimum [s].
_LONG = 4.0

#: First visit in which the parts of a network are timed (the first of all is cold), and number of such visits.
_FIRST_DIVIDED, _MOST_DIVIDED = 1, 3

Visits = Mapping[str, Sequence[Record]]


class BatchedNetworks(Schedule):
    """Batches of networks, each measured in a separate process in several rounds.

    A few anchor networks are part of every batch and measure the speed of the machine. Small networks are run more
    often than large ones, and none more often than its precision requires. A campaign also holds earlier measurements
    of the same platform, which count for the requested networks. Rounds of other networks alone do not count towards
    the budget.

    Parameters
    ----------
    networks : sequence of Subject
        Networks to measure, in order.
    protocol : Protocol
        Measurement protocol; its budget ends the campaign.
    anchors : sequence of Subject
        Networks in every batch.
    weights : mapping of str to int
        Number of weights by key of the network.
    calls : bool, default=False
        Whether to time the parts of every network in some visits.
    """

    kind = "data-set"
    warm_up = 0
    counts_preparation = True
    skips_failures = True

    def __init__(
        self,
        networks: Sequence[Subject],
        protocol: Protocol,
        *,
        anchors: Sequence[Subject],
        weights: Mapping[str, int],
        calls: bool = False,
    ) -> None:
        super().__init__(protocol, isolated=False)
        self.calls = calls
        self.networks = {subject.key: subject for subject in (*networks, *anchors)}
        self.anchors = [subject.key for subject in anchors]
        # Deterministic, so that a resumed campaign continues in the interrupted batch.
        self._batches = _divided(list(self.networks), weights, sum(weights[key] for key in self.anchors))
        #: Visits of each network in order, including networks that were not requested.
        self.visits: dict[str, list[Record]] = {}
        self._durations: defaultdict[str, float] = defaultdict(float)
        self._divided: Counter[str] = Counter()
        self._batch: list[str] = []
        #: Relative half-widths of the intervals after the last round of a batch.
        self._widths: dict[str, float] = {}

    @property
    def is_spent(self) -> bool:
        """Whether the budget is spent."""
        return self.spent >= self.protocol.time_budget

    @property
    def share(self) -> float:
        """Completed share of the minimum visits, or of the budget."""
        left = [key for key in self.networks if key not in self.failures]
        done = sum(min(_FEWEST_VISITS, len(self.visits.get(key, ()))) for key in left)
        # The number of visits beyond the minimum is unknown in advance.
        return max(0.99 * done / max(1, _FEWEST_VISITS * len(left)), self.spent / self.protocol.time_budget)

    @property
    def unsettled(self) -> int:
        """Number of networks to visit again."""
        return len(self._wanting())

    def sessions(self) -> Iterator[int]:
        """Yield a session for every batch, until the budget is spent or all networks are precise enough."""
        for number, batch in enumerate(self._batches):
            self._batch, self.process = batch, number
            if not self.is_spent and any(map(self._wants, batch)):
                yield number
        self._check()

    def _check(self) -> None:
        """Raise `MeasurementError` if no network could be measured."""
        if not any(key in self.visits for key in self.networks):
            reason = next((self.failures[key] for key in self.networks if key in self.failures), "there was no time")
            raise MeasurementError(f"None of the networks can be run: {reason}.")

    def planned(self) -> list[list[Chain]]:
        """Return the networks of all batches."""
        return [chains for batch in self._batches[self.process :] if (chains := self._chains(batch))]

    def next_round(self) -> list[Chain]:
        """Return the networks of the batch that need more visits, and the anchors, in a new random order."""
        chains = [] if self.is_spent else self._chains(self._batch)
        random.Random(f"{self.protocol.seed}/{self.next}").shuffle(chains)
        return chains

    def _chains(self, batch: Sequence[str]) -> list[Chain]:
        """Return the networks of a batch that need more visits, and the anchors."""
        wanting = [key for key in batch if self._wants(key)]
        anchors = [key for key in self.anchors if wanting and key not in self.failures]
        return [(self.networks[key],) for key in dict.fromkeys([*anchors, *wanting])]

    def sees_calls(self, keys: Sequence[str]) -> bool:
        """Whether the parts of a network are timed in its next visit."""
        (key,) = keys
        return self.calls and self._divided[key] < _MOST_DIVIDED and len(self.visits.get(key, ())) >= _FIRST_DIVIDED

    def observe(self, records: Sequence[Record]) -> None:
        """Add the records of one round."""
        keys = dict.fromkeys(key for record in records for key in record.subjects)
        super().observe(records)
        for record in records:
            (key,) = record.subjects
            self.visits.setdefault(key, []).append(record)
            self._durations[key] += record.duration
            self._divided[key] += bool(record.parts)
        self._widths |= widths_of({key: self.visits[key] for key in keys}, self.protocol)

    def counts(self, records: Sequence[Record]) -> bool:
        """Whether a round counts towards the budget: not where it visits other networks alone, besides anchors."""
        keys = {key for record in records for key in record.subjects}
        return keys <= self.networks.keys() or not keys.intersection(self.networks) <= set(self.anchors)

    def discard(self, subject: str) -> None:
        """Discard the visits of a network that failed."""
        self.visits.pop(subject, None)

    def _wanting(self) -> list[str]:
        return [key for key in self.networks if self._wants(key)]

    def _wants(self, key: str) -> bool:
        visits = self.visits.get(key, ())
        if key in self.failures or len(visits) >= _MOST_VISITS:
            return False
        if len(visits) < _FEWEST_VISITS or (self.calls and not self._divided[key]):
            return True
        return self._durations[key] < _LONG and self._widths[key] > self.protocol.half_width


def _divided(keys: Sequence[str], weights: Mapping[str, int], beside: int) -> list[list[str]]:
    """Divide networks into batches that fit into the memory of one process besides `beside` weights."""
    batches: list[list[str]] = []
    held = 0
    for key in keys:
        held += weights[key]
        if not batches or held > _MOST_WEIGHTS or len(batches[-1]) == _BATCH:
            batches.append([])
            held = beside + weights[key]
        batches[-1].append(key)
    return batches


def summarise_networks(visits: Visits, protocol: Protocol) -> dict[str, NetworkSummary]:
    """Return the latencies of networks from their visits, at the usual speed of the machine.

    The speed at a visit is measured by the neighbouring visits of other networks and by the reference operator, because
    on a busy host it changes within seconds. The visit itself is excluded, so that no network influences its own
    normalisation. The latency is the Huber location of the normalised visits, as for the networks of a validation.

    Parameters
    ----------
    visits : mapping of str to sequence of Record
        Visits of each network, at least one; the networks were measured in turn.
    protocol : Protocol
        Supplies the statistic of the runs of a visit, and the confidence level of the intervals.
    """
    placed = _placed(visits)
    found = _located(visits, placed, protocol)
    runs: dict[str, list[list[float]]] = {key: [] for key in visits}
    for (key, record), speed in zip(placed, np.exp(found.speed).tolist(), strict=True):
        runs[key].append([seconds / speed for seconds in record.whole])
    summaries = {}
    for (key, mine), value, error in zip(runs.items(), found.values, found.errors, strict=True):
        pooled = summarise_visits(mine, protocol)
        # Runs of one visit are correlated, so their spread underestimates the uncertainty.
        width = max(_width(error, protocol), pooled.spread)
        low, middle, high = np.exp([value - width, value, value + width]).tolist()
        summaries[key] = replace(pooled, value=middle, low=low, high=high)
    return summaries


def widths_of(visits: Visits, protocol: Protocol) -> dict[str, float]:
    """Return the relative half-widths of the intervals of networks from the spread of their visits."""
    found = _located(visits, _placed(visits), protocol)
    return {key: _width(float(error), protocol) for key, error in zip(visits, found.errors, strict=True)}


def _placed(visits: Visits) -> list[tuple[str, Record]]:
    """Return all visits in chronological order."""
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
    """Return the time of every part of a network [s]; empty if unknown.

    The times add up to the latency, or to the same fraction of it as in the visits that timed them: time outside the
    nodes of a runtime belongs to no part. The time of a part is the mean of the middle half of its runs, because
    runtimes report whole microseconds and a median would be quantised. Several visits are combined by the mean of the
    middle half of the parts' shares of the network, since the speed of the machine varies between visits.

    Parameters
    ----------
    records : sequence of Record
        Visits of the network.
    value : float
        Latency of the network [s].
    """
    divided = [record for record in records if record.parts]
    if len({len(run) for record in divided for run in record.parts}) != 1:
        # Parts were not timed, or the control flow of the network depends on data.
        return ()
    shares = _middle([_shares(record) for record in divided])
    return tuple((shares * (value / max(1.0, shares.sum()))).tolist())


def _shares(record: Record) -> NDArray[np.float64]:
    """Return the time of every part in a visit as a share of the network."""
    taken = _middle(record.parts)
    shares: NDArray[np.float64] = taken / max(float(np.median(record.whole)), taken.sum())
    return shares


def _middle(rows: Sequence[ArrayLike]) -> NDArray[np.float64]:
    """Return the mean of the middle half of every column."""
    ordered = np.sort(np.array(rows, dtype=np.float64), axis=0)
    outside = -(-len(ordered) // 4) if len(ordered) > 2 else 0
    found: NDArray[np.float64] = ordered[outside : len(ordered) - outside].mean(axis=0)
    return found
