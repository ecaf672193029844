# SPDX-License-Identifier: Apache-2.0
"""Learning while kernels are measured: cross-validated scores, and the choice of the next kernels."""

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

#: Limit on the kernels added to a group at a time: the larger of a number and a share of the measured ones.
_FEWEST_ADDED, _MOST_ADDED = 20, 0.5


class GroupLearner:
    """Predictions and choice of kernels of one group during measuring."""

    def __init__(self, kinds: Sequence[KernelType], sampling: Sampling, sampler: Sampler) -> None:
        self.kinds, self.sampling, self._sampler = tuple(kinds), sampling, sampler
        self._table = FeatureTable({kind.name: kind for kind in kinds})
        #: Cache: the measurements at the last call of `predictions`, and its result.
        self._cached: tuple[dict[Kernel, float], Array] | None = None

    def first(self) -> list[Kernel]:
        """Return the initial kernels, cycling through the kinds."""
        draw = self._sampler.random if self.sampling.refinement == "random" else self._sampler.from_prior
        return in_turn([draw(kind, self._count(kind)) for kind in self.kinds])

    def more(self, measured: Mapping[Kernel, float]) -> list[Kernel]:
        """Return the kernels to measure next; empty once no error is large."""
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
        """Return leave-one-out predictions of all kernels [s], (n,); with too few kernels, twice the measured times."""
        if self._cached is None or self._cached[0] != measured:
            self._cached = dict(measured), self._predictions(list(measured), np.array(list(measured.values())))
        return self._cached[1]

    def _predictions(self, kernels: Sequence[Kernel], seconds: Array) -> Array:
        if len(kernels) < FEWEST_KERNELS:
            return 2 * seconds
        terms = self._table.terms(kernels)
        targets = np.log(seconds) - np.log(terms @ fit_base(terms, seconds))
        return np.asarray(seconds * np.exp(-left_out(self._table.physical(kernels), targets)))

    def predict(self, measured: Mapping[Kernel, float], asked: Sequence[Kernel]) -> Array:
        """Predict other kernels from the measured ones, of which there must be enough [s], (n_asked,)."""
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
        """Return the number of initial kernels of a kind, which is lower for kinds with few sizes."""
        return max(FEWEST_KERNELS, round(self.sampling.init_sample_num * min(1.0, len(kind.domains) / 5)))


def score_groups(learners: Mapping[str, GroupLearner], measured: Mapping[str, Mapping[Kernel, float]]) -> KernelScores:
    """Score the leave-one-out predictions of all measured kernels, within their groups."""
    predicted = np.concatenate([learners[group].predictions(known) for group, known in measured.items() if known])
    seconds = np.concatenate([list(known.values()) for known in measured.values() if known])
    return KernelScores.of(predicted, seconds)


def score_tests(
    learners: Mapping[str, GroupLearner],
    measured: Mapping[str, Mapping[Kernel, float]],
    tests: Mapping[str, Mapping[Kernel, float]],
) -> KernelScores | None:
    """Score predictions of test kernels from the training kernels; None if there are no test kernels."""
    groups = [group for group, known in tests.items() if known and len(measured[group]) >= FEWEST_KERNELS]
    if not groups:
        return None
    predicted = np.concatenate([learners[group].predict(measured[group], list(tests[group])) for group in groups])
    return KernelScores.of(predicted, np.concatenate([list(tests[group].values()) for group in groups]))


def in_turn(lists: Sequence[Sequence[Kernel]]) -> list[Kernel]:
    """Interleave lists, so that any prefix of the result has the same share of each.

    >>> in_turn([[1, 2, 3, 4], [5, 6]])
    [1, 5, 2, 3, 6, 4]
    """
    places = [
        ((place + 0.5) / len(items), number, item)
        for number, items in enumerate(lists)
        for place, item in enumerate(items)
    ]
    return [item for *_, item in sorted(places, key=lambda entry: entry[:2])]
