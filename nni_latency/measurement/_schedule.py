# SPDX-License-Identifier: Apache-2.0
"""Schedules, which decide what is measured next; schedules of whole networks; and balanced rounds."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from nni_latency.errors import MeasurementError
from nni_latency.measurement._record import Failure, Record
from nni_latency.measurement._subject import Chain, Subject
from nni_latency.measurement._timing import Measurement, Protocol, fewest_samples
from nni_latency.units import number_of

#: Most rounds of a warm-up.
LONGEST_WARMUP = 10

#: Least measuring time of each of several processes [s].
LEAST_SHARE = 5.0

#: Fewest rounds of each of several processes, if the budget allows them.
FEWEST_ROUNDS = 5

#: Calls are timed in one of so many visits of a network.
_VISITS_PER_CALLS = 4


@dataclass(frozen=True)
class Progress:
    """Progress of a campaign.

    Parameters
    ----------
    rounds : int
        Rounds measured so far, those of earlier runs included.
    spent : float
        Time spent measuring so far [s].
    share : float
        Share of the budget spent so far, in [0, 1]; measuring may end before all is spent.
    resumed : int
        Rounds that earlier runs measured.
    unsettled : int
        Number of subjects whose interval is not narrow enough yet.
    """

    rounds: int
    spent: float
    share: float
    resumed: int
    unsettled: int = 0

    @property
    def remaining(self) -> float:
        """Longest remaining time [s], if rounds continue to take as long."""
        return self.spent * (1 - self.share) / self.share if self.share else float("inf")


class Schedule(ABC):
    """Decides what a campaign measures next, given its measurements so far.

    A campaign first calls `replay` with the records and failures of earlier runs. In every session, which has a bench
    of its own, it then calls `next_round` until that is empty, and `observe` and `fail` after each round. The same
    records must lead to the same rounds, so that resumed and uninterrupted campaigns end alike.

    Parameters
    ----------
    protocol : Protocol
        Measuring protocol.
    isolated : bool, default=True
        Whether every session has a separate process; if not, there is one session.
    """

    #: Kind of its campaigns in a store.
    kind: str = "networks"

    #: Whether the calls of torch functions inside networks are timed.
    calls: bool = False

    #: Most warm-up rounds of a session, which end when two of them take the same time.
    warm_up: int = LONGEST_WARMUP

    #: Share of the budget after which a warm-up ends at the latest.
    warm_up_share: float = 1.0

    #: Whether the budget includes the time that subjects take to load.
    counts_preparation: bool = False

    #: Whether a subject that the runtime refuses is recorded as failed; if not, the campaign ends.
    skips_failures: bool = False

    #: Number of times that new networks were planned.
    iteration: int = 0

    #: What a round consists of, for messages.
    what: str = "networks"

    def __init__(self, protocol: Protocol, *, isolated: bool = True) -> None:
        self.protocol = protocol
        # It is not worthwhile to start a process that measures for a shorter time.
        worthwhile = max(1, int(protocol.time_budget / LEAST_SHARE))
        self.processes = min(protocol.processes, worthwhile) if isolated else 1
        #: Number of calls of every network whose calls are timed; a network that makes another number fails.
        self.n_calls: Mapping[str, int] = {}
        self.failures: dict[str, str] = {}
        self.rounds, self.spent, self.next = 0, 0.0, 0
        self.rounds_in: Counter[int] = Counter()
        #: Number of the current session.
        self.process = 0

    @property
    def share(self) -> float:
        """Share of the budget spent so far; 1 or more once all is spent."""
        return max(self.rounds / self.protocol.rounds, self.spent / self.protocol.time_budget)

    @property
    def end(self) -> float:
        """Share of the budget at which the current session ends."""
        return (self.process + 1) / self.processes

    @property
    def unsettled(self) -> int:
        """Number of subjects that need more samples."""
        return 0

    @property
    def fewest(self) -> int:
        """Fewest rounds of the current session: the mean of the previous sessions."""
        if self.processes == 1:
            return 0
        before = sum(self.rounds_in[process] for process in range(self.process))
        return max(FEWEST_ROUNDS, before // max(1, self.process))

    @property
    def over(self) -> bool:
        """Whether the current session has measured enough, or spent its share of the budget."""
        return self.share >= self.end or (self.rounds_in[self.process] >= self.fewest and not self.unsettled)

    def sessions(self) -> Iterator[int]:
        """Yield the numbers of the sessions to open: by default the processes share the budget."""
        for process in range(self.processes):
            self.process = process
            if self.share < self.end:
                yield process

    @abstractmethod
    def next_round(self) -> Sequence[Chain]:
        """Return the networks to visit next, in order; empty if the session is over."""

    def planned(self) -> Iterable[Sequence[Chain]]:
        """Return the networks of the current session and of each later one, until `iteration` changes.

        By default they are those of the next round. There may be fewer sessions, with fewer networks each.
        """
        return [self.next_round()] * (self.processes - self.process)

    def observe(self, records: Sequence[Record]) -> None:
        """Add the records of one round."""
        self.next = records[0].round + 1
        if self.counts(records):
            self.rounds += 1
            self.rounds_in[records[0].process] += 1
            self.spent += sum(record.duration for record in records)

    def counts(self, records: Sequence[Record]) -> bool:
        """Whether a round counts towards the budget: by default every one."""
        return True

    def replay(self, records: Sequence[Record], failures: Sequence[Failure]) -> None:
        """Add all records and failures of earlier runs."""
        for failure in failures:
            self.fail(failure)
        for _, group in groupby(records, key=lambda record: record.round):
            self.observe(list(group))
        for failure in failures:
            self.discard(failure.subject)

    def fail(self, failure: Failure) -> None:
        """Exclude a subject that cannot be measured from further rounds.

        Raises
        ------
        MeasurementError
            If the campaign cannot continue without it.
        """
        self.failures[failure.subject] = failure.reason
        self.discard(failure.subject)

    def discard(self, subject: str) -> None:
        """Discard the measurements of a subject that failed; by default they are kept."""
        return

    def sees_calls(self, keys: Sequence[str]) -> bool:
        """Return whether the next visit of a network times its calls, if the schedule does so at all."""
        return self.calls

    def validation_error(self, record: Record) -> str:
        """Return why a visit must not be used: the network deviated from its trace; empty if it did not."""
        expected = self.n_calls.get(record.subjects[0])
        found = next((len(run) for run in record.parts if expected not in (None, len(run))), None)
        if found is None:
            return ""
        return (
            f"it made {number_of(found, 'call')} when it ran and {expected} when it was traced: its control flow "
            "depends on data"
        )


class NetworkSchedule(Schedule):
    """Rounds of whole networks, each round in a new random order.

    Parameters
    ----------
    networks : sequence of Subject or of tuple of Subject
        Networks to measure; or chains such as that of `cold_chain`, of which the last subject is measured.
    protocol, isolated
        As for `Schedule`.
    always : sequence of Subject, default=()
        Networks that are visited in every round of every session, to measure the machine's speed.
    divided : bool, default=False
        Whether to divide the networks among the sessions, so that each process holds few of them.
    calls : bool, default=False
        Whether to time the calls of torch functions inside the networks.
    n_calls : mapping of str to int, optional
        Number of calls of every network; a network that makes another number is recorded as failed.
    kind : str, optional
        Kind of the campaign in a store.
    """

    def __init__(
        self,
        networks: Sequence[Subject | Chain],
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
        #: Records by round.
        self.observed: list[Sequence[Record]] = []
        self.calls = calls
        chains = [(item,) if isinstance(item, Subject) else item for item in networks]
        self.networks = {chain[-1].key: chain for chain in (*((subject,) for subject in always), *chains)}
        self._always = {subject.key for subject in always}
        self._wanted = {chain[-1].key for chain in chains}
        self.n_calls = dict(n_calls or {})
        self._divided = divided
        self._samples: dict[str, list[float]] = {}
        self._visits: Counter[str] = Counter()
        self._narrow: set[str] = set()
        self._members: list[str] = list(self.networks)
        # Networks by session: a resumed session has those with which it began.
        self._drawn: dict[int, list[str]] = {}

    @property
    def measured(self) -> list[str]:
        """Keys of the networks that were visited, in order."""
        return [key for key in self.networks if key in self._samples and key not in self.failures]

    @property
    def unsettled(self) -> int:
        """Number of networks of the current session that need more samples."""
        left = [key for key in self._members if key in self._wanted and key not in self.failures]
        return len([key for key in left if not self._is_done(key)])

    def sessions(self) -> Iterator[int]:
        """Yield the sessions, each with its own share of the networks if these are divided."""
        for process in super().sessions():
            self._members = self._drawn.get(process) or self._draw_members()
            if self._members:
                yield process
        if self._wanted.isdisjoint(self.measured):
            reason = next((why for key, why in self.failures.items() if key in self._wanted), "none was tried")
            raise MeasurementError(f"No network can be run: {reason}.")

    @property
    def fewest(self) -> int:
        """Fewest rounds of the current session."""
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

    def planned(self) -> list[list[Chain]]:
        """Return the networks of all sessions; if they are divided among these, as if there were one session."""
        able = [chain for key, chain in self.networks.items() if key not in self.failures]
        later = self.processes - self.process - 1
        if not self._divided:
            return [able] * (1 + later)
        return [able, *[[self.networks[key] for key in self._always if key not in self.failures]] * later]

    def next_round(self) -> list[Chain]:
        """Return the networks of this session in a new order; empty once all are settled or its budget is spent."""
        members = [key for key in self._members if key not in self.failures]
        if not members or self.over:
            return []
        order = balanced_round([len(members)], self.next, self.protocol.seed)
        return [self.networks[members[place]] for (place,) in order]

    def observe(self, records: Sequence[Record]) -> None:
        """Add the records of one round."""
        self.process = records[0].process
        if self.process not in self._drawn:
            self._drawn[self.process] = self._draw_members()
        super().observe(records)
        self.observed.append(records)
        for record in records:
            *before, key = record.subjects
            self._samples.setdefault(key, []).extend([run[-1] for run in record.parts] if before else record.whole)
            self._visits[key] += 1
            self._narrow.discard(key)

    def sees_calls(self, keys: Sequence[str]) -> bool:
        """Return whether the next visit of a network times its calls: the first does, and every fourth after it.

        The shares of the calls vary little between visits; the time of the whole network varies much.
        """
        return self.calls and self._visits[keys[-1]] % _VISITS_PER_CALLS == 0

    def fail(self, failure: Failure) -> None:
        """Exclude the networks that contain a subject."""
        super().fail(failure)
        for key, chain in self.networks.items():
            if any(subject.key == failure.subject for subject in chain):
                self.failures.setdefault(key, failure.reason)

    def _is_done(self, key: str) -> bool:
        """Return whether a network needs no more samples; evaluated once a round."""
        if key not in self._narrow and is_narrow(self._samples.get(key, []), self.protocol):
            self._narrow.add(key)
        return key in self._narrow


def is_narrow(samples: Sequence[float], protocol: Protocol, negligible: float = 0.0) -> bool:
    """Return whether there are enough samples and their interval is as narrow as the protocol requires.

    Parameters
    ----------
    samples : sequence of float
        Samples of one subject.
    protocol : Protocol
        Determines the statistic and the required half-width; with a half-width of 0, no interval is narrow enough.
    negligible : float, default=0.0
        Half-width that is narrow enough whatever the value, in the unit of the samples.
    """
    if not protocol.half_width or len(samples) < fewest_samples(protocol.statistic, protocol.confidence):
        return False
    summary = Measurement(tuple(samples), protocol).summary
    return summary.spread <= max(protocol.half_width, negligible / summary.value)


def balanced_round(
    sizes: Sequence[int],
    index: int,
    seed: int = 0,
    *,
    wanted: Sequence[Sequence[int]] | None = None,
    costs: Sequence[Sequence[float]] | None = None,
    alignment: float = 0.0,
) -> list[tuple[int, ...]]:
    """Draw the networks of one round.

    A round holds as many networks as the largest layer has candidates. In each layer a random permutation distributes
    the candidates over the networks, so that each occurs once (a row of a Latin square); layers with fewer candidates
    start over, so that the numbers of occurrences of two candidates differ by at most one.

    All random networks cost about the same. With an `alignment` the cheap candidates of all layers meet in one network
    and the costly ones in another, so that candidates are also measured in very light and very heavy networks.

    Parameters
    ----------
    sizes : sequence of int
        Candidates of every layer, each at least 1.
    index : int
        Number of the round. The same arguments give the same round, in every process.
    seed : int, default=0
        Seed of all rounds.
    wanted : sequence of sequence of int, optional
        Indices of the candidates to distribute in every layer, at least one each; by default all.
    costs : sequence of sequence of float, optional
        Estimated costs of the candidates by layer; needed for an alignment.
    alignment : float, default=0.0
        0 distributes at random; 1 sorts, so that the first network is the cheapest and the last the costliest.

    Returns
    -------
    list of tuple of int
        Networks in measuring order; a network is an index per layer.

    Examples
    --------
    >>> sorted(network[0] for network in balanced_round([3, 1, 2], 0))
    [0, 1, 2]
    >>> sorted(balanced_round([2, 2], 0, costs=[[1.0, 2.0], [5.0, 3.0]], alignment=1.0))
    [(0, 1), (1, 0)]
    """
    generator = random.Random(f"{seed}/{index}")
    hands = [range(size) for size in sizes] if wanted is None else wanted
    count = max(map(len, hands))
    columns = [_deal(hand, count, generator) for hand in hands]
    if alignment > 0 and costs is not None:
        columns = [_align(column, cost, alignment, generator) for column, cost in zip(columns, costs, strict=True)]
    networks = [tuple(column[network] for column in columns) for network in range(count)]
    if alignment > 0:
        generator.shuffle(networks)
    return networks


def light_network(
    candidates: Sequence[Sequence[int]], costs: Sequence[Sequence[float]], index: int, seed: int = 0
) -> tuple[int, ...]:
    """Draw a network that is lighter than random ones, down to the cheapest of all.

    Each layer takes one of its k cheapest candidates, with the same k, from 1 to 5, in all layers.

    Parameters
    ----------
    candidates : sequence of sequence of int
        Indices of the candidates of every layer, at least one each.
    costs : sequence of sequence of float
        Estimated costs of the candidates by layer.
    index, seed : int
        As for `balanced_round`.

    Returns
    -------
    tuple of int
        An index per layer.

    Examples
    --------
    >>> {light_network([[0, 1], [0]], [[2.0, 1.0], [1.0]], index) for index in range(20)} == {(0, 0), (1, 0)}
    True
    """
    generator = random.Random(f"{seed}/{index}/light")
    most = generator.randint(1, 5)
    return tuple(
        generator.choice(sorted(hand, key=lambda candidate, cost=cost: cost[candidate])[:most])  # type: ignore[misc]
        for hand, cost in zip(candidates, costs, strict=True)
    )


def _deal(hand: Sequence[int], count: int, generator: random.Random) -> list[int]:
    dealt: list[int] = []
    while len(dealt) < count:
        again = list(hand)
        generator.shuffle(again)
        dealt += again
    dealt = dealt[:count]
    generator.shuffle(dealt)
    return dealt


def _align(column: list[int], costs: Sequence[float], alignment: float, generator: random.Random) -> list[int]:
    """Sort a column by cost, more loosely for a smaller alignment."""
    ordered = sorted(column, key=lambda candidate: costs[candidate])
    last = max(1, len(ordered) - 1)
    keys = [alignment * rank / last + (1 - alignment) * generator.random() for rank in range(len(ordered))]
    return [candidate for _, candidate in sorted(zip(keys, ordered, strict=True))]
