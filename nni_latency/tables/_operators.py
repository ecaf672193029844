"""Tables of operators: times of operators inside networks, what operators cost by them, and the table of these."""

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
from nni_latency.tables._plan import OperatorPlan
from nni_latency.tables._solving import energy_of_operators, powers_of
from nni_latency.units import number_of

#: What the campaign of a table of operators is called in a store.
OPERATORS_KIND = "operators"

#: Rounds over which the reference network's median is taken, and how far it may be off by chance, as a logarithm.
_WINDOW, _CHANCE = 5, 0.05

#: How often entries and factors are found from each other.
_TURNS = 30

#: The factor of a network is drawn to 1 as if operators that make up this share of its cost said so.
_SHRINK = 0.05

#: An operator's own spread counts against that of its kind as if the latter had been seen in so many more places.
_PRIOR_PLACES = 4

#: Spread of an operator between networks, as a relative standard deviation, until more is known, and at least.
_USUAL_SPREAD, _LEAST_SPREAD = 0.1, 0.005


@dataclass(frozen=True)
class Place:
    """One operator in one network: how long it took there, and what it belongs to."""

    op_key: str
    network: str
    value: float
    n_samples: int


class OperatorSamples:
    """Times of networks and of the calls inside them, with two kinds of drift taken out.

    The reference operator, timed before every visit, tells how fast the processor was. A machine that is busy in
    another way slows down networks more than any single operator: that tells the reference network, which is visited
    in every round. What it changes by little is left alone, because it may be its own chance.

    Parameters
    ----------
    networks : mapping of str to NetworkCalls
        Which calls belong to which operators, by the key of the network.
    protocol : Protocol
        How the times become numbers.
    reference : str, default=""
        Key of the reference network, where there is one.
    """

    def __init__(self, networks: Mapping[str, NetworkCalls], protocol: Protocol, reference: str = "") -> None:
        self.networks, self.protocol, self._reference = networks, protocol, reference
        #: Median time of the reference operator in every round [s].
        self.drift: list[float] = []
        # By network, times over that of the reference operator; and the round of each.
        self._wholes: dict[str, list[float]] = defaultdict(list)
        self._calls: dict[str, list[NDArray[np.float64]]] = defaultdict(list)
        self._rounds: dict[str, list[int]] = defaultdict(list)

    def add(self, records: Sequence[Record]) -> None:
        """Take in one round."""
        reference = quantile([record.reference for record in records], 0.5)
        for record in records:
            (network,) = record.subjects
            self._wholes[network] += [seconds / reference for seconds in record.whole]
            self._calls[network] += [np.asarray(times) / reference for times in record.parts]
            self._rounds[network] += [len(self.drift)] * len(record.whole)
        self.drift.append(reference)
        self.__dict__.pop("speeds", None)

    @cached_property
    def speeds(self) -> NDArray[np.float64]:
        """Return by round how much longer networks took than usual, beyond what the reference operator tells."""
        rounds = np.array(self._rounds.get(self._reference, ()), dtype=int)
        logs = np.zeros(len(self.drift))
        if not len(rounds):
            return np.ones(len(self.drift))
        taken = np.log(self._wholes[self._reference])
        for index in range(len(logs)):
            # Rounds where it failed take the nearest ones that have it.
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
        """Return what unmarked runs of a network took [s]."""
        taken = self._steady(network, self._wholes[network]) * self.unit
        return Measurement(tuple(taken.tolist()), self.protocol).summary

    def places(self, network: str) -> list[Place]:
        """Return what every operator of a network took in it; those by modules add up to an unmarked run."""
        if not self._calls[network]:
            return []
        calls, wholes = self._steady(network, self._calls[network]), self._steady(network, self._wholes[network])
        found = self.networks[network].attribute(calls * self.unit, wholes * self.unit, self.protocol)
        return [Place(key, network, value, len(calls)) for key, value in found]

    def _steady(self, network: str, ratios: Sequence[object]) -> NDArray[np.float64]:
        """Take the speed of each round out of what a network took in it."""
        speeds = self.speeds[self._rounds[network]]
        times = np.array(ratios, dtype=np.float64)
        return np.asarray(times / (speeds if times.ndim == 1 else speeds[:, None]))


def operator_entries(places: Sequence[Place]) -> dict[str, Entry]:
    """Find the cost of every operator that was timed.

    An operator takes longer in one network than in another: because of what lies in the cache, of where a process has
    placed its memory, of how busy the machine was just then. What all operators of a network have in common is taken
    for a factor of the network; what is left over is the operator's. Both are found in turn, as ratios of sums, so that
    entries add up to the networks on average: a runtime that fuses takes no time for an operator in one place and its
    full time in the next.

    Parameters
    ----------
    places : sequence of Place
        What each took in every place of every network.

    Returns
    -------
    dict of str to Entry
        By the operator's key, in the order of the networks.
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
    """Return operators' costs and networks' factors; the logarithms of the latter have the mean 0."""
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
        # The logarithm of what is distributed log-normally with this relative variance.
        spread = math.sqrt(math.log1p(variance))
        # In a place that was not seen: the mean is known but for its own error.
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
    """Return how much the operators of one kind differ from place to place, as a relative standard deviation."""
    freedom = int(np.maximum(counts - 1, 0).sum())
    return math.sqrt((squares.sum() + 4 * _USUAL_SPREAD**2) / (freedom + 4))


def check_operators(runtime: Runtime, metric: str) -> None:
    """Check that a table of operators can be measured.

    Raises
    ------
    MeasurementError
        If the runtime has no operators that could be timed inside a network.
    InvalidValueError
        If no table of operators can hold the metric.
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
    """Return the rounds of a plan's networks, with every call timed; the first network is visited in all of them."""
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
    """Make the table of what rounds of networks have measured.

    Parameters
    ----------
    schedule : NetworkSchedule
        What was measured, with the calls inside the networks.
    specifications : mapping of str to mapping
        What says of each network, by its key, which it is and which calls belong to which operators.
    metric : {"latency", "energy"}
        What the table holds.
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
    """Say how many networks the budget did not reach."""
    if measured == planned:
        return ()
    return (
        f"The budget was spent after {measured} of {number_of(planned, 'network')}, so more operators are predicted "
        "than need be: give a larger budget.",
    )
