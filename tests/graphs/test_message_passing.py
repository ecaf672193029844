# SPDX-License-Identifier: Apache-2.0
"""Message passing in torch: batches of networks, and means over neighbours."""

from __future__ import annotations

import numpy as np
import torch
from measured_graphs import network

from nni_latency.graphs._encoding import encode_graph
from nni_latency.graphs._graph_network import Batch, GraphNetwork, NeighbourMean


def test_mean_over_neighbours_goes_through_the_linear_layer() -> None:
    layer, values = NeighbourMean(3), torch.randn(4, 3)
    edges = torch.tensor([[0, 1, 3], [2, 2, 0]])
    means = torch.stack([values[3], torch.zeros(3), (values[0] + values[1]) / 2, torch.zeros(3)])
    torch.testing.assert_close(layer(values, edges), means @ layer.lin_l.weight.T + layer.lin_l.bias)


def test_neighbours_receive_gradients_of_their_means() -> None:
    layer, values = NeighbourMean(2), torch.randn(3, 2, requires_grad=True)
    layer(values, torch.tensor([[0, 1], [2, 2]])).sum().backward()
    half = layer.lin_l.weight.sum(0) / 2
    torch.testing.assert_close(values.grad, torch.stack([half, half, torch.zeros(2)]))


def test_networks_of_a_batch_do_not_mix() -> None:
    graphs = [encode_graph(network([8, 8, 8], shortcut=True)), encode_graph(network([16, 4]))]
    graph_network = GraphNetwork(2, 8, 2, 0.0).eval()
    together = graph_network(Batch.of(graphs)).detach().numpy()
    apart = np.concatenate([graph_network(Batch.of([graph])).detach().numpy() for graph in graphs])
    np.testing.assert_allclose(together, apart, rtol=1e-5)
