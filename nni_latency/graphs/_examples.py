"""What a graph predictor learns from: measured networks, their encodings and the times of their kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nni_latency.graphs._encoding import EncodedGraph, encode_graph
from nni_latency.graphs._measured_network import MeasuredNetwork
from nni_latency.graphs._mixed_networks import MIXED
from nni_latency.platforms import Platform
from nni_latency.regression import draw_folds, weighted_quantile

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Measurements:
    """Measured networks, in the form in which graph networks learn from them.

    Parameters
    ----------
    examples : Examples
        Their graphs, latencies and kernels.
    platforms : tuple of Platform
        What the columns of the latencies are.
    family_of : tuple of str
        By network.
    kinds : tuple of str
        Kinds of operators that occur.
    """

    examples: Examples
    platforms: tuple[Platform, ...]
    family_of: tuple[str, ...]
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, networks: Sequence[MeasuredNetwork]) -> Measurements:
        """Bring them into a table, a row for each network and a column for each platform."""
        by_id = {item.platform.id: item.platform for item in networks}
        known = [by_id[name] for name in sorted(by_id)]
        names = {item.name: item for item in networks}
        rows = {name: row for row, name in enumerate(names)}
        columns = {platform.id: column for column, platform in enumerate(known)}
        latencies = np.full((len(rows), len(known)), np.nan)
        parts: list[list[Part]] = [[] for _ in rows]
        for item in networks:
            row, column = rows[item.name], columns[item.platform.id]
            latencies[row, column] = item.latency
            parts[row] += _parts_of(item, column)
        graphs = [encode_graph(item.graph) for item in names.values()]
        kinds = {operator.op.kind for item in names.values() for operator in item.graph.operators}
        return cls(
            Examples(graphs, latencies, parts),
            tuple(known),
            tuple(item.family for item in names.values()),
            tuple(sorted(kinds)),
        )

    @property
    def families(self) -> tuple[str, ...]:
        """Names of families, each once."""
        return tuple(sorted(set(self.family_of)))

    def folds(self, count: int, seed: int) -> list[list[int]]:
        """Divide networks so that no family is in two parts; where there are too few families, at random.

        Networks of mixed blocks are in no part: they are always learned from.
        """
        families = [family for family in self.families if family not in MIXED]
        if len(families) < count:
            return [fold.tolist() for fold in draw_folds(range(len(self.family_of)), count, seed)]
        rows = [row for family in families for row, name in enumerate(self.family_of) if name == family]
        return [
            sorted(rows[place] for place in fold)
            for fold in draw_folds([self.family_of[row] for row in rows], count, seed)
        ]


def _parts_of(network: MeasuredNetwork, column: int) -> list[Part]:
    """Return its kernels; what lies outside of all of them is in the first one, where runtimes put it."""
    outside = max(0.0, network.latency - math.fsum(seconds for _, seconds in network.parts))
    return [
        Part(numbers, column, seconds + outside, is_first=True) if 0 in numbers else Part(numbers, column, seconds)
        for numbers, seconds in network.parts
    ]


def spreads_of(errors: Array, families: Sequence[str], confidence: float) -> Array:
    """Return half the width of intervals, as a logarithm: what holds the share of networks, each family alike."""
    found = []
    for column in np.abs(errors).T:
        known = ~np.isnan(column)
        sizes = {family: sum(known[row] for row, name in enumerate(families) if name == family) for family in families}
        weights = np.array([1 / sizes[family] if known[row] else 0.0 for row, family in enumerate(families)])
        found.append(weighted_quantile(column[known], weights[known], confidence))
    return np.array(found)


@dataclass(frozen=True)
class Part:
    """Operators that a runtime ran as one kernel, and their time.

    Parameters
    ----------
    operators : tuple of int
        Their numbers in the network.
    platform : int
        Number of the platform.
    seconds : float
        Time of a run [s].
    is_first : bool, default=False
        Whether what a run takes besides its operators is in it.
    """

    operators: tuple[int, ...]
    platform: int
    seconds: float
    is_first: bool = False


@dataclass(frozen=True)
class Examples:
    """Networks to learn from.

    Parameters
    ----------
    graphs : sequence of EncodedGraph
        The networks.
    latencies : ndarray of shape (n_graphs, n_platforms)
        Their times [s]; NaN where they were not measured.
    parts : sequence of sequence of Part
        Times of kernels, for every network.
    """

    graphs: Sequence[EncodedGraph]
    latencies: Array
    parts: Sequence[Sequence[Part]]

    @classmethod
    def unmeasured(cls, graphs: Sequence[EncodedGraph]) -> Examples:
        """Return networks of which nothing was measured, on one platform."""
        return cls(graphs, np.full((len(graphs), 1), np.nan), [()] * len(graphs))

    def only(self, numbers: Sequence[int]) -> Examples:
        """Return some of the networks."""
        return Examples(
            [self.graphs[number] for number in numbers],
            self.latencies[list(numbers)],
            [self.parts[number] for number in numbers],
        )

    def without(self, numbers: Sequence[int]) -> Examples:
        """Return all other networks."""
        return self.only(sorted(set(range(len(self.graphs))) - set(numbers)))
