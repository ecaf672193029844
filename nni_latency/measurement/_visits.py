"""From the visits of a network to its latency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from nni_latency.costs import Cost
from nni_latency.measurement._measurement import Measurement
from nni_latency.measurement._protocol import Protocol
from nni_latency.measurement._trimming import quantile


@dataclass(frozen=True)
class NetworkSummary(Cost):
    """What the visits of a network say. Immutable.

    Parameters
    ----------
    value, low, high : float
        Latency and its interval [s].
    n_samples : int
        Runs behind it.
    n_visits : int
        Visits behind it, in different rounds.
    repeatability : float
        By how much the visits differ: their standard deviation as a share of the mean; 0 where there is one.
    """

    n_samples: int = 0
    n_visits: int = 0
    repeatability: float = 0.0


def summarise_visits(visits: Sequence[Sequence[float]], protocol: Protocol) -> NetworkSummary:
    """Return what visits of a network say.

    Parameters
    ----------
    visits : sequence of sequence of float
        By visit, the times of its runs [s]; at least one visit with at least one run.
    protocol : Protocol
        Which statistic.

    Raises
    ------
    MeasurementError
        If there is no run, or one that took no positive, finite time.

    Examples
    --------
    >>> found = summarise_visits([[1.0, 1.0], [3.0, 3.0]], Protocol(statistic=0.5, outlier=0))
    >>> found.value, found.n_samples, found.n_visits, round(found.repeatability, 3)
    (2.0, 4, 2, 0.707)
    """
    found = Measurement(tuple(seconds for runs in visits for seconds in runs), protocol).summary
    each = [quantile(runs, protocol.statistic) for runs in visits]
    mean = math.fsum(each) / len(each)
    squares = math.fsum((value - mean) ** 2 for value in each)
    spread = math.sqrt(squares / (len(each) - 1)) / mean if len(each) > 1 else 0.0
    return NetworkSummary(found.value, found.low, found.high, found.n_samples, len(visits), spread)
