"""`KernelSchedule`: kernels in batches, each met as in a network; after each iteration, those that teach most."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from nni_latency.errors import MeasurementError
from nni_latency.kernels._constant import BODY, CONSTANT, constant_chain
from nni_latency.kernels._kernel import Kernel
from nni_latency.kernels._kernel_type import KernelType
from nni_latency.kernels._learning import GroupLearner, in_turn, score_groups
from nni_latency.kernels._predictor import KernelScores
from nni_latency.kernels._prior import Prior
from nni_latency.kernels._sampling import Sampler, Sampling
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

#: How often a kernel is visited at least and at most, by itself and in a network of several.
_VISITS, _VISITS_TOGETHER = (2, 4), (4, 10)

#: Kernels of a network of several at most, and their multiply-adds.
_TOGETHER, _MACS_TOGETHER = 12, 4 * 10**8

#: Visits of a round that tell how fast the machine is.
_ENOUGH_REFERENCES = 4

#: What is left at least of a run from which the constant of a runtime is taken, as a share.
_LEAST_LEFT = 0.01


#: Time of a run, and of the reference operator in its round [s].
Run = tuple[float, float | None]


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
    """

    iteration: int
    kernels: int
    scores: KernelScores


class KernelSchedule(Schedule):
    """Batches of kernels, each batch in a process of its own; then those from which most can be learned.

    Every kernel is met as inside a network: what empties small caches and makes its inputs runs before it. A runtime
    that compiles networks and tells what their nodes take runs several kernels side by side in one, other ones in
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
    inside : bool, default=True
        Whether the runtime can time a kernel behind what feeds it.
    together : bool, default=False
        Whether several kernels run in one network, and the runtime tells what each of them took.
    adds_constant : bool, optional
        Whether runs take time outside of their kernels: what a network takes that does next to nothing, or, where
        kernels are timed inside, what a small network takes outside of them. By default where they are not.
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
        inside: bool = True,
        together: bool = False,
        adds_constant: bool | None = None,
        is_enough: Callable[[KernelScores], bool] = lambda _scores: False,
        on_standing: Callable[[Standing], None] = lambda _standing: None,
        kernels: Sequence[Kernel] | None = None,
    ) -> None:
        super().__init__(protocol, isolated=False)
        self.kinds = {item.name: item for item in kinds}
        self.inside, self.together, self.sampling = inside, together, sampling
        self._fewest, self._most = _VISITS_TOGETHER if together else _VISITS
        self.adds_constant = not inside if adds_constant is None else adds_constant
        self._is_enough, self._on_standing = is_enough, on_standing
        sampler = Sampler(prior, sampling.seed)
        groups = dict.fromkeys(item.group for item in kinds)
        self.learners = {
            group: GroupLearner([item for item in kinds if item.group == group], sampling, sampler) for group in groups
        }
        #: Number of the iteration under way.
        self.iteration = 0
        self._fixed = None if kernels is None else list(dict.fromkeys(kernels))
        self._planned: dict[str, Kernel] = {}
        self._current: list[Kernel] = []
        self._take(
            in_turn([learner.first() for learner in self.learners.values()]) if kernels is None else self._fixed or []
        )
        #: By kernel, the time [s] of every run, and that of the reference operator [s] in its round, where it is known.
        self.samples: dict[Kernel, list[Run]] = {}
        self._visits: Counter[Kernel] = Counter()
        self._constants: list[Run] = []
        self._batch: list[Kernel] = []
        self.drift: list[float] = []
        #: How good predictions would be, after every iteration.
        self.standings: list[Standing] = []

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
            self.process = number
            yield number
            number += 1
        if not self.samples:
            reason = next(iter(self.failures.values()), "there was no time")
            raise MeasurementError(f"None of the kernels can be run: {reason}.")

    def next_round(self) -> list[Chain]:
        """Return the kernels of the batch that are not known well enough, in a new order."""
        if self.share >= 1:
            return []
        wanting = [kernel for kernel in self._batch if self._wants(kernel)]
        random.Random(f"{self.protocol.seed}/{self.next}").shuffle(wanting)
        chains = self._networks(wanting) if self.together else [self.chain(kernel) for kernel in wanting]
        return [constant_chain(self.inside), *chains] if chains and self.adds_constant else chains

    def chain(self, kernel: Kernel) -> Chain:
        """Return what a bench runs to measure a kernel by itself."""
        kind = self.kinds[kernel.kind]
        build, shapes = partial(kind.module, kernel), kind.shapes(kernel)
        specification = {**kernel.as_dict(), "ops": [op.as_dict() for op in kind.ops(kernel)]}
        if self.inside and not self.together:
            return fed_chain(kernel.key, build, shapes, specification, "kernel")
        return (Subject(kernel.key, build, inputs_of(shapes), "kernel", kernel.key, specification),)

    def _networks(self, kernels: Sequence[Kernel]) -> list[Chain]:
        """Return networks of several kernels each, none of them much larger than a small network."""
        networks: list[Chain] = []
        free = 0
        for kernel in kernels:
            macs = self.kinds[kernel.kind].work(kernel).macs
            if not networks or macs > free or len(networks[-1]) == _TOGETHER:
                networks.append(())
                free = _MACS_TOGETHER
            networks[-1] += self.chain(kernel)
            free -= macs
        return networks

    def observe(self, records: Sequence[Record]) -> None:
        """Take in a round over a batch."""
        super().observe(records)
        self.process = records[0].process
        references = [record.reference for record in records]
        self.drift.append(quantile(references, 0.5))
        # A reference that another process interrupts would make kernels fast, so few say nothing.
        reference = quantile(references, self.protocol.statistic) if len(references) >= _ENOUGH_REFERENCES else None
        for record in records:
            for key, seconds in _runs_by_key(record).items():
                runs = [(value, reference) for value in seconds]
                if key == CONSTANT:
                    self._constants += runs
                elif key != BODY and not key.startswith(FEEDER):
                    kernel = self._find(key)
                    self.samples.setdefault(kernel, []).extend(runs)
                    self._visits[kernel] += 1

    def fail(self, failure: Failure) -> None:
        """Leave out a kernel that fails, or whose feeder does."""
        super().fail(failure)
        key = failure.subject.removeprefix(FEEDER)
        self.failures[key] = failure.reason
        if key in (CONSTANT, BODY):
            raise MeasurementError(f"Not even a small network can be run: {failure.reason}.")
        if key in self._planned:
            self.samples.pop(self._planned[key], None)

    def summaries(self) -> dict[Kernel, Summary]:
        """Return what the samples say of every kernel, the machine's drift and the runtime's constant taken out."""
        level = _level(run for runs in self.samples.values() for run in runs)
        constant = 0.0 if self.inside else self._constant(level)
        return {kernel: self._summary(runs, level, constant) for kernel, runs in self.samples.items()}

    @property
    def constant(self) -> float:
        """What a run takes outside of the kernels [s]; 0 where nothing is added to them."""
        return self._constant(_level(run for runs in self.samples.values() for run in runs))

    def _constant(self, level: float) -> float:
        return Measurement(_at(level, self._constants), self.protocol).summary.value if self._constants else 0.0

    def _summary(self, runs: Sequence[Run], level: float, constant: float) -> Summary:
        left = tuple(max(seconds - constant, _LEAST_LEFT * seconds) for seconds in _at(level, runs))
        return Measurement(left, self.protocol).summary

    def _find(self, key: str) -> Kernel:
        """Return a kernel by its key; one of a later iteration is drawn first, as when it was measured."""
        while key not in self._planned and self._go_on():
            pass
        # Of another version of what learns, it is used all the same.
        return self._planned.setdefault(key, Kernel.parse(key))

    def _go_on(self, *, tell: bool = False) -> bool:
        """Begin the next iteration, if there is one."""
        if self._fixed is not None or not self.samples:
            return False
        by_group = self.by_group()
        standing = Standing(self.iteration, len(self.samples), score_groups(self.learners, by_group))
        self.standings.append(standing)
        if tell:
            self._on_standing(standing)
        if self._is_enough(standing.scores) or self.iteration == self.sampling.iteration:
            return False
        self._take(in_turn([self.learners[group].more(known) for group, known in by_group.items()]))
        self.iteration += 1
        return bool(self._current)

    def by_group(self) -> dict[str, Mapping[Kernel, float]]:
        """Return the time [s] of every kernel that was measured, by group."""
        found: dict[str, dict[Kernel, float]] = {group: {} for group in self.learners}
        # In an order that does not depend on where measuring was interrupted.
        for kernel, summary in sorted(self.summaries().items(), key=lambda item: item[0].key):
            found[self.kinds[kernel.kind].group][kernel] = summary.value
        return dict(found)

    def _wanting(self) -> list[Kernel]:
        return [kernel for kernel in self._current if self._wants(kernel)]

    def _wants(self, kernel: Kernel) -> bool:
        visits = self._visits[kernel]
        if kernel.key in self.failures or visits >= self._most:
            return False
        if visits < self._fewest:
            return True
        runs = self.samples[kernel]
        spread = self._summary(runs, _level(runs), 0.0).spread
        return bool(self.protocol.half_width) and spread > self.protocol.half_width

    def _draw_batch(self) -> list[Kernel]:
        """Return the next kernels of the iteration, as many as fit into the memory of one process."""
        batch: list[Kernel] = []
        most, most_macs = _BATCH_TOGETHER if self.together else _BATCH
        numbers = macs = 0
        for kernel in self._wanting():
            kind = self.kinds[kernel.kind]
            work, inputs = kind.work(kernel), sum(math.prod(shape) for shape in kind.shapes(kernel))
            numbers, macs = numbers + 2 * work.params + inputs, macs + work.macs
            if batch and (numbers > _MOST_NUMBERS or macs > most_macs or len(batch) == most):
                break
            batch.append(kernel)
        return batch


def _runs_by_key(record: Record) -> dict[str, list[float]]:
    """Return the time [s] of every run by subject."""
    if not record.parts:
        return {record.subjects[0]: list(record.whole)}
    return {key: [run[place] for run in record.parts] for place, key in enumerate(record.subjects)}


def _level(runs: Iterable[Run]) -> float:
    """Return the speed to which runs are brought [s of the reference operator]; 0 where nothing tells it."""
    known = [reference for _, reference in runs if reference is not None]
    return quantile(known, 0.5) if known else 0.0


def _at(level: float, runs: Iterable[Run]) -> tuple[float, ...]:
    """Return the times of runs at a speed of the machine."""
    return tuple(seconds if not (level and reference) else seconds * level / reference for seconds, reference in runs)
