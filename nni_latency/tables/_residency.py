"""`Residency`: a small network finds in the cache what its run before left there, and is faster than its parts say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.errors import InvalidValueError

#: By how much the curve has to explain the runs better than a plain factor.
_LEAST_GAIN = 0.01

#: What is tried: savings, and scales as shares of the median network.
_SAVINGS = np.linspace(0.02, 0.6, 30)
_SCALES = np.geomspace(0.08, 1.5, 24)

#: How many times as long the longest run must take as the shortest one for the curve to be seen at all.
_LEAST_RANGE = 1.5


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

    saving: float
    scale: float

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
    level: float,
    *,
    least_gain: float = _LEAST_GAIN,
) -> tuple[float, Residency | None]:
    """Find the factor and the curve that take the sums of entries to the times of whole networks.

    The residuals' quantile at `level` is made zero and their pinball loss [1]_ least, over a grid of curves.

    Parameters
    ----------
    sums : array-like of shape (n_runs,)
        Sum of the entries of the network of each run.
    totals : array-like of shape (n_runs,)
        Time of each run.
    level : float
        Which quantile of a network's runs is meant, in (0, 1).
    least_gain : float, default=0.01
        The curve is kept only if it explains the runs better than a plain factor by this share of the loss; of few runs
        more has to be asked.

    Returns
    -------
    calibration : float
        Factor on the sums.
    residency : Residency or None
        For the calibrated sums; None where a plain factor does as well.

    References
    ----------
    .. [1] R. Koenker, G. Bassett, "Regression Quantiles", Econometrica 46 (1978). https://doi.org/10.2307/1913643
    """
    parts, logs = np.asarray(sums, dtype=np.float64), np.log(np.asarray(totals) / np.asarray(sums))
    plain = float(np.quantile(logs, level))
    least = _pinball(logs - plain, level) * (1 - least_gain)
    best: tuple[float, Residency | None] = (math.exp(plain), None)
    if parts.max() < _LEAST_RANGE * parts.min():
        return best
    for scale in np.quantile(parts, 0.5) * _SCALES:
        faded = np.exp(-parts / scale)
        for saving in _SAVINGS:
            residuals = logs - np.log1p(-saving * faded)
            shift = float(np.quantile(residuals, level))
            loss = _pinball(residuals - shift, level)
            if loss < least:
                least, best = loss, (math.exp(shift), Residency(float(saving), float(scale) * math.exp(shift)))
    return best


def _pinball(residuals: NDArray[np.float64], level: float) -> float:
    return float(np.maximum(level * residuals, (level - 1) * residuals).mean())
