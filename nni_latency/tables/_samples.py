"""`Samples`: all that rounds measured, by candidate, with the drift of the machine taken out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.measurement import Measurement, Protocol, fewest_samples, quantile

#: A candidate is also known well enough when its interval is so narrow that no network's latency shows it: half its
#: width over the latency of a median network.
NEGLIGIBLE = 1e-4


class Samples:
    """Times of candidates and of whole networks over the time of the reference operator in the same round.

    The reference is the same work in every round. Where it takes longer, the machine was slower, and all other times of
    that round are taken as if it had not been.

    Parameters
    ----------
    sizes : sequence of int
        Candidates of every layer.
    network : tuple of int
        The reference network, an index per layer, which is visited in every round.
    """

    def __init__(self, sizes: Sequence[int], network: tuple[int, ...]) -> None:
        self.network = network
        self._ratios: list[list[list[float]]] = [[[] for _ in range(size)] for size in sizes]
        self._parts: list[tuple[tuple[int, ...], list[float]]] = []
        self._runs: list[tuple[tuple[int, ...], float]] = []
        #: Median time of the reference operator in every round [s].
        self.drift: list[float] = []

    def add(self, record: Any) -> None:
        """Take in one round."""
        reference = quantile([visit.reference for visit in record.visits], 0.5)
        self.drift.append(reference)
        for network, visit in zip(record.networks, record.visits, strict=True):
            self._runs += [(network, seconds / reference) for seconds in visit.whole]
            for times in visit.parts or [[seconds] for seconds in visit.whole]:
                ratios = [seconds / reference for seconds in times]
                self._parts.append((network, ratios))
                for layer, (choice, ratio) in enumerate(zip(network, ratios, strict=True)):
                    self._ratios[layer][choice].append(ratio)

    @property
    def _unit(self) -> float:
        """Median time of the reference operator over all rounds [s]."""
        return quantile(self.drift, 0.5)

    def reference(self, protocol: Protocol) -> float | None:
        """Return the time of the reference network [s]; None if it was never visited."""
        taken = tuple(ratio * self._unit for network, ratio in self._runs if network == self.network)
        return Measurement(taken, protocol).summary.value if taken else None

    def of(self, layer: int, choice: int) -> list[float]:
        """Return the times of one candidate [s] in the order of the rounds, drift taken out."""
        return [ratio * self._unit for ratio in self._ratios[layer][choice]]

    def reference_excess(self, protocol: Protocol) -> float:
        """Return the median run of the reference network over its time by the protocol; 1 if it was never visited.

        So much does the protocol's quantile of one network lie below the median of its runs. The runs of many
        networks cannot tell: they differ by what a sum over layers cannot express, too.
        """
        taken = [ratio * self._unit for network, ratio in self._runs if network == self.network]
        return quantile(taken, 0.5) / Measurement(tuple(taken), protocol).summary.value if taken else 1.0

    @property
    def parts(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Networks, (n_samples, n_layers), and the times of their layers [s], of the same shape, drift taken out."""
        networks, ratios = zip(*self._parts, strict=True)
        return np.array(networks), np.array(ratios) * self._unit

    @property
    def runs(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Networks, (n_runs, n_layers), and the times of whole runs of them [s], (n_runs,), drift taken out."""
        networks, ratios = zip(*self._runs, strict=True)
        return np.array(networks), np.array(ratios) * self._unit

    def costs(self) -> list[list[float]]:
        """Return the median of every candidate, relative to the reference; 0 where there is no sample."""
        return [[quantile(ratios, 0.5) if ratios else 0.0 for ratios in layer] for layer in self._ratios]

    def unsettled(self, wanted: Sequence[Sequence[int]], protocol: Protocol) -> list[list[int]]:
        """Return by layer those of the `wanted` candidates whose interval is wider than the protocol asks for."""
        if not self._runs:
            return [list(choices) for choices in wanted]
        visible = NEGLIGIBLE * quantile([ratio for _, ratio in self._runs], 0.5)
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
