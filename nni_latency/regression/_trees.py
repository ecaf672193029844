# SPDX-License-Identifier: Apache-2.0
"""Trees as arrays: what a forest or a boosting has learned, saved without pickle and evaluated without scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from nni_latency.documents import RECORD
from nni_latency.errors import InvalidValueError
from nni_latency.units import number_of

Array = NDArray[np.float64]

#: Significant digits of the value of a leaf, and of a threshold.
_LEAF_DIGITS, _THRESHOLD_DIGITS = 6, 9

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

    @cached_property
    def _walk(self) -> _Walk:
        return _Walk.of(self.trees)

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
    def of(cls, trees: Sequence[Tree]) -> _Walk:
        """Concatenate the nodes of trees."""
        feature, threshold, left, right = (
            np.concatenate([getattr(tree, name) for tree in trees])
            for name in ("feature", "threshold", "left", "right")
        )
        sizes = [len(tree.feature) for tree in trees]
        roots = np.cumsum([0, *sizes[:-1]])
        own, is_leaf, shift = np.arange(len(feature)), feature < 0, np.repeat(roots, sizes)
        children = np.column_stack([np.where(is_leaf, own, side + shift) for side in (right, left)])
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
    """Take over a tree of scikit-learn; leaves have no feature and no children."""
    is_leaf = tree.children_left < 0
    numbers = np.where(is_leaf, tree.value[:, 0, 0], tree.threshold).tolist()
    digits = np.where(is_leaf, _LEAF_DIGITS, _THRESHOLD_DIGITS).tolist()
    return Tree(
        tuple(np.where(is_leaf, -1, tree.feature).tolist()),
        tuple(float(f"{number:.{count}g}") for number, count in zip(numbers, digits, strict=True)),
        *(tuple(np.where(is_leaf, 0, child).tolist()) for child in (tree.children_left, tree.children_right)),
    )
