# SPDX-License-Identifier: Apache-2.0
"""Tables of operators: times of operators inside networks, the operator costs fitted to them, and the table."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from nni_latency.tables._entries import Entry, MeasuredNetwork
from nni_latency.tables._lookup_table import LookupTable
from nni_latency.tables._machine import Residency, fit_residency, local_speed, location_errors
from nni_latency.tables._operator_energy import energy_of_operators, powers_of
from nni_latency.tables._plan import OperatorPlan
from nni_latency.tables._summary import network_error
from nni_latency.units import number_of

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
    """Costs of operators, fitted together with the machine's speed at every visit.

    Parameters
    ----------
    slowness : ndarray of shape (n_visits,)
        Slowness of the machine at every visit, 1 at its usual speed.
    entries : dict of str to Entry
        Entry of every operator by its key, see `operator_entries`.
    sums : dict of str to float
        Sum of the entries of every network [s].
    calibration : float
        Factor of the sums.
    residency : Residency or None
        Curve over the calibrated sums, see `fit_residency`.
    """

    slowness: NDArray[np.float64]
    entries: dict[str, Entry]
    sums: dict[str, float]
    calibration: float
    residency: Residency | None

    def predict(self, total: float) -> float:
        """Return the time of a network whose entries add up to `total`, at the machine's usual speed [s]."""
        cost = total * self.calibration
        return cost if self.residency is None else float(self.residency(cost))


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
    """

    def __init__(self, networks: Mapping[str, NetworkCalls], protocol: Protocol) -> None:
        self.networks, self.protocol = networks, protocol
        #: Median time of the reference operator in every round [s].
        self.drift: list[float] = []
        self._records: list[Record] = []
        self._visits: dict[str, list[int]] = defaultdict(list)

    def add(self, records: Sequence[Record]) -> None:
        """Add one round; visits are in the order of their times."""
        for record in records:
            (network,) = record.subjects
            self._visits[network].append(len(self._records))
            self._records.append(record)
        self.drift.append(quantile([record.reference for record in records], 0.5))
        self.__dict__.pop("fit", None)

    @property
    def measured(self) -> list[str]:
        """Networks that were visited, in their order."""
        return [key for key in self.networks if key in self._visits]

    @cached_property
    def fit(self) -> OperatorFit:
        """Costs of operators and the machine's speed at every visit, fitted alternately."""
        reference = np.log([record.reference for record in self._records])
        fit = self._fit(np.ones(len(reference)))
        for _ in range(_TURNS):
            excess = self._excess(fit)
            speed = local_speed(excess, reference, self.protocol.statistic, largest=_LARGEST_EXCESS)
            change = np.abs(speed - np.log(fit.slowness)).max()
            fit = self._fit(np.exp(speed))
            if change < _LEAST_CHANGE:
                break
        return fit

    def _excess(self, fit: OperatorFit) -> NDArray[np.float64]:
        """Return how much longer every visit took than its network usually takes, as a logarithm."""
        usual = {network: fit.predict(total) for network, total in fit.sums.items()}
        return np.array([np.log(np.divide(record.whole, usual[record.subjects[0]])).mean() for record in self._records])

    def _fit(self, slowness: NDArray[np.float64]) -> OperatorFit:
        """Fit the costs of operators, given the speeds."""
        entries = operator_entries([place for network in self.measured for place in self._places(network, slowness)])
        wholes = {network: self._whole(network, slowness).value for network in self.measured}
        sums = {}
        for network, whole in wholes.items():
            known = [entries[key].value for key in self.networks[network].modules.operators if key in entries]
            # The calls of a network whose first visits failed may not have been timed.
            sums[network] = math.fsum(known) or whole
        return OperatorFit(slowness, entries, sums, *fit_residency(list(sums.values()), list(wholes.values())))

    def network_error(self) -> float:
        """Return the standard deviation of networks from the costs of operators in other networks, as a share.

        It does not contain what chance explains. See `nni_latency.tables._summary.network_error`.
        """
        fit, numbers = self.fit, {network: number for number, network in enumerate(self.measured)}
        total, count = defaultdict[str, float](float), defaultdict[str, int](int)
        own = {network: defaultdict[str, list[float]](list) for network in numbers}
        for network in numbers:
            for place in self.places(network):
                own[network][place.op_key].append(place.value)
                total[place.op_key] += place.value
                count[place.op_key] += 1

        def elsewhere(network: str, key: str) -> float:
            mine = own[network][key]
            rest = count[key] - len(mine)
            # The cost of an operator of this network alone is not known from others.
            return (total[key] - math.fsum(mine)) / rest if rest else math.fsum(mine) / len(mine)

        residuals = []
        for network in numbers:
            known = [key for key in self.networks[network].modules.operators if count[key]]
            usual = math.fsum(elsewhere(network, key) for key in known) or fit.sums[network]
            residuals.append(math.log(self.whole(network).value / fit.predict(usual)))
        groups = np.array([numbers[record.subjects[0]] for record in self._records])
        rest = self._excess(fit) - np.log(fit.slowness)
        rest -= (np.bincount(groups, rest) / np.bincount(groups))[groups]
        return network_error(np.array(residuals), location_errors(rest, groups, len(numbers)))

    @property
    def references(self) -> list[float]:
        """Time of the reference operator before every visit, at the machine's usual speed [s]."""
        times: list[float] = ([record.reference for record in self._records] / self.fit.slowness).tolist()
        return times

    @property
    def unit(self) -> float:
        """Median of `references` [s]."""
        return quantile(self.references, 0.5)

    def whole(self, network: str) -> Summary:
        """Return the time of unmarked runs of a network [s]."""
        return self._whole(network, self.fit.slowness)

    def places(self, network: str) -> list[Place]:
        """Return the time of every operator of a network; those by modules add up to an unmarked run."""
        return self._places(network, self.fit.slowness)

    def calls(self, network: str) -> NDArray[np.float64]:
        """Return the time of every call in the marked runs of a network, (n_runs, n_calls) [s]."""
        return self._calls(network, self.fit.slowness)

    def _whole(self, network: str, slowness: NDArray[np.float64]) -> Summary:
        return Measurement(tuple(self._wholes(network, slowness).tolist()), self.protocol).summary

    def _places(self, network: str, slowness: NDArray[np.float64]) -> list[Place]:
        calls = self._calls(network, slowness)
        if not len(calls):
            return []
        found = self.networks[network].attribute(calls, self._wholes(network, slowness), self.protocol)
        return [Place(key, network, value, len(calls)) for key, value in found]

    def _wholes(self, network: str, slowness: NDArray[np.float64]) -> NDArray[np.float64]:
        visits = self._visits[network]
        return np.concatenate([np.asarray(self._records[visit].whole) / slowness[visit] for visit in visits])

    def _calls(self, network: str, slowness: NDArray[np.float64]) -> NDArray[np.float64]:
        # Not every visit times the calls.
        visits = [visit for visit in self._visits[network] if len(self._records[visit].parts)]
        timed = [np.asarray(self._records[visit].parts) / slowness[visit] for visit in visits]
        return np.concatenate(timed) if timed else np.empty((0, 0))


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


def _usual_spread(squares: NDArray[np.float64], counts: NDArray[np.int64]) -> float:
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
    calls = {key: NetworkCalls.read(item) for key, item in specifications.items()}
    samples = OperatorSamples(calls, schedule.protocol)
    for records in schedule.observed:
        if kept := [record for record in records if record.subjects[0] not in schedule.failures]:
            samples.add(kept)
    measured, fit = samples.measured, samples.fit
    keys = [calls[network].modules.operators for network in measured]
    wholes = [samples.whole(network) for network in measured]
    networks = tuple(
        MeasuredNetwork(
            value=whole.value,
            low=whole.low,
            high=whole.high,
            sample=specifications[network]["selection"],
            entries=fit.sums[network],
            n_samples=whole.n_samples,
        )
        for network, whole in zip(measured, wholes, strict=True)
    )
    table = LookupTable(
        **header,
        operators=tuple(fit.entries.values()),
        networks=networks,
        reference=networks[0].value,
        protocol=schedule.protocol,
        calibration=fit.calibration,
        residency=fit.residency,
        network_error=float(f"{samples.network_error():.4g}"),
        rounds=schedule.rounds,
        duration=round(schedule.spent, 3),
        drift=tuple(samples.drift),
        remarks=_unmeasured(len(measured), len(specifications) - len(schedule.failures)),
        failures=dict(sorted(schedule.failures.items())),
    )
    if metric == "latency":
        return table
    powers = powers_of([record for records in schedule.observed for record in records])
    return energy_of_operators(table, keys, [powers[network] for network in measured if network in powers])


def _unmeasured(measured: int, planned: int) -> tuple[str, ...]:
    """Return a remark on the networks that the budget did not reach."""
    if measured == planned:
        return ()
    return (
        f"The budget was spent after {measured} of {number_of(planned, 'network')}, so more operators are predicted "
        "than need be: give a larger budget.",
    )
