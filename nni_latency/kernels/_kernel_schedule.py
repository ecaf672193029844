# SPDX-License-Identifier: Apache-2.0
"""`KernelSchedule`: batches of kernels, timed as inside a network; each iteration adds the most informative ones."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from nni_latency.errors import MeasurementError
from nni_latency.kernels._kernel import Kernel
from nni_latency.kernels._kernel_type import KernelType
from nni_latency.kernels._learning import GroupLearner, in_turn, score_groups, score_tests
from nni_latency.kernels._predictor import FEWEST_KERNELS, KernelScores
from nni_latency.kernels._sampling import Prior, Sampler, Sampling
from nni_latency.kernels._visits import (
    BODY,
    CONSTANT,
    ExecutionMode,
    GroupSpeeds,
    ReferenceSpeeds,
    Speeds,
    alike,
    at_level,
    constant_chain,
    level_of,
    measurable,
    runs_by_key,
    shares_by_key,
)
from nni_latency.measurement import (
    Chain,
    Failure,
    Measurement,
    Protocol,
    Record,
    Schedule,
    Subject,
    Summary,
    quantile,
)
from nni_latency.micro_benchmarks import FEEDER, fed_chain, inputs_of

#: Maximum number of values in the tensors of the kernels of one process.
_MOST_NUMBERS = 2**28

#: Maximum number of kernels of one process, and of their multiply-adds; standalone or chained, and in parallel. A round
#: should take at most some seconds, because the budget is checked after it. It should not be much shorter either:
#: disturbances last for seconds, and should not coincide with every visit of a kernel.
_BATCH, _BATCH_TOGETHER = (96, 10**10), (384, 4 * 10**10)

#: Fewest and most visits of a kernel, and the most in one process; standalone or chained, and in parallel. A process
#: lasts for seconds, like disturbances: a kernel that returns in a later process is exposed to other ones.
_VISITS, _VISITS_TOGETHER = (2, 4, 4), (6, 12, 3)

#: Kernels that reach the required visits before the next ones are begun: when the budget ends, few kernels have too few
#: visits to learn from.
_BLOCK = 384

#: Lower bound of a kernel's share of a run after subtracting the constant overhead.
_LEAST_LEFT = 0.01

#: Time of a run [s], and the number of its visit.
Run = tuple[float, int]


@dataclass(frozen=True)
class Standing:
    """Progress of building predictors, after an iteration.

    Parameters
    ----------
    iteration : int
        Number of the iteration that ended, from 0.
    kernels : int
        Kernels measured so far.
    scores : KernelScores
        Cross-validated scores over all groups.
    tested : KernelScores, optional
        Scores on the test kernels.
    """

    iteration: int
    kernels: int
    scores: KernelScores
    tested: KernelScores | None = None


class KernelSchedule(Schedule):
    """Batches of kernels, each in a separate process, then batches of the most informative ones.

    Every kernel is timed as inside a network: a prologue flushes the small caches and produces its inputs. On a runtime
    that compiles networks and reports the times of their nodes, several kernels run in parallel in one network, grouped
    differently in every round, so that each finds the caches as the others leave them. On a runtime without a profile,
    kernels run as networks of their own, and the time of a trivial network is subtracted.

    Parameters
    ----------
    kinds : sequence of KernelType
        Kernel types to measure.
    protocol : Protocol
        Measuring protocol. Its budget ends the schedule, and `half_width` is the precision at which visits of a kernel
        end.
    sampling : Sampling
        Number and choice of configurations.
    prior : Prior
        Distribution of the configurations.
    mode : {"chained", "parallel", "standalone"}, default="chained"
        How the runtime executes kernels, see `execution_mode_of`. Unless kernels are chained, the overhead of a run
        is measured too: the time of a trivial network or, in parallel, the time of a network outside of its nodes.
    is_enough : callable, optional
        Takes `KernelScores` after every iteration; returns whether they are good enough to stop.
    on_standing : callable, optional
        Called with a `Standing` after every measured iteration.
    kernels : sequence of Kernel, optional
        Measure exactly these instead of a sample.
    """

    kind = "kernels"
    warm_up = 0
    counts_preparation = True
    what = "kernels"

    def __init__(
        self,
        kinds: Sequence[KernelType],
        protocol: Protocol,
        sampling: Sampling,
        prior: Prior,
        *,
        mode: ExecutionMode = "chained",
        is_enough: Callable[[KernelScores], bool] = lambda _scores: False,
        on_standing: Callable[[Standing], None] = lambda _standing: None,
        kernels: Sequence[Kernel] | None = None,
    ) -> None:
        super().__init__(protocol, isolated=False)
        self.kinds = {item.name: item for item in kinds}
        self.mode, self.sampling = mode, sampling
        self._fewest, self._most, self._most_at_once = _VISITS_TOGETHER if self._is_parallel else _VISITS
        # In parallel it is not subtracted from any kernel: it is only recorded in the file of predictors.
        self._adds_constant = mode == "standalone" or (self._is_parallel and kernels is None)
        self._is_enough, self._on_standing = is_enough, on_standing
        sampler = Sampler(prior, sampling.seed)
        groups = dict.fromkeys(item.group for item in kinds)
        self.learners = {
            group: GroupLearner([item for item in kinds if item.group == group], sampling, sampler) for group in groups
        }
        #: Number of the current iteration.
        self.iteration = 0
        #: Test kernels, excluded from training.
        self.test = [] if kernels is not None else _draw_tests(kinds, prior, sampling)
        sampler.leave_out(self.test)
        self._tests = frozenset(self.test)
        self._fixed = None if kernels is None else list(dict.fromkeys(kernels))
        self._planned: dict[str, Kernel] = {}
        # Whether this version draws the same kernels as the one whose records are replayed.
        self._draws_as_before = True
        self._current: list[Kernel] = []
        first = in_turn([self.test, *(learner.first() for learner in self.learners.values())])
        self._take(first if self._fixed is None else self._fixed)
        #: By kernel, the time of every run [s] with the number of its visit.
        self.samples: dict[Kernel, list[Run]] = {}
        # Medians of kernels in parallel add up to the lower quartile of their network.
        self._summing = replace(protocol, statistic=0.5) if self._is_parallel else protocol
        self._speeds: Speeds = GroupSpeeds() if self._is_parallel else ReferenceSpeeds(protocol.statistic)
        self._n_visits = 0
        self._visits: Counter[Kernel] = Counter()
        self._visits_at_once: Counter[Kernel] = Counter()
        self._constants: list[Run] = []
        self._batch: list[Kernel] = []
        self.drift: list[float] = []
        #: Progress after every iteration.
        self.standings: list[Standing] = []

    @property
    def _is_parallel(self) -> bool:
        return self.mode == "parallel"

    def _take(self, kernels: Sequence[Kernel]) -> None:
        self._current = list(kernels)
        self._planned |= {kernel.key: kernel for kernel in kernels}

    @property
    def share(self) -> float:
        """Share of the budget that was spent."""
        return self.spent / self.protocol.time_budget

    @property
    def unsettled(self) -> int:
        """Number of kernels of this iteration that need more visits."""
        return len(self._wanting())

    def sessions(self) -> Iterator[int]:
        """Yield a session for every batch, until the budget is spent or no iteration is left."""
        number = self.process + 1 if self.rounds else 0
        while self.share < 1:
            if not self._wanting() and not self._go_on(notify=True):
                break
            self._batch = self._draw_batch(self._wanting())
            self._enter(number)
            yield number
            number += 1
        if not self.samples:
            reason = next(iter(self.failures.values()), "there was no time")
            raise MeasurementError(f"None of the kernels can be run: {reason}.")

    def _enter(self, process: int) -> None:
        if process != self.process:
            self._visits_at_once.clear()
        self.process = process

    def planned(self) -> Iterator[list[Chain]]:
        """Yield the kernels of this iteration, in batches that return until they have all visits."""
        visits = self._most + self._fewest * self.iteration
        for _ in range(-(-visits // self._most_at_once)):
            left = self._wanting()
            while left:
                batch = self._draw_batch(left)
                left = left[len(batch) :]
                yield self._chains(batch)

    def next_round(self) -> list[Chain]:
        """Return the kernels of the batch that need more visits, in a new order."""
        if self.share >= 1:
            return []
        pending = [
            kernel
            for kernel in self._batch
            if self._needs_visits(kernel) and self._visits_at_once[kernel] < self._most_at_once
        ]
        random.Random(f"{self.protocol.seed}/{self.next}").shuffle(pending)
        return self._chains(pending)

    def _chains(self, kernels: Sequence[Kernel]) -> list[Chain]:
        """Return the networks that measure kernels."""
        chains = self._networks(kernels) if self._is_parallel else [self.chain(kernel) for kernel in kernels]
        return [constant_chain(self._is_parallel), *chains] if chains and self._adds_constant else chains

    def chain(self, kernel: Kernel) -> Chain:
        """Return the subjects that a bench runs to measure one kernel."""
        kind = self.kinds[kernel.kind]
        if self.mode == "chained":
            return fed_chain(
                kernel.key, partial(kind.module, kernel), kind.shapes(kernel), _specification(kind, kernel), "kernel"
            )
        return (_subject(kernel.key, kind, kernel),)

    def _networks(self, kernels: Sequence[Kernel]) -> list[Chain]:
        """Group kernels into networks."""
        generator = random.Random(f"{self.protocol.seed}/{self.next}/networks")
        return [
            tuple(part for kernel in network for part in self.chain(kernel))
            for network in alike(kernels, lambda kernel: self.kinds[kernel.kind].work(kernel), generator)
        ]

    def observe(self, records: Sequence[Record]) -> None:
        """Add a round over a batch."""
        super().observe(records)
        self._enter(records[0].process)
        references = [record.reference for record in records]
        self.drift.append(quantile(references, 0.5))
        # Look kernels up before this round is added, because those of the next iteration were drawn without it.
        kernels = {key: self._find(key) for record in records for key in record.subjects if is_kernel(key)}
        times = [shares_by_key(record) if self._is_parallel else runs_by_key(record) for record in records]
        self._speeds.observe(references, times)
        for by_key in times:
            for key, seconds in by_key.items():
                runs = [(value, self._n_visits) for value in seconds]
                if key == CONSTANT:
                    self._constants += runs
                elif key in kernels:
                    kernel = kernels[key]
                    self.samples.setdefault(kernel, []).extend(runs)
                    self._visits[kernel] += 1
                    self._visits_at_once[kernel] += 1
            self._n_visits += 1

    def fail(self, failure: Failure) -> None:
        """Exclude a kernel that failed, or whose feeder failed."""
        super().fail(failure)
        key = failure.subject.removeprefix(FEEDER)
        self.failures[key] = failure.reason
        if key in (CONSTANT, BODY):
            raise MeasurementError(f"Not even a network of convolutions can be run: {failure.reason}.")

    def discard(self, subject: str) -> None:
        """Discard the runs of a kernel that failed."""
        key = subject.removeprefix(FEEDER)
        if key in self._planned:
            self.samples.pop(self._planned[key], None)

    def summaries(self) -> dict[Kernel, Summary]:
        """Return the summary of every kernel, corrected for the machine's drift and the runtime's constant overhead."""
        constant = self.constant if self.mode == "standalone" else 0.0
        return {kernel: self._summary(runs, constant) for kernel, runs in self.samples.items()}

    @property
    def constant(self) -> float:
        """Overhead of a run outside of the kernels [s]; 0 where it is not measured."""
        return self._summary(self._constants, 0.0).value if self._constants else 0.0

    def _summary(self, runs: Sequence[Run], constant: float) -> Summary:
        slowness = self._speeds.slowness()
        times = at_level(level_of(slowness), runs, slowness)
        left = tuple(max(seconds - constant, _LEAST_LEFT * seconds) for seconds in times)
        return Measurement(left, self._summing).summary

    def _find(self, key: str) -> Kernel:
        """Return a kernel by its key; if unknown, first draw the next iteration, as when it was measured."""
        if key not in self._planned and self._draws_as_before and self._go_on():
            self._draws_as_before = key in self._planned
        # A kernel that another version of the sampler drew is used as well.
        return self._planned.setdefault(key, Kernel.parse(key))

    def _go_on(self, *, notify: bool = False) -> bool:
        """Begin the next iteration, if there is one."""
        if self._fixed is not None or not self.samples:
            return False
        by_group = self.by_group()
        scores = score_groups(self.learners, by_group)
        tested = score_tests(self.learners, by_group, self.by_group(tests=True))
        standing = Standing(self.iteration, sum(map(len, by_group.values())), scores, tested)
        self.standings.append(standing)
        if notify:
            self._on_standing(standing)
        if self._is_enough(standing.scores) or self.iteration == self.sampling.iteration:
            return False
        more = [self.learners[group].more(known) for group, known in by_group.items()]
        self.iteration += 1
        self._take(in_turn([self.test, *more]) if any(more) else ())
        return bool(self._current)

    def by_group(self, *, tests: bool = False) -> dict[str, Mapping[Kernel, float]]:
        """Return the time of every training kernel [s], or of every test kernel, by group.

        Kernels with too few visits, because the budget ended, are excluded from groups that have enough others; so are
        kernels without a measurable time.
        """
        found: dict[str, dict[Kernel, float]] = {group: {} for group in self.learners}
        for kernel, seconds in self._times().items():
            if (kernel in self._tests) == tests:
                found[self.kinds[kernel.kind].group][kernel] = seconds
        return {group: self._well_known(known) for group, known in found.items()}

    def _times(self) -> dict[Kernel, float]:
        """Return the measurable time of every kernel [s], in an order that does not depend on interruptions."""
        summaries = sorted(self.summaries().items(), key=lambda item: item[0].key)
        return measurable({kernel: summary.value for kernel, summary in summaries})

    def _well_known(self, known: Mapping[Kernel, float]) -> Mapping[Kernel, float]:
        often = {kernel: seconds for kernel, seconds in known.items() if self._visits[kernel] >= self._fewest}
        return often if len(often) >= max(FEWEST_KERNELS, len(known) / 2) else known

    @property
    def learned_from(self) -> frozenset[Kernel]:
        """The training kernels."""
        return frozenset(kernel for known in self.by_group().values() for kernel in known)

    @property
    def held_out(self) -> frozenset[Kernel]:
        """The test kernels that were measured."""
        return self._tests.intersection(self._times())

    def _wanting(self) -> list[Kernel]:
        """Return the kernels of this iteration that need more visits.

        Blocks follow each other; within a block, the kernels with the fewest visits come first.
        """
        places = {kernel: place // _BLOCK for place, kernel in enumerate(self._current)}
        return sorted(filter(self._needs_visits, places), key=lambda kernel: (places[kernel], self._visits[kernel]))

    def _needs_visits(self, kernel: Kernel) -> bool:
        visits, is_test = self._visits[kernel], kernel in self._tests
        # Test kernels return in every iteration: they have to be more precise than the predictions.
        most = self._most + self._fewest * self.iteration if is_test else self._most
        if kernel.key in self.failures or visits >= most:
            return False
        if visits < self._fewest or is_test:
            return True
        spread = self._summary(self.samples[kernel], 0.0).spread
        return bool(self.protocol.half_width) and spread > self.protocol.half_width

    def _draw_batch(self, kernels: Sequence[Kernel]) -> list[Kernel]:
        """Return the first of these kernels, as many as fit into the memory of one process."""
        batch: list[Kernel] = []
        most, most_macs = _BATCH_TOGETHER if self._is_parallel else _BATCH
        numbers = macs = 0
        for kernel in kernels:
            kind = self.kinds[kernel.kind]
            work, inputs = kind.work(kernel), sum(math.prod(shape) for shape in kind.shapes(kernel))
            numbers, macs = numbers + 2 * work.params + inputs, macs + work.macs
            if batch and (numbers > _MOST_NUMBERS or macs > most_macs or len(batch) == most):
                break
            batch.append(kernel)
        return batch


def _draw_tests(kinds: Sequence[KernelType], prior: Prior, sampling: Sampling) -> list[Kernel]:
    """Draw the test kernels, cycling through the kinds."""
    sampler = Sampler(prior, sampling.seed + 1)
    return in_turn([sampler.from_prior(kind, sampling.test_sample_num) for kind in kinds])


def is_kernel(key: str) -> bool:
    """Whether a key is that of a kernel, not of a feeder or of the constant network."""
    return key not in (CONSTANT, BODY) and not key.startswith(FEEDER)


def _subject(key: str, kind: KernelType, kernel: Kernel) -> Subject:
    """Return the subject of a kernel without a feeder."""
    inputs = inputs_of(kind.shapes(kernel))
    return Subject(key, partial(kind.module, kernel), inputs, "kernel", key, _specification(kind, kernel))


def _specification(kind: KernelType, kernel: Kernel) -> dict[str, Any]:
    return {**kernel.as_dict(), "ops": [op.as_dict() for op in kind.ops(kernel)]}
