"""Pure functions on samples: trimming, quantiles and their distribution-free intervals."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from nni_latency.errors import InvalidValueError


def trim(samples: Sequence[float], outlier: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Split samples into those to keep and those to drop.

    Parameters
    ----------
    samples : sequence of float
        Samples in the order in which they were taken.
    outlier : float
        Share to drop at each end, in [0, 0.5). The count is rounded down, and one sample is always kept.

    Returns
    -------
    kept, dropped : tuple of float
        Both in the original order.

    Raises
    ------
    InvalidValueError
        If `outlier` is outside its range.

    Examples
    --------
    >>> trim([3.0, 1.0, 99.0, 2.0, 0.1], 0.2)
    ((3.0, 1.0, 2.0), (99.0, 0.1))
    """
    if not 0 <= outlier < 0.5:
        raise InvalidValueError(f"The 'outlier' share must be a number in [0, 0.5). Got {outlier!r}.")
    count = int(len(samples) * outlier)
    order = sorted(range(len(samples)), key=lambda index: samples[index])
    out = {*order[:count], *order[len(order) - count :]}
    return (
        tuple(sample for index, sample in enumerate(samples) if index not in out),
        tuple(sample for index, sample in enumerate(samples) if index in out),
    )


def quantile(samples: Sequence[float], q: float) -> float:
    """Return the `q`-quantile with linear interpolation between the ordered samples.

    Raises
    ------
    InvalidValueError
        If there is no sample.

    Examples
    --------
    >>> quantile([4.0, 1.0, 3.0, 2.0, 5.0], 0.25)
    2.0
    """
    if not samples:
        raise InvalidValueError("A quantile needs at least one sample. Got none.")
    ordered = sorted(samples)
    position = q * (len(ordered) - 1)
    lower = math.floor(position)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (position - lower) * (ordered[upper] - ordered[lower])


def quantile_interval(samples: Sequence[float], q: float, confidence: float = 0.95) -> tuple[float, float]:
    """Return a distribution-free confidence interval of the `q`-quantile.

    The number of samples below the true quantile is binomial with n and q, so two order statistics enclose it with
    known probability [1]_. With few samples no pair does: the interval is then the whole range, which is too narrow.

    Parameters
    ----------
    samples : sequence of float
        Independent samples.
    q : float
        Which quantile, in (0, 1).
    confidence : float, default=0.95
        Level of the interval.

    Returns
    -------
    low, high : float

    References
    ----------
    .. [1] H. A. David, H. N. Nagaraja, "Order Statistics", 3rd ed., Wiley 2003, section 7.1.
       https://doi.org/10.1002/0471722162
    """
    if not samples:
        raise InvalidValueError("An interval needs at least one sample. Got none.")
    ordered = sorted(samples)
    low, high = _order_ranks(len(ordered), q, confidence)
    return ordered[low], ordered[high]


@functools.lru_cache(maxsize=256)
def fewest_samples(q: float, confidence: float = 0.95) -> int:
    """Return how many samples it takes until two order statistics enclose the `q`-quantile with that confidence.

    >>> fewest_samples(0.5), fewest_samples(0.25)
    (6, 13)
    """
    tail = (1 - confidence) / 2
    return math.ceil(math.log(tail) / math.log(max(q, 1 - q)))


def windows_agree(samples: Sequence[float], size: int, tolerance: float) -> bool:
    """Say whether the last two windows of `size` samples each have medians that differ by at most `tolerance`.

    It is how a warm-up ends: what still gets faster from one window to the next is not warm.

    >>> windows_agree([9.0, 5.0, 4.0, 4.1], 2, 0.1), windows_agree([5.0, 4.0, 4.0, 4.1], 1, 0.1)
    (False, True)
    """
    if len(samples) < 2 * size:
        return False
    before, after = quantile(samples[-2 * size : -size], 0.5), quantile(samples[-size:], 0.5)
    return abs(after - before) <= tolerance * min(before, after)


@functools.lru_cache(maxsize=4096)
def _order_ranks(n: int, q: float, confidence: float) -> tuple[int, int]:
    """Find the ranks (from 0) of the two order statistics; each tail holds at most half of the rest."""
    tail = (1 - confidence) / 2
    low, high, cumulated = 0, n - 1, 0.0
    for below in range(n):
        cumulated += _binomial(n, below, q)
        if cumulated <= tail:
            low = below
        if cumulated >= 1 - tail:
            high = below
            break
    return low, min(high, n - 1)


def _binomial(n: int, k: int, p: float) -> float:
    log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p)
    return math.exp(log)
