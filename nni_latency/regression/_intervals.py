"""Intervals without an assumption about errors: as wide as held-out errors were."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike


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
