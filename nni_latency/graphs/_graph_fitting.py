"""Learning of a graph predictor: what is held out, how many epochs are best, and the graph networks that answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from joblib import delayed, effective_n_jobs
from numpy.typing import NDArray

from nni_latency.graphs._encoding import EncodedGraph
from nni_latency.graphs._examples import Examples
from nni_latency.graphs._graph_learning import Learned, Settings, learn
from nni_latency.graphs._graph_measurements import Measurements
from nni_latency.graphs._operator_trees import PlatformTrees, describe, has_enough, learn_trees
from nni_latency.graphs._side_by_side import side_by_side

Array = NDArray[np.float64]

#: Seed of the first graph network that is held out from something.
_FIRST_HELD_OUT = 100

#: What an error counts at least, as a logarithm of a factor.
_LEAST_ERROR = 1e-6

#: By how much errors must fall for more epochs to be worth it, as a ratio: curves are flat near their lowest points.
_WORTH_IT = 0.005


@dataclass(frozen=True)
class _Lesson:
    """What one graph network learns."""

    examples: Examples
    settings: Settings
    others: Sequence[EncodedGraph] = ()


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

    def hold_out(self, data: Measurements, n_folds: int, seed: int) -> tuple[Array, int]:
        """Predict every network by what has not seen its family.

        Returns
        -------
        errors : ndarray of shape (n_networks, n_platforms)
            Logarithms of predicted over measured times.
        epochs : int
            After how many the graph networks were best, over all networks that were held out.
        """
        latencies, folds, lessons = data.examples.latencies, data.folds(n_folds, seed), []
        for fold, held in enumerate(folds):
            graphs = data.examples.only(held).graphs
            lessons.append(_Lesson(data.examples.without(held), self._settings(_FIRST_HELD_OUT + fold), graphs))
        told = np.full((self.settings.epochs, *latencies.shape), np.nan)
        for held, learned in zip(folds, self._learned(lessons), strict=True):
            told[:, held] = np.log(learned.told)
        epochs = _best_epoch(told - np.log(latencies), data.family_of)
        errors = np.full(latencies.shape, np.nan)
        for held, lesson in zip(folds, lessons, strict=True):
            predicted = with_trees(told[epochs - 1, held], self.trees(lesson.examples), lesson.others)
            errors[held] = predicted - np.log(latencies[held])
        return errors, epochs

    def members(self, examples: Examples, count: int, epochs: int) -> list[Learned]:
        """Learn from all networks, by several graph networks with other random numbers."""
        several = [_Lesson(examples, replace(self._settings(member), epochs=epochs)) for member in range(count)]
        return list(self._learned(several))

    def trees(self, examples: Examples) -> PlatformTrees:
        """Learn trees for every platform of which the times of kernels are known."""
        platforms = range(examples.latencies.shape[1])
        # Examples are sent to a process for those alone that have something to learn.
        chosen = [number for number in platforms if has_enough(examples, number)]
        learning = (delayed(learn_trees)(examples, number, self.settings.seed) for number in chosen)
        found = dict(zip(chosen, side_by_side(learning, self.n_jobs), strict=True))
        return tuple(found.get(number) for number in platforms)

    def _settings(self, number: int) -> Settings:
        return replace(self.settings, seed=self.settings.seed + number)

    def _learned(self, lessons: Sequence[_Lesson]) -> Iterator[Learned]:
        """Learn by one graph network after another, or by several side by side."""
        if effective_n_jobs(self.n_jobs) == 1:
            for lesson in lessons:
                yield learn(lesson.examples, lesson.settings, lesson.others, self.told)
            return
        calls = (delayed(learn)(lesson.examples, lesson.settings, lesson.others) for lesson in lessons)
        for learned in side_by_side(calls, self.n_jobs):
            self.told(lessons[0].settings.epochs)
            yield learned


def _best_epoch(errors: Array, families: Sequence[str]) -> int:
    """Return after how many epochs errors are least: families count alike, and platforms in proportion to their errors.

    A mean over all latencies would go by the platforms with the most networks, and the worst predicted families. Where
    errors are next to the same, fewer epochs are better.

    Parameters
    ----------
    errors : ndarray of shape (n_epochs, n_networks, n_platforms)
        Logarithms of predicted over measured times; NaN where there is none.
    families : sequence of str
        By network.
    """
    off, known, names = np.abs(errors), ~np.isnan(errors[0]), np.array(families)
    found = np.zeros(len(errors))
    for column in range(errors.shape[2]):
        rows = [np.flatnonzero(known[:, column] & (names == name)) for name in sorted(set(families))]
        by_family = [off[:, some, column].mean(axis=1) for some in rows if len(some)]
        if by_family:
            found += np.log(np.mean(by_family, axis=0) + _LEAST_ERROR) / errors.shape[2]
    return int(np.argmax(found <= found.min() + _WORTH_IT)) + 1


def with_trees(logarithms: Array, trees: PlatformTrees, graphs: Sequence[EncodedGraph]) -> Array:
    """Return the logarithms of predicted times, (n_graphs, n_platforms): the mean with what trees say, if there are."""
    found = logarithms.copy()
    known = [(number, item) for number, item in enumerate(trees) if item is not None]
    for row, graph in enumerate(graphs if known else ()):
        described = describe(graph)
        for number, item in known:
            found[row, number] = (found[row, number] + np.log(item.latency(graph, described))) / 2
    return found
