"""Rounds until every candidate is known well enough, whatever fails on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement import (
    Bench,
    CandidateError,
    Protocol,
    Visit,
    WorkerDiedError,
    balanced_round,
    light_network,
    open_bench,
    windows_agree,
)
from nni_latency.measurement.runtimes import Runtime
from nni_latency.tables._journal import Failure, Journal, RoundRecord
from nni_latency.tables._plan import MeasurePlan
from nni_latency.tables._samples import Samples
from nni_latency.units import format_seconds

#: How far the networks of successive rounds are sorted by cost: at random, sorted, half and half.
ALIGNMENTS = (0.0, 1.0, 0.5)

#: A warm-up ends when a round takes as long as the one before, within this share, and after so many rounds at most.
_WARM, _LONGEST_WARMUP = 0.05, 10

#: How often a network may fail for no reason that can be found before measuring is given up.
_MAX_UNEXPLAINED_FAILURES = 3

#: Rounds of everything that each of several processes measures at least.
_FEWEST_ROUNDS = 5

#: How often the intervals are looked at [rounds].
_LOOK_EVERY = 4


@dataclass(frozen=True)
class BuildProgress:
    """How far a build is.

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
        Candidates whose interval is not narrow enough yet.
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


class Campaign:
    """The measuring of one plan: what has been measured, what has failed, and what to do next.

    Parameters
    ----------
    plan : MeasurePlan
        What to measure.
    runtime : Runtime
        What executes it.
    protocol : Protocol
        How to measure.
    journal : Journal
        Where every round and failure goes before the next begins.
    done : list of RoundRecord
        Rounds of earlier runs.
    failures : list of Failure
        Failures of earlier runs; they are not tried again.
    reference : tuple of int
        The network, an index per layer, that is visited in every round besides.
    """

    def __init__(
        self,
        plan: MeasurePlan,
        runtime: Runtime,
        protocol: Protocol,
        journal: Journal,
        done: list[RoundRecord],
        failures: list[Failure],
        reference: tuple[int, ...],
    ) -> None:
        self.plan, self.runtime, self.protocol, self.journal = plan, runtime, protocol, journal
        self.failures: list[Failure] = []
        self.samples = Samples(plan.sizes, reference)
        self.rounds, self.spent = 0, 0.0
        self._available = [list(range(size)) for size in plan.sizes]
        self._next, self._unexplained, self._resumed = 0, 0, len(done)
        self._sought = [list(range(size)) for size in plan.sizes]
        for record in done:
            self._take(record)
            if self.rounds == len(done) // _LOOK_EVERY * _LOOK_EVERY:
                self._look()
        for failure in failures:
            self._give_up(failure)

    def run(self, on_progress: Callable[[BuildProgress], None], on_admit: Callable[[], None] = lambda: None) -> None:
        """Measure rounds until every interval is narrow enough or the budget is spent.

        Parameters
        ----------
        on_progress : callable
            Called after every round.
        on_admit : callable, optional
            Called after every candidate that was loaded.

        Raises
        ------
        MeasurementError
            If no candidate of a layer can be run, or the clock does not work.
        InvalidValueError
            If the budget is too small for one round.
        """
        if self.rounds and (self._share >= 1 or not any(self._wanted())):
            return
        # Where a bench cannot be in a process of its own, a new one would find the same memory.
        processes = self.protocol.processes if self.runtime.portable else 1
        for process in range(min(processes - 1, int(self._share * processes)), processes):
            if self._share < (process + 1) / processes:
                self._run_process(process, processes, on_progress, on_admit)

    def _run_process(
        self,
        process: int,
        processes: int,
        on_progress: Callable[[BuildProgress], None],
        on_admit: Callable[[], None],
    ) -> None:
        """Measure one process's share of the rounds.

        It goes on until its share of the budget is spent, or all intervals are narrow and it has measured everything
        as often as the processes before it.
        """
        fewest = max(_FEWEST_ROUNDS, self.rounds // max(1, process)) if processes > 1 else 0
        begin, end = self.rounds, (process + 1) / processes
        columns = [[candidate.build for candidate in layer.candidates.values()] for layer in self.plan.layers]
        with open_bench(columns, self.plan.input_shape, self.runtime, self.protocol) as bench:
            self._admit_all(bench, on_admit)
            self._warm_up(bench)
            while self._share < end and (any(self._wanted()) or self.rounds - begin < fewest):
                full = self.rounds - begin < fewest
                record = self._measure(bench, self._available if full else self._wanted())
                if record is not None:
                    self.journal.append(record)
                    self._take(record)
                    if self.rounds % _LOOK_EVERY == 0:
                        self._look()
                on_progress(self._progress(sum(map(len, self._wanted()))))

    @property
    def _share(self) -> float:
        return max(self.rounds / self.protocol.rounds, self.spent / self.protocol.time_budget)

    def _progress(self, unsettled: int) -> BuildProgress:
        return BuildProgress(self.rounds, self.spent, min(1.0, self._share), self._resumed, unsettled)

    def _wanted(self) -> list[list[int]]:
        """Return by layer the candidates to go on with: those that are not known well enough yet."""
        return [
            [choice for choice in choices if choice in left]
            for choices, left in zip(self._sought, self._available, strict=True)
        ]

    def _look(self) -> None:
        """Find out which candidates are not known well enough yet; after the same rounds as in an uninterrupted run."""
        self._sought = self.samples.unsettled(self._available, self.protocol)

    def _take(self, record: RoundRecord) -> None:
        self.samples.add(record)
        self.rounds, self.spent, self._next = self.rounds + 1, self.spent + record.duration, record.index + 1

    def _admit_all(self, bench: Bench, on_admit: Callable[[], None]) -> None:
        for layer, choices in enumerate(self._available):
            for choice in list(choices):
                try:
                    _admit(bench, layer, choice)
                except CandidateError as error:
                    self._fail(layer, choice, str(error))
                on_admit()

    def _warm_up(self, bench: Bench) -> None:
        """Repeat one round until it takes as long as before; it does not count, and a resumed build is cold as well."""
        totals: list[float] = []
        while len(totals) < _LONGEST_WARMUP and not windows_agree(totals, 1, _WARM):
            begin = time.perf_counter()
            visits = self._visit_all(bench, self._networks(self._available))
            duration = time.perf_counter() - begin
            if visits is not None:
                totals.append(sum(sum(visit.whole) for visit in visits))
                self._check_budget(duration)

    def _check_budget(self, duration: float) -> None:
        if not self.rounds and duration > self.protocol.time_budget:
            raise InvalidValueError(
                f"The time budget of {format_seconds(self.protocol.time_budget)} is too small for one round of "
                f"{max(self.plan.sizes)} networks, which takes {format_seconds(duration)}: nothing would be measured."
            )

    def _networks(self, wanted: list[list[int]]) -> list[tuple[int, ...]]:
        """Draw the next round: the candidates that are wanted, one light network, and the reference network."""
        hands = [choices or available for choices, available in zip(wanted, self._available, strict=True)]
        seed, sizes = self.protocol.seed, self.plan.sizes
        if not self.rounds or len(sizes) == 1:
            drawn = balanced_round(sizes, self._next, seed, wanted=hands)
        else:
            costs, alignment = self.samples.costs(), ALIGNMENTS[self._next % len(ALIGNMENTS)]
            drawn = balanced_round(sizes, self._next, seed, wanted=hands, costs=costs, alignment=alignment)
            drawn.append(light_network(self._available, costs, self._next, seed))
        reference = self.samples.network
        if reference in drawn or not self._can_run(reference):
            return drawn
        # In the middle, where it stands for the whole round.
        return [*drawn[: len(drawn) // 2], reference, *drawn[len(drawn) // 2 :]]

    def _can_run(self, network: tuple[int, ...]) -> bool:
        return all(choice in left for choice, left in zip(network, self._available, strict=True))

    def _measure(self, bench: Bench, wanted: list[list[int]]) -> RoundRecord | None:
        """Measure one round; None if something in it failed, which is recorded then."""
        networks = self._networks(wanted)
        begin = time.perf_counter()
        visits = self._visit_all(bench, networks)
        if visits is None:
            return None
        return RoundRecord(self._next, time.perf_counter() - begin, tuple(networks), tuple(visits))

    def _visit_all(self, bench: Bench, networks: list[tuple[int, ...]]) -> list[Visit] | None:
        visits = []
        for network in networks:
            try:
                visits.append(bench.visit(network))
            except CandidateError as error:
                self._find_culprit(bench, network, str(error))
                return None
        return visits

    def _find_culprit(self, bench: Bench, network: tuple[int, ...], reason: str) -> None:
        """Run a network that failed layer by layer, and record the candidate that fails."""
        bench.begin()
        for layer, choice in enumerate(network):
            try:
                bench.step(layer, choice)
            except CandidateError as error:
                self._fail(layer, choice, str(error))
                return
        self._unexplained += 1
        if self._unexplained >= _MAX_UNEXPLAINED_FAILURES:
            names = ",".join(self._name(layer, choice) for layer, choice in enumerate(network))
            raise MeasurementError(
                f"Networks failed {self._unexplained} times, though each of their candidates ran; the last one was "
                f"{names}: {reason}."
            )

    def _fail(self, layer: int, choice: int, reason: str) -> None:
        failure = Failure(layer, choice, reason)
        self._give_up(failure)
        self.journal.append(failure)

    def _give_up(self, failure: Failure) -> None:
        """Leave a candidate out from now on."""
        self.failures.append(failure)
        left, layer = self._available[failure.layer], self.plan.layers[failure.layer]
        left.remove(failure.choice)
        default = not layer.searched and self._name(failure.layer, failure.choice) == layer.default
        if not left or default:
            what = f"the fixed layer {layer.name!r}" if default else f"any candidate of layer {layer.name!r}"
            raise MeasurementError(f"Cannot run {what} on {self.runtime.platform.id}: {failure.reason}.")

    def _name(self, layer: int, choice: int) -> str:
        return list(self.plan.layers[layer].candidates)[choice]


def _admit(bench: Bench, layer: int, choice: int) -> None:
    try:
        bench.admit(layer, choice)
    except WorkerDiedError:
        # Somebody may have killed it; what crashes by itself does so again.
        bench.admit(layer, choice)
