"""`LearnedGraphs`: all that a graph predictor has learned, as it is saved, read and given one more platform."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nni_latency.graphs._graph_network import GraphNetwork
from nni_latency.graphs._operator_trees import PlatformTrees
from nni_latency.platforms import Platform

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LearnedGraphs:
    """What a graph predictor has learned, by the names of its attributes without the ``_`` at the end.

    Parameters
    ----------
    platforms, members, trees, epochs, spreads, held_out, latencies, unmeasured_spread, counts, families, kinds
        See `GraphPredictor`.
    """

    platforms: tuple[Platform, ...]
    members: list[GraphNetwork]
    trees: PlatformTrees
    epochs: int
    spreads: Array
    held_out: Array
    latencies: Array
    unmeasured_spread: float
    counts: NDArray[np.int64]
    families: tuple[str, ...]
    kinds: tuple[str, ...]
