"""The graph network: a cost for every operator on every platform, non-negative and never far from what it moves."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from nni_latency.graphs._encoding import GROUPS, KINDS, N_FEATURES, TERMS
from nni_latency.graphs._message_passing import Batch, NeighbourMean, add_up

#: Bound of the learned correction, as the logarithm of a factor: an operator that is fused costs next to nothing.
_BOUND = 3.0

#: Kinds that are hidden from a network while it learns, as a share: it has to do with those that it will never see.
_HIDDEN_KINDS = 0.1


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
