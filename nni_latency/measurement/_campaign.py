# SPDX-License-Identifier: Apache-2.0
"""`Campaign`: the one loop that measures, and the measurement of a single network."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from nni_latency.errors import InvalidValueError, LatencyError, MeasurementError
from nni_latency.measurement._bench import Bench, CandidateError, Visited, WorkerDiedError
from nni_latency.measurement._isolation import Benches
from nni_latency.measurement._record import Failure, Record
from nni_latency.measurement._schedule import NetworkSchedule, Progress, Schedule
from nni_latency.measurement._store import CampaignHeader, CampaignLog, MemoryStore
from nni_latency.measurement._subject import Chain, Subject, keys_of
from nni_latency.measurement._timing import Measurement, Protocol, windows_agree
from nni_latency.measurement.runtimes import Runtime
from nni_latency.units import format_seconds, number_of

#: A warm-up ends when a round takes as long as the one before, within this share.
_WARM = 0.05

#: Least time between two reports within a round [s].
_STEP = 1.0

#: Number of networks that may fail although each of their subjects runs, before the campaign is given up.
_MAX_UNEXPLAINED_FAILURES = 3

#: Moment at which the device was still throttled after waiting, see `Bench.cool_down`.
SLOWED = "slowed"

#: Default protocol of `measure_network`.
_ONCE = Protocol(n_warmup=1, n_run=10, rounds=10, time_budget=5.0, half_width=0.0, processes=1)


class Campaign:
    """Measures the rounds of a schedule until there are no more.

    Every visit is logged before the next one begins, so that a killed process loses at most the current visit. A
    subject is loaded when a round first contains it. A subject that fails, crashes its process or takes too long is
    recorded as failed; the others continue.

    Parameters
    ----------
    schedule : Schedule
        Decides what to measure next.
    benches : Benches
        Factory of the benches to measure on.
    log : CampaignLog
        Receives records and failures; the schedule first observes those that it already holds.
    clock : callable, default=time.perf_counter
        Clock of the time budget [s].
    on_progress : callable, optional
        Called with a `Progress` after every round, and after every subject that was excluded.
    on_step : callable, optional
        Called within a round, at most once a second, with a `Progress` and what was done, such as ``3 of 9 networks``.
    """

    def __init__(
        self,
        schedule: Schedule,
        benches: Benches,
        log: CampaignLog,
        clock: Callable[[], float] = time.perf_counter,
        on_progress: Callable[[Progress], None] = lambda _progress: None,
        on_step: Callable[[Progress, str], None] = lambda _progress, _what: None,
    ) -> None:
        self.schedule, self.benches, self.log, self.clock = schedule, benches, log, clock
        self._on_progress, self._on_step = on_progress, on_step
        self._reported = time.monotonic()
        self._unexplained = 0
        self._worker = ""
        self._has_begun = False
        self._iteration = -1
        self._earlier = len(log.failures)
        with self._annotate_skipped_subjects():
            schedule.replay(list(log.records), list(log.failures))
        self.resumed = schedule.rounds

    def run(self) -> None:
        """Measure all rounds.

        Raises
        ------
        MeasurementError
            If a required subject cannot be run, or the clock does not work.
        InvalidValueError
            If the budget is too small for one round.
        OutputError
            If a record cannot be written.
        """
        with self._annotate_skipped_subjects(), contextlib.ExitStack() as stack:
            for session in self.schedule.sessions():
                if self.schedule.next_round():
                    self._run(session, stack)

    def _run(self, session: int, stack: contextlib.ExitStack) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._note("before")
        if self._iteration != self.schedule.iteration:
            self._iteration = self.schedule.iteration
            stack.close()
            stack.enter_context(self.benches.expecting(self.schedule.planned()))
        with self.benches.open(self.schedule.protocol, calls=self.schedule.calls) as bench:
            _Session(self, bench, session).run()
        self._note("after")

    @contextlib.contextmanager
    def _annotate_skipped_subjects(self) -> Iterator[None]:
        """State in an error that the failure is of an earlier run, if nothing was run now."""
        try:
            yield
        except MeasurementError as error:
            if self._has_begun or not self._earlier:
                raise
            raise MeasurementError(
                f"{error} This failed in an earlier run and was not tried again. To try again, set the option 'fresh'."
            ) from error

    def _note(self, moment: str) -> None:
        self.log.note(moment, self.benches.conditions().as_dict())

    def note_slowed(self) -> None:
        """Note once the conditions of a device that is still throttled after waiting."""
        if SLOWED not in self.log.conditions:
            self._note(SLOWED)

    def note_worker(self, worker: str) -> None:
        """Note the machine of a farm that takes the records from the next one on, counted from 0."""
        if worker != self._worker:
            self._worker = worker
            self.log.note(f"worker from record {len(self.log.records)}", {"worker": worker})

    def report(self, waited: float = 0.0) -> None:
        """Report the progress, `waited` seconds into a round."""
        self._reported = time.monotonic()
        self._on_progress(self._progress(waited))

    def step(self, what: str, waited: float = 0.0) -> None:
        """Report a step of a round, `waited` seconds into it, unless the last report is less than a second old."""
        if time.monotonic() - self._reported >= _STEP:
            self._reported = time.monotonic()
            self._on_step(self._progress(waited), what)

    def _progress(self, waited: float) -> Progress:
        schedule = self.schedule
        share = min(1.0, schedule.share + waited / schedule.protocol.time_budget)
        return Progress(schedule.rounds, schedule.spent + waited, share, self.resumed, schedule.unsettled)

    def fail(self, failure: Failure) -> None:
        """Record that a subject cannot be measured."""
        self.log.fail(failure)
        self.schedule.fail(failure)

    def fail_unexplained(self, keys: Sequence[str], reason: str) -> None:
        """Count a network that failed although each of its subjects ran; raise if there are too many."""
        self._unexplained += 1
        if self._unexplained >= _MAX_UNEXPLAINED_FAILURES:
            raise MeasurementError(
                f"Networks failed {number_of(self._unexplained, 'time')}, though each of their candidates ran; the "
                f"last one was {','.join(keys)}: {reason}."
            )


class _Session:
    """A session of a campaign, on one bench."""

    def __init__(self, campaign: Campaign, bench: Bench, process: int) -> None:
        self.campaign, self.schedule, self.bench, self.process = campaign, campaign.schedule, bench, process
        self._admitted: set[str] = set()
        self._since = campaign.clock()
        bench.on_step = campaign.step

    def run(self) -> None:
        """Warm up, then measure rounds."""
        self._warm_up()
        while self._next():
            self._cool_down()
            records = self._visit_all(self._round, keep=True)
            if records:
                self.schedule.observe(records)
            self.campaign.report()

    def _next(self) -> bool:
        """Load the subjects of the next round, a new one if some cannot be loaded; return whether there is one."""
        begin = self.campaign.clock()
        while True:
            self._round = self.schedule.next_round()
            if self._admit_all(self._new()):
                return bool(self._round)
            self.campaign.report(self.campaign.clock() - begin)

    def _new(self) -> list[Subject]:
        """Return the subjects of the round that are not loaded, those at the beginning of networks first."""
        places = {subject.key: (place, subject) for chain in self._round for place, subject in enumerate(chain)}
        new = sorted((place, key) for key, (place, _) in places.items() if key not in self._admitted)
        return [places[key][1] for _, key in new]

    def _admit_all(self, subjects: Sequence[Subject]) -> bool:
        """Load subjects, record those that cannot be loaded as failed, and return whether all are loaded."""
        for subject in subjects:
            self.campaign.log.admit(subject)
        found: list[bool] = []
        for item in zip(subjects, self.bench.admit_all(subjects), strict=False):
            found.append(self._admit(*item))
            self.campaign.step(f"loaded {len(found)} of {len(subjects)}")
        return all(found)

    def _admit(self, subject: Subject, error: LatencyError | None) -> bool:
        if isinstance(error, WorkerDiedError):
            # Another process may have killed it; a subject that crashes its process does so again.
            (error,) = self.bench.admit_all([subject])
        if error is None:
            self._admitted.add(subject.key)
            return True
        if isinstance(error, CandidateError):
            self.campaign.fail(Failure(subject.key, str(error)))
        elif self.schedule.skips_failures and isinstance(error, (InvalidValueError, MeasurementError)):
            self.campaign.fail(Failure(subject.key, str(error).rstrip(".")))
        else:
            raise error
        return False

    def _warm_up(self) -> None:
        """Repeat a round, without recording it, until its time settles; in a resumed campaign as well."""
        totals: list[float] = []
        spent, budget = 0.0, self.schedule.protocol.time_budget
        while len(totals) < self.schedule.warm_up and not windows_agree(totals, 1, _WARM):
            if not self._next() or (totals and spent > budget * self.schedule.warm_up_share / self.schedule.processes):
                return
            self._cool_down()
            records = self._visit_all(self._round, keep=False)
            # The visits alone, without waiting for a machine of a farm.
            duration = sum(record.duration for record in records)
            if records:
                totals.append(sum(sum(record.whole) for record in records))
                spent += duration

    def _cool_down(self) -> None:
        """Wait while the device is throttled, which costs no budget, and note if it remains so."""
        begin = self.campaign.clock()
        if not self.bench.cool_down():
            self.campaign.note_slowed()
        self._since += self.campaign.clock() - begin

    def _check_budget(self, records: Sequence[Record]) -> None:
        """Raise `InvalidValueError` as soon as a part of a round takes longer than the budget."""
        budget, duration = self.schedule.protocol.time_budget, sum(record.duration for record in records)
        if not self.schedule.rounds and duration > budget:
            whole = duration * len(self._round) / len(records)
            networks = number_of(len(self._round), self.schedule.what.removesuffix("s"))
            raise InvalidValueError(
                f"The time budget of {format_seconds(budget)} is too small for one round of {networks}, "
                f"which takes {'about ' if len(records) < len(self._round) else ''}{format_seconds(whole)}: "
                "nothing would be measured. Give a larger one."
            )

    def _visit_all(self, chains: Sequence[Chain], *, keep: bool) -> list[Record]:
        """Visit networks; one that fails is left out, and so are those that share the subject that failed."""
        records: list[Record] = []
        left = self._sound(chains)
        while left:
            left = self._sound(self._visit_some(left, records, keep=keep))
        return records

    def _sound(self, chains: Sequence[Chain]) -> list[Chain]:
        failures = self.schedule.failures
        return [chain for chain in chains if not any(subject.key in failures for subject in chain)]

    def _visit_some(self, chains: Sequence[Chain], records: list[Record], *, keep: bool) -> Sequence[Chain]:
        """Visit networks until one fails, and return those that come after it."""
        asked = [(keys, self.schedule.sees_calls(keys)) for keys in map(keys_of, chains)]
        visits = self.bench.visit_all(asked)
        for place, chain in enumerate(chains):
            begin = self.campaign.clock()
            try:
                visited = next(visits)
            except CandidateError as error:
                self._find_culprit(chain, str(error))
                return chains[place + 1 :]
            record = self._record(chain, visited, self.campaign.clock() - begin)
            reason = self.schedule.validation_error(record)
            if reason:
                self.campaign.fail(Failure(chain[0].key, reason))
                return chains[place + 1 :]
            if keep:
                record = self._charged(record, None if visited.duration is None else begin)
                self.campaign.log.append(record)
            records.append(record)
            waited = sum(item.duration for item in records) if keep else 0.0
            self.campaign.step(f"{len(records)} of {len(self._round)} {self.schedule.what}", waited)
            if not keep:
                self._check_budget(records)
        return ()

    def _record(self, chain: Chain, visited: Visited, waited: float) -> Record:
        """Make the record of a visit; another machine reports its own duration, time and name."""
        visit = visited.visit
        self.campaign.note_worker(visited.worker)
        return Record(
            visit.reference,
            visit.parts,
            visit.samples,
            keys_of(chain),
            self.schedule.next,
            self.process,
            waited if visited.duration is None else visited.duration,
            time.time() if visited.at is None else visited.at,
            fallbacks=visit.fallbacks,
        ).rounded()

    def _charged(self, record: Record, begin: float | None) -> Record:
        """Add the preparation before a visit to its duration, if the budget includes preparation.

        For a visit on another machine, only the time before its request at `begin` counts: then it waited for its turn.
        """
        if not self.schedule.counts_preparation:
            return record
        since, self._since = self._since, self.campaign.clock()
        duration = self._since - since if begin is None else record.duration + begin - since
        return replace(record, duration=duration).rounded()

    def _find_culprit(self, chain: Chain, reason: str) -> None:
        """Run a failed network part by part, and record the subject that fails."""
        if len(chain) == 1:
            self.campaign.fail(Failure(chain[0].key, reason))
            return
        for number, subject in enumerate(chain):
            try:
                if not number:
                    self.bench.begin(subject.key)
                self.bench.step(subject.key)
            except CandidateError as error:
                self.campaign.fail(Failure(subject.key, str(error)))
                return
        self.campaign.fail_unexplained(keys_of(chain), reason)


def measure_network(
    network: Any, example_inputs: Any, runtime: Runtime, protocol: Protocol | None = None
) -> Measurement:
    """Time repeated runs of a whole network after a warm-up.

    Parameters
    ----------
    network : nn.Module
        The network; a copy of it is run.
    example_inputs : Tensor, tuple, dict, or sequence of int
        Its inputs, as for `nni_latency.operators.trace`; or the shape of a single input, batch first.
    runtime : Runtime
        Runtime that executes it.
    protocol : Protocol, optional
        Measuring protocol; by default 100 timed runs in one process, in at most 5 s.

    Returns
    -------
    Measurement
        Times [s].

    Raises
    ------
    MeasurementError
        If the network cannot be run, or the clock does not work.
    """
    how = protocol or _ONCE
    subject = Subject.of_module(network, example_inputs)
    benches, store = runtime.benches(), MemoryStore()
    with store.campaign(CampaignHeader("networks", {}, benches.platform, how)) as log:
        try:
            Campaign(NetworkSchedule([subject], how, isolated=benches.isolated), benches, log).run()
        except MeasurementError as error:
            reason = next((failure.reason for failure in log.failures), str(error))
            raise MeasurementError(f"The network cannot be run on {benches.platform.id}: {reason}") from error
    return Measurement(tuple(seconds for record in log.records for seconds in record.whole), how)
