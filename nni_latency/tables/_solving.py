# SPDX-License-Identifier: Apache-2.0
"""Entries solved for from whole networks, and tables of energy and power, which are measured per network only."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from nni_latency.costs import NORMAL
from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement import Record, quantile
from nni_latency.regression import Posterior, one_hot
from nni_latency.tables._entries import Entry, TableLayer
from nni_latency.tables._layer_schedule import LayerSchedule, Network
from nni_latency.tables._lookup_table import LookupTable

Key = TypeVar("Key", bound=Hashable)

#: Grid of the standard deviation of entries from their prior, as shares of it; the most likely is chosen.
_SPREADS = np.geomspace(0.01, 1.0, 9)

#: Grid of the same for the deviations shared within a layer, and by one choice across layers.
_COMMON = (0.0, 0.1, 0.3, 1.0)

#: Grid of the relative error of the measured networks; the most likely is chosen.
_NOISES = np.geomspace(0.003, 0.1, 6)

#: Lower bound of an entry, as a share of its prior: costs are positive.
_LEAST_SHARE = 0.02

#: A priori standard deviation of the weights of the features: practically uninformative.
_WIDE = 10.0

#: Fewest networks from which candidates are solved for; with fewer, all entries follow from the mean power.
_FEWEST_NETWORKS = 3

#: Relative standard deviation of the power of a candidate that was not solved for.
_UNKNOWN_CANDIDATE = 0.2


@dataclass(frozen=True)
class Solution:
    """Solved entries.

    Parameters
    ----------
    values : tuple of ndarray
        Costs of the candidates by layer, (n_choices,).
    deviations : tuple of ndarray
        Their standard deviations, of the same shapes.
    spread : float
        Standard deviation of entries from their prior, as a share of it.
    noise : float
        Standard deviation of networks from the sums of their entries, as a share.
    """

    values: tuple[NDArray[np.float64], ...]
    deviations: tuple[NDArray[np.float64], ...]
    spread: float
    noise: float


def solve_entries(
    architectures: NDArray[np.int64],
    totals: NDArray[np.float64],
    prior: Sequence[NDArray[np.float64]],
    features: Sequence[NDArray[np.float64]] = (),
    names: Sequence[Sequence[str]] = (),
) -> Solution:
    r"""Solve for the costs of candidates, given the costs of whole networks.

    There are fewer networks than candidates, and a network has exactly one candidate of each layer, so the sums alone
    do not determine the entries. A prior does: entry :math:`j` is
    :math:`e_j = f_j \theta + p_j (a_{l(j)} + b_{c(j)} + \delta_j)`, a combination of features, the first of which is
    the prior cost :math:`p_j` itself, plus three deviations: one shared by the candidates of a layer, one shared by a
    choice across layers, and one of the entry. All are normal, and so are the errors of the networks, so the entries
    are a Gaussian process [1]_; the standard deviations maximise the marginal likelihood.

    Parameters
    ----------
    architectures : ndarray of int of shape (n_networks, n_layers)
        Candidate of every layer.
    totals : ndarray of shape (n_networks,)
        Costs of the networks.
    prior : sequence of ndarray of shape (n_choices,)
        Prior costs of the candidates by layer, in any unit; positive.
    features : sequence of ndarray of shape (n_choices, n_features)
        Further explanatory features by layer.
    names : sequence of sequence of str, optional
        Names of the choices by layer; choices of one name share a deviation.

    Returns
    -------
    Solution

    Raises
    ------
    InvalidValueError
        If there are fewer than three networks, or their costs are not positive and finite.

    References
    ----------
    .. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, section 2.7.
       http://gaussianprocess.org/gpml

    Examples
    --------
    >>> prior = [np.array([1.0, 2.0]), np.array([1.0, 3.0])]
    >>> networks = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    >>> solved = solve_entries(networks, np.array([4.0, 8.0, 6.0, 10.0]), prior)
    >>> [column.round(1).tolist() for column in solved.values]
    [[2.0, 4.0], [2.0, 6.0]]
    """
    if len(totals) < 3 or not (np.isfinite(totals).all() and (totals > 0).all()):
        raise InvalidValueError(
            f"Solving for entries needs at least three networks with positive, finite costs. Got {len(totals)}."
        )
    sizes = [len(column) for column in prior]
    known = np.concatenate(prior) / np.concatenate(prior).mean()
    columns = np.column_stack([known, *([_scaled(features)] if len(features) else [])])
    design, in_common = one_hot(architectures, sizes), _shared_counts(sizes, names)
    unit = float(totals.mean())
    process = _Process(design, totals / unit, known, columns, in_common)
    shares = [(float(spread), common, float(noise)) for spread in _SPREADS for common in _COMMON for noise in _NOISES]
    best = max(shares, key=lambda share: process.evidence(*share))
    values, deviations = process.posterior(*best)
    values = np.maximum(values, _LEAST_SHARE * known * values.sum() / known.sum())
    cuts = np.cumsum(sizes)[:-1]
    return Solution(tuple(np.split(values * unit, cuts)), tuple(np.split(deviations * unit, cuts)), best[0], best[2])


def _shared_counts(sizes: Sequence[int], names: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    """Return for every pair of entries how many of layer and choice they share."""
    layers = np.repeat(np.arange(len(sizes)), sizes)
    same: NDArray[np.float64] = (layers[:, None] == layers).astype(np.float64)
    if len(names):
        choices = np.array([name for layer in names for name in layer])
        same = same + (choices[:, None] == choices)
    return same


def _scaled(features: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    stacked = np.concatenate(features)
    scaled: NDArray[np.float64] = stacked / np.maximum(stacked.mean(axis=0), 1e-300)
    return scaled


class _Process:
    """Gaussian process over the entries, observed through the sums of networks; in units of the mean network."""

    def __init__(
        self,
        design: NDArray[np.float64],
        totals: NDArray[np.float64],
        known: NDArray[np.float64],
        columns: NDArray[np.float64],
        in_common: NDArray[np.float64],
    ) -> None:
        # Scale the prior to the mean network: an entry is about one over the number of layers.
        scale = totals.mean() / max(1e-300, float((design @ known).mean()))
        products = scale**2 * np.outer(known, known)
        self._design, self._totals = design, totals
        # Covariances of the entries: individual deviations, shared deviations, and features.
        self._parts = (np.diag(np.diag(products)), products * in_common, (_WIDE * scale) ** 2 * columns @ columns.T)
        # The same covariances of the networks.
        self._seen = tuple(design @ part @ design.T for part in self._parts)

    def evidence(self, spread: float, common: float, noise: float) -> float:
        """Return the logarithm of the marginal likelihood, up to a constant."""
        return self._posterior(spread, common, noise).log_likelihood

    def posterior(self, spread: float, common: float, noise: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and standard deviation of the entries."""
        own, shared, features = self._parts
        covariance = spread**2 * own + common**2 * shared + features
        cross, seen = covariance @ self._design.T, self._posterior(spread, common, noise)
        return seen.mean(cross), np.sqrt(seen.variances(cross, np.diag(covariance)))

    def _posterior(self, spread: float, common: float, noise: float) -> Posterior:
        own, shared, features = self._seen
        within = spread**2 * own + common**2 * shared + features + noise**2 * np.diag(self._totals**2)
        return Posterior(within, self._totals)


def metered_table(table: LookupTable, schedule: LayerSchedule, metric: str) -> LookupTable:
    """Convert a table of latencies to energy or power, using meter readings of the same networks.

    No meter resolves a layer, so the energy of candidates is solved for from that of whole networks, with latencies as
    the prior: the energy of a network is the sum of its latencies times its power. An entry of power is the
    contribution of a candidate to the mean power of a network.

    Parameters
    ----------
    table : LookupTable
        Latencies [s].
    schedule : LayerSchedule
        The measured schedule, with the meter readings.
    metric : {"energy", "power"}
        Metric of the result.

    Raises
    ------
    MeasurementError
        If there are no meter readings.
    """
    rounds = schedule.samples.rounds
    powers = powers_of(visit for item in rounds for visit in zip(item.networks, item.visits, strict=True))
    if not powers:
        raise MeasurementError(f"No meter was read, so there is no {metric}. Measure anew, with a meter.")
    mean = quantile(list(powers.values()), 0.5)
    if metric == "power":
        even = mean / len(table.layers)
        return replace(
            table,
            metric="power",
            layers=_solved_powers(table, powers, lambda _entry: even, lambda _network: 1.0),
            pairs=(),
            calibration=1.0,
            residency=None,
            network_error=None,
            reference=None,
        )
    values = _latencies(table)
    return replace(
        table,
        metric="energy",
        layers=_solved_powers(
            table,
            powers,
            lambda entry: mean * entry.value,
            lambda network: math.fsum(column[choice] for column, choice in zip(values, network, strict=True)),
        ),
        pairs=tuple(pair.scaled(mean) for pair in table.pairs),
        residency=table.residency and table.residency.scaled(mean),
        reference=None if table.reference is None else table.reference * mean,
    )


def powers_of(visits: Iterable[tuple[Key, Record]]) -> dict[Key, float]:
    """Return the power of every metered network, the median over its windows [W].

    Parameters
    ----------
    visits : iterable of (key, Record)
        Visits, each with the key of its network.
    """
    found: dict[Key, list[float]] = {}
    for network, record in visits:
        found.setdefault(network, []).extend(record.samples.get("power", ()))
    return {network: quantile(watts, 0.5) for network, watts in found.items() if watts}


def _latencies(table: LookupTable) -> list[list[float]]:
    return [
        [layer.entries[choice].value if choice in layer.entries else math.nan for choice in layer.choices]
        for layer in table.layers
    ]


def _solved_powers(
    table: LookupTable,
    powers: dict[Network, float],
    prior_of: Callable[[Entry], float],
    weight_of: Callable[[Network], float],
) -> tuple[TableLayer, ...]:
    """Solve for entries whose sums are the powers of the networks times their weights."""
    known = [network for network in powers if math.isfinite(weight_of(network)) and _is_known(table, network)]
    prior = [
        np.array([prior_of(layer.entries[choice]) if choice in layer.entries else 1e-12 for choice in layer.choices])
        for layer in table.layers
    ]
    if len(known) < _FEWEST_NETWORKS:
        deviations = [_UNKNOWN_CANDIDATE * column for column in prior]
        return _layers_with_powers(table, prior, deviations)
    totals = np.array([powers[network] * weight_of(network) for network in known])
    names = [list(layer.choices) for layer in table.layers]
    solution: Solution = solve_entries(np.array(known), totals, prior, (), names)
    return _layers_with_powers(table, solution.values, solution.deviations)


def _is_known(table: LookupTable, network: Network) -> bool:
    return all(layer.choices[choice] in layer.entries for layer, choice in zip(table.layers, network, strict=True))


def _layers_with_powers(
    table: LookupTable, values: Sequence[NDArray[np.float64]], deviations: Sequence[NDArray[np.float64]]
) -> tuple[TableLayer, ...]:
    layers = []
    for layer, column, errors in zip(table.layers, values, deviations, strict=True):
        entries = {}
        for choice, value, error in zip(layer.choices, column.tolist(), errors.tolist(), strict=True):
            if choice in layer.entries:
                before = layer.entries[choice]
                width = math.hypot(before.spread if before.value else 0.0, NORMAL * error / value) * value
                entries[choice] = replace(before, value=value, low=max(0.0, value - width), high=value + width)
        layers.append(replace(layer, entries=entries))
    return tuple(layers)
