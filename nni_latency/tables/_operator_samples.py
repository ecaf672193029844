"""`OperatorSamples`: what rounds of networks say about their operators, with the drift of the machine taken out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nni_latency.measurement import Measurement, NetworkCalls, Protocol, Record, Summary, quantile

#: Rounds over which the reference network's median is taken, and how far it may be off by chance, as a logarithm.
_WINDOW, _CHANCE = 5, 0.05


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
