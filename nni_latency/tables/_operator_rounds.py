"""Rounds of whole networks whose operators are timed inside them, until the budget is spent."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement import Bench, CandidateError, Protocol, Visit, WorkerDiedError, open_bench
from nni_latency.measurement.runtimes import Runtime
from nni_latency.tables._journal import Failure, Journal, RoundRecord
from nni_latency.tables._operator_plan import OperatorPlan
from nni_latency.tables._operator_samples import OperatorSamples
from nni_latency.tables._rounds import BuildProgress
from nni_latency.units import format_seconds

#: Rounds that every network takes part in at least, if the budget allows it.
_FEWEST_ROUNDS = 5

#: The reference network, which is visited in every round of every process.
REFERENCE = 0


class OperatorCampaign:
    """The measuring of an operator plan.

    The networks are divided among the worker processes, so that each holds few of them; the reference network is in
    all. Rounds visit the networks of one process in an order that is drawn anew each time.

    Parameters
    ----------
    plan : OperatorPlan
        What to measure.
    runtime : Runtime
        What executes it; it must see calls.
    protocol : Protocol
        How to measure.
    journal : Journal
        Where every round and failure goes before the next begins.
    done : list of RoundRecord
        Rounds of earlier runs.
    failures : list of Failure
        Failures of earlier runs; they are not tried again.
    """

    def __init__(
        self,
        plan: OperatorPlan,
        runtime: Runtime,
        protocol: Protocol,
        journal: Journal,
        done: list[RoundRecord],
        failures: list[Failure],
    ) -> None:
        self.plan, self.runtime, self.protocol, self.journal = plan, runtime, protocol, journal
        self.samples = OperatorSamples(plan, protocol)
        self.failures: dict[int, str] = {failure.choice: failure.reason for failure in failures}
        self.rounds, self.spent = 0, 0.0
        self._resumed, self._next = len(done), 0
        self._visits: Counter[int] = Counter()
        for record in done:
            self._take(record)

    def run(self, on_progress: Callable[[BuildProgress], None]) -> None:
        """Measure rounds until every network is known well enough or the budget is spent.

        Parameters
        ----------
        on_progress : callable
            Called after every round.

        Raises
        ------
        MeasurementError
            If no network can be run, or the clock does not work.
        InvalidValueError
            If the budget is too small for one round.
        """
        processes = self.protocol.processes if self.runtime.portable else 1
        for process in range(min(processes - 1, int(self._share * processes)), processes):
            end = (process + 1) / processes
            members = self._members(processes - process)
            if members and self._share < end:
                self._run_process(members, end, on_progress)
        if not self.samples.measured:
            reason = next(iter(self.failures.values()), "none was tried")
            raise MeasurementError(f"Cannot run any network of the space on {self.runtime.platform.id}: {reason}.")

    def _members(self, shares: int) -> list[int]:
        """Return the networks of the next process: its share of those that have been visited least."""
        able = [index for index in range(len(self.plan.networks)) if index not in self.failures]
        wanting = [index for index in able if self._visits[index] < _FEWEST_ROUNDS]
        wanting = wanting or [index for index in able if index in self.samples.unsettled(able)]
        mine = sorted(wanting, key=lambda index: self._visits[index])[: math.ceil(len(wanting) / shares)]
        return sorted({*mine, REFERENCE} - set(self.failures)) if mine else []

    def _run_process(self, members: list[int], end: float, on_progress: Callable[[BuildProgress], None]) -> None:
        builds = [[self.plan.networks[index].build for index in members]]
        with open_bench(builds, self.plan.input_shape, self.runtime, self.protocol, calls=True) as bench:
            for choice, index in enumerate(members):
                self._admit(bench, choice, index)
            self._warm_up(bench, members)
            rounds = 0
            while self._share < end and (rounds < _FEWEST_ROUNDS or self.samples.unsettled(members)):
                record = self._measure(bench, members)
                if record is None:
                    return
                self.journal.append(record)
                self._take(record)
                rounds += 1
                on_progress(self._progress(members))

    @property
    def _share(self) -> float:
        return max(self.rounds / self.protocol.rounds, self.spent / self.protocol.time_budget)

    def _progress(self, members: list[int]) -> BuildProgress:
        unsettled = len(self.samples.unsettled(members))
        return BuildProgress(self.rounds, self.spent, min(1.0, self._share), self._resumed, unsettled)

    def _take(self, record: RoundRecord) -> None:
        self.samples.add(record)
        self._visits.update(network[0] for network in record.networks)
        self.rounds, self.spent, self._next = self.rounds + 1, self.spent + record.duration, record.index + 1

    def _admit(self, bench: Bench, choice: int, index: int) -> None:
        try:
            try:
                bench.admit(0, choice)
            except WorkerDiedError:
                # Somebody may have killed it; what crashes by itself does so again.
                bench.admit(0, choice)
        except CandidateError as error:
            self._fail(index, str(error))

    def _warm_up(self, bench: Bench, members: list[int]) -> None:
        """Run one round that does not count: memory is touched, and a budget that is too small shows."""
        begin = time.perf_counter()
        self._visit_all(bench, members)
        duration = time.perf_counter() - begin
        if not self.rounds and duration > self.protocol.time_budget:
            raise InvalidValueError(
                f"The time budget of {format_seconds(self.protocol.time_budget)} is too small for one round of "
                f"{len(members)} networks, which takes {format_seconds(duration)}: nothing would be measured. "
                "Give a larger one, or ask for fewer networks."
            )

    def _measure(self, bench: Bench, members: list[int]) -> RoundRecord | None:
        begin = time.perf_counter()
        visits = self._visit_all(bench, members)
        if not visits:
            return None
        networks, taken = zip(*visits, strict=True)
        return RoundRecord(self._next, time.perf_counter() - begin, tuple((index,) for index in networks), tuple(taken))

    def _visit_all(self, bench: Bench, members: list[int]) -> list[tuple[int, Visit]]:
        """Visit all networks once, in an order of this round's own; those that fail are recorded and left out."""
        order = [(choice, index) for choice, index in enumerate(members) if index not in self.failures]
        random.Random(f"{self.protocol.seed}/{self._next}").shuffle(order)
        visits = []
        for choice, index in order:
            try:
                visit = bench.visit((choice,))
            except CandidateError as error:
                self._fail(index, str(error))
                continue
            wrong = self._unlike_trace(index, visit)
            if wrong:
                self._fail(index, wrong)
            else:
                visits.append((index, visit))
        return visits

    def _unlike_trace(self, index: int, visit: Visit) -> str:
        expected = self.plan.networks[index].trace.n_calls
        found = next((len(times) for times in visit.parts if len(times) != expected), expected)
        if found == expected:
            return ""
        return f"it made {found} calls when it ran and {expected} when it was traced: its way depends on the data"

    def _fail(self, index: int, reason: str) -> None:
        self.failures[index] = reason
        self.journal.append(Failure(0, index, reason))
