"""`TableFit`: entries, speed of the machine, calibration and residency, found in turns from the same runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nni_latency.measurement import Measurement, Protocol, Summary
from nni_latency.regression import deviation, group_means, group_quantiles
from nni_latency.tables._network_error import TYPICAL_ERROR
from nni_latency.tables._residency import Residency, fit_residency
from nni_latency.tables._samples import Runs
from nni_latency.tables._speed import local_speed

#: Entries, speed and curve depend on each other; after so many turns none of them changes any more.
_TURNS = 4


@dataclass(frozen=True)
class Places:
    """The entries of a plan in a row.

    Parameters
    ----------
    starts : ndarray of int of shape (n_layers,)
        Where the candidates of each layer begin.
    operators : ndarray of int of shape (n_entries,)
        Equal numbers for equal operators, from 0.
    """

    starts: NDArray[np.int64]
    operators: NDArray[np.int64]

    @classmethod
    def of(cls, keys: Sequence[Sequence[str]]) -> Places:
        """Return the places of the candidates of all layers, given what tells their operators apart."""
        starts = np.cumsum([0, *(len(layer) for layer in keys[:-1])])
        _, operators = np.unique([key for layer in keys for key in layer], return_inverse=True)
        return cls(starts, operators)

    def pooled(self, values: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Give entries of equal operators the mean of their logarithms, weighted by their samples."""
        seen = counts > 0
        means = group_means(np.log(values[seen]), self.operators[seen], len(values), counts[seen].astype(np.float64))
        return np.where(seen, np.exp(means[self.operators]), np.nan)


@dataclass(frozen=True)
class TableFit:
    """What runs say of the candidates of a space.

    Parameters
    ----------
    places : Places
        Which entry is which.
    values : ndarray of shape (n_entries,)
        Costs of the candidates [s]; nan where there is no sample.
    slowness : ndarray of shape (n_runs,)
        How much slower than usual the machine was at each run, as a factor.
    samples : ndarray of shape (n_runs, n_layers)
        Times of the layers in a large network at the usual speed [s].
    calibration : float
        Factor on the sum of entries.
    residency : Residency or None
        For the calibrated sum.
    """

    places: Places
    values: NDArray[np.float64]
    slowness: NDArray[np.float64]
    samples: NDArray[np.float64]
    calibration: float
    residency: Residency | None

    @classmethod
    def of(cls, runs: Runs, places: Places, protocol: Protocol) -> TableFit:
        """Fit all at once to runs."""
        index = runs.networks + places.starts
        count, flat, n_visits = len(places.operators), index.ravel(), len(runs.reference)
        sizes = np.bincount(flat, minlength=count)
        values = group_quantiles(runs.parts.ravel(), flat, count, 0.5)
        relative, times_run = np.ones(len(index)), runs.counts[runs.ids]
        for _ in range(_TURNS):
            expected = values[index].sum(axis=1) * relative
            excess = np.log(runs.parts.sum(axis=1) * runs.whole / expected**2) / 2
            speed = local_speed(group_means(excess, runs.visits, n_visits), runs.reference, protocol.statistic)
            slowness = np.exp(speed)[runs.visits]
            samples = runs.parts / (slowness * relative)[:, None]
            entries = group_quantiles(samples.ravel(), flat, count, protocol.statistic, protocol.outlier)
            values = places.pooled(entries, sizes)
            sums = values[index].sum(axis=1)
            weights = _run_weights(times_run, np.log(runs.whole / (slowness * sums)))
            calibration, residency = fit_residency(sums, runs.whole / slowness, weights)
            if residency is not None:
                relative = residency(sums * calibration) / (sums * calibration)
        return cls(places, values, slowness, samples, calibration, residency)

    def predict(self, networks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the costs of networks, (n, n_layers), [s]; nan for those with a candidate without a sample."""
        sums = self.values[networks + self.places.starts].sum(axis=1) * self.calibration
        costs: NDArray[np.float64] = sums if self.residency is None else self.residency(sums)
        return costs

    def summaries(self, runs: Runs, protocol: Protocol) -> list[Summary | None]:
        """Return value and interval of every entry; None where there is no sample.

        The half-widths of the intervals of equal operators add up like standard deviations, as do their weights.
        """
        own: dict[int, Summary] = {}
        for column, start, chosen in zip(self.samples.T, self.places.starts, runs.networks.T, strict=True):
            for choice in np.unique(chosen).tolist():
                taken = tuple(column[chosen == choice].tolist())
                own[int(start) + choice] = Measurement(taken, protocol).summary
        alike: dict[int, list[Summary]] = {}
        for place, summary in own.items():
            alike.setdefault(int(self.places.operators[place]), []).append(summary)
        return [
            _pooled(alike[operator], float(value)) if place in own else None
            for place, (operator, value) in enumerate(zip(self.places.operators.tolist(), self.values, strict=True))
        ]


def _pooled(summaries: list[Summary], value: float) -> Summary:
    if len(summaries) == 1:
        return summaries[0]
    total = sum(item.n_samples for item in summaries)
    shares = np.array([item.n_samples / total for item in summaries])
    below, above = (
        float(np.sqrt(np.sum((shares * np.log(ratios)) ** 2)))
        for ratios in (
            [item.value / item.low for item in summaries],
            [item.high / item.value for item in summaries],
        )
    )
    dropped = sum(item.n_dropped for item in summaries)
    return Summary(value, value * np.exp(-below).item(), value * np.exp(above).item(), total, dropped)


def _run_weights(times_run: NDArray[np.int64], rest: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how much each run counts: those of one network have what the sum does not say of it in common."""
    noise = deviation(rest - np.median(rest))
    common = TYPICAL_ERROR**2 / (TYPICAL_ERROR**2 + noise**2)
    weights: NDArray[np.float64] = 1 / (1 + common * (times_run - 1))
    return weights
