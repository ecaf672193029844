"""Networks to learn from, with the times of their kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nni_latency.graphs._encoding import EncodedGraph

Array = NDArray[np.float64]


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
