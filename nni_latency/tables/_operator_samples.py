"""`OperatorSamples`: what rounds of networks say about their operators, with the drift of the machine taken out."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nni_latency.measurement import Measurement, Protocol, Summary, fewest_samples, quantile
from nni_latency.operators import Trace
from nni_latency.tables._journal import RoundRecord
from nni_latency.tables._operator_plan import OperatorPlan, operator_bounds, operator_times

#: A mark takes time itself; what it takes off an operator leaves this share of it at least.
_LEAST_LEFT = 0.1


#: Rounds over which the reference network's median is taken, and how far it may be off by chance, as a logarithm.
_WINDOW, _CHANCE = 5, 0.05


@dataclass(frozen=True)
class Place:
    """One operator in one network: how long it took there, and what it belongs to."""

    op_key: str
    network: int
    value: float
    n_samples: int


class OperatorSamples:
    """Times of networks and of the calls inside them, with two kinds of drift taken out.

    The reference operator, timed before every visit, tells how fast the processor was. A machine that is busy in
    another way slows down networks more than any single operator: that tells the reference network, which is visited
    in every round. What it changes by little is left alone, because it may be its own chance.

    Parameters
    ----------
    plan : OperatorPlan
        Which networks there are. The first one is the reference network.
    protocol : Protocol
        How the times become numbers.
    """

    def __init__(self, plan: OperatorPlan, protocol: Protocol) -> None:
        self.plan, self.protocol = plan, protocol
        #: Median time of the reference operator in every round [s].
        self.drift: list[float] = []
        # By network, times over that of the reference operator; and the round of each.
        self._wholes: dict[int, list[float]] = defaultdict(list)
        self._calls: dict[int, list[NDArray[np.float64]]] = defaultdict(list)
        self._rounds: dict[int, list[int]] = defaultdict(list)

    def add(self, record: RoundRecord) -> None:
        """Take in one round."""
        reference = quantile([visit.reference for visit in record.visits], 0.5)
        for (network,), visit in zip(record.networks, record.visits, strict=True):
            self._wholes[network] += [seconds / reference for seconds in visit.whole]
            self._calls[network] += [np.asarray(times) / reference for times in visit.parts]
            self._rounds[network] += [len(self.drift)] * len(visit.whole)
        self.drift.append(reference)
        self.__dict__.pop("speeds", None)

    @cached_property
    def speeds(self) -> NDArray[np.float64]:
        """Return by round how much longer networks took than usual, beyond what the reference operator tells."""
        rounds = np.array(self._rounds.get(0, ()), dtype=int)
        logs = np.zeros(len(self.drift))
        if not len(rounds):
            return np.ones(len(self.drift))
        taken = np.log(self._wholes[0])
        for index in range(len(logs)):
            # Rounds where it failed take the nearest ones that have it.
            nearest = np.argsort(np.abs(rounds - index), kind="stable")[:_WINDOW]
            logs[index] = np.median(taken[nearest])
        logs -= np.median(logs)
        return np.asarray(np.exp(np.sign(logs) * np.maximum(0.0, np.abs(logs) - _CHANCE)))

    @property
    def measured(self) -> list[int]:
        """Networks that were visited."""
        return sorted(self._wholes)

    @property
    def unit(self) -> float:
        """Median time of the reference operator over all rounds [s]."""
        return quantile(self.drift, 0.5)

    def whole(self, network: int) -> Summary:
        """Return what unmarked runs of a network took [s]."""
        taken = self._steady(network, self._wholes[network]) * self.unit
        return Measurement(tuple(taken.tolist()), self.protocol).summary

    def unsettled(self, networks: Iterable[int]) -> list[int]:
        """Return those networks whose interval is wider than the protocol asks for."""
        return [network for network in networks if not self._is_settled(self._wholes.get(network, []))]

    def _is_settled(self, ratios: Sequence[float]) -> bool:
        if not self.protocol.half_width or len(ratios) < fewest_samples(
            self.protocol.statistic, self.protocol.confidence
        ):
            return False
        return Measurement(tuple(ratios), self.protocol).summary.spread <= self.protocol.half_width

    def places(self, network: int) -> list[Place]:
        """Return what every operator of a network took in it: those by modules, then those that only calls show.

        The operators by modules add up to the time of an unmarked run.
        """
        planned = self.plan.networks[network]
        calls = self._steady(network, self._calls[network])
        wholes = self._steady(network, self._wholes[network])
        excess = max(0.0, float(np.median(calls.sum(1)) - np.median(wholes)))
        mark = excess / max(1, planned.trace.n_calls)
        values = self._values(planned.trace, calls, mark)
        factor = self.whole(network).value / math.fsum(values)
        found = list(zip(planned.trace.operators, values * factor, strict=True))
        seen = {item.op.op_key for item in planned.trace.operators}
        inner = zip(planned.calls.operators, self._values(planned.calls, calls, mark) * factor, strict=True)
        found += [(item, value) for item, value in inner if item.op.op_key not in seen]
        return [Place(item.op.op_key, network, float(value), len(calls)) for item, value in found]

    def _steady(self, network: int, ratios: Sequence[object]) -> NDArray[np.float64]:
        """Take the speed of each round out of what a network took in it."""
        speeds = self.speeds[self._rounds[network]]
        times = np.array(ratios, dtype=np.float64)
        return np.asarray(times / (speeds if times.ndim == 1 else speeds[:, None]))

    def _values(self, trace: Trace, calls: NDArray[np.float64], mark: float) -> NDArray[np.float64]:
        """Return the protocol's quantile of every operator [s], without what the marks took."""
        times = operator_times(trace, calls)
        taken = np.quantile(times, self.protocol.statistic, axis=0)
        left = taken - mark * np.diff(operator_bounds(trace))
        values: NDArray[np.float64] = np.maximum(left, _LEAST_LEFT * taken) * self.unit
        return values
