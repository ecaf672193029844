# SPDX-License-Identifier: Apache-2.0
"""Agreement of predictions with measurements: metrics used in papers on latency prediction."""

# Annotations are not postponed: older versions of pydantic evaluate those of a base in the module of the derived class.

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import PositiveInt

from nni_latency.documents import RECORD, InFile
from nni_latency.errors import InvalidValueError
from nni_latency.regression import rank_correlation


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


@dataclass(frozen=True)
class Scores:
    """Agreement of predictions with measurements. Shares and errors are ratios, 0.05 being 5 %.

    Parameters
    ----------
    n : int
        Number of pairs.
    mape : float
        Mean absolute percentage error: mean of abs(predicted / measured - 1).
    rmspe : float
        Root mean square percentage error.
    bias : float
        Mean of predicted / measured - 1.
    within5, within10 : float
        Share of predictions with errors of at most 5 and 10 %.
    spearman : float
        Spearman's rank correlation; NaN for fewer than three pairs or constant values.
    worst : float
        Largest absolute percentage error.
    """

    n: PositiveInt
    mape: float
    rmspe: float
    bias: float
    within5: float
    within10: float
    spearman: Annotated[float, InFile(float | None, _or_nan, _or_none)]
    worst: float

    __pydantic_config__ = RECORD


def score(predicted: ArrayLike, measured: ArrayLike) -> Scores:
    """Compare predictions with measurements.

    Parameters
    ----------
    predicted, measured : array-like of shape (n,)
        In the same unit; measurements positive.

    Returns
    -------
    Scores

    Raises
    ------
    InvalidValueError
        If the lengths differ, the arrays are empty or not finite, or a measurement is not positive.

    Examples
    --------
    >>> found = score([1.0, 2.2, 3.3], [1.0, 2.0, 3.0])
    >>> round(found.mape, 4), round(found.within5, 2), found.within10, found.spearman
    (0.0667, 0.33, 1.0, 1.0)
    """
    guesses, truth = check_pairs(predicted, measured)
    # Overflows become infinite.
    with np.errstate(over="ignore", invalid="ignore"):
        errors = guesses / truth - 1
        # Tolerate rounding errors at exactly 10 %.
        sizes = np.abs(errors).round(12)
        return Scores(
            n=len(truth),
            mape=float(sizes.mean()),
            rmspe=float(np.sqrt((errors**2).mean())),
            bias=float(errors.mean()),
            within5=float((sizes <= 0.05).mean()),
            within10=float((sizes <= 0.10).mean()),
            spearman=rank_correlation(guesses, truth),
            worst=float(sizes.max()),
        )


def check_pairs(predicted: ArrayLike, measured: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Validate predictions and measurements, and return them as arrays of shape (n,).

    Raises
    ------
    InvalidValueError
        If the lengths differ, the arrays are empty or not finite, or a measurement is not positive.
    """
    guesses, truth = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    if guesses.shape != truth.shape or guesses.ndim != 1 or not len(truth):
        raise InvalidValueError(
            f"Predictions and measurements must be as many, at least one. Got {guesses.shape} and {truth.shape}."
        )
    if not (np.isfinite(guesses).all() and np.isfinite(truth).all() and (truth > 0).all()):
        raise InvalidValueError("Predictions must be finite, measurements positive and finite.")
    return guesses, truth
