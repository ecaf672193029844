# SPDX-License-Identifier: Apache-2.0
"""Tables of operators: times of operators inside networks, the operator costs fitted to them, and the table."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.combinations import SUM
from nni_latency.costs import NORMAL
from nni_latency.errors import InvalidValueError
from nni_latency.measurement import (
    Measurement,
    NetworkCalls,
    NetworkSchedule,
    Protocol,
    Record,
    Subject,
    Summary,
    quantile,
)
from nni_latency.measurement.runtimes import Runtime
from nni_latency.operators import parse_op_keys
from nni_latency.regression import group_means
from nni_latency.tables._entries import Entry, MeasuredNetwork
from nni_latency.tables._lookup_table import LookupTable
from nni_latency.tables._machine import Residency, fit_residency, local_speed, location_errors
from nni_latency.tables._operator_energy import energy_of_operators, powers_of
from nni_latency.tables._plan import OperatorPlan
from nni_latency.tables._summary import network_error
from nni_latency.units import number_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Kind of the campaign of a table of operators in a store.
OPERATORS_KIND = "operators"

#: Most iterations of the alternating fit of costs and the machine's speed, and the change of speeds that ends it.
_TURNS, _LEAST_CHANGE = 20, 0.005

#: Clipping of the deviation of a visit, as a logarithm: spells in which networks are slower by a factor are real.
_LARGEST_EXCESS = 1.0

#: Weight of the prior of an operator's spread, that of its kind, in places.
_PRIOR_PLACES = 4

#: Prior spread of an operator between networks, as a relative standard deviation, and its lower bound.
_USUAL_SPREAD, _LEAST_SPREAD = 0.1, 0.005


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
    sums : dict of str to float
        Sum of the mean costs of the operators of every network [s].
    calibration : float
        Factor of the sums.
    residency : Residency or None
        Curve over the calibrated sums, see `fit_residency`.
    """

    slowness: Floats
    wholes: dict[str, Summary]
    costs: dict[str, Floats]
    sums: dict[str, float]
    calibration: float
    residency: Residency | None

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

    Parameters
    ----------
    networks : mapping of str to NetworkCalls
        Mapping of calls to operators, by the key of the network.
    protocol : Protocol
        Protocol that determines the statistics.
    records : iterable of Record
        Visits of the networks. Those of other subjects are left out.
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
        self._n_operators = len(numbers)
        # Number of the operator at every place of a network, and of those by modules that were timed in any network.
        self._places = {network: _numbered(keys, numbers) for network, keys in self._keys.items()}
        self._modules = {network: _numbered(networks[network].modules.operators, numbers) for network in self._keys}

    @cached_property
    def fit(self) -> OperatorFit:
        """Costs of operators and the machine's speed at every visit, fitted alternately."""
        reference = np.log(self._reference)
        fit = self._fit(np.ones(len(reference)))
        for _ in range(_TURNS):
            speed = local_speed(self._excess(fit), reference, self.protocol.statistic, largest=_LARGEST_EXCESS)
            change = np.abs(speed - np.log(fit.slowness)).max()
            fit = self._fit(np.exp(speed))
            if change < _LEAST_CHANGE:
                break
        return fit

    def _excess(self, fit: OperatorFit) -> Floats:
        """Return how much longer every visit took than its network usually takes, as a logarithm."""
        logs = [np.log(runs.wholes / fit.predict(fit.sums[network])) for network, runs in self._runs.items()]
        visits = np.concatenate([runs.visits for runs in self._runs.values()])
        return group_means(np.concatenate(logs), visits, len(self._reference))

    def _fit(self, slowness: Floats) -> OperatorFit:
        """Fit the costs of operators, given the speeds."""
        wholes, costs = {}, {}
        for network, runs in self._runs.items():
            times, calls = runs.wholes / slowness[runs.visits], self._calls(network, slowness)
            whole = Measurement(tuple(times.tolist()), self.protocol).summary
            wholes[network], costs[network] = whole, np.empty(0)
            if len(calls):
                known = self.networks[network]
                costs[network] = known.attribute(calls, times, whole.value, self.protocol.statistic)
        totals, counts = self._by_operator(costs)
        means, sums = totals / counts, {}
        for network, whole in wholes.items():
            # The calls of a network whose first visits failed may not have been timed.
            sums[network] = math.fsum(means[self._modules[network]].tolist()) or whole.value
        values = [whole.value for whole in wholes.values()]
        return OperatorFit(slowness, wholes, costs, sums, *fit_residency(list(sums.values()), values))

    def _by_operator(self, costs: Mapping[str, Floats]) -> tuple[Floats, Ints]:
        """Return the sum of the costs of every operator in some networks, and the number of its places there."""
        places, size = np.concatenate([self._places[network] for network in costs]), self._n_operators
        totals = np.bincount(places, np.concatenate(list(costs.values())), size).astype(np.float64)
        return totals, np.bincount(places, minlength=size)

    def network_error(self) -> float:
        """Return the standard deviation of networks from the costs of operators in other networks, as a share.

        It does not contain what chance explains. See `nni_latency.tables._summary.network_error`.
        """
        fit, residuals = self.fit, []
        totals, counts = self._by_operator(fit.costs)
        for network in self.measured:
            own, places = self._by_operator({network: fit.costs[network]})
            others = counts - places
            # The cost of an operator of this network alone is not known from others.
            elsewhere = np.where(others > 0, (totals - own) / np.maximum(others, 1), own / np.maximum(places, 1))
            usual = float(elsewhere[self._modules[network]].sum()) or fit.sums[network]
            residuals.append(math.log(fit.wholes[network].value / fit.predict(usual)))
        groups = np.empty(len(self._reference), dtype=np.int64)
        for number, runs in enumerate(self._runs.values()):
            groups[runs.visits] = number
        rest = self._excess(fit) - np.log(fit.slowness)
        rest -= group_means(rest, groups, len(residuals))[groups]
        return network_error(np.array(residuals), location_errors(rest, groups, len(residuals)))

    @property
    def references(self) -> list[float]:
        """Time of the reference operator before every visit, at the machine's usual speed [s]."""
        times: list[float] = (self._reference / self.fit.slowness).tolist()
        return times

    @property
    def unit(self) -> float:
        """Median of `references` [s]."""
        return quantile(self.references, 0.5)

    def whole(self, network: str) -> Summary:
        """Return the time of unmarked runs of a network [s]."""
        return self.fit.wholes[network]

    def places(self, network: str) -> list[Place]:
        """Return the time of every operator of a network; those by modules add up to an unmarked run."""
        n_samples, costs = len(self._runs[network].calls), self.fit.costs[network].tolist()
        return [Place(key, network, cost, n_samples) for key, cost in zip(self._keys[network], costs, strict=True)]

    def calls(self, network: str) -> Floats:
        """Return the time of every call in the marked runs of a network, (n_runs, n_calls) [s]."""
        return self._calls(network, self.fit.slowness)

    def _calls(self, network: str, slowness: Floats) -> Floats:
        runs = self._runs[network]
        times: Floats = runs.calls / slowness[runs.marked][:, None]
        return times


def _numbered(keys: Iterable[str], numbers: Mapping[str, int]) -> Ints:
    """Return the numbers of those keys that have one."""
    return np.array([numbers[key] for key in keys if key in numbers], dtype=np.int64)


def operator_entries(places: Sequence[Place]) -> dict[str, Entry]:
    """Return the cost of every timed operator: the mean over its places in networks.

    The time of an operator varies between networks, with the content of the caches and the placement of a process in
    memory. The mean makes entries add up to the networks on average: a runtime that fuses takes no time for an operator
    in one place and its full time in another.

    Parameters
    ----------
    places : sequence of Place
        Time of each operator in every place of every network.

    Returns
    -------
    dict of str to Entry
        Entries by operator key, in the order of the networks.
    """
    keys = list(dict.fromkeys(place.op_key for place in places))
    ops = {key: parse_op_keys(key)[0] for key in keys}
    numbers = {key: number for number, key in enumerate(keys)}
    which = np.array([numbers[place.op_key] for place in places], dtype=np.int64)
    values = np.array([place.value for place in places], dtype=np.float64)
    costs = np.bincount(which, values) / np.bincount(which)
    ratios = values / costs[which]
    kinds = np.array([ops[key].kind for key in keys])
    squares = np.bincount(which, (ratios - 1) ** 2, len(keys))
    counts = np.bincount(which, minlength=len(keys))
    usual = {kind: _usual_spread(squares[kinds == kind], counts[kinds == kind]) for kind in set(kinds)}
    networks: dict[str, set[str]] = defaultdict(set)
    runs: dict[str, int] = defaultdict(int)
    for place in places:
        networks[place.op_key].add(place.network)
        runs[place.op_key] += place.n_samples
    entries = {}
    for number, key in enumerate(keys):
        count, prior = int(counts[number]), usual[kinds[number]]
        variance = (squares[number] + _PRIOR_PLACES * prior**2) / (count - 1 + _PRIOR_PLACES)
        # The logarithm of a log-normal variable with this relative variance.
        spread = math.sqrt(math.log1p(variance))
        # Prediction interval for an unseen place: includes the standard error of the mean.
        reach = math.exp(NORMAL * max(_LEAST_SPREAD, spread) * math.sqrt(1 + 1 / count))
        value = float(costs[number])
        entries[key] = Entry(
            value,
            value / reach,
            value * reach,
            runs[key],
            op=ops[key],
            n_places=count,
            n_networks=len(networks[key]),
        )
    return entries


def _usual_spread(squares: Floats, counts: Ints) -> float:
    """Return the spread of the operators of one kind between places, as a relative standard deviation."""
    freedom = int(np.maximum(counts - 1, 0).sum())
    return math.sqrt((squares.sum() + 4 * _USUAL_SPREAD**2) / (freedom + 4))


def check_operators(runtime: Runtime, metric: str) -> None:
    """Check that a table of operators can be measured.

    Raises
    ------
    MeasurementError
        If the runtime cannot time operators inside a network.
    InvalidValueError
        If a table of operators cannot hold the metric.
    """
    if not runtime.sees_calls:
        raise runtime.sees_no_calls(
            "Tables of spaces without layers of their own need one that can, such as torch or torch-nhwc."
        )
    if metric not in ("latency", "energy"):
        raise InvalidValueError(
            f"A table of operators holds latency or energy, which add up to those of networks. Got {metric!r}."
        )


def operator_schedule(plan: OperatorPlan, protocol: Protocol, *, isolated: bool = True) -> NetworkSchedule:
    """Return the schedule of a plan's networks, with every call timed; the first network is visited in every round."""
    subjects = [_subject(plan, index) for index in range(len(plan.networks))]
    return NetworkSchedule(
        subjects[1:],
        protocol,
        isolated=isolated,
        always=subjects[:1],
        divided=True,
        calls=True,
        n_calls={
            subject.key: network.subject_calls.n_calls for subject, network in zip(subjects, plan.networks, strict=True)
        },
        kind=OPERATORS_KIND,
    )


def _subject(plan: OperatorPlan, index: int) -> Subject:
    network = plan.networks[index]
    sample = dict(network.sample)
    specification = {"selection": sample, **network.subject_calls.content()}
    return Subject(json.dumps(sample), network.build, plan.input_shape, "network", network.calls.digest, specification)


def operators_table(
    schedule: NetworkSchedule, specifications: Mapping[str, Mapping[str, Any]], metric: str, **header: Any
) -> LookupTable:
    """Build the table from measured rounds of networks.

    Parameters
    ----------
    schedule : NetworkSchedule
        The measured schedule, with the calls inside the networks.
    specifications : mapping of str to mapping
        Specification of each network by its key: its choices, and the mapping of its calls to operators.
    metric : {"latency", "energy"}
        Metric of the table.
    **header
        Space, platform, input shape and coverage.
    """
    failures, records = schedule.failures, [record for records in schedule.observed for record in records]
    calls = {key: NetworkCalls.read(item) for key, item in specifications.items() if key not in failures}
    samples = OperatorSamples(calls, schedule.protocol, records)
    measured, fit = samples.measured, samples.fit
    entries = operator_entries([place for network in measured for place in samples.places(network)])
    networks = tuple(
        MeasuredNetwork(
            value=whole.value,
            low=whole.low,
            high=whole.high,
            sample=specifications[network]["selection"],
            entries=fit.sums[network],
            n_samples=whole.n_samples,
        )
        for network, whole in fit.wholes.items()
    )
    table = LookupTable(
        **header,
        operators=tuple(entries.values()),
        networks=networks,
        reference=networks[0].value,
        protocol=schedule.protocol,
        calibration=fit.calibration,
        residency=fit.residency,
        # Not that of energy, which has another calibration.
        network_error=float(f"{samples.network_error():.4g}") if metric == "latency" else None,
        rounds=schedule.rounds,
        duration=round(schedule.spent, 3),
        drift=tuple(samples.drift),
        remarks=_unmeasured(len(measured), len(specifications) - len(failures)),
        failures=dict(sorted(failures.items())),
    )
    if metric == "latency":
        return table
    powers = powers_of(records)
    keys = [calls[network].modules.operators for network in measured]
    return energy_of_operators(table, keys, [powers[network] for network in measured if network in powers])


def _unmeasured(measured: int, planned: int) -> tuple[str, ...]:
    """Return a remark on the networks that the budget did not reach."""
    if measured == planned:
        return ()
    return (
        f"The budget was spent after {measured} of {number_of(planned, 'network')}, so more operators are predicted "
        "than need be: give a larger budget.",
    )
