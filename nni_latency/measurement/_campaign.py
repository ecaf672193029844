"""`Campaign`: the one loop that measures."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement._bench import Bench, CandidateError, WorkerDiedError
from nni_latency.measurement._isolation import Benches
from nni_latency.measurement._record import Failure, Record
from nni_latency.measurement._schedule import Progress, Schedule
from nni_latency.measurement._store import CampaignLog
from nni_latency.measurement._subject import Chain, Subject, keys_of
from nni_latency.measurement._trimming import windows_agree
from nni_latency.units import format_seconds

#: A warm-up ends when a round takes as long as the one before, within this share.
_WARM = 0.05

#: How often a network may fail for no reason that can be found before measuring is given up.
_MAX_UNEXPLAINED_FAILURES = 3


class Campaign:
    """Measures what a schedule asks for, until it asks for nothing more.

    Every visit is in the log before the next one begins, so that a process that is killed loses the visit in flight at
    most. A subject is loaded when a round first has it. One that fails, crashes its process or takes too long is
    recorded as failed; the others go on.

    Parameters
    ----------
    schedule : Schedule
        What is measured next.
    benches : Benches
        Opens the benches on which it is measured.
    log : CampaignLog
        Where records and failures go; what it holds already is observed first.
    clock : callable, default=time.perf_counter
        Tells how much of the budget is spent [s].
    on_progress : callable, optional
        Called with a `Progress` after every round, and after every subject that was loaded.
    """

    def __init__(
        self,
        schedule: Schedule,
        benches: Benches,
        log: CampaignLog,
        clock: Callable[[], float] = time.perf_counter,
        on_progress: Callable[[Progress], None] = lambda _progress: None,
    ) -> None:
        self.schedule, self.benches, self.log, self.clock = schedule, benches, log, clock
        self._on_progress = on_progress
        self._unexplained = 0
        self._noted: set[str] = set()
        schedule.replay(list(log.records), list(log.failures))
        self.resumed = schedule.rounds

    def run(self) -> None:
        """Measure until the schedule asks for nothing more.

        Raises
        ------
        MeasurementError
            If what must run cannot be run, or the clock does not work.
        InvalidValueError
            If the budget is too small for one round.
        OutputError
            If a record cannot be kept.
        """
        for session in self.schedule.sessions():
            if not self.schedule.next_round():
                continue
            if "before" not in self._noted:
                self._note("before")
            with self.benches.open(self.schedule.protocol, calls=self.schedule.calls) as bench:
                _Session(self, bench, session).run()
            self._note("after")

    def _note(self, moment: str) -> None:
        self.log.note(moment, self.benches.conditions().as_dict())
        self._noted.add(moment)

    def report(self, waited: float = 0.0) -> None:
        """Tell how far the campaign is, `waited` seconds into a round."""
        schedule = self.schedule
        share = min(1.0, schedule.share + waited / schedule.protocol.time_budget)
        self._on_progress(Progress(schedule.rounds, schedule.spent + waited, share, self.resumed, schedule.unsettled))

    def fail(self, failure: Failure) -> None:
        """Record that a subject cannot be measured."""
        self.log.fail(failure)
        self.schedule.fail(failure)

    def fail_unexplained(self, keys: Sequence[str], reason: str) -> None:
        """Count a network that failed although each of its subjects ran."""
        self._unexplained += 1
        if self._unexplained >= _MAX_UNEXPLAINED_FAILURES:
            raise MeasurementError(
                f"Networks failed {self._unexplained} times, though each of their candidates ran; the last one was "
                f"{','.join(keys)}: {reason}."
            )


class _Session:
    """What a campaign measures on one bench."""

    def __init__(self, campaign: Campaign, bench: Bench, process: int) -> None:
        self.campaign, self.schedule, self.bench, self.process = campaign, campaign.schedule, bench, process
        self._admitted: set[str] = set()
        self._since = campaign.clock()

    def run(self) -> None:
        """Warm up, then measure rounds."""
        self._warm_up()
        while self._next():
            records = self._visit_all(self._round, keep=True)
            if records:
                self.schedule.observe(records)
            self.campaign.report()

    def _next(self) -> bool:
        """Load what the next round needs; what cannot be loaded is left out, and the schedule is asked again."""
        begin = self.campaign.clock()
        while True:
            self._round = self.schedule.next_round()
            failed = False
            for subject in self._new():
                failed |= not self._admit(subject)
            if not failed:
                return bool(self._round)
            self.campaign.report(self.campaign.clock() - begin)

    def _new(self) -> list[Subject]:
        """Return what the round has and the bench does not hold, the first parts of networks first."""
        places = {subject.key: (place, subject) for chain in self._round for place, subject in enumerate(chain)}
        new = sorted((place, key) for key, (place, _) in places.items() if key not in self._admitted)
        return [places[key][1] for _, key in new]

    def _admit(self, subject: Subject) -> bool:
        self.campaign.log.admit(subject)
        try:
            try:
                self.bench.admit(subject)
            except WorkerDiedError:
                # Another process may have killed it; what crashes by itself does so again.
                self.bench.admit(subject)
        except CandidateError as error:
            self.campaign.fail(Failure(subject.key, str(error)))
            return False
        self._admitted.add(subject.key)
        return True

    def _warm_up(self) -> None:
        """Repeat a round until it takes as long as before. It does not count: a resumed campaign is cold as well."""
        totals: list[float] = []
        spent, budget = 0.0, self.schedule.protocol.time_budget
        while len(totals) < self.schedule.warm_up and not windows_agree(totals, 1, _WARM):
            if not self._next() or (totals and spent > budget * self.schedule.warm_up_share / self.schedule.processes):
                return
            begin = self.campaign.clock()
            records = self._visit_all(self._round, keep=False)
            duration = self.campaign.clock() - begin
            if records:
                totals.append(sum(sum(record.whole) for record in records))
                self._check_budget(duration)
                spent += duration

    def _check_budget(self, duration: float) -> None:
        budget = self.schedule.protocol.time_budget
        if not self.schedule.rounds and duration > budget:
            raise InvalidValueError(
                f"The time budget of {format_seconds(budget)} is too small for one round of {len(self._round)} "
                f"{self.schedule.what}, which takes {format_seconds(duration)}: nothing would be measured. "
                "Give a larger one."
            )

    def _visit_all(self, chains: Sequence[Chain], *, keep: bool) -> list[Record]:
        """Visit networks; one that fails is left out, and so are those that share the subject that failed."""
        records: list[Record] = []
        for chain in chains:
            if any(subject.key in self.schedule.failures for subject in chain):
                continue
            try:
                record = self._visit(chain)
            except CandidateError as error:
                self._find_culprit(chain, str(error))
                continue
            objection = self.schedule.objection(record)
            if objection:
                self.campaign.fail(Failure(chain[0].key, objection))
                continue
            if keep:
                record = self._charged(record)
                self.campaign.log.append(record)
            records.append(record)
        return records

    def _visit(self, chain: Chain) -> Record:
        begin, keys = self.campaign.clock(), keys_of(chain)
        visit = self.bench.visit(keys, calls=self.schedule.sees_calls(keys))
        duration = self.campaign.clock() - begin
        return Record(
            visit.reference, visit.parts, visit.samples, keys, self.schedule.next, self.process, duration, time.time()
        ).rounded()

    def _charged(self, record: Record) -> Record:
        """Add to a record's duration what was prepared before it, where the budget includes that."""
        if not self.schedule.counts_preparation:
            return record
        now = self.campaign.clock()
        duration, self._since = now - self._since, now
        return replace(record, duration=duration).rounded()

    def _find_culprit(self, chain: Chain, reason: str) -> None:
        """Run a network that failed part by part, and record the subject that fails."""
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
