# SPDX-License-Identifier: Apache-2.0
"""Cross-validation: folds that keep together what is alike, predictions of what was not seen, and their intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Rows = NDArray[np.intp]

#: Takes rows and returns a number for each.
Predict = Callable[[Rows], Array]


def draw_folds(groups: Sequence[object], n_folds: int, seed: int, strata: Sequence[object] | None = None) -> list[Rows]:
    """Deal rows to folds at random; those of one group stay together.

    Parameters
    ----------
    groups : sequence
        By row, what is alike, such as a block at several batch sizes.
    n_folds : int
        Most folds; there are no more than groups.
    seed : int
        Of the deal.
    strata : sequence, optional
        By row, its kind: the groups of one kind are dealt to as many folds as there are, so that no fold leaves out
        the only two of a kind and asks for what nothing like it was seen of.

    Returns
    -------
    list of ndarray of int
        The rows of each fold, in order.

    Examples
    --------
    >>> [fold.tolist() for fold in draw_folds(["a", "a", "b", "c"], 2, seed=0)]
    [[2, 3], [0, 1]]
    """
    kind_of = dict(zip(groups, [0] * len(groups) if strata is None else strata, strict=True))
    names = list(kind_of)
    order = np.random.default_rng(seed).permutation(len(names))
    ranks = {kind: rank for rank, kind in enumerate(dict.fromkeys(kind_of[names[place]] for place in order))}
    dealt = sorted(order, key=lambda place: ranks[kind_of[names[place]]])
    fold_of = {names[place]: position % n_folds for position, place in enumerate(dealt)}
    folds = np.array([fold_of[group] for group in groups])
    return [np.flatnonzero(folds == fold) for fold in range(min(n_folds, len(names)))]


def held_out(count: int, folds: Sequence[Rows], fit: Callable[[Rows], Predict]) -> Array:
    """Predict every row by a fit that has not seen its fold, (n,).

    Parameters
    ----------
    count : int
        Rows that there are.
    folds : sequence of ndarray of int
        Rows that are left out together; nan is found for rows of none, which every fit sees.
    fit : callable
        Takes the rows to learn from, and returns what predicts others.

    Examples
    --------
    >>> values = np.array([1.0, 2.0, 6.0])
    >>> folds = [np.array([0]), np.array([1, 2])]
    >>> held_out(3, folds, lambda known: lambda rows: np.full(len(rows), values[known].mean())).tolist()
    [4.0, 1.0, 1.0]
    """
    found = np.full(count, np.nan)
    for fold in folds:
        found[fold] = fit(np.setdiff1d(np.arange(count), fold))(fold)
    return found


def conformal_factor(errors: ArrayLike, confidence: float) -> float:
    """Return the factor by which an estimate may be off, up or down, with that confidence.

    If errors of the future are drawn like those of the past, their size is as likely to come at any rank among them,
    so the order statistic of rank ``ceil((n + 1) * confidence)`` covers it with at least that probability [1]_. Where
    there are too few errors for that, it is the largest of them, and the interval is too narrow.

    Parameters
    ----------
    errors : array-like of shape (n,)
        Logarithms of measured over predicted, of fits that had not seen what was measured.
    confidence : float
        In (0, 1).

    Returns
    -------
    float
        At least 1.

    References
    ----------
    .. [1] A. N. Angelopoulos, S. Bates, "A Gentle Introduction to Conformal Prediction and Distribution-Free
       Uncertainty Quantification". https://arxiv.org/abs/2107.07511

    Examples
    --------
    >>> conformal_factor([0.0] * 8 + [-0.1, 0.2], 0.8)
    1.1051709180756477
    """
    sizes = np.sort(np.abs(np.asarray(errors, dtype=np.float64)))
    rank = min(len(sizes), math.ceil((len(sizes) + 1) * confidence - 1e-9))
    return float(np.exp(sizes[rank - 1]))
