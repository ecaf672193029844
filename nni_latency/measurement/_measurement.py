"""`Measurement`: one timed experiment with its raw samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from nni_latency.costs import Cost
from nni_latency.errors import MeasurementError
from nni_latency.measurement._protocol import Protocol
from nni_latency.measurement._trimming import quantile, quantile_interval, trim


@dataclass(frozen=True)
class Summary(Cost):
    """What the samples of a measurement say.

    Parameters
    ----------
    value, low, high : float
        The protocol's quantile and its confidence interval, in the unit of the metric.
    n_samples, n_dropped : int
        How many samples were taken, and how many of them were trimmed away.
    """

    n_samples: int
    n_dropped: int


@dataclass(frozen=True)
class Measurement:
    """One timed experiment with its raw samples. Immutable; every statistic is derived.

    Parameters
    ----------
    samples : tuple of float
        Every timed run in order, none left out [s].
    protocol : Protocol
        How they were taken.
    warmups : tuple of float
        Times of the runs before, where they were taken [s].

    Raises
    ------
    MeasurementError
        If there is no sample, or one that is not a positive, finite number.

    Examples
    --------
    >>> Measurement((2.0, 1.0, 3.0, 4.0, 5.0), Protocol(outlier=0)).summary.value
    2.0
    """

    samples: tuple[float, ...]
    protocol: Protocol
    warmups: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.samples:
            raise MeasurementError("A measurement needs at least one sample. Got none.")
        bad = [sample for sample in self.samples if not (math.isfinite(sample) and sample > 0)]
        if bad:
            raise MeasurementError(
                f"Every sample must be a positive, finite number. Got {bad[0]!r}: the clock does not work."
            )

    @cached_property
    def _split(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return trim(self.samples, self.protocol.outlier)

    @property
    def kept(self) -> tuple[float, ...]:
        """Samples left after trimming."""
        return self._split[0]

    @property
    def dropped(self) -> tuple[float, ...]:
        """Samples trimmed away."""
        return self._split[1]

    @cached_property
    def summary(self) -> Summary:
        """Value, interval and counts.

        The value is the quantile of the kept samples; the interval is taken over all samples, because those that are
        left after trimming are no longer a random sample, at the level where that quantile stands among them.
        """
        share = self.protocol.outlier
        level = share + self.protocol.statistic * (1 - 2 * share)
        value = quantile(self.kept, self.protocol.statistic)
        low, high = quantile_interval(self.samples, level, self.protocol.confidence)
        return Summary(value, min(low, value), max(high, value), len(self.samples), len(self.dropped))
