# SPDX-License-Identifier: Apache-2.0
"""Contract suites of the measuring engine: meters, benches and schedules.

Each check raises `AssertionError` with one sentence that says what is broken; none of them needs pytest.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from nni_latency.measurement import (
    Bench,
    Benches,
    Campaign,
    CampaignHeader,
    CampaignLog,
    CandidateError,
    Chain,
    MemoryStore,
    Meter,
    Protocol,
    Record,
    Schedule,
    Subject,
)
from nni_latency.platforms import Conditions, Platform
from nni_latency.testing._contracts import expect
from nni_latency.units import check_metric


def check_meter(meter: Meter, work: Callable[[], object]) -> None:
    """Check that a meter keeps the contract of `Meter`.

    Parameters
    ----------
    meter : Meter
        What is checked.
    work : callable
        Something that costs, such as a matrix product.

    Raises
    ------
    AssertionError
        If the contract is broken; the message says how.
    """
    expect(isinstance(meter, Meter), f"{type(meter).__name__} must be a subclass of Meter.")
    check_metric(meter.metric)
    expect(meter.resolution > 0, f"'resolution' must be positive. Got {meter.resolution!r}.")
    expect(meter.period >= 0, f"'period' must be >= 0. Got {meter.period!r}.")
    expect(meter.runs(1e-3) >= 1, "'runs' must be at least one.")
    expect(meter.runs(1e-3) >= meter.runs(1.0), "'runs' must not grow with the time of one run.")
    expect(bool(meter.description), "'description' must say what it is.")
    expect(meter.shortest >= meter.settling >= 0, "'settling' must be >= 0, and a window longer than that.")
    with meter.session():
        costs = [_read(meter, work, runs) for runs in (1, 50)]
        others = {name: list(values) for name, values in meter.observations().items()}
        idle = meter.idle()
    expect(
        all(math.isfinite(value) for values in others.values() for value in values),
        f"'observations' must be finite numbers. Got {others}.",
    )
    expect(all(math.isfinite(cost) and cost >= 0 for cost in costs), f"A window must cost >= 0. Got {costs}.")
    expect(costs[1] > costs[0], f"Fifty runs must cost more than one. Got {costs[1]} and {costs[0]}.")
    expect(math.isfinite(idle) and idle >= 0, f"'idle' must be a finite number >= 0. Got {idle!r}.")
    with meter.session():
        again = _read(meter, work, 50)
    expect(again > 0, f"A second session must read as the first. Got {again}.")


def _read(meter: Meter, work: Callable[[], object], runs: int) -> float:
    meter.start()
    for _ in range(runs):
        work()
    return meter.stop()


def check_bench(bench: Bench, subjects: Sequence[Subject], broken: Subject) -> None:
    """Check that a bench keeps the contract of `Bench`.

    Parameters
    ----------
    bench : Bench
        What is checked; it is entered here.
    subjects : sequence of Subject
        Two at least that run one after another.
    broken : Subject
        One that cannot be loaded.

    Raises
    ------
    AssertionError
        If the contract is broken; the message says how.
    """
    first, *others = subjects
    with bench:
        bench.admit(first)
        alone = bench.visit([first.key])
        expect(len(alone.whole) >= 1, "A visit must time the whole network at least once.")
        try:
            bench.admit(broken)
        except CandidateError as error:
            expect(bool(str(error)), "A CandidateError must say why.")
        else:
            raise AssertionError("admit must raise CandidateError for a subject that cannot be loaded.")
        for subject in others:
            bench.admit(subject)
        keys = [subject.key for subject in subjects]
        visit = bench.visit(keys)
        expect(len(visit.parts) == len(visit.whole), "A visit must time parts and whole equally often.")
        expect(all(len(run) == len(keys) for run in visit.parts), "A visit must time every part.")
        times = [visit.reference, *visit.whole, *(seconds for run in visit.parts for seconds in run)]
        expect(
            all(math.isfinite(seconds) and seconds > 0 for seconds in times), f"Times must be positive. Got {times}."
        )
        bench.begin(keys[0])
        for key in keys:
            bench.step(key)


def check_schedule(make: Callable[[], Schedule], benches: Benches) -> None:
    """Check that a schedule keeps the contract of `Schedule`.

    Parameters
    ----------
    make : callable
        Makes the same schedule anew, with a protocol whose rounds end it.
    benches : Benches
        Where it is measured; times that are the same in every run, such as those of a `FakeRuntime`.

    Raises
    ------
    AssertionError
        If the contract is broken; the message says how.
    """
    listening = _Listening(benches)
    records = _measure(make, listening, [])
    expect(bool(records), "A schedule must ask for something.")
    surprises = sorted({key for record in records for key in record.subjects} - listening.expected)
    expect(not surprises, f"'planned' must have what is measured until 'iteration' changes. It lacks {surprises}.")
    rounds = [list(group) for _, group in groupby(records, key=lambda record: record.round)]
    expect(_measure(make, benches, records) == records, "A schedule that has seen everything must ask for nothing.")
    half = [record for group in rounds[: len(rounds) // 2] for record in group]
    resumed = _measure(make, benches, half)
    expect(
        [record.subjects for record in resumed] == [record.subjects for record in records],
        "A schedule that is resumed must ask for what it would have asked for without the interruption.",
    )
    schedule = make()
    for _ in schedule.sessions():
        expect(list(schedule.next_round()) == list(schedule.next_round()), "'next_round' must change nothing.")
        break
    expect(schedule.unsettled >= 0, f"'unsettled' must be >= 0. Got {schedule.unsettled!r}.")
    expect(schedule.share >= 0, f"'share' must be >= 0. Got {schedule.share!r}.")


class _Listening(Benches):
    """Benches that keep what campaigns expect to measure on them."""

    def __init__(self, benches: Benches) -> None:
        self.benches, self.isolated = benches, benches.isolated
        self.expected: set[str] = set()

    @property
    def platform(self) -> Platform:
        return self.benches.platform

    def conditions(self) -> Conditions:
        return self.benches.conditions()

    def open(self, protocol: Protocol, *, calls: bool = False) -> Bench:
        return self.benches.open(protocol, calls=calls)

    @contextlib.contextmanager
    def expecting(self, sessions: Iterable[Sequence[Chain]]) -> Iterator[None]:
        self.expected |= {subject.key for chains in sessions for chain in chains for subject in chain}
        yield


def _measure(make: Callable[[], Schedule], benches: Benches, done: Sequence[Record]) -> list[Record]:
    schedule, store = make(), MemoryStore()
    header = CampaignHeader(schedule.kind, {}, benches.platform, schedule.protocol)
    with store.campaign(header) as log:
        _fill(log, done)
        Campaign(schedule, benches, log, clock=_still).run()
        return [_timeless(record) for record in log.records]


def _fill(log: CampaignLog, records: Sequence[Record]) -> None:
    for record in records:
        log.append(record)


def _still() -> float:
    """Return no time: rounds end the campaign, and not the time that they take."""
    return 0.0


def _timeless(record: Record) -> Record:
    return Record.of({**record.content(), "at": 0.0, "duration": 0.0})
