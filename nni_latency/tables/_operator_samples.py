# SPDX-License-Identifier: Apache-2.0
"""Times of operators inside networks, and the costs that are fitted to them and to the networks."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nni_latency.combinations import SUM
from nni_latency.measurement import Measurement, NetworkCalls, Protocol, Record, Summary, quantile
from nni_latency.regression import group_means
from nni_latency.tables._machine import Residency, fit_residency, local_speed, location_errors
from nni_latency.tables._neighbours import NeighbourFit, PlacedOperators, fit_neighbours
from nni_latency.tables._summary import network_error

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Most iterations of the alternating fit of costs and the machine's speed, and the change of speeds that ends it.
_TURNS, _LEAST_CHANGE = 20, 0.005

#: Clipping of the deviation of a visit, as a logarithm: spells in which networks are slower by a factor are real.
_LARGEST_EXCESS = 1.0

#: Fewest networks that correct the costs of their operators, and the least factor of a cost.
_FEWEST_NETWORKS, _LEAST_FACTOR = 8, 0.1

#: Lower bound of the share of a network's deviation that its own fit leaves, against rounding.
_LEAST_FREEDOM = 1e-3

#: Bounds of the spread of an operator between places where costs are corrected, as relative standard deviations.
_CORRECTED_SPREADS = (0.05, 1.0)


@dataclass(frozen=True)
class Place:
    """One operator in one network, with its time there."""

    op_key: str
    network: str
    value: float
    n_samples: int


@dataclass(frozen=True)
class OperatorFit:
    """Costs of networks and their operators, fitted together with the machine's speed at every visit.

    Parameters
    ----------
    slowness : ndarray of shape (n_visits,)
        Slowness of the machine at every visit, 1 at its usual speed.
    wholes : dict of str to Summary
        Time of unmarked runs of every network [s].
    costs : dict of str to ndarray
        Time of every operator in every network [s], in the order of `NetworkCalls.operators`; empty without timed
        calls.
    factors : ndarray of shape (n_operators,)
        Factor of the mean cost of every operator, see `OperatorSamples`.
    amounts : ndarray of shape (n_networks, n_operators)
        Cost of the places of every operator in every network, uncorrected [s].
    sums : dict of str to float
        Sum of the corrected costs of the operators of every network [s].
    calibration : float
        Factor of the sums.
    residency : Residency or None
        Curve over the calibrated sums, see `fit_residency`.
    neighbours : NeighbourFit or None
        Costs of operators beside neighbours, where these matter.
    """

    slowness: Floats
    wholes: dict[str, Summary]
    costs: dict[str, Floats]
    factors: Floats
    amounts: Floats
    sums: dict[str, float]
    calibration: float
    residency: Residency | None
    neighbours: NeighbourFit | None

    def predict(self, total: float) -> float:
        """Return the time of a network whose operators add up to `total`, at the machine's usual speed [s]."""
        return SUM.whole(total * self.calibration, self.residency)


@dataclass(frozen=True)
class _Runs:
    """Runs of one network.

    Parameters
    ----------
    wholes : ndarray of shape (n_runs,)
        Time of every unmarked run [s].
    visits : ndarray of int of shape (n_runs,)
        Index of its visit.
    calls : ndarray of shape (n_marked_runs, n_calls)
        Time of every call in every marked run [s]. Not every visit has marked runs.
    marked : ndarray of int of shape (n_marked_runs,)
        Index of its visit.
    """

    wholes: Floats
    visits: Ints
    calls: Floats
    marked: Ints

    @classmethod
    def of(cls, visits: Mapping[int, Record]) -> _Runs:
        """Collect the runs of visits, given by their indices."""
        wholes = [(index, seconds) for index, record in visits.items() for seconds in record.whole]
        calls = [(index, run) for index, record in visits.items() for run in record.parts]
        return cls(
            np.array([seconds for _, seconds in wholes]),
            np.array([index for index, _ in wholes]),
            np.array([run for _, run in calls]),
            np.array([index for index, _ in calls], dtype=np.int64),
        )


class OperatorSamples:
    """Times of networks and of the calls inside them, at the machine's usual speed.

    The speed at every visit is estimated as for tables of layers: from the reference operator before the visit, and
    from how much longer the visits around it took than the costs of their operators say. Costs and speeds are fitted
    alternately.

    The cost of an operator is the mean over its places in networks, corrected for its neighbours where this helps (see
    `nni_latency.tables._neighbours.fit_neighbours`), times a factor. An operator takes longer in some places than in
    others, and the times of whole networks tell which time counts: the factors are a Bayesian ridge regression [1]_ of
    the deviations of networks on the shares of operators in them, whose prior is as wide as the operator differs
    between places.

    Parameters
    ----------
    networks : mapping of str to NetworkCalls
        Mapping of calls to operators, by the key of the network.
    protocol : Protocol
        Protocol that determines the statistics.
    records : iterable of Record
        Visits of the networks. Those of other subjects are left out.

    References
    ----------
    .. [1] D. J. C. MacKay, "Bayesian Interpolation", Neural Computation 4(3), 1992.
       https://doi.org/10.1162/neco.1992.4.3.415
    """

    def __init__(self, networks: Mapping[str, NetworkCalls], protocol: Protocol, records: Iterable[Record]) -> None:
        self.networks, self.protocol = networks, protocol
        own = (record for record in records if record.subjects[0] in networks)
        visits = sorted(own, key=lambda record: (record.round, record.at))
        rounds = itertools.groupby(visits, key=lambda record: record.round)
        #: Median time of the reference operator in every round [s].
        self.drift = [quantile([record.reference for record in group], 0.5) for _, group in rounds]
        self._reference = np.array([record.reference for record in visits])
        by_network: dict[str, dict[int, Record]] = defaultdict(dict)
        for index, record in enumerate(visits):
            by_network[record.subjects[0]][index] = record
        #: Networks that were visited, in their order.
        self.measured = [key for key in networks if key in by_network]
        self._runs = {key: _Runs.of(by_network[key]) for key in self.measured}
        self._keys = {key: networks[key].operators if len(runs.calls) else () for key, runs in self._runs.items()}
        numbers = {key: number for number, key in enumerate(dict.fromkeys(itertools.chain(*self._keys.values())))}
        self._numbers = numbers
        self._n_operators = len(numbers)
        # Number of the operator at every place of a network, and of those by modules that were timed in any network.
        self._places = {network: _numbered(keys, numbers) for network, keys in self._keys.items()}
        # How often a network has every operator by modules.
        self._counts = np.array(
            [
                np.bincount(_numbered(networks[key].modules.operators, numbers), minlength=len(numbers))
                for key in self.measured
            ]
        )

    @cached_property
    def fit(self) -> OperatorFit:
        """Costs of operators, beside their neighbours where this helps, and the machine's speed at every visit."""
        neighbours = self._fit_neighbours(self._plain)
        return self._plain if neighbours is None else self._fit(self._plain.slowness, neighbours)

    @cached_property
    def _plain(self) -> OperatorFit:
        """Mean costs of operators and the machine's speed at every visit, fitted alternately."""
        reference = np.log(self._reference)
        fit = self._fit(np.ones(len(reference)))
        for _ in range(_TURNS):
            speed = local_speed(self._excess(fit), reference, self.protocol.statistic, largest=_LARGEST_EXCESS)
            change = np.abs(speed - np.log(fit.slowness)).max()
            fit = self._fit(np.exp(speed))
            if change < _LEAST_CHANGE:
                break
        return fit

    def _fit_neighbours(self, fit: OperatorFit) -> NeighbourFit | None:
        """Fit what operators cost beside neighbours; None if they were not recorded, or do not matter."""
        if not self._is_correctable or any(self.networks[key].modules.neighbours is None for key in self.measured):
            return None
        values = [whole.value for whole in fit.wholes.values()]
        means, spreads = self._means_and_spreads(fit.costs)

        def residuals(amounts: Floats) -> Floats:
            sums = np.array(list(self._sums(amounts.sum(axis=1), values).values()))
            calibration, residency = fit_residency(sums.tolist(), values)
            usual = [SUM.whole(total * calibration, residency) for total in sums.tolist()]
            return _ridge(amounts / sums[:, None] * spreads, np.log(np.array(values) / usual))[1]

        placed = [self._placed(network, fit.costs[network]) for network in self.measured]
        return fit_neighbours(placed, means, float(np.mean(values)), residuals)

    def _placed(self, network: str, costs: Floats) -> PlacedOperators:
        """Return the operators of a network by modules, with their neighbours and times."""
        modules = self.networks[network].modules
        known = [place for place, key in enumerate(modules.operators) if key in self._numbers]
        assert modules.neighbours is not None, network
        return PlacedOperators(
            np.array([self._numbers[modules.operators[place]] for place in known], dtype=np.int64),
            [modules.neighbours[place] for place in known],
            costs[known] if len(costs) else costs,
        )

    def _excess(self, fit: OperatorFit) -> Floats:
        """Return how much longer every visit took than its network usually takes, as a logarithm."""
        logs = [np.log(runs.wholes / fit.predict(fit.sums[network])) for network, runs in self._runs.items()]
        visits = np.concatenate([runs.visits for runs in self._runs.values()])
        return group_means(np.concatenate(logs), visits, len(self._reference))

    def _fit(self, slowness: Floats, neighbours: NeighbourFit | None = None) -> OperatorFit:
        """Fit the costs of operators, given the speeds and what operators cost beside neighbours."""
        wholes, costs = {}, {}
        for network, runs in self._runs.items():
            times, calls = runs.wholes / slowness[runs.visits], self._calls(network, slowness)
            whole = Measurement(tuple(times.tolist()), self.protocol).summary
            wholes[network], costs[network] = whole, np.empty(0)
            if len(calls):
                known = self.networks[network]
                costs[network] = known.attribute(calls, times, whole.value, self.protocol.statistic)
        values = [whole.value for whole in wholes.values()]
        means, spreads = self._means_and_spreads(costs)
        amounts = self._counts * means if neighbours is None else neighbours.amounts

        def with_factors(factors: Floats) -> OperatorFit:
            sums = self._sums(amounts @ factors, values)
            curve = fit_residency(list(sums.values()), values)
            return OperatorFit(slowness, wholes, costs, factors, amounts, sums, *curve, neighbours)

        fit = with_factors(np.ones(len(means)))
        if not self._is_correctable:
            return fit
        excess = [whole.value / fit.predict(fit.sums[network]) - 1 for network, whole in wholes.items()]
        shares = amounts / np.array(list(fit.sums.values()))[:, None]
        return with_factors(np.maximum(1 + spreads * _ridge(shares * spreads, np.array(excess))[0], _LEAST_FACTOR))

    @property
    def _is_correctable(self) -> bool:
        """Whether the times of networks can correct the costs of operators."""
        return len(self.measured) >= _FEWEST_NETWORKS and self._n_operators > 0

    def _sums(self, sums: Floats, values: Sequence[float]) -> dict[str, float]:
        """Return the sum of the operators of every network [s]; its time where no call was timed."""
        return {key: total or value for key, total, value in zip(self.measured, sums.tolist(), values, strict=True)}

    def _means_and_spreads(self, costs: Mapping[str, Floats]) -> tuple[Floats, Floats]:
        """Return the mean cost of every operator, and its relative standard deviation between places, within bounds."""
        places = np.concatenate([self._places[network] for network in costs])
        means, squares, counts = between_places(places, np.concatenate(list(costs.values())), self._n_operators)
        return means, np.clip(np.sqrt(squares / counts), *_CORRECTED_SPREADS)

    def _by_operator(self, costs: Mapping[str, Floats]) -> tuple[Floats, Ints]:
        """Return the sum of the costs of every operator in some networks, and the number of its places there."""
        places, size = np.concatenate([self._places[network] for network in costs]), self._n_operators
        totals = np.bincount(places, np.concatenate(list(costs.values())), size).astype(np.float64)
        return totals, np.bincount(places, minlength=size)

    def network_error(self) -> float:
        """Return the standard deviation of networks from the costs of operators in other networks, as a share.

        It does not contain what chance explains. See `nni_latency.tables._summary.network_error`.
        """
        fit, residuals, shares = self.fit, [], []
        totals, counts = self._by_operator(fit.costs)
        for number, network in enumerate(self.measured):
            own, places = self._by_operator({network: fit.costs[network]})
            others = counts - places
            # The cost of an operator of this network alone is not known from others.
            elsewhere = np.where(others > 0, (totals - own) / np.maximum(others, 1), own / np.maximum(places, 1))
            parts = self._counts[number] * elsewhere if fit.neighbours is None else fit.neighbours.unseen[number]
            usual = float(parts.sum()) or fit.sums[network]
            shares.append(parts / usual)
            residuals.append(math.log(fit.wholes[network].value / fit.predict(usual)))
        if self._is_correctable:
            _, spreads = self._means_and_spreads(fit.costs)
            residuals = _ridge(np.array(shares) * spreads, np.array(residuals))[1].tolist()
        groups = np.empty(len(self._reference), dtype=np.int64)
        for number, runs in enumerate(self._runs.values()):
            groups[runs.visits] = number
        rest = self._excess(fit) - np.log(fit.slowness)
        rest -= group_means(rest, groups, len(residuals))[groups]
        return network_error(np.array(residuals), location_errors(rest, groups, len(residuals)))

    @property
    def references(self) -> list[float]:
        """Time of the reference operator before every visit, at the machine's usual speed [s]."""
        times: list[float] = (self._reference / self._plain.slowness).tolist()
        return times

    @property
    def unit(self) -> float:
        """Median of `references` [s]."""
        return quantile(self.references, 0.5)

    def whole(self, network: str) -> Summary:
        """Return the time of unmarked runs of a network [s]."""
        return self._plain.wholes[network]

    def places(self, network: str) -> list[Place]:
        """Return the time of every operator of a network; those by modules add up to an unmarked run."""
        return self._listed(network, self._plain.costs[network])

    def corrected_places(self, network: str) -> list[Place]:
        """Return the same for the costs of operators: corrected by the times of all networks."""
        return self._listed(network, self.fit.costs[network] * self.fit.factors[self._places[network]])

    @property
    def beside(self) -> dict[str, dict[str, float]]:
        """Costs of operators beside neighbours by their keys, corrected by the times of all networks [s]."""
        found = () if self.fit.neighbours is None else self.fit.neighbours.beside
        return {
            key: {name: factor * cost for name, cost in costs.items()}
            for key, factor, costs in zip(self._numbers, self.fit.factors.tolist(), found, strict=False)
            if costs
        }

    def _listed(self, network: str, times: Floats) -> list[Place]:
        n_samples, costs = len(self._runs[network].calls), times.tolist()
        return [Place(key, network, cost, n_samples) for key, cost in zip(self._keys[network], costs, strict=True)]

    def calls(self, network: str) -> Floats:
        """Return the time of every call in the marked runs of a network, (n_runs, n_calls) [s]."""
        return self._calls(network, self._plain.slowness)

    def _calls(self, network: str, slowness: Floats) -> Floats:
        runs = self._runs[network]
        times: Floats = runs.calls / slowness[runs.marked][:, None]
        return times


def between_places(operators: Ints, costs: Floats, n_operators: int) -> tuple[Floats, Floats, Ints]:
    """Return how much the cost of each operator differs between its places in networks.

    Parameters
    ----------
    operators : ndarray of int of shape (n_places,)
        Index of the operator at each place; every operator has at least one.
    costs : ndarray of shape (n_places,)
        Cost of that operator there.
    n_operators : int
        Number of operators.

    Returns
    -------
    means, squares : ndarray of shape (n_operators,)
        Mean cost, and sum of the squared relative deviations from it.
    counts : ndarray of int of shape (n_operators,)
        Number of places.
    """
    counts = np.bincount(operators, minlength=n_operators)
    means = np.bincount(operators, costs, n_operators) / counts
    squares = np.bincount(operators, (costs / means[operators] - 1) ** 2, n_operators).astype(np.float64)
    return means, squares, counts


def _ridge(shares: Floats, excess: Floats) -> tuple[Floats, Floats]:
    """Regress the excess of networks on shares; return the coefficients, and the residual of each network left out."""
    from sklearn.linear_model import BayesianRidge

    ridge = BayesianRidge(fit_intercept=False).fit(shares, excess)
    leverage = ridge.alpha_ * ((shares @ ridge.sigma_) * shares).sum(axis=1)
    return ridge.coef_, (excess - shares @ ridge.coef_) / np.maximum(1 - leverage, _LEAST_FREEDOM)


def _numbered(keys: Iterable[str], numbers: Mapping[str, int]) -> Ints:
    """Return the numbers of those keys that have one."""
    return np.array([numbers[key] for key in keys if key in numbers], dtype=np.int64)
