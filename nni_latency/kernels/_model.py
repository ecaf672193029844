"""What a predictor may be, and how good each is on kernels that it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor

from nni_latency.errors import InvalidValueError
from nni_latency.kernels._features import FeatureTable
from nni_latency.kernels._kernel import Kernel
from nni_latency.regression import Process, Rows, Trees, corrected, draw_folds, held_out, proportional
from nni_latency.units import number_of

Array = NDArray[np.float64]

#: No prediction is less [s].
_LEAST = 1e-9

#: The constant is at least this share of the shortest time.
_LEAST_CONSTANT = 0.05

#: What may be learned: nn-Meter's forest, and what learns the logarithm of the time over a sum that is in proportion to
#: the work.
CANDIDATES = ("forest", "boosting", "process", "blend")

#: Trees of a forest and of a boosting.
_N_FOREST, _N_BOOSTING = 50, 300


@dataclass(frozen=True)
class KernelModel:
    """What was learned of the kernels of one group. Immutable.

    Parameters
    ----------
    name : str
        Which of `CANDIDATES`.
    base : tuple of float or None
        Seconds by term of the work; None for a forest, which tells seconds itself.
    trees : Trees or None
        For a forest, of nn-Meter's features, seconds; else of physical features, the logarithm of the factor on the
        base.
    process : Process or None
        The same by a Gaussian process. Where both are there, the logarithm is their mean.
    """

    name: str
    base: tuple[float, ...] | None = None
    trees: Trees | None = None
    process: Process | None = None

    def predict(self, table: FeatureTable, kernels: Sequence[Kernel]) -> Array:
        """Return the latency of every kernel [s], (n,)."""
        if self.base is None:
            assert self.trees is not None
            return np.maximum(self.trees.predict(table.plain(kernels)), _LEAST)
        parts = [part for part in (self.trees, self.process) if part is not None]
        expected = table.terms(kernels) @ np.array(self.base)
        return np.maximum(corrected(expected, parts, table.physical(kernels)), _LEAST)

    def content(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "name": self.name,
            "base": None if self.base is None else list(self.base),
            "trees": self.trees and self.trees.content(),
            "process": self.process and self.process.content(),
        }

    @classmethod
    def read(cls, content: Mapping[str, Any], table: FeatureTable) -> KernelModel:
        """Make it of plain values.

        Raises
        ------
        InvalidValueError
            If it does not go with the features of the group.
        """
        base = None if content["base"] is None else tuple(content["base"])
        trees = Trees.read(content["trees"]) if content["trees"] else None
        process = Process.read(content["process"]) if content["process"] else None
        if trees is None and (process is None or base is None):
            raise InvalidValueError(f"The model {content['name']!r} has neither trees nor a process over a base.")
        sample = _any_kernel(table)
        n_features = len((table.plain if base is None else table.physical)([sample])[0])
        if trees is not None:
            trees.check(n_features)
        if process is not None and len(process.centre) != n_features:
            raise InvalidValueError(
                f"The process has {number_of(len(process.centre), 'feature')}, the group {n_features}."
            )
        if base is not None and len(base) != table.terms([sample]).shape[1]:
            raise InvalidValueError(
                f"The base has {number_of(len(base), 'term')}, the group {table.terms([sample]).shape[1]}."
            )
        return cls(str(content["name"]), base, trees, process)


def _any_kernel(table: FeatureTable) -> Kernel:
    return next(iter(table.kinds.values())).snap({})


def fit_model(name: str, table: FeatureTable, kernels: Sequence[Kernel], seconds: Array, seed: int) -> KernelModel:
    """Fit one of `CANDIDATES`."""
    if name == "forest":
        forest = _forest(seed).fit(table.plain(kernels), seconds)
        return KernelModel(name, None, Trees.of_forest(forest))
    terms = table.terms(kernels)
    base = fit_base(terms, seconds)
    features, targets = table.physical(kernels), np.log(seconds) - np.log(terms @ base)
    trees = process = None
    if name in ("boosting", "blend"):
        trees = Trees.of_boosting(_boosting(seed, len(kernels)).fit(features, targets))
    if name in ("process", "blend"):
        process = Process.fit(features, targets)
    return KernelModel(name, tuple(base.tolist()), trees, process)


def _forest(seed: int) -> Any:
    return RandomForestRegressor(n_estimators=_N_FOREST, random_state=seed)


def _boosting(seed: int, count: int) -> Any:
    return GradientBoostingRegressor(
        # Absolute errors, since a measurement that was disturbed is far off.
        loss="absolute_error",
        n_estimators=_N_BOOSTING,
        learning_rate=0.06,
        max_depth=5,
        min_samples_leaf=min(3, max(1, count // 20)),
        subsample=0.7,
        max_features=0.5,
        random_state=seed,
    )


def fit_base(terms: Array, seconds: Array) -> Array:
    """Fit seconds by term, none negative and the constant positive, so that ratios are near 1."""
    return proportional(terms, seconds, _LEAST_CONSTANT)


def predict_held_out(
    name: str, table: FeatureTable, kernels: Sequence[Kernel], seconds: Array, *, folds: int, seed: int
) -> Array:
    """Predict every kernel by a model that has not seen it, (n,) [s]."""

    def fit(known: Rows) -> Callable[[Rows], Array]:
        model = fit_model(name, table, [kernels[place] for place in known], seconds[known], seed)
        return lambda unknown: model.predict(table, [kernels[place] for place in unknown])

    return held_out(len(seconds), draw_folds(range(len(seconds)), folds, seed), fit)


def disagreement(table: FeatureTable, kernels: Sequence[Kernel], seconds: Array, seed: int) -> Callable[..., Array]:
    """Return a function that says of kernels how much the trees of a forest disagree about them, times the root of the
    time that they take: halfway between how far off each is as a ratio, and what that adds to a network.
    """  # noqa: D205 - one sentence
    terms = table.terms(kernels)
    base = fit_base(terms, seconds)
    forest = RandomForestRegressor(n_estimators=30, min_samples_leaf=2, max_features=0.5, random_state=seed)
    forest.fit(table.physical(kernels), np.log(seconds) - np.log(terms @ base))

    def worth(asked: Sequence[Kernel]) -> Array:
        features = table.physical(asked).astype(np.float32)
        answers = np.array([tree.predict(features) for tree in forest.estimators_])
        expected = table.terms(asked) @ base * np.exp(answers.mean(axis=0))
        return np.asarray(answers.std(axis=0) * np.sqrt(expected))

    return worth
