"""`NetworkSchedule`: whole networks, each visited once in every round, until all are known well enough."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from nni_latency.errors import MeasurementError
from nni_latency.measurement._measurement import Measurement
from nni_latency.measurement._protocol import Protocol
from nni_latency.measurement._record import Failure, Record
from nni_latency.measurement._rounds import balanced_round
from nni_latency.measurement._schedule import FEWEST_ROUNDS, Schedule
from nni_latency.measurement._subject import Chain, Subject
from nni_latency.measurement._trimming import fewest_samples
from nni_latency.units import number_of


class NetworkSchedule(Schedule):
    """Rounds of whole networks, in an order that is drawn anew for each.

    Parameters
    ----------
    networks : sequence of Subject
        What to measure.
    protocol, isolated
        As for `Schedule`.
    always : sequence of Subject, default=()
        Networks that are visited in every round of every session, whether or not they are known: they tell how fast
        the machine is.
    divided : bool, default=False
        Divide the networks among the sessions, so that each process holds few of them.
    calls : bool, default=False
        Time the calls of torch functions inside the networks.
    n_calls : mapping of str to int, optional
        How many calls every network makes; one that makes another number is recorded as failed.
    kind : str, optional
        What the campaign is called in a store.
    """

    def __init__(
        self,
        networks: Sequence[Subject],
        protocol: Protocol,
        *,
        isolated: bool = True,
        always: Sequence[Subject] = (),
        divided: bool = False,
        calls: bool = False,
        n_calls: Mapping[str, int] | None = None,
        kind: str = "",
    ) -> None:
        super().__init__(protocol, isolated=isolated)
        self.kind = kind or type(self).kind
        #: What was measured, by round.
        self.observed: list[Sequence[Record]] = []
        self.calls = calls
        self.networks = {subject.key: subject for subject in (*always, *networks)}
        self._always = {subject.key for subject in always}
        self._wanted = {subject.key for subject in networks}
        self._n_calls = dict(n_calls or {})
        self._divided = divided
        self._samples: dict[str, list[float]] = {}
        self._visits: Counter[str] = Counter()
        self._settled: set[str] = set()
        self._members: list[str] = list(self.networks)
        # By session, which networks it holds: what they are when it is resumed is what they were when it began.
        self._drawn: dict[int, list[str]] = {}

    @property
    def measured(self) -> list[str]:
        """Keys of the networks that were visited, in their order."""
        return [key for key in self.networks if key in self._samples]

    @property
    def unsettled(self) -> int:
        """How many networks of the session under way are not known well enough yet."""
        return len([key for key in self._members if key in self._wanted and not self._is_done(key)])

    def sessions(self) -> Iterator[int]:
        """Yield the sessions, each with its own share of the networks where they are divided."""
        for process in super().sessions():
            self._members = self._drawn.get(process) or self._draw_members()
            if self._members:
                yield process
        if not self.measured:
            reason = next(iter(self.failures.values()), "none was tried")
            raise MeasurementError(f"No network can be run: {reason}.")

    @property
    def fewest(self) -> int:
        """How many rounds the session under way takes at least."""
        return FEWEST_ROUNDS if self._divided else super().fewest

    def _draw_members(self) -> list[str]:
        able = [key for key in self.networks if key not in self.failures]
        if not self._divided:
            return able
        wanting = [key for key in able if self._visits[key] < FEWEST_ROUNDS]
        wanting = wanting or [key for key in able if not self._is_done(key)]
        share = math.ceil(len(wanting) / (self.processes - self.process))
        mine = set(sorted(wanting, key=lambda key: self._visits[key])[:share])
        return [key for key in able if key in mine | self._always] if mine else []

    def next_round(self) -> list[Chain]:
        """Return the networks of this session in a new order; none once all are known or its budget is spent."""
        members = [key for key in self._members if key not in self.failures]
        if not members or self.over:
            return []
        order = balanced_round([len(members)], self.next, self.protocol.seed)
        return [(self.networks[members[place]],) for (place,) in order]

    def observe(self, records: Sequence[Record]) -> None:
        """Take in the records of one round."""
        self.process = records[0].process
        if self.process not in self._drawn:
            self._drawn[self.process] = self._draw_members()
        super().observe(records)
        self.observed.append(records)
        for record in records:
            (key,) = record.subjects
            self._samples.setdefault(key, []).extend(record.whole)
            self._visits[key] += 1
            self._settled.discard(key)

    def fail(self, failure: Failure) -> None:
        """Leave a network out."""
        super().fail(failure)
        self._samples.pop(failure.subject, None)

    def objection(self, record: Record) -> str:
        """Say whether a network ran otherwise than it was traced."""
        expected = self._n_calls.get(record.subjects[0])
        found = next((len(run) for run in record.parts if expected not in (None, len(run))), None)
        if found is None:
            return ""
        return (
            f"it made {number_of(found, 'call')} when it ran and {expected} when it was traced: its control flow "
            "depends on data"
        )

    def _is_done(self, key: str) -> bool:
        """Whether a network is known well enough; worked out once a round."""
        if key not in self._settled and is_narrow(self._samples.get(key, []), self.protocol):
            self._settled.add(key)
        return key in self._settled


def is_narrow(samples: Sequence[float], protocol: Protocol) -> bool:
    """Say whether samples are enough, and their interval as narrow as the protocol asks for."""
    if not protocol.half_width or len(samples) < fewest_samples(protocol.statistic, protocol.confidence):
        return False
    return Measurement(tuple(samples), protocol).summary.spread <= protocol.half_width
