"""Message passing in torch: networks beside each other in one batch, and means over neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nni_latency.graphs._encoding import EncodedGraph


@dataclass(frozen=True)
class Batch:
    """Networks beside each other, as one graph of several parts.

    Parameters
    ----------
    features : Tensor of shape (n_operators, N_FEATURES)
        As of `EncodedGraph`; so are all but the last two.
    groups, kinds : Tensor of shape (n_operators,)
        Numbers of what operators are.
    terms : Tensor of shape (n_operators, len(TERMS))
        What each costs in proportion to [s of a plain machine].
    edges, siblings : Tensor of shape (2, n_edges)
        Operators are numbered through the batch.
    graph_of : Tensor of shape (n_operators,)
        By operator, the number of its network.
    n_graphs : int
        Networks.
    """

    features: Tensor
    groups: Tensor
    kinds: Tensor
    terms: Tensor
    edges: Tensor
    siblings: Tensor
    graph_of: Tensor
    n_graphs: int

    @classmethod
    def of(cls, graphs: Sequence[EncodedGraph]) -> Batch:
        """Put networks, at least one, beside each other."""
        sizes = [len(graph) for graph in graphs]
        starts = starts_of(sizes)
        return cls(
            _joined([graph.features for graph in graphs]),
            _joined([graph.groups for graph in graphs]),
            _joined([graph.kinds for graph in graphs]),
            _joined([graph.terms for graph in graphs]),
            _joined([graph.edges + start for graph, start in zip(graphs, starts, strict=True)], axis=1),
            _joined([graph.siblings + start for graph, start in zip(graphs, starts, strict=True)], axis=1),
            torch.from_numpy(np.repeat(np.arange(len(graphs)), sizes)),
            len(graphs),
        )


def starts_of(sizes: Sequence[int]) -> NDArray[np.int64]:
    """Return the number that the first member of each part has once the parts are joined."""
    return np.cumsum([0, *sizes[:-1]])


def _joined(arrays: Sequence[NDArray[Any]], axis: int = 0) -> Tensor:
    """Join arrays as one tensor."""
    return torch.from_numpy(np.concatenate(arrays, axis=axis))


def add_up(values: Tensor, index: Tensor, count: int) -> Tensor:
    """Add up the rows of a tensor that have one number, (count, ...)."""
    return values.new_zeros(count, *values.shape[1:]).index_add(0, index, values)


class NeighbourMean(nn.Module):
    """A linear layer of the mean over neighbours: GraphSAGE [1]_ without the operator itself.

    An operator without neighbours gets the bias.

    Parameters
    ----------
    width : int
        Numbers of an operator.

    References
    ----------
    .. [1] W. L. Hamilton, R. Ying, J. Leskovec, "Inductive Representation Learning on Large Graphs", NeurIPS 2017.
       https://arxiv.org/abs/1706.02216
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        # Named as in PyTorch Geometric's SAGEConv, under whose names predictors are saved.
        self.lin_l = nn.Linear(width, width)

    def forward(self, values: Tensor, edges: Tensor) -> Tensor:
        """Return what operators learn from neighbours, (n_operators, width); edges go from source to target."""
        source, target = edges
        counts = torch.bincount(target, minlength=len(values)).clamp(min=1)
        found: Tensor = self.lin_l(add_up(values.index_select(0, source), target, len(values)) / counts[:, None])
        return found
