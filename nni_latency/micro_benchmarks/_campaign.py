"""Measuring blocks: which batch sizes fit into memory and budget, then rounds over all of them."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement import (
    Bench,
    CandidateError,
    Measurement,
    Protocol,
    Summary,
    fewest_samples,
    open_bench,
    quantile,
)
from nni_latency.measurement.runtimes import Runtime
from nni_latency.micro_benchmarks._blocks import Block
from nni_latency.micro_benchmarks._feeding import columns_of
from nni_latency.micro_benchmarks._journal import BenchmarkJournal, Ended, Found, Line, Round
from nni_latency.operators import OpSpec, capture_operators
from nni_latency.tables import BuildProgress
from nni_latency.units import format_seconds

#: A block and the batch sizes at which it is to be measured, smallest first.
Series = tuple[Block, tuple[int, ...]]

#: Longest run of one point, and all the time spent finding points, as shares of the budget.
_LONGEST, _FINDING = 6e-4, 0.4

#: Share of the free memory that one run may need.
_MEMORY = 0.5

#: How often a point is measured at least.
_FEWEST_ROUNDS = 3


@dataclass(frozen=True)
class _Candidate:
    """One block at one batch size: its number on the bench, that of the block, and what it is."""

    index: int
    number: int
    block: Block
    batch: int

    @cached_property
    def ops(self) -> tuple[OpSpec, ...]:
        """The operators that it runs."""
        with torch.device("meta"):
            module, inputs = self.block.build(), torch.empty(*self.block.input_shape(self.batch))
        return tuple(op for _, op in capture_operators(module, inputs, by="graph"))

    @property
    def memory(self) -> int:
        """What a run needs at least: input and output of its largest operator [byte]."""
        return max(8 * sum(math.prod(shape) for shape in op.input_shapes) for op in self.ops)


class BenchmarkCampaign:
    """The measuring of blocks: what can be measured, what has been, and what to do next.

    Parameters
    ----------
    series : sequence of (Block, tuple of int)
        Blocks, each with its batch sizes, smallest first.
    runtime, protocol
        As for `run_benchmarks`.
    journal : BenchmarkJournal
        Where everything goes before the next begins.
    done : list
        Lines of earlier runs.
    """

    def __init__(
        self,
        series: Sequence[Series],
        runtime: Runtime,
        protocol: Protocol,
        journal: BenchmarkJournal,
        done: list[Line],
    ) -> None:
        self.runtime, self.protocol, self.journal = runtime, protocol, journal
        places = [(number, block, batch) for number, (block, batches) in enumerate(series) for batch in batches]
        # All blocks at their smallest batch first, so that a small budget still meets every kind.
        places.sort(key=lambda place: list(series[place[0]][1]).index(place[2]))
        self._candidates = [_Candidate(index, *place) for index, place in enumerate(places)]
        self._by_place = {(item.number, item.batch): item for item in self._candidates}
        self._names = [block.name for block, _ in series]
        self.found: dict[_Candidate, float] = {}
        self.samples: dict[_Candidate, list[tuple[int, float]]] = {}
        self.ended: dict[int, Ended] = {}
        self.drift: list[float] = []
        self.spent = 0.0
        for line in done:
            self._take(line)
        self._resumed = self.rounds

    @property
    def rounds(self) -> int:
        """Rounds measured so far."""
        return len(self.drift)

    @property
    def reasons(self) -> dict[str, str]:
        """Blocks of which no larger batch size was measured, by name, and why."""
        return {self._names[number]: f"batch {end.batch}: {end.reason}" for number, end in self.ended.items()}

    def run(self, on_progress: Callable[[BuildProgress], None]) -> None:
        """Find the points, then measure rounds until every interval is narrow or the budget is spent.

        Raises
        ------
        MeasurementError
            If no block can be run, or the clock does not work.
        InvalidValueError
            If the budget is too small for one round.
        """
        columns = columns_of([(item.block.build, item.block.input_shape(item.batch)) for item in self._candidates])
        if self.rounds >= _FEWEST_ROUNDS and (self._share >= 1 or not self._wanted()):
            return
        with open_bench(columns, (1, 1), self.runtime, self.protocol) as bench:
            for item in self.found:
                self._admit_again(bench, item)
            self._find_points(bench, on_progress)
            if not self.found:
                reason = next(iter(self.reasons.values()), "there was no time")
                raise MeasurementError(f"None of the blocks can be run on {self.runtime.platform.id}: {reason}.")
            while self.rounds < _FEWEST_ROUNDS or (self._share < 1 and self._wanted()):
                self._measure_round(bench)
                on_progress(self._progress())

    def summaries(self) -> dict[tuple[int, int], tuple[Block, tuple[OpSpec, ...], Summary]]:
        """Return by block number and batch size what the samples say, the drift taken out."""
        level, found = self._level(), {}
        for item in sorted(self.samples, key=lambda item: (item.number, item.batch)):
            taken = tuple(seconds * level / self.drift[index] for index, seconds in self.samples[item])
            found[item.number, item.batch] = (item.block, item.ops, Measurement(taken, self.protocol).summary)
        return found

    def _level(self) -> float:
        """Return the speed to which samples are brought [s of the reference operator]: that at which most were taken.

        Late rounds have few points, those that are hard to know, and would else decide for all the others.
        """
        return quantile([self.drift[index] for samples in self.samples.values() for index, _ in samples], 0.5)

    @property
    def _share(self) -> float:
        return max(self.rounds / self.protocol.rounds, self.spent / self.protocol.time_budget)

    def _progress(self) -> BuildProgress:
        return BuildProgress(self.rounds, self.spent, min(1.0, self._share), self._resumed, len(self._wanted()))

    def _take(self, line: Line) -> None:
        """Take in what was found, ended or measured."""
        if isinstance(line, Ended):
            self.ended[line.block] = line
            self._drop(line)
            return
        self.spent += line.duration
        if isinstance(line, Found):
            self.found[self._by_place[line.block, line.batch]] = line.seconds
            return
        for number, batch, seconds in line.points:
            self.samples.setdefault(self._by_place[number, batch], []).append((len(self.drift), seconds))
        self.drift.append(line.reference)

    def _note(self, line: Line) -> None:
        self.journal.append(line)
        self._take(line)

    def _drop(self, line: Ended) -> None:
        """Leave out a point that was found and failed later."""
        item = self._by_place[line.block, line.batch]
        self.found.pop(item, None)
        self.samples.pop(item, None)

    def _find_points(self, bench: Bench, on_progress: Callable[[BuildProgress], None]) -> None:
        """Try larger and larger batches, until memory or time end the series of a block."""
        for item in self._candidates:
            if item in self.found or item.number in self.ended:
                continue
            reason = self._reason_against(item)
            if reason:
                self._note(Ended(item.number, item.batch, reason))
                continue
            begin = time.perf_counter()
            try:
                bench.admit(0, item.index)
                bench.admit(1, item.index)
                # The first run is cold in every respect and counts for the choice of batch sizes alone.
                seconds, _ = _visit(bench, item)
                self._note(Found(item.number, item.batch, seconds, time.perf_counter() - begin))
            except CandidateError as error:
                self._note(Ended(item.number, item.batch, str(error)))
            on_progress(self._progress())

    def _reason_against(self, item: _Candidate) -> str:
        """Say why a point should not even be tried; empty if it should."""
        smaller = [(other, seconds) for other, seconds in self.found.items() if other.number == item.number]
        if self.spent > _FINDING * self.protocol.time_budget:
            return "the time budget is spent on smaller ones"
        free = self._free_memory()
        if free and item.memory > _MEMORY * free:
            return f"it needs {item.memory / 2**30:.1f} GiB at least, and {free / 2**30:.1f} GiB are free"
        longest = _LONGEST * self.protocol.time_budget
        expected = max((seconds * item.batch / other.batch for other, seconds in smaller), default=0.0)
        if expected > longest:
            return f"a run would take {format_seconds(expected)}, more than the {format_seconds(longest)} for one point"
        return ""

    def _free_memory(self) -> int:
        """Return the memory of a GPU, or what is free of the machine's [byte]; 0 if it is not known."""
        whole = self.runtime.platform.facts.get("gpu_memory")
        return int(whole) if whole else self.runtime.conditions().memory_available or 0

    def _admit_again(self, bench: Bench, item: _Candidate) -> None:
        bench.admit(0, item.index)
        bench.admit(1, item.index)

    def _wanted(self) -> list[_Candidate]:
        """Return the points that are not known well enough yet."""
        return [item for item in self.found if not self._settled(item)]

    def _settled(self, item: _Candidate) -> bool:
        samples = [seconds for _, seconds in self.samples.get(item, [])]
        if len(samples) < max(_FEWEST_ROUNDS, fewest_samples(self.protocol.statistic, self.protocol.confidence)):
            return False
        spread = Measurement(tuple(samples), self.protocol).summary.spread
        return bool(self.protocol.half_width) and spread <= self.protocol.half_width

    def _measure_round(self, bench: Bench) -> None:
        """Visit every point that is wanted, in an order that is drawn anew each time."""
        wanted = self._wanted() or list(self.found)
        random.Random(f"{self.protocol.seed}/{self.rounds}").shuffle(wanted)
        begin, taken, references, failed = time.perf_counter(), [], [], []
        for item in wanted:
            try:
                seconds, reference = _visit(bench, item)
            except CandidateError as error:
                failed.append(Ended(item.number, item.batch, str(error)))
                continue
            taken.append((item.number, item.batch, seconds))
            references.append(reference)
        if references:
            duration = time.perf_counter() - begin
            self._check_budget(duration)
            self._note(Round(duration, taken, quantile(references, 0.5)))
        for line in failed:
            self._note(line)
        if not self.found:
            raise MeasurementError(f"Every block failed on {self.runtime.platform.id}: {failed[-1].reason}.")

    def _check_budget(self, duration: float) -> None:
        if not self.rounds and duration > self.protocol.time_budget:
            raise InvalidValueError(
                f"The time budget of {format_seconds(self.protocol.time_budget)} is too small for one round of "
                f"{len(self.found)} blocks, which takes {format_seconds(duration)}: nothing would be measured."
            )


def _visit(bench: Bench, item: _Candidate) -> tuple[float, float]:
    """Return the time of the block, without that of the feeder before it, and that of the reference operator [s]."""
    visit = bench.visit((item.index, item.index))
    return quantile([times[1] for times in visit.parts], 0.5), visit.reference
