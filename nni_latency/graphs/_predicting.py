"""What graph networks say of networks: whole times, operators, and what each term takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nni_latency.graphs._encoding import TERMS, EncodedGraph
from nni_latency.graphs._graph_network import GraphNetwork
from nni_latency.graphs._message_passing import Batch, add_up

Array = NDArray[np.float64]

#: Networks that are computed at once.
_AT_ONCE = 64


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
