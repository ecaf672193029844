"""Many networks measured in batches that one process can hold, and latencies from the visits of each."""

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
    Failure,
    NetworkSummary,
    Protocol,
    Record,
    Schedule,
    Subject,
    quantile,
    summarise_visits,
)
from nni_latency.tables import Locations, locate

#: Networks that one process holds at most, and the weights of all of them.
_BATCH, _MOST_WEIGHTS = 24, 2**28

#: How often a network is visited at least and at most.
_FEWEST_VISITS, _MOST_VISITS = 3, 12

#: A network whose visits took this long has no more of them than the fewest [s].
_LONG = 4.0

#: The visit from which on the parts of a network are timed, since in the first one it is cold, and in how many.
_FIRST_DIVIDED, _MOST_DIVIDED = 1, 3

Visits = Mapping[str, Sequence[Record]]


class BatchedNetworks(Schedule):
    """Batches of networks, each batch in a process of its own, and rounds over each batch.

    A few networks are in every batch: they tell how fast the machine was meanwhile. Small networks are run more often
    than large ones, and none more often than it takes to know it. A campaign holds what other calls have measured of
    the same platform, too; it counts for the networks that are asked for.

    Parameters
    ----------
    networks : sequence of Subject
        What is measured, in the order in which it is.
    protocol : Protocol
        How; the budget ends it.
    anchors : sequence of Subject
        Networks that are in every batch.
    weights : mapping of str to int
        By key, how many numbers the weights of a network are.
    calls : bool, default=False
        Say in some visits of every network what its parts took.
    """

    kind = "data-set"
    warm_up = 0
    counts_preparation = True
    skips_failures = True
    what = "networks"

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
        # Always the same, so that a campaign that is resumed goes on in the batch in which it was interrupted.
        self._batches = _divided(list(self.networks), weights, sum(weights[key] for key in self.anchors))
        #: By network, its visits in order; those of networks that nobody asked for, too.
        self.visits: dict[str, list[Record]] = {}
        self._durations: defaultdict[str, float] = defaultdict(float)
        self._divided: Counter[str] = Counter()
        self._batch: list[str] = []
        #: Half the widths of intervals, as shares, by what was known after the last round of a batch.
        self._widths: dict[str, float] = {}

    @property
    def is_spent(self) -> bool:
        """Whether the budget is spent."""
        return self.spent >= self.protocol.time_budget

    @property
    def share(self) -> float:
        """Share of the visits that every network has at least, or of the budget."""
        left = [key for key in self.networks if key not in self.failures]
        done = sum(min(_FEWEST_VISITS, len(self.visits.get(key, ()))) for key in left)
        # Visits beyond the fewest are not known before.
        return max(0.99 * done / max(1, _FEWEST_VISITS * len(left)), self.spent / self.protocol.time_budget)

    @property
    def unsettled(self) -> int:
        """How many networks are to be visited again."""
        return len(self._wanting())

    def sessions(self) -> Iterator[int]:
        """Yield a session for every batch, until the budget is spent or all networks are known."""
        for number, batch in enumerate(self._batches):
            self._batch, self.process = batch, number
            if not self.is_spent and any(map(self._wants, batch)):
                yield number
        self._check()

    def _check(self) -> None:
        """Raise `MeasurementError` if nothing could be measured at all."""
        if not any(key in self.visits for key in self.networks):
            reason = next((self.failures[key] for key in self.networks if key in self.failures), "there was no time")
            raise MeasurementError(f"None of the networks can be run: {reason}.")

    def next_round(self) -> list[Chain]:
        """Return the networks of the batch that are not known well enough, and the anchors, in a new order."""
        wanting = [key for key in self._batch if self._wants(key)]
        if self.is_spent or not wanting:
            return []
        anchors = [key for key in self.anchors if key not in self.failures]
        keys = list(dict.fromkeys([*anchors, *wanting]))
        random.Random(f"{self.protocol.seed}/{self.next}").shuffle(keys)
        return [(self.networks[key],) for key in keys]

    def sees_calls(self, keys: Sequence[str]) -> bool:
        """Whether the parts of a network are timed in its next visit."""
        (key,) = keys
        return self.calls and self._divided[key] < _MOST_DIVIDED and len(self.visits.get(key, ())) >= _FIRST_DIVIDED

    def observe(self, records: Sequence[Record]) -> None:
        """Take in the records of one round."""
        super().observe(records)
        for record in records:
            (key,) = record.subjects
            self.visits.setdefault(key, []).append(record)
            self._durations[key] += record.duration
            self._divided[key] += bool(record.parts)
        together = {key: self.visits[key] for record in records for key in record.subjects}
        self._widths |= widths_of(together, self.protocol)

    def fail(self, failure: Failure) -> None:
        """Leave a network out; what was measured of it is not used."""
        super().fail(failure)
        self.visits.pop(failure.subject, None)

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
    """Divide networks into batches that fit into the memory of one process, beside so many weights."""
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
