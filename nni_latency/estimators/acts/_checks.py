"""What a fit refuses: settings, numbers and sets of points from which nothing can be learned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nni_latency.errors import InvalidValueError
from nni_latency.estimators.acts._workloads import Workloads
from nni_latency.platforms import Platform, check_same_platform
from nni_latency.units import number_of

#: Points that a fit needs at least.
FEWEST_POINTS = 10

#: Amounts of work that differ by less than this share in no respect are those of one block.
_ALIKE = 1e-6


def check_settings(variant: str, confidence: float, n_folds: int) -> None:
    """Raise `InvalidValueError` if a parameter of the estimator is outside its range."""
    if variant not in ("refined", "published"):
        raise InvalidValueError(f"The 'variant' of ActsEstimator must be 'refined' or 'published'. Got {variant!r}.")
    if not 0 < confidence < 1:
        raise InvalidValueError(f"The 'confidence' of ActsEstimator must be a number in (0, 1). Got {confidence!r}.")
    if not isinstance(n_folds, int) or n_folds < 2:
        raise InvalidValueError(f"The 'n_folds' of ActsEstimator must be an int >= 2. Got {n_folds!r}.")


def check_points(workloads: Workloads, y: ArrayLike) -> NDArray[np.float64]:
    """Return the latencies [s] if something can be learned from the points.

    Raises
    ------
    InvalidValueError
        If they are fewer than 10, not as many as the workloads, not positive, or all of one block.
    """
    try:
        seconds = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        seconds = np.empty((0, 0))
    if seconds.shape != (len(workloads),):
        raise InvalidValueError(
            f"The 'y' of ActsEstimator must be one latency [s] for each of {number_of(len(workloads), 'point')}. Got "
            f"an array of shape {seconds.shape}."
        )
    if not (np.isfinite(seconds).all() and (seconds > 0).all()):
        raise InvalidValueError("Latencies must be positive, finite numbers of seconds.")
    if len(seconds) < FEWEST_POINTS:
        raise InvalidValueError(
            f"ActsEstimator needs at least {FEWEST_POINTS} points to fit. Got {len(seconds)}: measure more blocks."
        )
    if _all_alike(workloads):
        raise InvalidValueError(
            f"All {number_of(len(seconds), 'point')} are of one block: what they compute differs by a common factor "
            "at most, and nothing can be learned about others. Measure blocks of several kinds, channels and sizes."
        )
    return seconds


def one_platform(platforms: Platform | Sequence[Platform] | None, count: int) -> Platform | None:
    """Return the platform that all points have in common.

    Raises
    ------
    InvalidValueError
        If there is not one for each point.
    MismatchError
        If there are several.
    """
    if platforms is None or isinstance(platforms, Platform):
        return platforms
    if len(platforms) != count:
        raise InvalidValueError(
            f"The 'platform' must be one, or one for each of {number_of(count, 'point')}. Got {len(platforms)}."
        )
    first, *others = platforms
    for other in others:
        if other is not first:
            check_same_platform(first, other, "Fitting one device to these points")
    return first


def _all_alike(workloads: Workloads) -> bool:
    """Say whether what the workloads do is the same but for a common factor."""
    if workloads.operators:
        # Outputs, inputs and FLOPs; parameters are the same at every batch size.
        amounts = workloads.counts @ np.array([piece.amounts[:3] for piece in workloads.work])
    else:
        amounts = workloads.totals
    largest = amounts.max(axis=0)
    scaled = amounts / np.where(largest > 0, largest, 1.0)
    lengths = np.linalg.norm(scaled, axis=1, keepdims=True)
    if not lengths.any():
        return True
    directions = scaled / np.maximum(lengths, 1e-300)
    return bool(np.abs(directions - directions[0]).max() < _ALIKE)
