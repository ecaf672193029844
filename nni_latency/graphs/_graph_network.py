# SPDX-License-Identifier: Apache-2.0
"""The graph network: costs of every operator on every platform, batches of networks, and predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from nni_latency.graphs._encoding import GROUPS, N_FEATURES, TERMS, EncodedGraph
from nni_latency.graphs._operator_features import KINDS

#: Bound of the learned correction, as the logarithm of a factor: a fused operator costs next to nothing.
_BOUND = 3.0

#: Probability that the kind of an operator is masked in training, because unseen kinds occur at inference.
_HIDDEN_KINDS = 0.1

Array = NDArray[np.float64]

#: Networks per batch at inference.
_AT_ONCE = 64

#: Intervals into which the values of a feature are divided.
N_INTERVALS = 12


class GraphNetwork(nn.Module):
    """Predict costs of operators by platform.

    The cost of an operator is a prior, its work and traffic at the `rates` of its group, times a bounded correction.
    The correction is learned by message passing from the inputs of the operator, its readers, and its siblings, which
    read the same result. Features are encoded piecewise linearly [1]_: costs have steps, such as the size of a cache.

    Parameters
    ----------
    n_platforms : int
        Number of platforms.
    hidden : int
        Width of the hidden states.
    n_layers : int
        Number of message-passing layers.
    dropout : float
        Dropout rate.

    References
    ----------
    .. [1] Y. Gorishniy, I. Rubachev, A. Babenko, "On Embeddings for Numerical Features in Tabular Deep Learning",
       NeurIPS 2022. https://arxiv.org/abs/2203.05556
    """

    starts: Tensor
    widths: Tensor

    def __init__(self, n_platforms: int, hidden: int, n_layers: int, dropout: float) -> None:
        super().__init__()
        #: Intervals of the values of every feature.
        self.register_buffer("starts", torch.zeros(N_FEATURES, N_INTERVALS))
        self.register_buffer("widths", torch.ones(N_FEATURES, N_INTERVALS))
        self.features = nn.Linear(N_FEATURES * N_INTERVALS, hidden)
        self.groups = nn.Embedding(len(GROUPS), hidden)
        self.kinds = nn.Embedding(len(KINDS) + 1, hidden, padding_idx=0)
        nn.init.normal_(self.groups.weight, std=0.3)
        nn.init.normal_(self.kinds.weight, std=0.1)
        with torch.no_grad():
            self.kinds.weight[0] = 0
        self.rounds = nn.ModuleList(_Round(hidden) for _ in range(n_layers))
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, hidden), nn.GELU())
        #: Heads of the corrections, by platform.
        self.heads = nn.Linear(hidden, n_platforms)
        nn.init.normal_(self.heads.weight, std=0.01)
        nn.init.zeros_(self.heads.bias)
        #: Logarithms of the cost of a unit of each term, by platform and group.
        self.rates = nn.Parameter(torch.zeros(n_platforms, len(GROUPS), len(TERMS)))
        #: Logarithm of the overhead of a run [log s].
        self.runs = nn.Parameter(torch.full((n_platforms,), float(np.log(1e-5))))

    def forward(self, batch: Batch) -> Tensor:
        """Return the cost of every operator on every platform [s], (n_operators, n_platforms)."""
        return self.priors(batch) * self.corrections(self.states(batch))

    def networks(self, costs: Tensor, batch: Batch) -> Tensor:
        """Sum the costs of operators and the overhead of a run [s], (n_graphs, n_platforms)."""
        return add_up(costs, batch.graph_of, batch.n_graphs) + batch.overheads * self.runs.exp()

    def priors(self, batch: Batch) -> Tensor:
        """Return the uncorrected costs of operators [s], (n_operators, n_platforms)."""
        rates = self.rates.exp()[:, batch.groups]
        return torch.einsum("pnt,nt->np", rates, batch.terms)

    def corrections(self, states: Tensor) -> Tensor:
        """Return the correction factors of operators, (n_operators, n_platforms)."""
        return self.logarithms(states).exp()

    def logarithms(self, states: Tensor) -> Tensor:
        """Return the logarithms of the correction factors, (n_operators, n_platforms)."""
        return bounded(self.heads(states))

    def states(self, batch: Batch) -> Tensor:
        """Return the hidden states of operators after message passing, (n_operators, hidden)."""
        features = ((batch.distinct[:, :, None] - self.starts) / self.widths).clamp(0, 1).flatten(1)
        encoded = self.features(features).index_select(0, batch.rows)
        kinds = batch.kinds
        if self.training:
            kinds = kinds * (torch.rand(kinds.shape) > _HIDDEN_KINDS)
        state = functional.gelu(encoded + self.groups(batch.groups) + self.kinds(kinds))
        for layer in self.rounds:
            state = layer(self.dropout(state), batch.edges, batch.siblings)
        found: Tensor = self.last(state)
        return found


class _Round(nn.Module):
    """A message-passing layer: from inputs, from readers, and among siblings."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.down, self.up, self.beside = (NeighbourMean(hidden) for _ in range(3))
        self.own = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, state: Tensor, edges: Tensor, siblings: Tensor) -> Tensor:
        normed = self.norm(state)
        total = self.own(normed) + self.down(normed, edges) + self.up(normed, edges.flip(0))
        total = total + self.beside(normed, siblings)
        found: Tensor = state + self.out(functional.gelu(total))
        return found


def bounded(logarithm: Tensor) -> Tensor:
    """Bound the logarithm of a factor smoothly."""
    return _BOUND * torch.tanh(logarithm / _BOUND)


@dataclass(frozen=True)
class Batch:
    """Networks batched as one disconnected graph.

    Parameters
    ----------
    distinct : Tensor of shape (n_distinct, N_FEATURES)
        As in `EncodedGraph`, like all but the last three fields.
    rows : Tensor of shape (n_operators,)
        Index of the features of every operator, across the batch.
    groups, kinds : Tensor of shape (n_operators,)
        Indices of the groups and kinds.
    terms : Tensor of shape (n_operators, len(TERMS))
        Cost of each term on the nominal machine [s].
    edges, siblings : Tensor of shape (2, n_edges)
        Edges between operators, which are numbered across the batch.
    graph_of : Tensor of shape (n_operators,)
        Index of the network of each operator.
    n_graphs : int
        Number of networks.
    overheads : Tensor of shape (n_graphs, 1)
        Overheads of a run of each network.
    """

    distinct: Tensor
    rows: Tensor
    groups: Tensor
    kinds: Tensor
    terms: Tensor
    edges: Tensor
    siblings: Tensor
    graph_of: Tensor
    n_graphs: int
    overheads: Tensor

    @classmethod
    def of(cls, graphs: Sequence[EncodedGraph]) -> Batch:
        """Batch one or more networks."""
        sizes = [len(graph) for graph in graphs]
        starts, first_rows = starts_of(sizes), starts_of([len(graph.distinct) for graph in graphs])
        return cls(
            _joined([graph.distinct for graph in graphs]),
            _joined([graph.rows + first for graph, first in zip(graphs, first_rows, strict=True)]),
            _joined([graph.groups for graph in graphs]),
            _joined([graph.kinds for graph in graphs]),
            _joined([graph.terms for graph in graphs]),
            _joined([graph.edges + start for graph, start in zip(graphs, starts, strict=True)], axis=1),
            _joined([graph.siblings + start for graph, start in zip(graphs, starts, strict=True)], axis=1),
            torch.from_numpy(np.repeat(np.arange(len(graphs)), sizes)),
            len(graphs),
            torch.tensor([[graph.overheads] for graph in graphs]),
        )


def starts_of(sizes: Sequence[int]) -> NDArray[np.int64]:
    """Return the offset of each part in the concatenation of all."""
    return np.cumsum([0, *sizes[:-1]])


def _joined(arrays: Sequence[NDArray[Any]], axis: int = 0) -> Tensor:
    """Concatenate arrays to a tensor."""
    return torch.from_numpy(np.concatenate(arrays, axis=axis))


def add_up(values: Tensor, index: Tensor, count: int) -> Tensor:
    """Sum the rows of a tensor by index, (count, ...)."""
    return values.new_zeros(count, *values.shape[1:]).index_add(0, index, values)


class NeighbourMean(nn.Module):
    """A linear layer over the mean of neighbours: GraphSAGE [1]_ without the node itself.

    For an operator without neighbours, the output is the bias.

    Parameters
    ----------
    width : int
        Width of input and output.

    References
    ----------
    .. [1] W. L. Hamilton, R. Ying, J. Leskovec, "Inductive Representation Learning on Large Graphs", NeurIPS 2017.
       https://arxiv.org/abs/1706.02216
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        # The name in PyTorch Geometric's SAGEConv, which files of predictors contain.
        self.lin_l = nn.Linear(width, width)

    def forward(self, values: Tensor, edges: Tensor) -> Tensor:
        """Return the aggregated messages, (n_operators, width); edges go from source to target."""
        source, target = edges
        counts = torch.bincount(target, minlength=len(values)).clamp(min=1)
        found: Tensor = self.lin_l(add_up(values.index_select(0, source), target, len(values)) / counts[:, None])
        return found


def predict(network: GraphNetwork, graphs: Sequence[EncodedGraph]) -> Array:
    """Return the predicted times of networks [s], (n_graphs, n_platforms)."""
    found: Array = predict_members([network], graphs)[0]
    return found


def predict_members(members: Sequence[GraphNetwork], graphs: Sequence[EncodedGraph]) -> Array:
    """Return the predicted times of networks by graph network [s], (n_members, n_graphs, n_platforms)."""
    if not graphs:
        return np.zeros((len(members), 0, len(members[0].runs)))
    return _by_member(members, graphs, lambda member, batch: member.networks(member(batch), batch))


def predict_operators(members: Sequence[GraphNetwork], graph: EncodedGraph) -> tuple[Array, Array]:
    """Return the latencies of a network by platform, and the costs of its operators, over all graph networks [s].

    Returns
    -------
    latencies : ndarray of shape (n_platforms,)
        Geometric means over the graph networks.
    costs : ndarray of shape (n_operators, n_platforms)
        With the overhead of a run they sum to the latencies.
    """
    costs = _by_member(members, [graph], lambda member, batch: member(batch))
    runs = graph.overheads * np.stack([member.runs.detach().exp().double().numpy() for member in members])
    # The predictor reports an infinite cost in words.
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        wholes = costs.sum(axis=1) + runs
        latencies = np.exp(np.log(wholes).mean(axis=0))
        return latencies, latencies / wholes.mean(axis=0) * costs.mean(axis=0)


def predict_terms(members: Sequence[GraphNetwork], graphs: Sequence[EncodedGraph]) -> Array:
    """Return the times of networks by term [s], (n_graphs, n_platforms, n_terms), averaged over the graph networks.

    The overhead of a run is included in the term of calls.
    """
    return np.asarray(_by_member(members, graphs, _terms).mean(axis=0))


def _terms(member: GraphNetwork, batch: Batch) -> Tensor:
    rates = member.rates.exp().transpose(0, 1)[batch.groups] * batch.terms[:, None]
    whole = add_up(rates * member.corrections(member.states(batch))[:, :, None], batch.graph_of, batch.n_graphs)
    whole[:, :, TERMS.index("calls")] += batch.overheads * member.runs.exp()
    return whole


def _by_member(
    members: Sequence[GraphNetwork], graphs: Sequence[EncodedGraph], evaluate: Callable[[GraphNetwork, Batch], Tensor]
) -> Array:
    """Evaluate every graph network on all networks; return the results, (n_members, ...).

    Batches are shared, because building one takes as long as evaluating a graph network.
    """
    found = []
    with torch.inference_mode():
        for first in range(0, len(graphs), _AT_ONCE):
            batch = Batch.of(graphs[first : first + _AT_ONCE])
            found.append(np.stack([evaluate(member.eval(), batch).double().numpy() for member in members]))
    return np.concatenate(found, axis=1)


@dataclass(frozen=True)
class OperatorCost:
    """Predicted cost of one operator of a network.

    Parameters
    ----------
    name : str
        Name of the operator in the network.
    op_key : str
        Key of the operator.
    seconds : float
        Predicted cost [s].
    share : float
        Predicted share of a run.
    is_known : bool
        Whether the kind of the operator was in the training data.
    """

    name: str
    op_key: str
    seconds: float
    share: float
    is_known: bool
