# SPDX-License-Identifier: Apache-2.0
"""Trees as arrays: what a forest or a boosting has learned, saved without pickle and evaluated without scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from nni_latency.documents import RECORD
from nni_latency.errors import InvalidValueError, MissingDependencyError
from nni_latency.units import number_of

Array = NDArray[np.float64]

#: Significant digits of what a leaf says.
_LEAF_DIGITS = 6

#: How near the answers of trees and of what they were taken from must be.
_SAME = 1e-3

_OTHER_TREES = (
    "The installed version of scikit-learn keeps the trees of HistGradientBoostingRegressor in an unknown way. "
    "Install the one that this package was tested with: pip install 'scikit-learn<1.10'."
)

#: Steps from a node to its child that are taken at once, so that the arrays of a step stay in the cache.
_MOST_STEPS = 2**14


@dataclass(frozen=True)
class Tree:
    """One regression tree. Immutable.

    Parameters
    ----------
    feature : tuple of int
        By node, the feature that divides it; -1 for a leaf.
    threshold : tuple of float
        By node, the largest value of the feature that goes to the left; of a leaf, its value.
    left : tuple of int
        By node, its left child; 0 for a leaf.
    right : tuple of int
        By node, its right child; 0 for a leaf.
    """

    feature: Annotated[tuple[int, ...], Field(description="the feature that divides a node; -1 for a leaf")]
    threshold: Annotated[
        tuple[float, ...], Field(description="largest value that goes to the left; of a leaf, its value")
    ]
    left: tuple[int, ...]
    right: tuple[int, ...]

    __pydantic_config__ = RECORD

    def __post_init__(self) -> None:
        count = len(self.feature)
        if not count or {count} != {len(self.threshold), len(self.left), len(self.right)}:
            raise InvalidValueError("A tree must have as many features, thresholds and children, at least one.")
        if min(self.feature) < -1:
            raise InvalidValueError(f"A tree divides by features from 0 on, or -1 in leaves. Got {min(self.feature)}.")
        for node in range(count):
            # Children come behind their parents, so that no path is endless.
            if self.feature[node] >= 0 and not all(
                node < child < count for child in (self.left[node], self.right[node])
            ):
                raise InvalidValueError(
                    f"The node {node} of a tree must have children behind it, among {number_of(count, 'node')}."
                )


@dataclass(frozen=True)
class Trees:
    """Trees whose answers are added up. Immutable.

    Parameters
    ----------
    trees : tuple of Tree
        At least one.
    offset : float
        What is added to their sum.
    scale : float
        By what the sum is multiplied: one over the number of trees for a forest.
    """

    trees: Annotated[tuple[Tree, ...], Field(min_length=1)]
    offset: float = 0.0
    scale: float = 1.0

    __pydantic_config__ = RECORD

    def predict(self, features: ArrayLike) -> Array:
        """Return the answer for every row of features, (n,)."""
        # Trees of scikit-learn compare numbers of single precision.
        rows = np.asarray(features, dtype=np.float32).astype(np.float64)
        total, at_once = np.zeros(len(rows)), max(1, _MOST_STEPS // max(1, len(rows)))
        for first in range(0, len(self.trees), at_once):
            total += self._walk.sums(rows, first, first + at_once)
        return np.asarray(self.offset + self.scale * total)

    def __add__(self, other: Trees) -> Trees:
        """Return trees that say the sum of what both say.

        Raises
        ------
        InvalidValueError
            If their scales differ.
        """
        if self.scale != other.scale:
            raise InvalidValueError(f"Trees of the scales {self.scale:g} and {other.scale:g} cannot be added up.")
        return Trees(self.trees + other.trees, self.offset + other.offset, self.scale)

    @cached_property
    def _walk(self) -> _Walk:
        return _Walk.of(self.arrays())

    def check(self, n_features: int) -> Trees:
        """Return the trees if they divide by no feature that there is not.

        Raises
        ------
        InvalidValueError
            If one does.
        """
        largest = max(max(tree.feature) for tree in self.trees)
        if largest >= n_features:
            raise InvalidValueError(f"A tree divides by feature {largest}, and there are {n_features}.")
        return self

    @classmethod
    def of_forest(cls, forest: Any) -> Trees:
        """Take over a fitted `RandomForestRegressor`."""
        return cls(tuple(_tree(item.tree_) for item in forest.estimators_), 0.0, 1 / len(forest.estimators_))

    @classmethod
    def of_boosting(cls, boosting: Any) -> Trees:
        """Take over a fitted `GradientBoostingRegressor`."""
        start = float(np.ravel(boosting.init_.constant_)[0])
        trees = tuple(_tree(item.tree_) for item in boosting.estimators_.ravel())
        return cls(trees, start, float(boosting.learning_rate))

    @classmethod
    def of_histograms(cls, boosting: Any, features: ArrayLike) -> Trees:
        """Take over a fitted `HistGradientBoostingRegressor` of features without gaps.

        Parameters
        ----------
        boosting : HistGradientBoostingRegressor
            What was fitted.
        features : array-like of shape (n, n_features)
            Rows, in single precision, of which scikit-learn and the trees must say the same.

        Raises
        ------
        MissingDependencyError
            If scikit-learn keeps its trees in another way than the versions that are known.
        """
        # scikit-learn publishes all other trees, but neither these nor a way to save them without pickle. So they are
        # read from where it keeps them, here alone, and held to what it says itself.
        try:
            trees = tuple(_histogram_tree(item.nodes) for (item,) in boosting._predictors)
            found = cls(trees, float(np.ravel(boosting._baseline_prediction)[0]))
        except (AttributeError, LookupError, TypeError) as error:
            raise MissingDependencyError(_OTHER_TREES) from error
        if not np.allclose(found.predict(features), boosting.predict(features), rtol=_SAME, atol=_SAME):
            raise MissingDependencyError(_OTHER_TREES)
        return found

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return them as arrays: nodes of all trees behind one another, and where each tree begins."""
        names = ("feature", "threshold", "left", "right")
        nodes = {name: np.concatenate([getattr(tree, name) for tree in self.trees]) for name in names}
        starts = np.cumsum([0, *(len(tree.feature) for tree in self.trees[:-1])])
        small = {name: nodes[name].astype(_smallest(nodes[name])) for name in ("feature", "left", "right")}
        return {**small, "threshold": nodes["threshold"], "starts": starts, "sum": np.array([self.offset, self.scale])}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> Trees:
        """Make them of `arrays`.

        Raises
        ------
        KeyError, ValueError
            If one is missing, or does not fit the others.
        """
        starts = [int(start) for start in arrays["starts"]]
        ends = [*starts[1:], len(arrays["feature"])]
        columns = {name: arrays[name].tolist() for name in ("feature", "threshold", "left", "right")}
        trees = tuple(
            Tree(*(tuple(column[start:end]) for column in columns.values()))
            for start, end in zip(starts, ends, strict=True)
        )
        offset, scale = (float(value) for value in arrays["sum"].tolist())
        if not (trees and all(math.isfinite(value) for value in (offset, scale, *columns["threshold"]))):
            raise ValueError("there is no tree, or a number is not finite.")
        return cls(trees, offset, scale)


def _smallest(numbers: NDArray[np.int64]) -> type[np.signedinteger[Any]]:
    """Return the smallest type of whole numbers that holds these."""
    kinds = (np.int8, np.int16, np.int32)
    return next(kind for kind in kinds if numbers.max(initial=0) <= np.iinfo(kind).max)


@dataclass(frozen=True)
class _Walk:
    """The nodes of all trees behind one another, as rows of features walk down from the roots. Immutable.

    A leaf is its own child, so every row takes as many steps.
    """

    feature: NDArray[np.int64]
    threshold: Array
    #: By node, where a row goes whose feature is above the threshold, and where all others go.
    children: NDArray[np.int64]
    value: Array
    roots: NDArray[np.int64]
    depth: int

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> _Walk:
        """Make it of what `Trees.arrays` returns."""
        feature, threshold, roots = arrays["feature"].astype(np.int64), arrays["threshold"], arrays["starts"]
        own, is_leaf = np.arange(len(feature)), feature < 0
        shift = np.repeat(roots, np.diff(roots, append=len(feature)))
        children = np.column_stack([np.where(is_leaf, own, arrays[side] + shift) for side in ("right", "left")])
        return cls(
            np.where(is_leaf, 0, feature),
            threshold,
            children.ravel(),
            np.where(is_leaf, threshold, 0.0),
            roots,
            _depth(children, roots),
        )

    def sums(self, rows: Array, first: int, last: int) -> Array:
        """Add up what some of the trees say of each row."""
        roots = self.roots[first:last]
        nodes = np.repeat(roots, len(rows))
        starts = np.tile(rows.shape[1] * np.arange(len(rows)), len(roots))
        numbers = rows.ravel()
        for _ in range(self.depth):
            goes_left = numbers.take(self.feature.take(nodes) + starts) <= self.threshold.take(nodes)
            nodes = self.children.take(2 * nodes + goes_left)
        found: Array = self.value.take(nodes).reshape(len(roots), len(rows)).sum(axis=0)
        return found


def _depth(children: NDArray[np.int64], roots: NDArray[np.int64]) -> int:
    """Return how many steps lead from a root to the farthest leaf."""
    depth, level = 0, roots
    while True:
        below = children[level].ravel()
        level = np.unique(below[~np.isin(below, level)])
        if not len(level):
            return depth
        depth += 1


def _tree(tree: Any) -> Tree:
    is_leaf = tree.children_left < 0
    numbers = np.where(is_leaf, tree.value[:, 0, 0], tree.threshold)
    return _written(is_leaf, tree.feature, numbers, tree.children_left, tree.children_right, 9)


def _histogram_tree(nodes: Any) -> Tree:
    is_leaf = nodes["is_leaf"].astype(bool)
    numbers = np.where(is_leaf, nodes["value"], nodes["num_threshold"])
    # Many thresholds are values that occur, so that not a digit may be lost.
    return _written(is_leaf, nodes["feature_idx"], numbers, nodes["left"], nodes["right"], 17)


def _written(
    is_leaf: NDArray[np.bool_], feature: Any, numbers: Array, left: Any, right: Any, threshold_digits: int
) -> Tree:
    """Make a tree of arrays; leaves have no feature and no children."""
    digits = np.where(is_leaf, _LEAF_DIGITS, threshold_digits)
    return Tree(
        tuple(np.where(is_leaf, -1, feature).tolist()),
        tuple(float(f"{number:.{count}g}") for number, count in zip(numbers.tolist(), digits.tolist(), strict=True)),
        *(tuple(np.where(is_leaf, 0, child).astype(int).tolist()) for child in (left, right)),
    )
