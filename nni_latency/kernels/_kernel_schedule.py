"""`KernelSchedule`: kernels in batches, each met as in a network; after each iteration, those that teach most."""

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
    CompanySpeeds,
    ExecutionMode,
    ReferenceSpeeds,
    Speeds,
    alike,
    at_level,
    constant_chain,
    level_of,
    runs_by_key,
    shares_by_key,
    shown,
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

#: Numbers in the kernels that one process holds, at most.
_MOST_NUMBERS = 2**28

#: Kernels that one process holds at most, and their multiply-adds: a round should not take longer than some seconds,
#: because the budget is looked at after it. Nor much less: what disturbs a machine lasts for seconds, and should not be
#: there whenever a kernel is visited. By themselves, and several in a network.
_BATCH, _BATCH_TOGETHER = (96, 10**10), (384, 4 * 10**10)

#: How often a kernel is visited at least and at most, and in one process; by itself, and in a network of several. A
#: process lasts for seconds, as do disturbances: a kernel that comes back later met other ones.
_VISITS, _VISITS_TOGETHER = (2, 4, 4), (6, 12, 3)

#: Kernels that are visited as often as they have to be before the next ones are begun: when the budget ends, few are
#: left that were visited too rarely to learn from.
_BLOCK = 384

#: What is left at least of a run from which the constant of a runtime is taken, as a share.
_LEAST_LEFT = 0.01

#: Time of a run [s], and the number of its visit.
Run = tuple[float, int]


@dataclass(frozen=True)
class Standing:
    """How far building of predictors is, after an iteration.

    Parameters
    ----------
    iteration : int
        Number of the iteration that has ended, from 0.
    kernels : int
        Kernels that were measured so far.
    scores : KernelScores
        How well each kernel is predicted by the others of its group.
    tested : KernelScores, optional
        How well those kernels are predicted that are never learned from.
    """

    iteration: int
    kernels: int
    scores: KernelScores
    tested: KernelScores | None = None


class KernelSchedule(Schedule):
    """Batches of kernels, each batch in a separate process; then those from which most can be learned.

    Every kernel is met as inside a network: what empties small caches and makes its inputs runs before it. A runtime
    that compiles networks and reports the times of their nodes runs several kernels side by side in one, other ones in
    every round, so that each of them finds the caches as the others leave them. One that has no profile runs kernels as
    networks, of which the time of a network that does next to nothing is taken away.

    Parameters
    ----------
    kinds : sequence of KernelType
        What is measured.
    protocol : Protocol
        How. The budget ends it, and `half_width` says when a kernel is visited no more.
    sampling : Sampling
        Which configurations.
    prior : Prior
        Where they come from.
    mode : {"chained", "parallel", "standalone"}, default="chained"
        How the runtime runs kernels, see `execution_mode_of`. Unless kernels are chained, what a run takes outside of
        them is measured too: the time of a network that does next to nothing or, in parallel, what a network takes
        outside of its nodes.
    is_enough : callable, optional
        Takes `KernelScores` after every iteration, and says whether they are good enough to end.
    on_standing : callable, optional
        Called with a `Standing` after every iteration that is measured.
    kernels : sequence of Kernel, optional
        Measure just these, in place of a sample.
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
        # In parallel it is taken from nothing: it belongs to the file of predictors alone.
        self._adds_constant = mode == "standalone" or (self._is_parallel and kernels is None)
        self._is_enough, self._on_standing = is_enough, on_standing
        sampler = Sampler(prior, sampling.seed)
        groups = dict.fromkeys(item.group for item in kinds)
        self.learners = {
            group: GroupLearner([item for item in kinds if item.group == group], sampling, sampler) for group in groups
        }
        #: Number of the iteration under way.
        self.iteration = 0
        #: Kernels that are never learned from.
        self.test = [] if kernels is not None else _draw_tests(kinds, prior, sampling)
        sampler.leave_out(self.test)
        self._tests = frozenset(self.test)
        self._fixed = None if kernels is None else list(dict.fromkeys(kernels))
        self._planned: dict[str, Kernel] = {}
        # Whether kernels of earlier runs are those that are drawn now.
        self._draws_as_before = True
        self._current: list[Kernel] = []
        first = in_turn([self.test, *(learner.first() for learner in self.learners.values())])
        self._take(first if self._fixed is None else self._fixed)
        #: By kernel, the time of every run [s], and the number of its visit.
        self.samples: dict[Kernel, list[Run]] = {}
        # Medians of what kernels take side by side add up to the lower quartile of their network.
        self._summing = replace(protocol, statistic=0.5) if self._is_parallel else protocol
        self._speeds: Speeds = CompanySpeeds() if self._is_parallel else ReferenceSpeeds(protocol.statistic)
        self._n_visits = 0
        self._visits: Counter[Kernel] = Counter()
        self._visits_at_once: Counter[Kernel] = Counter()
        self._constants: list[Run] = []
        self._batch: list[Kernel] = []
        self.drift: list[float] = []
        #: How good predictions would be, after every iteration.
        self.standings: list[Standing] = []

    @property
    def _is_parallel(self) -> bool:
        return self.mode == "parallel"

    def _take(self, kernels: Sequence[Kernel]) -> None:
        self._current = list(kernels)
        self._planned |= {kernel.key: kernel for kernel in kernels}

    @property
    def share(self) -> float:
        """Share of the budget that is spent."""
        return self.spent / self.protocol.time_budget

    @property
    def unsettled(self) -> int:
        """How many kernels of this iteration are not known well enough yet."""
        return len(self._wanting())

    def sessions(self) -> Iterator[int]:
        """Yield a session for every batch, until the budget is spent or nothing is left to learn."""
        number = self.process + 1 if self.rounds else 0
        while self.share < 1:
            if not self._wanting() and not self._go_on(tell=True):
                break
            self._batch = self._draw_batch()
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

    def next_round(self) -> list[Chain]:
        """Return the kernels of the batch that are not known well enough, in a new order."""
        if self.share >= 1:
            return []
        wanting = [
            kernel
            for kernel in self._batch
            if self._wants(kernel) and self._visits_at_once[kernel] < self._most_at_once
        ]
        random.Random(f"{self.protocol.seed}/{self.next}").shuffle(wanting)
        chains = self._networks(wanting) if self._is_parallel else [self.chain(kernel) for kernel in wanting]
        return [constant_chain(self._is_parallel), *chains] if chains and self._adds_constant else chains

    def chain(self, kernel: Kernel) -> Chain:
        """Return what a bench runs to measure a kernel by itself."""
        kind = self.kinds[kernel.kind]
        if self.mode == "chained":
            return fed_chain(
                kernel.key, partial(kind.module, kernel), kind.shapes(kernel), _specification(kind, kernel), "kernel"
            )
        return (_subject(kernel.key, kind, kernel),)

    def _networks(self, kernels: Sequence[Kernel]) -> list[Chain]:
        """Return networks of several kernels each."""
        generator = random.Random(f"{self.protocol.seed}/{self.next}/networks")
        return [
            tuple(part for kernel in network for part in self.chain(kernel))
            for network in alike(kernels, lambda kernel: self.kinds[kernel.kind].work(kernel), generator)
        ]

    def observe(self, records: Sequence[Record]) -> None:
        """Take in a round over a batch."""
        super().observe(records)
        self._enter(records[0].process)
        references = [record.reference for record in records]
        self.drift.append(quantile(references, 0.5))
        # Before this round is known, because a kernel of the next iteration was drawn without it.
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
        """Leave out a kernel that fails, or whose feeder does."""
        super().fail(failure)
        key = failure.subject.removeprefix(FEEDER)
        self.failures[key] = failure.reason
        if key in (CONSTANT, BODY):
            raise MeasurementError(f"Not even a network of convolutions can be run: {failure.reason}.")
        if key in self._planned:
            self.samples.pop(self._planned[key], None)

    def summaries(self) -> dict[Kernel, Summary]:
        """Return what the samples say of every kernel, the machine's drift and the runtime's constant taken out."""
        constant = self.constant if self.mode == "standalone" else 0.0
        return {kernel: self._summary(runs, constant) for kernel, runs in self.samples.items()}

    @property
    def constant(self) -> float:
        """What a run takes outside of the kernels [s]; 0 where nothing is added to them."""
        return self._summary(self._constants, 0.0).value if self._constants else 0.0

    def _summary(self, runs: Sequence[Run], constant: float) -> Summary:
        slowness = self._speeds.slowness()
        times = at_level(level_of(slowness), runs, slowness)
        left = tuple(max(seconds - constant, _LEAST_LEFT * seconds) for seconds in times)
        return Measurement(left, self._summing).summary

    def _find(self, key: str) -> Kernel:
        """Return a kernel by its key; one of the next iteration is drawn first, as when it was measured."""
        if key not in self._planned and self._draws_as_before and self._go_on():
            self._draws_as_before = key in self._planned
        # Of another version of what learns, it is used all the same.
        return self._planned.setdefault(key, Kernel.parse(key))

    def _go_on(self, *, tell: bool = False) -> bool:
        """Begin the next iteration, if there is one."""
        if self._fixed is not None or not self.samples:
            return False
        by_group = self.by_group()
        scores = score_groups(self.learners, by_group)
        tested = score_tests(self.learners, by_group, self.by_group(tests=True))
        standing = Standing(self.iteration, sum(map(len, by_group.values())), scores, tested)
        self.standings.append(standing)
        if tell:
            self._on_standing(standing)
        if self._is_enough(standing.scores) or self.iteration == self.sampling.iteration:
            return False
        more = [self.learners[group].more(known) for group, known in by_group.items()]
        self.iteration += 1
        self._take(in_turn([self.test, *more]) if any(more) else ())
        return bool(self._current)

    def by_group(self, *, tests: bool = False) -> dict[str, Mapping[Kernel, float]]:
        """Return the time [s] of every kernel that is learned from, or of those that are not, by group.

        Kernels that were visited less often than they have to be, because the budget ended, are left out of groups that
        have enough others; so are those that the runtime did not show.
        """
        found: dict[str, dict[Kernel, float]] = {group: {} for group in self.learners}
        for kernel, seconds in self._times().items():
            if (kernel in self._tests) == tests:
                found[self.kinds[kernel.kind].group][kernel] = seconds
        return {group: self._well_known(known) for group, known in found.items()}

    def _times(self) -> dict[Kernel, float]:
        """Return the time [s] of every kernel that was shown, in an order that does not depend on interruptions."""
        summaries = sorted(self.summaries().items(), key=lambda item: item[0].key)
        return shown({kernel: summary.value for kernel, summary in summaries})

    def _well_known(self, known: Mapping[Kernel, float]) -> Mapping[Kernel, float]:
        often = {kernel: seconds for kernel, seconds in known.items() if self._visits[kernel] >= self._fewest}
        return often if len(often) >= max(FEWEST_KERNELS, len(known) / 2) else known

    @property
    def learned_from(self) -> frozenset[Kernel]:
        """The kernels that are learned from."""
        return frozenset(kernel for known in self.by_group().values() for kernel in known)

    @property
    def held_out(self) -> frozenset[Kernel]:
        """The kernels that are never learned from, and by which predictors are judged."""
        return self._tests.intersection(self._times())

    def _wanting(self) -> list[Kernel]:
        """Return the kernels of this iteration that are not known well enough.

        One block of them comes after another, and of a block those first that were visited least.
        """
        places = {kernel: place // _BLOCK for place, kernel in enumerate(self._current)}
        return sorted(filter(self._wants, places), key=lambda kernel: (places[kernel], self._visits[kernel]))

    def _wants(self, kernel: Kernel) -> bool:
        visits, is_test = self._visits[kernel], kernel in self._tests
        # What predictors are held to comes back in every iteration: it has to be known better than what they say.
        most = self._most + self._fewest * self.iteration if is_test else self._most
        if kernel.key in self.failures or visits >= most:
            return False
        if visits < self._fewest or is_test:
            return True
        spread = self._summary(self.samples[kernel], 0.0).spread
        return bool(self.protocol.half_width) and spread > self.protocol.half_width

    def _draw_batch(self) -> list[Kernel]:
        """Return the next kernels of the iteration, as many as fit into the memory of one process."""
        batch: list[Kernel] = []
        most, most_macs = _BATCH_TOGETHER if self._is_parallel else _BATCH
        numbers = macs = 0
        for kernel in self._wanting():
            kind = self.kinds[kernel.kind]
            work, inputs = kind.work(kernel), sum(math.prod(shape) for shape in kind.shapes(kernel))
            numbers, macs = numbers + 2 * work.params + inputs, macs + work.macs
            if batch and (numbers > _MOST_NUMBERS or macs > most_macs or len(batch) == most):
                break
            batch.append(kernel)
        return batch


def _draw_tests(kinds: Sequence[KernelType], prior: Prior, sampling: Sampling) -> list[Kernel]:
    """Draw the kernels that are never learned from, those of all kinds in turn."""
    sampler = Sampler(prior, sampling.seed + 1)
    return in_turn([sampler.from_prior(kind, sampling.test_sample_num) for kind in kinds])


def is_kernel(key: str) -> bool:
    """Whether a key is that of a kernel from which something is learned."""
    return key not in (CONSTANT, BODY) and not key.startswith(FEEDER)


def _subject(key: str, kind: KernelType, kernel: Kernel) -> Subject:
    """Return a kernel without what feeds it."""
    inputs = inputs_of(kind.shapes(kernel))
    return Subject(key, partial(kind.module, kernel), inputs, "kernel", key, _specification(kind, kernel))


def _specification(kind: KernelType, kernel: Kernel) -> dict[str, Any]:
    return {**kernel.as_dict(), "ops": [op.as_dict() for op in kind.ops(kernel)]}
