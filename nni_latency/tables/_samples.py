"""`Samples`: all that rounds measured, and by candidate what the rounds go on with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.measurement import Measurement, Protocol, fewest_samples, quantile

#: A candidate is also known well enough when its interval is so narrow that no network's latency shows it: half its
#: width over the latency of a median network.
NEGLIGIBLE = 1e-4


@dataclass(frozen=True)
class Runs:
    """Every timed run as arrays, in the order in which they were made.

    Parameters
    ----------
    networks : ndarray of int of shape (n_runs, n_layers)
        The network of each run.
    parts : ndarray of shape (n_runs, n_layers)
        Time of every layer [s].
    whole : ndarray of shape (n_runs,)
        Time of the run of the whole network without marks [s].
    visits : ndarray of int of shape (n_runs,)
        Which visit the run belongs to.
    reference : ndarray of shape (n_visits,)
        Logarithm of the time of the reference operator before every visit [s].
    rounds : ndarray of int of shape (n_visits,)
        Which round the visit belongs to.
    """

    networks: NDArray[np.int64]
    parts: NDArray[np.float64]
    whole: NDArray[np.float64]
    visits: NDArray[np.int64]
    reference: NDArray[np.float64]
    rounds: NDArray[np.int64]

    @property
    def first(self) -> NDArray[np.int64]:
        """The first run of each visit, (n_visits,)."""
        return np.searchsorted(self.visits, np.arange(len(self.reference)))

    @cached_property
    def _distinct(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        return np.unique(self.networks, axis=0, return_inverse=True, return_counts=True)

    @property
    def distinct(self) -> NDArray[np.int64]:
        """The networks without repetition, (n_distinct, n_layers)."""
        return self._distinct[0]

    @property
    def ids(self) -> NDArray[np.int64]:
        """Which of the distinct networks each run is of, (n_runs,)."""
        return self._distinct[1].ravel()

    @property
    def counts(self) -> NDArray[np.int64]:
        """Runs of each distinct network, (n_distinct,)."""
        return self._distinct[2]

    def of_rounds(self, remainder: int) -> Runs:
        """Return the runs of every other round."""
        taken = self.rounds % 2 == remainder
        runs = taken[self.visits]
        return Runs(
            self.networks[runs],
            self.parts[runs],
            self.whole[runs],
            (np.cumsum(taken) - 1)[self.visits[runs]],
            self.reference[taken],
            self.rounds[taken],
        )


class Samples:
    """All that rounds measured.

    What the rounds go on with is taken over the median time of the reference operator in the same round: where that
    takes longer, the machine was slower.

    Parameters
    ----------
    sizes : sequence of int
        Candidates of every layer.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._ratios: list[list[list[float]]] = [[[] for _ in range(size)] for size in sizes]
        self._wholes: list[float] = []
        self._records: list[Any] = []
        #: Median time of the reference operator in every round [s].
        self.drift: list[float] = []

    def add(self, record: Any) -> None:
        """Take in one round."""
        reference = quantile([visit.reference for visit in record.visits], 0.5)
        self.drift.append(reference)
        self._records.append(record)
        for network, visit in zip(record.networks, record.visits, strict=True):
            self._wholes += [seconds / reference for seconds in visit.whole]
            for times in visit.parts or [[seconds] for seconds in visit.whole]:
                for layer, (choice, seconds) in enumerate(zip(network, times, strict=True)):
                    self._ratios[layer][choice].append(seconds / reference)

    @property
    def rounds(self) -> tuple[Any, ...]:
        """Everything that was added."""
        return tuple(self._records)

    @property
    def runs(self) -> Runs:
        """All runs as arrays."""
        visits = [
            (index, network, visit)
            for index, record in enumerate(self._records)
            for network, visit in zip(record.networks, record.visits, strict=True)
        ]
        rows = [
            (place, network, parts, whole)
            for place, (_, network, visit) in enumerate(visits)
            for parts, whole in zip(visit.parts or [[whole] for whole in visit.whole], visit.whole, strict=True)
        ]
        places, networks, parts, wholes = zip(*rows, strict=True)
        return Runs(
            np.array(networks),
            np.array(parts),
            np.array(wholes),
            np.array(places),
            np.log([visit.reference for _, _, visit in visits]),
            np.array([index for index, _, _ in visits]),
        )

    def costs(self) -> list[list[float]]:
        """Return the median of every candidate, relative to the reference; 0 where there is no sample."""
        return [[quantile(ratios, 0.5) if ratios else 0.0 for ratios in layer] for layer in self._ratios]

    def unsettled(self, wanted: Sequence[Sequence[int]], protocol: Protocol) -> list[list[int]]:
        """Return by layer those of the `wanted` candidates whose interval is wider than the protocol asks for."""
        if not self._wholes:
            return [list(choices) for choices in wanted]
        visible = NEGLIGIBLE * quantile(self._wholes, 0.5)
        return [
            [choice for choice in choices if not _settled(self._ratios[layer][choice], protocol, visible)]
            for layer, choices in enumerate(wanted)
        ]


def _settled(samples: list[float], protocol: Protocol, visible: float) -> bool:
    if len(samples) < fewest_samples(protocol.statistic, protocol.confidence):
        return False
    if not protocol.half_width:
        return False
    summary = Measurement(tuple(samples), protocol).summary
    return summary.spread <= max(protocol.half_width, visible / summary.value)
