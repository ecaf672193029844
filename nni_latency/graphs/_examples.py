# SPDX-License-Identifier: Apache-2.0
"""Training data of a graph predictor: measured networks, their encodings and the times of their kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nni_latency.graphs._encoding import EncodedGraph, encode_graph
from nni_latency.graphs._measured_network import MeasuredNetwork
from nni_latency.graphs._mixed_networks import MIXED
from nni_latency.platforms import Platform
from nni_latency.regression import draw_folds, nonnegative

Array = NDArray[np.float64]

#: What a run costs outside of its kernels is learned from networks whose first kernel has so little work on the nominal
#: machine [s], if there are as many as the second number.
_LITTLE, _LEAST_KNOWN = 2e-5, 40

#: Share of its time that a first kernel keeps, scale of what a run costs outside of kernels, and a negligible time [s].
_KEPT, _RUN, _LEAST = 0.2, 1e-6, 1e-12


@dataclass(frozen=True)
class Measurements:
    """Measured networks in tabular form, for training.

    Parameters
    ----------
    examples : Examples
        Graphs, latencies and kernels.
    platforms : tuple of Platform
        Platforms of the columns.
    family_of : tuple of str
        Family of each network.
    kinds : tuple of str
        Kinds of operators in the networks.
    """

    examples: Examples
    platforms: tuple[Platform, ...]
    family_of: tuple[str, ...]
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, networks: Sequence[MeasuredNetwork]) -> Measurements:
        """Arrange measurements by network (rows) and platform (columns)."""
        by_id = {item.platform.id: item.platform for item in networks}
        known = [by_id[name] for name in sorted(by_id)]
        names = {item.name: item for item in networks}
        rows = {name: row for row, name in enumerate(names)}
        columns = {platform.id: column for column, platform in enumerate(known)}
        graphs = [encode_graph(item.graph) for item in names.values()]
        latencies = np.full((len(rows), len(known)), np.nan)
        parts: list[list[Part]] = [[] for _ in rows]
        timed: list[dict[int, list[Part]]] = [{} for _ in known]
        for item in networks:
            row, column = rows[item.name], columns[item.platform.id]
            latencies[row, column] = item.latency
            timed[column][row] = _parts_of(item, column, graphs[row])
        for column, here in enumerate(timed):
            for row, found in _with_outside_spread(graphs, latencies[:, column], here).items():
                parts[row] += found
        kinds = {operator.op.kind for item in names.values() for operator in item.graph.operators}
        return cls(
            Examples(graphs, latencies, parts),
            tuple(known),
            tuple(item.family for item in names.values()),
            tuple(sorted(kinds)),
        )

    @property
    def families(self) -> tuple[str, ...]:
        """Names of families, without duplicates."""
        return tuple(sorted(set(self.family_of)))

    def folds(self, count: int, seed: int) -> list[list[int]]:
        """Split networks into folds by family; at random if there are too few families.

        Networks of random blocks are not alike, so each of them counts as a family.
        """
        groups = [row if name in MIXED else name for row, name in enumerate(self.family_of)]
        if len(set(groups)) < count:
            return [fold.tolist() for fold in draw_folds(range(len(groups)), count, seed)]
        strata = [name in MIXED for name in self.family_of]
        return [sorted(fold.tolist()) for fold in draw_folds(groups, count, seed, strata)]


def _parts_of(network: MeasuredNetwork, column: int, graph: EncodedGraph) -> list[Part]:
    """Return the kernels of a network; the time outside of kernels is added to the first one, as in runtimes.

    Kernels that compute a function together are one.
    """
    outside = max(0.0, network.latency - math.fsum(seconds for _, seconds in network.parts))
    joined: list[tuple[set[int], float, bool]] = []
    for numbers, seconds in network.parts:
        owners, is_first = {graph.owners[number] for number in numbers}, 0 in numbers
        apart = [item for item in joined if not item[0] & owners]
        for item in joined:
            if item[0] & owners:
                owners, seconds, is_first = owners | item[0], seconds + item[1], is_first or item[2]
        joined = [*apart, (owners, seconds, is_first)]
    return [
        Part(tuple(sorted(owners)), column, seconds + outside, graph.overheads)
        if is_first
        else Part(tuple(sorted(owners)), column, seconds)
        for owners, seconds, is_first in joined
    ]


def _with_outside_spread(
    graphs: Sequence[EncodedGraph], latencies: Array, timed: Mapping[int, Sequence[Part]]
) -> dict[int, list[Part]]:
    """Spread over all kernels what runs cost outside of kernels, which profiles count to the first one.

    ONNX Runtime spends 7 us a run, 0.1 us a kernel, and a hundredth of the time. If only the first kernel had them, all
    lookups and first convolutions would seem several times as slow as they are in the middle of a network.

    Parameters
    ----------
    graphs : sequence of EncodedGraph
        All networks.
    latencies : ndarray of shape (n_graphs,)
        Their latencies on one platform [s].
    timed : mapping of int to sequence of Part
        Kernels on that platform, by the index of the network.
    """
    firsts = {row: part for row, kernels in timed.items() for part in kernels if part.overheads}
    known = [row for row, first in firsts.items() if graphs[row].terms[list(first.operators)].sum() < _LITTLE]
    if len(known) < _LEAST_KNOWN:
        return {row: list(kernels) for row, kernels in timed.items()}
    seconds = np.array([firsts[row].seconds for row in known])
    causes = np.array([[firsts[row].overheads * _RUN, len(timed[row]) * _RUN, latencies[row]] for row in known])
    # Between errors in seconds, which the longest would decide, and shares of the time, which the shortest would.
    _, each, share = nonnegative(causes / seconds[:, None] ** 0.7, seconds**0.3)
    found = {}
    for row, kernels in timed.items():
        more = np.array([0.0 if part.overheads else each * _RUN + share * part.seconds for part in kernels])
        given = min(float(more.sum()), (1 - _KEPT) * firsts[row].seconds) if row in firsts else 0.0
        more *= given / max(float(more.sum()), _LEAST)
        changes = [-given if part.overheads else change for part, change in zip(kernels, more.tolist(), strict=True)]
        found[row] = [
            replace(part, seconds=part.seconds + change) for part, change in zip(kernels, changes, strict=True)
        ]
    return found


@dataclass(frozen=True)
class Part:
    """Operators that were executed as one kernel, with their time.

    Parameters
    ----------
    operators : tuple of int
        Indices of the operators in the network.
    platform : int
        Index of the platform.
    seconds : float
        Time of a run [s].
    overheads : float, default=0.0
        Overheads of a run that the time includes: those of the network for its first kernel, none for the others.
    """

    operators: tuple[int, ...]
    platform: int
    seconds: float
    overheads: float = 0.0


@dataclass(frozen=True)
class Examples:
    """Training data.

    Parameters
    ----------
    graphs : sequence of EncodedGraph
        The networks.
    latencies : ndarray of shape (n_graphs, n_platforms)
        Latencies [s]; NaN where not measured.
    parts : sequence of sequence of Part
        Kernels with their times, for every network.
    """

    graphs: Sequence[EncodedGraph]
    latencies: Array
    parts: Sequence[Sequence[Part]]

    @classmethod
    def unmeasured(cls, graphs: Sequence[EncodedGraph]) -> Examples:
        """Return networks without measurements, for one platform."""
        return cls(graphs, np.full((len(graphs), 1), np.nan), [()] * len(graphs))

    def only(self, numbers: Sequence[int]) -> Examples:
        """Return the networks with the given indices."""
        return Examples(
            [self.graphs[number] for number in numbers],
            self.latencies[list(numbers)],
            [self.parts[number] for number in numbers],
        )

    def without(self, numbers: Sequence[int]) -> Examples:
        """Return the networks without the given indices."""
        return self.only(sorted(set(range(len(self.graphs))) - set(numbers)))
