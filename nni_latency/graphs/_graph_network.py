"""The graph network: networks in batches, a cost for every operator on every platform, and predictions from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from nni_latency.graphs._encoding import GROUPS, KINDS, N_FEATURES, TERMS, EncodedGraph

#: Bound of the learned correction, as the logarithm of a factor: an operator that is fused costs next to nothing.
_BOUND = 3.0

#: Kinds that are hidden from a network while it learns, as a share: it has to do with those that it will never see.
_HIDDEN_KINDS = 0.1

Array = NDArray[np.float64]

#: Networks that are computed at once.
_AT_ONCE = 64


class GraphNetwork(nn.Module):
    """Costs of operators, by platform.

    An operator costs what it computes and moves in the way of its group (`rates`), times a correction that message
    passing learns: from what it reads, what reads it, and what reads the same. The correction is bounded.

    Parameters
    ----------
    n_platforms : int
        How many.
    hidden : int
        Width.
    n_layers : int
        Rounds of message passing.
    dropout : float
        Share of the numbers that are left out while it learns.
    """

    centre: Tensor
    spread: Tensor

    def __init__(self, n_platforms: int, hidden: int, n_layers: int, dropout: float) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(N_FEATURES))
        self.register_buffer("spread", torch.ones(N_FEATURES))
        self.features = nn.Linear(N_FEATURES, hidden)
        self.groups = nn.Embedding(len(GROUPS), hidden)
        self.kinds = nn.Embedding(len(KINDS) + 1, hidden, padding_idx=0)
        nn.init.normal_(self.groups.weight, std=0.3)
        nn.init.normal_(self.kinds.weight, std=0.1)
        with torch.no_grad():
            self.kinds.weight[0] = 0
        self.rounds = nn.ModuleList(_Round(hidden) for _ in range(n_layers))
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, hidden), nn.GELU())
        #: Corrections of the platforms.
        self.heads = nn.Linear(hidden, n_platforms)
        nn.init.normal_(self.heads.weight, std=0.01)
        nn.init.zeros_(self.heads.bias)
        #: Logarithms of what a unit of each term takes, by platform and group.
        self.rates = nn.Parameter(torch.zeros(n_platforms, len(GROUPS), len(TERMS)))
        #: Logarithm of what a run takes besides [log s].
        self.runs = nn.Parameter(torch.full((n_platforms,), float(np.log(1e-5))))

    def forward(self, batch: Batch) -> Tensor:
        """Return the cost of every operator on every platform [s], (n_operators, n_platforms)."""
        return self.priors(batch) * self.corrections(self.states(batch))

    def networks(self, costs: Tensor, batch: Batch) -> Tensor:
        """Add up operators, and what a run takes besides [s], (n_graphs, n_platforms)."""
        return add_up(costs, batch.graph_of, batch.n_graphs) + self.runs.exp()

    def priors(self, batch: Batch) -> Tensor:
        """Return what operators take without any correction [s], (n_operators, n_platforms)."""
        rates = self.rates.exp()[:, batch.groups]
        return torch.einsum("pnt,nt->np", rates, batch.terms)

    def corrections(self, states: Tensor) -> Tensor:
        """Return the factors of operators, (n_operators, n_platforms)."""
        return self.logarithms(states).exp()

    def logarithms(self, states: Tensor) -> Tensor:
        """Return the logarithms of the factors of operators, (n_operators, n_platforms)."""
        return bounded(self.heads(states))

    def states(self, batch: Batch) -> Tensor:
        """Return what is known of operators once they have heard of their neighbours, (n_operators, hidden)."""
        features = ((batch.features - self.centre) / self.spread).clamp(-4, 4)
        kinds = batch.kinds
        if self.training:
            kinds = kinds * (torch.rand(kinds.shape) > _HIDDEN_KINDS)
        state = functional.gelu(self.features(features) + self.groups(batch.groups) + self.kinds(kinds))
        for layer in self.rounds:
            state = layer(self.dropout(state), batch.edges, batch.siblings)
        found: Tensor = self.last(state)
        return found


class _Round(nn.Module):
    """One round of message passing: from what is read, from what reads, and among those that read the same."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.down, self.up, self.beside = (NeighbourMean(hidden) for _ in range(3))
        self.own = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, state: Tensor, edges: Tensor, siblings: Tensor) -> Tensor:
        normed = self.norm(state)
        heard = self.own(normed) + self.down(normed, edges) + self.up(normed, edges.flip(0))
        heard = heard + self.beside(normed, siblings)
        found: Tensor = state + self.out(functional.gelu(heard))
        return found


def bounded(logarithm: Tensor) -> Tensor:
    """Keep the logarithm of a factor within bounds, smoothly."""
    return _BOUND * torch.tanh(logarithm / _BOUND)


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


def predict(network: GraphNetwork, graphs: Sequence[EncodedGraph]) -> Array:
    """Return the times of networks [s], (n_graphs, n_platforms)."""
    found: Array = predict_members([network], graphs)[0]
    return found


def predict_members(members: Sequence[GraphNetwork], graphs: Sequence[EncodedGraph]) -> Array:
    """Return the times of networks by each of several graph networks [s], (n_members, n_graphs, n_platforms)."""
    if not graphs:
        return np.zeros((len(members), 0, len(members[0].runs)))
    return _by_member(members, graphs, lambda member, batch: member.networks(member(batch), batch))


def predict_operators(members: Sequence[GraphNetwork], graph: EncodedGraph) -> tuple[Array, Array]:
    """Return what operators cost, (n_operators, n_platforms), and what a run takes besides, (n_platforms,) [s].

    Both are means of the graph networks.
    """
    costs = _by_member(members, [graph], lambda member, batch: member(batch))
    runs = np.stack([member.runs.detach().exp().double().numpy() for member in members])
    return costs.mean(axis=0), runs.mean(axis=0)


def predict_terms(members: Sequence[GraphNetwork], graphs: Sequence[EncodedGraph]) -> Array:
    """Return what each term takes of networks [s], (n_graphs, n_platforms, n_terms); what a run adds is a call.

    The mean of the graph networks.
    """
    return np.asarray(_by_member(members, graphs, _terms).mean(axis=0))


def _terms(member: GraphNetwork, batch: Batch) -> Tensor:
    rates = member.rates.exp().transpose(0, 1)[batch.groups] * batch.terms[:, None]
    whole = add_up(rates * member.corrections(member.states(batch))[:, :, None], batch.graph_of, batch.n_graphs)
    whole[:, :, TERMS.index("calls")] += member.runs.exp()
    return whole


def _by_member(
    members: Sequence[GraphNetwork], graphs: Sequence[EncodedGraph], ask: Callable[[GraphNetwork, Batch], Tensor]
) -> Array:
    """Ask every graph network about all networks; return their answers, (n_members, ...).

    One batch serves all of them: to put it together takes as long as a graph network does.
    """
    found = []
    with torch.inference_mode():
        for first in range(0, len(graphs), _AT_ONCE):
            batch = Batch.of(graphs[first : first + _AT_ONCE])
            found.append(np.stack([ask(member.eval(), batch).double().numpy() for member in members]))
    return np.concatenate(found, axis=1)


@dataclass(frozen=True)
class OperatorCost:
    """What one operator of a network is predicted to cost.

    Parameters
    ----------
    name : str
        Where it is called.
    op_key : str
        What it computes.
    seconds : float
        Its part of a run [s].
    share : float
        Its part of a run, as a ratio.
    is_known : bool
        Whether operators of its kind were among those that were learned from.
    """

    name: str
    op_key: str
    seconds: float
    share: float
    is_known: bool
