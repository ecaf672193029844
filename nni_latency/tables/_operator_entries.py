"""`OperatorSamples` and `OperatorEntry`: times of operators in networks, and what operators cost by them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt

from nni_latency.costs import NORMAL, Cost
from nni_latency.documents import RECORD, Operator
from nni_latency.errors import InvalidValueError
from nni_latency.measurement import Measurement, NetworkCalls, Protocol, Record, Summary, quantile
from nni_latency.operators import Features, OpSpec, work_of

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


@dataclass(frozen=True)
class OperatorEntry(Cost):
    """What one operator costs inside a network. Immutable.

    Parameters
    ----------
    value, low, high : float
        Its cost, and the interval in which it lies in another network, in the unit of the table's metric.
    op : OpSpec
        The operator.
    n_samples : int
        Timed runs behind it, over all places.
    n_places, n_networks : int
        Places where it was timed, and networks that have such a place.
    names : tuple of str
        What files of other projects call it, for one that comes from there.

    Raises
    ------
    InvalidValueError
        If the value is not positive and finite, or lies outside its interval.
    """

    op: Operator
    n_samples: NonNegativeInt = 0
    n_places: Annotated[NonNegativeInt, Field(description="places in networks where it was timed")] = 0
    n_networks: Annotated[NonNegativeInt, Field(description="networks with such a place")] = 0
    names: Annotated[tuple[str, ...], Field(description="what files of other projects call it")] = ()

    _finite = True
    __pydantic_config__ = RECORD

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.value > 0:
            raise InvalidValueError(f"The value of an operator's entry must be positive. Got {self.value!r}.")

    @property
    def features(self) -> Features | None:
        """Features of the operator; None for a kind that cannot be counted."""
        features, counted = work_of(self.op)
        return features if counted else None


def operator_entries(ops: Mapping[str, OpSpec], places: Sequence[Place]) -> dict[str, OperatorEntry]:
    """Find the cost of every operator that was timed.

    An operator takes longer in one network than in another: because of what lies in the cache, of where a process has
    placed its memory, of how busy the machine was just then. What all operators of a network have in common is taken
    for a factor of the network; what is left over is the operator's. Both are found in turn, as ratios of sums, so that
    entries add up to the networks on average: a runtime that fuses takes no time for an operator in one place and its
    full time in the next.

    Parameters
    ----------
    ops : mapping of str to OpSpec
        The operators by their keys.
    places : sequence of Place
        What each took in every place of every network.

    Returns
    -------
    dict of str to OperatorEntry
        By the operator's key, in the order of the networks.
    """
    keys = list(dict.fromkeys(place.op_key for place in places))
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
) -> dict[str, OperatorEntry]:
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
        entries[key] = OperatorEntry(
            value,
            value / reach,
            value * reach,
            op=ops[key],
            n_samples=runs[key],
            n_places=count,
            n_networks=len(networks[key]),
        )
    return entries


def _usual_spread(squares: NDArray[np.float64], counts: NDArray[np.int64]) -> float:
    """Return how much the operators of one kind differ from place to place, as a relative standard deviation."""
    freedom = int(np.maximum(counts - 1, 0).sum())
    return math.sqrt((squares.sum() + 4 * _USUAL_SPREAD**2) / (freedom + 4))
