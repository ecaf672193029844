"""`Schedule`: what is measured next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from nni_latency.measurement._protocol import Protocol
from nni_latency.measurement._record import Failure, Record
from nni_latency.measurement._subject import Chain

#: Rounds of a warm-up at most.
LONGEST_WARMUP = 10

#: Time that every one of several processes has for measuring at least [s].
LEAST_SHARE = 5.0

#: Rounds that every one of several processes measures at least, if the budget allows it.
FEWEST_ROUNDS = 5


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
    session, which is a bench of its own, `next_round` until there is none, with `observe` and `fail` after each. The
    same records must lead to the same rounds, so that a resumed campaign ends like one that was not interrupted.

    Parameters
    ----------
    protocol : Protocol
        How long to go on, and how to summarise.
    isolated : bool, default=True
        Whether every session has a process of its own; if not, there is one session.
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

    def __init__(self, protocol: Protocol, *, isolated: bool = True) -> None:
        self.protocol = protocol
        # A process that has less to measure takes longer to start than that is worth.
        worthwhile = max(1, int(protocol.time_budget / LEAST_SHARE))
        self.processes = min(protocol.processes, worthwhile) if isolated else 1
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
        """Yield the numbers of the sessions that are to be opened: by default the processes share the budget."""
        for process in range(self.processes):
            self.process = process
            if self.share < self.end:
                yield process

    @abstractmethod
    def next_round(self) -> Sequence[Chain]:
        """Return the networks to visit next, in order; none when the session is over."""

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

    def objection(self, record: Record) -> str:
        """Say why a visit of a single subject must not be used; empty if it may be."""
        return ""

    @property
    def what(self) -> str:
        """What a round consists of, for messages."""
        return "networks"
