# SPDX-License-Identifier: Apache-2.0
"""Schedules: what is measured next, whole networks in rounds, and rounds that are balanced."""

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

#: Rounds of a warm-up at most.
LONGEST_WARMUP = 10

#: Time that every one of several processes has for measuring at least [s].
LEAST_SHARE = 5.0

#: Rounds that every one of several processes measures at least, if the budget allows it.
FEWEST_ROUNDS = 5

#: Visits of a network for each that times its calls.
_VISITS_PER_CALLS = 4


@dataclass(frozen=True)
class Progress:
    """How far a campaign is.

    Parameters
    ----------
    rounds : int
        Rounds measured so far, those of earlier runs included.
    spent : float
        Time spent measuring so far [s].
    share : float
        Share of the budget that is spent, in [0, 1]; measuring may end earlier.
    resumed : int
        Rounds that earlier runs had measured.
    unsettled : int
        Subjects whose interval is not narrow enough yet.
    """

    rounds: int
    spent: float
    share: float
    resumed: int
    unsettled: int = 0

    @property
    def remaining(self) -> float:
        """Most time left [s], if rounds go on as they did."""
        return self.spent * (1 - self.share) / self.share if self.share else float("inf")


class Schedule(ABC):
    """Decides what a campaign measures next, from what it has measured. It measures nothing itself.

    A campaign asks in this order: `replay` for everything that earlier runs have left; then for every
    session, which has a separate bench, `next_round` until there is none, with `observe` and `fail` after each. The
    same records must lead to the same rounds, so that a resumed campaign ends like one that was not interrupted.

    Parameters
    ----------
    protocol : Protocol
        How long to go on, and how to summarise.
    isolated : bool, default=True
        Whether every session has a separate process; if not, there is one session.
    """

    #: What a campaign of it is called in a store.
    kind: str = "networks"

    #: Whether the calls of torch functions inside networks are timed.
    calls: bool = False

    #: Most rounds of every session that do not count, until two of them take the same time.
    warm_up: int = LONGEST_WARMUP

    #: Share of the budget after which a warm-up ends at the latest.
    warm_up_share: float = 1.0

    #: Whether the budget includes the time that subjects take to load.
    counts_preparation: bool = False

    #: Whether a subject that the runtime refuses fails like one that crashes; if not, the campaign ends.
    skips_failures: bool = False

    #: How often new networks were planned.
    iteration: int = 0

    #: What a round consists of, for messages.
    what: str = "networks"

    def __init__(self, protocol: Protocol, *, isolated: bool = True) -> None:
        self.protocol = protocol
        # A process that has less to measure takes longer to start than that is worth.
        worthwhile = max(1, int(protocol.time_budget / LEAST_SHARE))
        self.processes = min(protocol.processes, worthwhile) if isolated else 1
        #: How many calls every network makes whose calls are timed; one that makes another number fails.
        self.n_calls: Mapping[str, int] = {}
        self.failures: dict[str, str] = {}
        self.rounds, self.spent, self.next = 0, 0.0, 0
        self.rounds_in: Counter[int] = Counter()
        #: Number of the session under way.
        self.process = 0

    @property
    def share(self) -> float:
        """Share of the budget that is spent; 1 or more when it is."""
        return max(self.rounds / self.protocol.rounds, self.spent / self.protocol.time_budget)

    @property
    def end(self) -> float:
        """Share of the budget at which the session under way ends."""
        return (self.process + 1) / self.processes

    @property
    def unsettled(self) -> int:
        """How many subjects are not known well enough yet."""
        return 0

    @property
    def fewest(self) -> int:
        """How many rounds the session under way takes at least: as many as those before it did on average."""
        if self.processes == 1:
            return 0
        before = sum(self.rounds_in[process] for process in range(self.process))
        return max(FEWEST_ROUNDS, before // max(1, self.process))

    @property
    def over(self) -> bool:
        """Whether the session under way has measured enough, or spent its share of the budget."""
        return self.share >= self.end or (self.rounds_in[self.process] >= self.fewest and not self.unsettled)

    def sessions(self) -> Iterator[int]:
        """Yield the numbers of the sessions to open: by default the processes share the budget."""
        for process in range(self.processes):
            self.process = process
            if self.share < self.end:
                yield process

    @abstractmethod
    def next_round(self) -> Sequence[Chain]:
        """Return the networks to visit next, in order; none when the session is over."""

    def planned(self) -> Iterable[Sequence[Chain]]:
        """Return the networks of the session under way and of each after it, until `iteration` changes.

        By default they are those of the next round. There may be fewer sessions, and fewer networks in each.
        """
        return [self.next_round()] * (self.processes - self.process)

    def observe(self, records: Sequence[Record]) -> None:
        """Take in the records of one round."""
        self.rounds, self.next = self.rounds + 1, records[0].round + 1
        self.rounds_in[records[0].process] += 1
        self.spent += sum(record.duration for record in records)

    def replay(self, records: Sequence[Record], failures: Sequence[Failure]) -> None:
        """Take in everything that earlier runs have left."""
        for failure in failures:
            self.fail(failure)
        for _, group in groupby(records, key=lambda record: record.round):
            self.observe(list(group))

    def fail(self, failure: Failure) -> None:
        """Take in that a subject cannot be measured, and leave it out from now on.

        Raises
        ------
        MeasurementError
            If the campaign makes no sense without it.
        """
        self.failures[failure.subject] = failure.reason

    def sees_calls(self, keys: Sequence[str]) -> bool:
        """Whether the next visit of a network times its calls, where the schedule does so at all."""
        return self.calls

    def validation_error(self, record: Record) -> str:
        """Say why a visit must not be used: the network ran otherwise than it was traced; empty if it may be."""
        expected = self.n_calls.get(record.subjects[0])
        found = next((len(run) for run in record.parts if expected not in (None, len(run))), None)
        if found is None:
            return ""
        return (
            f"it made {number_of(found, 'call')} when it ran and {expected} when it was traced: its control flow "
            "depends on data"
        )


class NetworkSchedule(Schedule):
    """Rounds of whole networks, in an order that is drawn anew for each.

    Parameters
    ----------
    networks : sequence of Subject or of tuple of Subject
        What to measure: a network, or something behind what prepares it, such as `cold_chain` returns. Of several
        subjects in a row the last one is measured, and stands for all.
    protocol, isolated
        As for `Schedule`.
    always : sequence of Subject, default=()
        Networks that are visited in every round of every session, whether or not they are known: they show how fast
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
        #: What was measured, by round.
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

    def planned(self) -> list[list[Chain]]:
        """Return the networks of all sessions; where they are divided among these, as if there was one."""
        able = [chain for key, chain in self.networks.items() if key not in self.failures]
        later = self.processes - self.process - 1
        if not self._divided:
            return [able] * (1 + later)
        return [able, *[[self.networks[key] for key in self._always if key not in self.failures]] * later]

    def next_round(self) -> list[Chain]:
        """Return the networks of this session in a new order; none once all are known or its budget is spent."""
        members = [key for key in self._members if key not in self.failures]
        if not members or self.over:
            return []
        order = balanced_round([len(members)], self.next, self.protocol.seed)
        return [self.networks[members[place]] for (place,) in order]

    def observe(self, records: Sequence[Record]) -> None:
        """Take in the records of one round."""
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
        """Whether the next visit of a network times its calls: the first does, and every fourth after it.

        Shares of the calls vary little between visits, the time of the whole network varies much.
        """
        return self.calls and self._visits[keys[-1]] % _VISITS_PER_CALLS == 0

    def fail(self, failure: Failure) -> None:
        """Leave out a network, or what cannot be prepared."""
        super().fail(failure)
        for key, chain in self.networks.items():
            if any(subject.key == failure.subject for subject in chain):
                self.failures.setdefault(key, failure.reason)
                self._samples.pop(key, None)

    def _is_done(self, key: str) -> bool:
        """Whether a network is known well enough; worked out once a round."""
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

    A round holds as many networks as the largest layer has candidates. In each layer a random permutation deals out
    the candidates, so that the networks together hold each one once (a row of a Latin square); layers with fewer
    candidates begin again, and no candidate comes more than once more often than another.

    Random networks are all about equally costly. With an `alignment` the cheap candidates of all layers meet in one
    network and the costly ones in another, so that candidates are also met in very light and very heavy networks.

    Parameters
    ----------
    sizes : sequence of int
        Candidates of every layer, each at least 1.
    index : int
        Number of the round. The same arguments give the same round, in every process.
    seed : int, default=0
        Seed of all rounds.
    wanted : sequence of sequence of int, optional
        Indices of the candidates to deal in every layer, at least one each; all of them by default.
    costs : sequence of sequence of float, optional
        What every candidate of every layer costs, as far as is known; needed for an alignment.
    alignment : float, default=0.0
        0 deals at random; 1 sorts, so that the first network dealt is the cheapest and the last the costliest.

    Returns
    -------
    list of tuple of int
        Networks in the order in which they are timed; a network is an index per layer.

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
        What every candidate of every layer costs, as far as is known.
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
    """Sort a column by cost, the less strictly the smaller the alignment."""
    ordered = sorted(column, key=lambda candidate: costs[candidate])
    last = max(1, len(ordered) - 1)
    keys = [alignment * rank / last + (1 - alignment) * generator.random() for rank in range(len(ordered))]
    return [candidate for _, candidate in sorted(zip(keys, ordered, strict=True))]
