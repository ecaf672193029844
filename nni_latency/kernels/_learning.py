"""What is learned while kernels are measured: how good predictions would be, and which kernels come next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from nni_latency.kernels._kernel import Kernel
from nni_latency.kernels._kernel_type import KernelType
from nni_latency.kernels._model import FeatureTable, disagreement, fit_base, fit_model
from nni_latency.kernels._predictor import FEWEST_KERNELS, KernelScores
from nni_latency.kernels._sampling import Sampler, Sampling
from nni_latency.regression import left_out

Array = NDArray[np.float64]

#: Kernels that are added at a time to a group: so many at least, and as a share of those that are known at most.
_FEWEST_ADDED, _MOST_ADDED = 20, 0.5


class GroupLearner:
    """What is known of the kernels of one group while they are measured.

    Parameters
    ----------
    kinds : sequence of KernelType
        The types of the group that are measured.
    sampling : Sampling
        Which kernels are measured.
    sampler : Sampler
        Draws them.
    """

    def __init__(self, kinds: Sequence[KernelType], sampling: Sampling, sampler: Sampler) -> None:
        self.kinds, self.sampling, self._sampler = tuple(kinds), sampling, sampler
        self._table = FeatureTable({kind.name: kind for kind in kinds})
        #: What was measured when predictions were asked for last, and what was said.
        self._said: tuple[dict[Kernel, float], Array] | None = None

    def first(self) -> list[Kernel]:
        """Return the kernels to begin with, those of all kinds in turn."""
        draw = self._sampler.random if self.sampling.refinement == "random" else self._sampler.from_prior
        return in_turn([draw(kind, self._count(kind)) for kind in self.kinds])

    def more(self, measured: Mapping[Kernel, float]) -> list[Kernel]:
        """Return the kernels to add, after those that were measured: none once no error is large."""
        kernels, seconds = list(measured), np.array(list(measured.values()))
        if len(kernels) < FEWEST_KERNELS:
            return []
        errors = np.abs(self.predictions(measured) / seconds - 1)
        centres = [kernel for kernel, error in zip(kernels, errors, strict=True) if error > self._threshold]
        if not centres:
            return []
        most = max(_FEWEST_ADDED, int(_MOST_ADDED * len(kernels)))
        count = min(len(centres) * self.sampling.finegrained_sample_num, most)
        return self._refined(centres, count, lambda: disagreement(self._table, kernels, seconds, self.sampling.seed))

    def predictions(self, measured: Mapping[Kernel, float]) -> Array:
        """Return what the others say of every kernel [s], (n,); of too few, what was measured twice over."""
        if self._said is None or self._said[0] != measured:
            self._said = dict(measured), self._predictions(list(measured), np.array(list(measured.values())))
        return self._said[1]

    def _predictions(self, kernels: Sequence[Kernel], seconds: Array) -> Array:
        if len(kernels) < FEWEST_KERNELS:
            return 2 * seconds
        terms = self._table.terms(kernels)
        targets = np.log(seconds) - np.log(terms @ fit_base(terms, seconds))
        return np.asarray(seconds * np.exp(-left_out(self._table.physical(kernels), targets)))

    def predict(self, measured: Mapping[Kernel, float], asked: Sequence[Kernel]) -> Array:
        """Return what those that were measured, enough of them, say of others [s], (n_asked,)."""
        kernels, seconds = list(measured), np.array(list(measured.values()))
        return fit_model("process", self._table, kernels, seconds, self.sampling.seed).predict(self._table, asked)

    def _refined(
        self, centres: Sequence[Kernel], count: int, worth: Callable[[], Callable[..., Array]]
    ) -> list[Kernel]:
        way, sampler = self.sampling.refinement, self._sampler
        if way == "uncertain":
            return sampler.where(self.kinds, count, worth())
        if way == "finegrained":
            kinds = {kind.name: kind for kind in self.kinds}
            each = max(1, self.sampling.finegrained_sample_num)
            chosen = centres[: max(1, count // each)]
            return [kernel for centre in chosen for kernel in sampler.near(kinds[centre.kind], [centre], each)]
        draw = sampler.random if way == "random" else sampler.from_prior
        return in_turn([draw(kind, -(-count // len(self.kinds))) for kind in self.kinds])

    @property
    def _threshold(self) -> float:
        return self.sampling.error_threshold

    def _count(self, kind: KernelType) -> int:
        """Return how many kernels of a kind are measured in the beginning: fewer of one with few sizes."""
        return max(FEWEST_KERNELS, round(self.sampling.init_sample_num * min(1.0, len(kind.domains) / 5)))


def score_groups(learners: Mapping[str, GroupLearner], measured: Mapping[str, Mapping[Kernel, float]]) -> KernelScores:
    """Score what would be predicted of all kernels that were measured, each by the others of its group."""
    predicted = np.concatenate([learners[group].predictions(known) for group, known in measured.items() if known])
    seconds = np.concatenate([list(known.values()) for known in measured.values() if known])
    return KernelScores.of(predicted, seconds)


def score_tests(
    learners: Mapping[str, GroupLearner],
    measured: Mapping[str, Mapping[Kernel, float]],
    tests: Mapping[str, Mapping[Kernel, float]],
) -> KernelScores | None:
    """Score what those kernels that are learned from say of kernels that are not; None if there are none of these."""
    groups = [group for group, known in tests.items() if known and len(measured[group]) >= FEWEST_KERNELS]
    if not groups:
        return None
    predicted = np.concatenate([learners[group].predict(measured[group], list(tests[group])) for group in groups])
    return KernelScores.of(predicted, np.concatenate([list(tests[group].values()) for group in groups]))


def in_turn(lists: Sequence[Sequence[Kernel]]) -> list[Kernel]:
    """Put lists into one, so that any beginning of it has of each as much as of the others.

    >>> in_turn([[1, 2, 3, 4], [5, 6]])
    [1, 5, 2, 3, 6, 4]
    """
    places = [
        ((place + 0.5) / len(items), number, item)
        for number, items in enumerate(lists)
        for place, item in enumerate(items)
    ]
    return [item for *_, item in sorted(places, key=lambda entry: entry[:2])]
