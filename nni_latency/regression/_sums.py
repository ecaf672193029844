# SPDX-License-Identifier: Apache-2.0
"""Sums with weights that are not negative, and what corrects them.

A sum of what each term costs stays in proportion to the work far away from all that was measured. What it leaves is
learned as the logarithm of a factor, by a `Correction`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

#: Steps of the solver for each weight.
_STEPS = 100


class Correction(Protocol):
    """What says by which factor a sum is off: `Trees`, or a `Process`."""

    def predict(self, features: ArrayLike) -> Array:
        """Return the logarithm of the factor for every row of features, (n,)."""


def nonnegative(design: Array, target: Array, prior: Array | None = None, held: float | Array = 0.0) -> Array:
    """Solve least squares for weights that are not negative, (n_terms,).

    Parameters
    ----------
    design : ndarray of shape (n, n_terms)
        Terms of each sum; divided by what was measured where errors count as shares of it.
    target : ndarray of shape (n,)
        What each sum should be; ones for such errors.
    prior : ndarray of shape (n_terms,), optional
        Weights that are likely.
    held : float or ndarray of shape (n_terms,), default=0.0
        How strongly weights are held to those: a number is a share of the squares of each term over all sums, an
        array is the standard deviation of the target over that of each weight.

    Examples
    --------
    >>> terms = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    >>> nonnegative(terms, np.array([3.0, 5.0, 7.0])).round(6).tolist()
    [1.0, 2.0]
    >>> nonnegative(terms, np.array([3.0, 2.0, 1.0])).round(6).tolist()
    [2.0, 0.0]
    """
    if prior is not None:
        ridge = held if isinstance(held, np.ndarray) else held**0.5 * np.maximum(_lengths(design), 1e-12)
        design, target = np.vstack([design, np.diag(ridge)]), np.concatenate([target, ridge * prior])
    # The solver stops by absolute numbers.
    lengths, height = _lengths(design), float(np.linalg.norm(target)) or 1.0
    scale = np.where(lengths > 0, lengths, 1.0)
    found, _ = scipy.optimize.nnls(design / scale, target / height, maxiter=_STEPS * design.shape[1])
    return np.asarray(found * height / scale)


def _lengths(design: Array) -> Array:
    return np.asarray(np.linalg.norm(design, axis=0))


def proportional(
    terms: Array, measured: Array, least: float, prior: Array | None = None, held: float | Array = 0.0
) -> Array:
    """Fit what a unit of each term costs, by relative errors, (n_terms,).

    Parameters
    ----------
    terms : ndarray of shape (n, n_terms)
        The first is 1.
    measured : ndarray of shape (n,)
        Costs; positive.
    least : float
        The constant is at least this share of the smallest cost, so that nothing costs nothing.
    prior : ndarray of shape (n_terms,), optional
        Weights that are likely.
    held : float or ndarray of shape (n_terms,), default=0.0
        How strongly weights are held to those, see `nonnegative`.
    """
    found = nonnegative(terms / measured[:, None], np.ones(len(measured)), prior, held)
    found[0] = max(found[0], least * float(measured.min()))
    return found


def corrected(expected: Array, corrections: Sequence[Correction], features: ArrayLike) -> Array:
    """Return sums times the factors that corrections say, (n,); several count by the mean of their logarithms.

    Parameters
    ----------
    expected : ndarray of shape (n,)
        The sums.
    corrections : sequence of Correction
        At least one.
    features : array-like of shape (n, n_features)
        What the corrections see.
    """
    return np.asarray(expected * np.exp(np.mean([item.predict(features) for item in corrections], axis=0)))


def one_hot(indices: NDArray[np.int64], sizes: Sequence[int]) -> NDArray[np.float64]:
    """Return the one-hot encoding of all choices, (n, sum of sizes)."""
    encoded = np.zeros((len(indices), sum(sizes)))
    starts = np.cumsum([0, *sizes[:-1]])
    for start, chosen in zip(starts, indices.T, strict=True):
        encoded[np.arange(len(chosen)), start + chosen] = 1.0
    return encoded
