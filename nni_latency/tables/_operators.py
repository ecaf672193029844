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
from nni_latency.operators import OpSpec, parse_op_keys
from nni_latency.tables._entries import Entry, MeasuredNetwork
from nni_latency.tables._lookup_table import LookupTable
from nni_latency.tables._machine import fit_residency
from nni_latency.tables._operator_energy import energy_of_operators, powers_of
from nni_latency.tables._plan import OperatorPlan
from nni_latency.units import number_of

#: Kind of the campaign of a table of operators in a store.
OPERATORS_KIND = "operators"

#: Rounds of the running median of the reference network, and its tolerated random error, as a logarithm.
_WINDOW, _CHANCE = 5, 0.05

#: Iterations of the alternating fit of costs and factors.
_TURNS = 30

#: Shrinkage of the factor of a network to 1, as the weight of a share of its cost.
_SHRINK = 0.05

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


class OperatorSamples:
    """Times of networks and of the calls inside them, corrected for two kinds of drift.

    The reference operator, timed before every visit, measures the speed of the processor. Other load of the machine
    slows down networks more than single operators; this is measured by the reference network, which is visited in every
    round. Small changes of it are ignored, because they may be random.

    Parameters
    ----------
    networks : mapping of str to NetworkCalls
        Mapping of calls to operators, by the key of the network.
    protocol : Protocol
        Protocol that determines the statistics.
    reference : str, default=""
        Key of the reference network, if there is one.
    """

    def __init__(self, networks: Mapping[str, NetworkCalls], protocol: Protocol, reference: str = "") -> None:
        self.networks, self.protocol, self._reference = networks, protocol, reference
        #: Median time of the reference operator in every round [s].
        self.drift: list[float] = []
        # By network: times relative to the reference operator, and the round of each. Not every visit times the calls.
        self._wholes: dict[str, list[float]] = defaultdict(list)
        self._calls: dict[str, list[NDArray[np.float64]]] = defaultdict(list)
        self._rounds: dict[str, list[int]] = defaultdict(list)
        self._call_rounds: dict[str, list[int]] = defaultdict(list)

    def add(self, records: Sequence[Record]) -> None:
        """Add one round."""
        reference = quantile([record.reference for record in records], 0.5)
        for record in records:
            (network,) = record.subjects
            self._wholes[network] += [seconds / reference for seconds in record.whole]
            self._calls[network] += [np.asarray(times) / reference for times in record.parts]
            self._rounds[network] += [len(self.drift)] * len(record.whole)
            self._call_rounds[network] += [len(self.drift)] * len(record.parts)
        self.drift.append(reference)
        self.__dict__.pop("speeds", None)

    @cached_property
    def speeds(self) -> NDArray[np.float64]:
        """Return the slowdown of networks in each round, beyond that of the reference operator."""
        rounds = np.array(self._rounds.get(self._reference, ()), dtype=int)
        logs = np.zeros(len(self.drift))
        if not len(rounds):
            return np.ones(len(self.drift))
        taken = np.log(self._wholes[self._reference])
        for index in range(len(logs)):
            # Rounds in which it failed use the nearest rounds that have it.
            nearest = np.argsort(np.abs(rounds - index), kind="stable")[:_WINDOW]
            logs[index] = np.median(taken[nearest])
        logs -= np.median(logs)
        return np.asarray(np.exp(np.sign(logs) * np.maximum(0.0, np.abs(logs) - _CHANCE)))

    @property
    def measured(self) -> list[str]:
        """Networks that were visited, in their order."""
        return [key for key in self.networks if key in self._wholes]

    @property
    def unit(self) -> float:
        """Median time of the reference operator over all rounds [s]."""
        return quantile(self.drift, 0.5)

    def whole(self, network: str) -> Summary:
        """Return the time of unmarked runs of a network [s]."""
        taken = self._steady(self._wholes[network], self._rounds[network]) * self.unit
        return Measurement(tuple(taken.tolist()), self.protocol).summary

    def places(self, network: str) -> list[Place]:
        """Return the time of every operator of a network; those by modules add up to an unmarked run."""
        if not self._calls[network]:
            return []
        calls = self._steady(self._calls[network], self._call_rounds[network])
        wholes = self._steady(self._wholes[network], self._rounds[network])
        found = self.networks[network].attribute(calls * self.unit, wholes * self.unit, self.protocol)
        return [Place(key, network, value, len(calls)) for key, value in found]

    def _steady(self, ratios: Sequence[object], rounds: Sequence[int]) -> NDArray[np.float64]:
        """Normalise times by the slowdown of their rounds."""
        speeds = self.speeds[list(rounds)]
        times = np.array(ratios, dtype=np.float64)
        return np.asarray(times / (speeds if times.ndim == 1 else speeds[:, None]))


def operator_entries(places: Sequence[Place]) -> dict[str, Entry]:
    """Fit the cost of every timed operator.

    The time of an operator varies between networks: with the content of the caches, the placement of a process in
    memory, and the load of the machine at the time. The variation that all operators of a network share is modelled as
    a factor of the network; the rest is the operator's. Costs and factors are fitted alternately, as ratios of sums, so
    that entries add up to the networks on average: a runtime that fuses takes no time for an operator in one place and
    its full time in another.

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
    which = np.array([numbers[place.op_key] for place in places])
    networks = {network: number for number, network in enumerate(dict.fromkeys(place.network for place in places))}
    where = np.array([networks[place.network] for place in places])
    values = np.array([place.value for place in places])
    costs, _ = _separate(which, where, values)
    return _entries(ops, places, keys, which, values / costs[which], costs)


def _separate(
    which: NDArray[np.int64], where: NDArray[np.int64], values: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return costs of operators and factors of networks; the logarithms of the factors have mean 0."""
    taken, whole = np.bincount(which, values), np.bincount(where, values)
    costs = taken / np.bincount(which)
    factors = np.ones(len(whole))
    for _ in range(_TURNS):
        expected = np.bincount(where, costs[which])
        factors = (whole / expected + _SHRINK) / (1 + _SHRINK)
        factors /= np.exp(np.log(factors).mean())
        costs = taken / np.bincount(which, factors[where])
    return costs, factors


def _entries(
    ops: Mapping[str, OpSpec],
    places: Sequence[Place],
    keys: Sequence[str],
    which: NDArray[np.int64],
    ratios: NDArray[np.float64],
    costs: NDArray[np.float64],
) -> dict[str, Entry]:
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
    specification = {"selection": sample, "reference": index == 0, **network.subject_calls.content()}
    return Subject(json.dumps(sample), network.build, plan.input_shape, "network", network.calls.digest, specification)


def reference_of(specifications: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the key of the reference network among the subjects of a campaign; empty if there is none."""
    return next((key for key, item in specifications.items() if item.get("reference")), "")


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
    samples = OperatorSamples(calls, schedule.protocol, reference_of(specifications))
    for records in schedule.observed:
        samples.add(records)
    measured = [key for key in samples.measured if key not in schedule.failures]
    places = [place for network in measured for place in samples.places(network)]
    entries = operator_entries(places)
    keys = [calls[network].modules.operators for network in measured]
    sums = [math.fsum(entries[key].value for key in names if key in entries) for names in keys]
    wholes = [samples.whole(network) for network in measured]
    calibration, residency = fit_residency(sums, [whole.value for whole in wholes])
    networks = tuple(
        MeasuredNetwork(
            value=whole.value,
            low=whole.low,
            high=whole.high,
            sample=specifications[network]["selection"],
            entries=total,
            n_samples=whole.n_samples,
        )
        for network, whole, total in zip(measured, wholes, sums, strict=True)
    )
    table = LookupTable(
        **header,
        operators=tuple(entries.values()),
        networks=networks,
        reference=networks[0].value,
        protocol=schedule.protocol,
        calibration=calibration,
        residency=residency,
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
