"""Learning of a graph predictor: what is held out, how many epochs are best, and the graph networks that answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from joblib import Parallel, delayed, effective_n_jobs
from numpy.typing import NDArray

from nni_latency.graphs._encoding import EncodedGraph
from nni_latency.graphs._graph_learning import Examples, Learned, Settings, learn
from nni_latency.graphs._graph_measurements import Measurements
from nni_latency.graphs._operator_trees import OperatorTrees, describe, learn_trees
from nni_latency.graphs._predicting import predict

Array = NDArray[np.float64]

#: By platform; None where the kernels of too few networks were timed.
PlatformTrees = tuple[OperatorTrees | None, ...]

#: Seed of the first graph network that is held out from something.
_FIRST_HELD_OUT = 100


@dataclass(frozen=True)
class _Lesson:
    """What one graph network learns."""

    examples: Examples
    settings: Settings
    validation: Examples | None = None


@dataclass(frozen=True)
class Fitting:
    """How graph networks and trees learn, on one process or several.

    Parameters
    ----------
    settings : Settings
        Of every graph network; its seed is that of the first.
    n_jobs : int, optional
        Processes that learn side by side, as joblib takes it; they learn the same as one does.
    told : callable
        Told after how many epochs, each time that some are done.
    """

    settings: Settings
    n_jobs: int | None
    told: Callable[..., None]

    def hold_out(self, data: Measurements, n_folds: int, seed: int) -> tuple[Array, list[int]]:
        """Predict every network by what has not seen its family.

        Returns
        -------
        errors : ndarray of shape (n_networks, n_platforms)
            Logarithms of predicted over measured times.
        epochs : list of int
            After how many each graph network was best.
        """
        errors = np.full(data.examples.latencies.shape, np.nan)
        folds = data.folds(n_folds, seed)
        lessons = []
        for fold, held in enumerate(folds):
            others = data.examples.only(sorted(set(range(len(errors))) - set(held)))
            lessons.append(_Lesson(others, self._settings(_FIRST_HELD_OUT + fold), data.examples.only(held)))
        epochs = []
        for held, lesson, learned in zip(folds, lessons, list(self._learned(lessons)), strict=True):
            assert lesson.validation is not None
            graphs, trees = lesson.validation.graphs, self.trees(lesson.examples)
            predicted = with_trees(np.log(predict(learned.network, graphs)), trees, graphs)
            errors[held] = predicted - np.log(lesson.validation.latencies)
            epochs.append(learned.epochs)
        return errors, epochs

    def members(self, examples: Examples, count: int, epochs: int) -> list[Learned]:
        """Learn from all networks, by several graph networks with other random numbers."""
        return list(
            self._learned(
                [_Lesson(examples, replace(self._settings(member), epochs=epochs)) for member in range(count)]
            )
        )

    def trees(self, examples: Examples) -> PlatformTrees:
        """Learn trees for every platform of which the times of kernels are known."""
        learning = (
            delayed(learn_trees)(examples, number, self.settings.seed) for number in range(examples.latencies.shape[1])
        )
        return tuple(Parallel(n_jobs=self.n_jobs)(learning))

    def _settings(self, number: int) -> Settings:
        return replace(self.settings, seed=self.settings.seed + number)

    def _learned(self, lessons: Sequence[_Lesson]) -> Iterator[Learned]:
        """Learn by one graph network after another, or by several side by side."""
        if effective_n_jobs(self.n_jobs) == 1:
            for lesson in lessons:
                yield learn(lesson.examples, lesson.settings, lesson.validation, self.told)
            return
        found = Parallel(n_jobs=self.n_jobs, return_as="generator")(
            delayed(learn)(lesson.examples, lesson.settings, lesson.validation) for lesson in lessons
        )
        for lesson, learned in zip(lessons, found, strict=True):
            self.told(lesson.settings.epochs)
            yield learned


def with_trees(logarithms: Array, trees: PlatformTrees, graphs: Sequence[EncodedGraph]) -> Array:
    """Return the logarithms of predicted times, (n_graphs, n_platforms): the mean with what trees say, if there are."""
    found = logarithms.copy()
    known = [(number, item) for number, item in enumerate(trees) if item is not None]
    for row, graph in enumerate(graphs if known else ()):
        described = describe(graph)
        for number, item in known:
            found[row, number] = (found[row, number] + np.log(item.latency(graph, described))) / 2
    return found
