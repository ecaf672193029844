"""`BatchedNetworks`: many networks in batches that one process can hold, each visited in several rounds."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from nni_latency.datasets._summaries import widths_of
from nni_latency.errors import MeasurementError
from nni_latency.measurement import Chain, Failure, Protocol, Record, Schedule, Subject

#: Networks that one process holds at most, and the weights of all of them.
_BATCH, _MOST_WEIGHTS = 24, 2**28

#: How often a network is visited at least and at most.
_FEWEST_VISITS, _MOST_VISITS = 3, 12

#: A network whose visits took this long has no more of them than the fewest [s].
_LONG = 4.0

#: The visit from which on the parts of a network are timed, since in the first one it is cold, and in how many.
_FIRST_DIVIDED, _MOST_DIVIDED = 1, 3


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
