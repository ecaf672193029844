# SPDX-License-Identifier: Apache-2.0
"""Summary of samples as a table: entries, machine speed, calibration, residency and the error of whole networks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from nni_latency.combinations import SUM
from nni_latency.costs import NORMAL
from nni_latency.measurement import Measurement, Protocol, Summary
from nni_latency.platforms import Platform
from nni_latency.regression import deviation, group_means, group_quantiles, huber_locations, huber_losses
from nni_latency.tables._entries import Entry, TableLayer
from nni_latency.tables._layer_schedule import Runs, Samples
from nni_latency.tables._lookup_table import LookupTable
from nni_latency.tables._machine import Residency, fit_residency, local_speed, location_errors, process_error
from nni_latency.tables._pairs import Neighbours, PairCosts, fit_pairs
from nni_latency.tables._plan import MeasurePlan

#: Networks with a lower cost, relative to the median one, are excluded from the error: they lie at the curve's end.
_LIGHTEST = 0.25

#: Fewest runs of a network for an estimate of its deviation, and fewest rounds that can be split into halves.
_FEWEST_RUNS, _FEWEST_ROUNDS = 6, 4

#: Fewest runs of a candidate in a fit to networks that are in one half of the rounds alone.
_FEWEST_LEFT = 4

#: Iterations of the joint fit of entries, speed and curve; it has converged by then.
_TURNS = 4

#: Prior of the network error: its typical value on most machines, and its standard deviation as a logarithm.
TYPICAL_ERROR, _UNCERTAINTY = 0.012, 0.8

#: Degrees of freedom of the deviations: heavy tails, because networks at the ends of a space deviate more.
_FREEDOM = 4

#: Square of the scale of that distribution where it is fitted to normal residuals of variance 1.
_SCALE_OF_NORMAL = 0.687

#: Least gains in log-likelihood for which costs of pairs are kept: on all networks outside of the fit, and on the
#: repeated ones, whose times are known best.
_LEAST_GAIN, _LEAST_GAIN_REPEATED = 3.0, 1.0

#: Least share of a sample that is left of it without what its neighbours add.
_LEAST_REST = 0.1

#: Grid of network errors.
_ERRORS = np.geomspace(0.001, 0.2, 107)


def summarise(
    plan: MeasurePlan,
    platform: Platform,
    protocol: Protocol,
    samples: Samples,
    *,
    failures: Mapping[tuple[int, int], str] = MappingProxyType({}),
    duration: float = 0.0,
) -> LookupTable:
    """Build the table from samples.

    An entry is the cost of a candidate in a network that is too large for the cache, at the machine's usual speed. Each
    sample is divided by the slowness of the machine at that time, and by the saving due to the size of its network.
    """
    runs = samples.runs
    places = Places.of([[candidate.op.op_key for candidate in layer.candidates.values()] for layer in plan.layers])
    fit, held_out = _fitted(runs, places, protocol, Neighbours.of(plan))
    summaries = fit.summaries(runs, protocol)
    return LookupTable(
        space=plan.space,
        platform=platform,
        layers=_layers(plan, places, summaries, failures),
        pairs=() if fit.pairs is None else fit.pairs.layer_pairs([layer.name for layer in plan.layers]),
        input_shape=plan.input_shape,
        protocol=protocol,
        calibration=fit.calibration,
        rounds=len(samples.drift),
        duration=round(duration, 3),
        residency=fit.residency,
        reference=_reference(runs, fit, plan.indices_of(plan.reference)),
        drift=tuple(float(f"{seconds:.6g}") for seconds in samples.drift),
        network_error=None if held_out is None else _error_of_networks(held_out.repeated(), runs, fit, summaries),
    )


def _fitted(
    runs: Runs, places: Places, protocol: Protocol, neighbours: Neighbours | None
) -> tuple[TableFit, HeldOut | None]:
    """Return the fit to runs, and held-out networks; with costs of pairs if these predict held-out networks better.

    With too few repeated networks, there are neither held-out networks nor costs of pairs.
    """
    fit = TableFit.of(runs, places, protocol)
    if len(np.unique(runs.rounds)) < _FEWEST_ROUNDS or not (runs.counts >= _FEWEST_RUNS).any():
        return fit, None
    sides = [runs.of_rounds(half) for half in (0, 1)]
    fitted = [_only_here(side, other) for side, other in zip(sides, sides[::-1], strict=True)]
    halves = [TableFit.of(side, places, protocol) for side in fitted]
    held_out = HeldOut.of(runs, fit, halves)
    paired = None if neighbours is None else fit.with_pairs(runs, protocol, neighbours)
    if neighbours is None or paired is None:
        return fit, held_out
    others = [
        half.with_pairs(side, protocol, neighbours, _missing_from(side.distinct, other.distinct))
        for half, side, other in zip(halves, fitted, sides[::-1], strict=True)
    ]
    paired_halves = [other or half for other, half in zip(others, halves, strict=True)]
    held_out_paired = HeldOut.of(runs, paired, paired_halves)
    better = (
        held_out_paired.gain(held_out) > _LEAST_GAIN
        and held_out_paired.repeated().gain(held_out.repeated()) > _LEAST_GAIN_REPEATED
    )
    return (paired, held_out_paired) if better else (fit, held_out)


def _only_here(side: Runs, other: Runs) -> Runs:
    """Return the runs of those networks of one half that the other half does not have.

    A network of both halves, as the reference networks are, would be fitted where it is predicted: its deviation would
    be in the costs of its candidates. All runs are returned if too few would be left of a candidate, as in a small
    space.
    """
    alone = _missing_from(side.distinct, other.distinct)[side.ids]
    left = (np.bincount(column, alone)[np.unique(column)].min() for column in side.networks.T)
    return side.of_visits(alone[side.first]) if min(left) >= _FEWEST_LEFT else side


def _missing_from(networks: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which networks are not among others, (n,)."""
    known = set(map(tuple, others.tolist()))
    return np.array([tuple(network) not in known for network in networks.tolist()])


def _reference(runs: Runs, fit: TableFit, network: tuple[int, ...]) -> float | None:
    """Return the time of the reference network [s] at the usual speed; None if it was never visited."""
    taken = np.log(runs.whole / fit.slowness)[(runs.networks == network).all(axis=1)]
    if not len(taken):
        return None
    return float(np.exp(huber_locations(taken, np.zeros(len(taken), dtype=np.int64), 1)[0]))


@dataclass(frozen=True)
class HeldOut:
    """Networks compared with predictions from runs of other networks in other rounds.

    Parameters
    ----------
    residuals : ndarray of shape (n_networks,)
        Logarithm of measured over predicted time of every network.
    errors : ndarray of shape (n_networks,)
        Their standard errors by the scatter of runs.
    networks : ndarray of int of shape (n_networks,)
        Indices of the networks among the distinct ones.
    counts : ndarray of int of shape (n_networks,)
        Number of runs of each network.
    """

    residuals: NDArray[np.float64]
    errors: NDArray[np.float64]
    networks: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, runs: Runs, fit: TableFit, halves: Sequence[TableFit]) -> HeldOut:
        """Predict runs of the odd rounds from the fit to the even ones, and vice versa."""
        rest = np.log(runs.whole / fit.slowness)
        for half in (0, 1):
            here = runs.rounds[runs.visits] % 2 == half
            rest[here] -= np.log(halves[1 - half].predict(runs.networks[here]))
        known = np.isfinite(rest)
        rest = rest - np.median(rest[known])
        count = len(runs.distinct)
        # The scatter is that of repeated networks: a single run does not scatter about itself.
        repeated = known & (runs.counts[runs.ids] >= _FEWEST_RUNS)
        groups = runs.ids[repeated]
        found = huber_locations(rest[repeated], groups, count)
        single = group_quantiles(rest[known], runs.ids[known], count, 0.5)
        locations = np.where(np.isfinite(found), found, single)
        errors = location_errors(rest[repeated] - locations[groups], groups, count)
        costs = fit.predict(runs.distinct)
        light = costs <= _LIGHTEST * np.median(costs)
        taken = np.flatnonzero(np.isfinite(locations) & ~light)
        return cls(locations[taken], errors[taken], taken, runs.counts[taken])

    def repeated(self) -> HeldOut:
        """Return the networks that were run often enough for an estimate of their deviation."""
        often = self.counts >= _FEWEST_RUNS
        return HeldOut(self.residuals[often], self.errors[often], self.networks[often], self.counts[often])

    def gain(self, other: HeldOut) -> float:
        """Return by how much networks are likelier than by other predictions, as a logarithm."""
        mine, theirs = (
            item.residuals[np.isin(item.networks, against.networks)] for item, against in ((self, other), (other, self))
        )
        noise = max(1e-6, min(deviation(mine), deviation(theirs))) if len(mine) else 1.0
        return float((huber_losses(theirs, noise) - huber_losses(mine, noise)).sum())


def _error_of_networks(held_out: HeldOut, runs: Runs, fit: TableFit, summaries: Sequence[Summary | None]) -> float:
    """Return the relative deviation of networks from their sums beyond chance."""
    widths = np.array([0.0 if item is None else (item.high - item.low) / (2 * NORMAL) for item in summaries])
    index = runs.distinct[held_out.networks] + fit.places.starts
    chance = np.sqrt((widths[index] ** 2).sum(axis=1)) / fit.values[index].sum(axis=1)
    return float(f"{network_error(held_out.residuals, np.hypot(held_out.errors, chance)):.4g}")


def _layers(
    plan: MeasurePlan, places: Places, summaries: Sequence[Summary | None], failures: Mapping[tuple[int, int], str]
) -> tuple[TableLayer, ...]:
    layers = []
    for index, (layer, start) in enumerate(zip(plan.layers, places.starts.tolist(), strict=True)):
        names = tuple(layer.candidates)
        failed = {names[choice]: reason for (place, choice), reason in failures.items() if place == index}
        entries = {
            name: Entry(item.value, item.low, item.high, item.n_samples, item.n_dropped, candidate.op)
            for (name, candidate), item in zip(layer.candidates.items(), summaries[start:], strict=False)
            if item is not None
        }
        layers.append(TableLayer.of_plan(layer, entries, failed))
    return tuple(layers)


@dataclass(frozen=True)
class Places:
    """Flat indices of the entries of a plan.

    Parameters
    ----------
    starts : ndarray of int of shape (n_layers,)
        Index of the first candidate of each layer.
    operators : ndarray of int of shape (n_entries,)
        Index of the operator of each entry, equal for equal operators, from 0.
    """

    starts: NDArray[np.int64]
    operators: NDArray[np.int64]

    @classmethod
    def of(cls, keys: Sequence[Sequence[str]]) -> Places:
        """Build the places from the operator keys of the candidates of each layer."""
        starts = np.cumsum([0, *(len(layer) for layer in keys[:-1])])
        _, operators = np.unique([key for layer in keys for key in layer], return_inverse=True)
        return cls(starts, operators)

    def pooled(self, values: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Replace the values of equal operators by their geometric mean, weighted by their samples."""
        seen = counts > 0
        means = group_means(np.log(values[seen]), self.operators[seen], len(values), counts[seen].astype(np.float64))
        return np.where(seen, np.exp(means[self.operators]), np.nan)


@dataclass(frozen=True)
class TableFit:
    """Joint fit of candidates' costs, machine speed, calibration and residency to runs.

    Parameters
    ----------
    places : Places
        Indices of the entries.
    values : ndarray of shape (n_entries,)
        Costs of the candidates [s]; nan where there is no sample.
    slowness : ndarray of shape (n_runs,)
        Slowness of the machine at each run, as a factor of the usual time.
    samples : ndarray of shape (n_runs, n_layers)
        Times of the layers, normalised to a large network at the usual speed [s].
    calibration : float
        Factor of the sum of entries.
    residency : Residency or None
        Curve over the calibrated sum.
    pairs : PairCosts or None
        Costs of pairs of neighbours, which are not in `values` and `samples`.
    """

    places: Places
    values: NDArray[np.float64]
    slowness: NDArray[np.float64]
    samples: NDArray[np.float64]
    calibration: float
    residency: Residency | None
    pairs: PairCosts | None = None

    @classmethod
    def of(cls, runs: Runs, places: Places, protocol: Protocol) -> TableFit:
        """Fit all parameters to runs."""
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
        return SUM.whole(self._sums(networks) * self.calibration, self.residency)

    def _sums(self, networks: NDArray[np.int64]) -> NDArray[np.float64]:
        sums: NDArray[np.float64] = self.values[networks + self.places.starts].sum(axis=1)
        if self.pairs is None:
            return sums
        # Noise alone takes nearly all of a network; such costs are then found to predict others badly.
        paired: NDArray[np.float64] = np.maximum(sums + self.pairs.shares(networks).sum(axis=1), _LEAST_REST * sums)
        return paired

    def with_pairs(
        self, runs: Runs, protocol: Protocol, neighbours: Neighbours, taken: NDArray[np.bool_] | None = None
    ) -> TableFit | None:
        """Return the fit with costs of pairs of neighbours; None if the parts do not depend on their neighbours.

        The costs of pairs are fitted to all distinct networks, or only to those `taken`.
        """
        n_networks, n_layers = runs.distinct.shape
        parts = (runs.ids[:, None] * n_layers + np.arange(n_layers)).ravel()
        times = group_quantiles(self.samples.ravel(), parts, n_networks * n_layers, 0.5).reshape(n_networks, n_layers)
        index = runs.distinct + self.places.starts
        kept = np.full(n_networks, fill_value=True) if taken is None else taken
        pairs = fit_pairs(runs.distinct[kept], times[kept], self.values[index][kept], index[kept], neighbours)
        if pairs is None:
            return None
        samples = np.maximum(self.samples - pairs.shares(runs.networks), _LEAST_REST * self.samples)
        flat, count = (runs.networks + self.places.starts).ravel(), len(self.values)
        values = group_quantiles(samples.ravel(), flat, count, protocol.statistic, protocol.outlier)
        pooled = self.places.pooled(values, np.bincount(flat, minlength=count))
        fit = replace(self, values=pooled, samples=samples, pairs=pairs)
        sums, times_run = fit._sums(runs.networks), runs.counts[runs.ids]
        weights = _run_weights(times_run, np.log(runs.whole / (self.slowness * sums)))
        calibration, residency = fit_residency(sums, runs.whole / self.slowness, weights)
        return replace(fit, calibration=calibration, residency=residency)

    def summaries(self, runs: Runs, protocol: Protocol) -> list[Summary | None]:
        """Return value and interval of every entry; None where there is no sample.

        The half-widths of the intervals of equal operators are combined like standard deviations, with their weights.
        """
        index, count, processes = runs.networks + self.places.starts, len(self.values), runs.processes[runs.visits]
        per_run = np.repeat(processes, index.shape[1])
        error = process_error(np.log(self.samples).ravel(), index.ravel(), per_run, count)
        own: dict[int, Summary] = {}
        for column, start, chosen in zip(self.samples.T, self.places.starts, runs.networks.T, strict=True):
            for choice in np.unique(chosen).tolist():
                taken = chosen == choice
                shares = np.bincount(processes[taken]) / taken.sum()
                summary = Measurement(tuple(column[taken].tolist()), protocol).summary
                own[int(start) + choice] = _widened(summary, error * float(np.sqrt(shares @ shares)))
        by_operator: dict[int, list[Summary]] = {}
        for place, summary in own.items():
            by_operator.setdefault(int(self.places.operators[place]), []).append(summary)
        return [
            _pooled(by_operator[operator], float(value)) if place in own else None
            for place, (operator, value) in enumerate(zip(self.places.operators.tolist(), self.values, strict=True))
        ]


def _widened(summary: Summary, error: float) -> Summary:
    """Return a summary whose interval holds a standard deviation `error` of the logarithm besides.

    `_pooled` combines intervals as logarithms: the low end must stay above 0, which `Cost.with_error` does not ensure.
    """
    if not error:
        return summary
    below, above = (
        math.hypot(math.log(ratio), NORMAL * error)
        for ratio in (summary.value / summary.low, summary.high / summary.value)
    )
    return replace(summary, low=summary.value * math.exp(-below), high=summary.value * math.exp(above))


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
    """Return the weight of each run: runs of one network share its deviation from the sum."""
    noise = deviation(rest - np.median(rest))
    common = TYPICAL_ERROR**2 / (TYPICAL_ERROR**2 + noise**2)
    weights: NDArray[np.float64] = 1 / (1 + common * (times_run - 1))
    return weights


def network_error(residuals: NDArray[np.float64], errors: NDArray[np.float64]) -> float:
    """Return the standard deviation of whole networks from their prediction, as a share, beyond their standard errors.

    It is the root mean square under the posterior, which is larger where few networks leave it uncertain, so that the
    intervals computed from it are wider.

    Parameters
    ----------
    residuals : ndarray of shape (n_networks,)
        Logarithm of measured over predicted time, of networks outside of the fit.
    errors : ndarray of shape (n_networks,)
        Standard errors of the residuals by chance alone.

    Examples
    --------
    >>> residuals = np.random.default_rng(0).normal(0, 0.03, 5000)
    >>> round(network_error(residuals, np.full(5000, 0.001)), 2)
    0.03
    """
    # Student's t in place of the normal density. Its scale is less than the standard deviation.
    scale = _SCALE_OF_NORMAL * (_ERRORS[:, None] ** 2 + errors**2)
    evidence = -0.5 * (np.log(scale) + (_FREEDOM + 1) * np.log1p(residuals**2 / (_FREEDOM * scale))).sum(axis=1)
    evidence -= 0.5 * (np.log(_ERRORS / TYPICAL_ERROR) / _UNCERTAINTY) ** 2
    posterior = np.exp(evidence - evidence.max())
    return float(np.sqrt(posterior @ _ERRORS**2 / posterior.sum()))
