# SPDX-License-Identifier: Apache-2.0
"""What graph networks and trees predict of one network, together: its latencies and the costs of its operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nni_latency.graphs._encoding import EncodedGraph
from nni_latency.graphs._graph_network import GraphNetwork, predict_operators
from nni_latency.graphs._operator_trees import PlatformTrees, describe

Array = NDArray[np.float64]


@dataclass(frozen=True)
class NetworkCosts:
    """Predictions of one network on all platforms. Immutable.

    Parameters
    ----------
    latencies : ndarray of shape (n_platforms,)
        Geometric means of the latencies by graph networks and by trees [s].
    operators : ndarray of shape (n_operators, n_platforms)
        Costs of the operators [s]; with the overhead of a run they sum to the latencies.
    disagreement : ndarray of shape (n_platforms,)
        Logarithms of the latencies by graph networks over those by trees; 0 without trees.
    """

    latencies: Array
    operators: Array
    disagreement: Array

    @classmethod
    def of(cls, members: Sequence[GraphNetwork], trees: PlatformTrees, graph: EncodedGraph) -> NetworkCosts:
        """Evaluate every graph network, and the trees of every platform that has them, once.

        Parameters
        ----------
        members : sequence of GraphNetwork
            The graph networks.
        trees : tuple of OperatorTrees or None
            Trees by platform.
        graph : EncodedGraph
            The network.
        """
        by_member, overheads = predict_operators(members, graph)
        # An infinite cost is reported by the predictor, in words.
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            alone = np.log(by_member.sum(axis=1) + overheads).mean(axis=0)
            logarithms, costs, runs = alone.copy(), by_member.mean(axis=0), overheads.mean(axis=0)
            described = describe(graph) if any(item is not None for item in trees) else None
            for number, item in enumerate(trees):
                if item is not None and described is not None:
                    seconds = item.costs(graph, described)
                    logarithms[number] = (alone[number] + np.log(seconds.sum() + item.run)) / 2
                    costs[:, number] = (costs[:, number] + seconds) / 2
                    runs[number] = (runs[number] + item.run) / 2
            latencies = np.exp(logarithms)
            return cls(latencies, latencies / (costs.sum(axis=0) + runs) * costs, 2 * (alone - logarithms))
