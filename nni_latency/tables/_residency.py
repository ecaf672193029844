"""`Residency`: a small network finds in the cache what its run before left there, and is faster than its parts say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat

from nni_latency.documents import RECORD
from nni_latency.errors import InvalidValueError
from nni_latency.regression import deviation, huber_losses, huber_weights

#: Savings that are tried, and what is thought of them before anything was measured: mean and standard deviation.
_SAVINGS = np.linspace(0.0, 0.6, 121)
_USUAL_SAVING, _SAVING_DEVIATION = 0.18, 0.08

#: The scale as a share of the median network's sum. Runs tell the saving, but hardly the scale apart from it.
_SCALE = 0.3

#: The curve is kept only if the runs are likelier with it than without by this much (logarithm of the ratio).
_LEAST_EVIDENCE = 2.0

#: How many times as long the longest run must take as the shortest one for the curve to be seen at all.
_LEAST_RANGE = 1.5

#: Residuals are never taken for smaller than this share: below it lies the rounding of the clock.
_LEAST_NOISE = 1e-6


@dataclass(frozen=True)
class Residency:
    r"""How much faster a network runs than the sum of its entries, because its data are still in the cache. Immutable.

    Of a network whose entries add up to :math:`S`, the share :math:`\text{saving} \cdot e^{-S / \text{scale}}` is
    saved. It fades with the size of the network, as less and less of what one run touched is left for the next.

    Parameters
    ----------
    saving : float
        Share saved by a network that takes no time at all, in [0, 1).
    scale : float
        Sum over which the saving fades, in the unit of the table's metric.

    Raises
    ------
    InvalidValueError
        If a value is outside its range.

    Examples
    --------
    >>> residency = Residency(0.5, 0.004)
    >>> round(residency(0.004), 6), round(residency(0.04), 6), round(residency.inverse(residency(0.004)), 9)
    (0.003264, 0.039999, 0.004)
    """

    saving: Annotated[float, Field(ge=0, lt=1, description="share saved by a network that takes no time at all")]
    scale: Annotated[PositiveFloat, Field(description="sum over which the saving fades, in the table's unit")]

    __pydantic_config__ = RECORD

    def __post_init__(self) -> None:
        if not 0 <= self.saving < 1:
            raise InvalidValueError(f"The 'saving' of a residency must be in [0, 1). Got {self.saving!r}.")
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise InvalidValueError(f"The 'scale' of a residency must be positive and finite. Got {self.scale!r}.")

    def __call__(self, total: Any) -> Any:
        """Return what networks cost whose entries add up to `total`, a number or an array; it rises with `total`."""
        exp = np.exp if isinstance(total, np.ndarray) else math.exp
        return total * (1 - self.saving * exp(-total / self.scale))

    def inverse(self, cost: float) -> float:
        """Return what the entries of a network that costs `cost` add up to."""
        low, high = cost, cost / (1 - self.saving)
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if self(middle) < cost else (low, middle)
        return (low + high) / 2

    def scaled(self, factor: float) -> Residency:
        """Return the same curve for sums that are `factor` times as large."""
        return Residency(self.saving, self.scale * factor)


def fit_residency(
    sums: Sequence[float] | NDArray[np.float64],
    totals: Sequence[float] | NDArray[np.float64],
    weights: Sequence[float] | NDArray[np.float64] | None = None,
) -> tuple[float, Residency | None]:
    """Find the factor and the curve that take the sums of entries to the times of whole networks.

    The scale is a fixed share of the median sum. The factor is a Huber location of what the curve leaves, and the
    saving is the likeliest under a weak prior, 0.18 +- 0.08.

    Parameters
    ----------
    sums : array-like of shape (n_runs,)
        Sum of the entries of the network of each run.
    totals : array-like of shape (n_runs,)
        Time of each run.
    weights : array-like of shape (n_runs,), optional
        How much each run counts; runs of one network tell less than as many runs of different ones.

    Returns
    -------
    calibration : float
        Factor on the sums.
    residency : Residency or None
        For the calibrated sums; None where the runs are as likely with a plain factor, by a likelihood ratio.
    """
    parts, logs = np.asarray(sums, dtype=np.float64), np.log(np.asarray(totals) / np.asarray(sums))
    if parts.max() < _LEAST_RANGE * parts.min():
        return math.exp(float(np.median(logs))), None
    shares = np.ones(len(parts)) if weights is None else np.asarray(weights, dtype=np.float64)
    scale = _SCALE * float(np.median(parts))
    rest = logs - np.log1p(-_SAVINGS[:, None] * np.exp(-parts / scale))
    # The noise is that of the curve that leaves least, so that the curves are compared on equal terms.
    noise = max(_LEAST_NOISE, min(map(deviation, rest - np.median(rest, axis=1)[:, None])))
    factors, losses = _huber_rows(rest, shares, noise)
    best = int(np.argmin(losses + ((_SAVINGS - _USUAL_SAVING) / _SAVING_DEVIATION) ** 2 / 2))
    if losses[0] - losses[best] < _LEAST_EVIDENCE:
        return math.exp(factors[0]), None
    factor = math.exp(factors[best])
    return factor, Residency(float(_SAVINGS[best]), scale * factor)


def _huber_rows(
    rest: NDArray[np.float64], shares: NDArray[np.float64], noise: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the Huber location of every row and its loss, in units of the noise."""
    location = np.median(rest, axis=1)
    for _ in range(10):
        weights = shares * huber_weights(rest - location[:, None], noise)
        location = (weights * rest).sum(axis=1) / weights.sum(axis=1)
    return location, (shares * huber_losses(rest - location[:, None], noise)).sum(axis=1)
