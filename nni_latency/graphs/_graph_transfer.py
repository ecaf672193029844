"""How a graph network learns a platform from a few networks: what it knows of operators stays, the platform is new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nni_latency.graphs._encoding import GROUPS, TERMS
from nni_latency.graphs._examples import Examples
from nni_latency.graphs._graph_learning import Targets, kernels_off, networks_off
from nni_latency.graphs._graph_network import GraphNetwork, bounded
from nni_latency.graphs._message_passing import Batch, add_up
from nni_latency.graphs._predicting import predict

Array = NDArray[np.float64]

#: How strongly a new platform is held to the one that it starts from; one is chosen by cross-validation.
STRENGTHS = (0.1, 1.0, 10.0)

#: Steps of learning, and their size.
_STEPS, _RATE = 150, 0.04

#: Variance of a measurement, where what a typical network tells is 1.
_NOISE = 0.1


@dataclass(frozen=True)
class Head:
    """What a graph network knows of one platform.

    Parameters
    ----------
    rates : Tensor of shape (n_groups, n_terms)
        Logarithms of what a unit of each term takes.
    weights : Tensor of shape (hidden,)
        Of the corrections.
    bias, run : Tensor
        Of the corrections; and the logarithm of what a run takes besides.
    """

    rates: Tensor
    weights: Tensor
    bias: Tensor
    run: Tensor

    @classmethod
    def of(cls, network: GraphNetwork, number: int) -> Head:
        """Return the head of a platform."""
        values = (network.rates[number], network.heads.weight[number], network.heads.bias[number], network.runs[number])
        return cls(*(value.detach().clone() for value in values))

    def slower(self, logarithm: float) -> Head:
        """Return the head of a platform that takes longer for everything."""
        return Head(self.rates + logarithm, self.weights, self.bias, self.run + logarithm)


class KnownNetworks:
    """Networks as one graph network sees them, worked out once.

    Parameters
    ----------
    network : GraphNetwork
        Which.
    examples : Examples
        The networks, and what was measured of them on one platform.
    """

    def __init__(self, network: GraphNetwork, examples: Examples) -> None:
        self._batch, self._targets = Batch.of(examples.graphs), Targets.of(examples)
        network.eval()
        with torch.inference_mode():
            states = network.states(self._batch)
        # Tensors of inference cannot be part of what is learned.
        self._states = states.clone()

    def __len__(self) -> int:
        return self._batch.n_graphs

    def latencies(self, head: Head) -> Tensor:
        """Return the times of the networks on a platform [s]."""
        return self._whole(self._costs(head), head)

    def off(self, head: Head) -> Tensor:
        """Return how far networks, and their kernels where these were timed, are from what was measured."""
        costs = self._costs(head)
        errors = networks_off(self._whole(costs, head)[:, None], self._targets.latencies, torch.ones(1))
        return errors + kernels_off(costs[:, None], head.run[None], self._targets)

    def _costs(self, head: Head) -> Tensor:
        priors = (head.rates.exp()[self._batch.groups] * self._batch.terms).sum(1)
        costs: Tensor = priors * bounded(self._states @ head.weights + head.bias).exp()
        return costs

    def _whole(self, costs: Tensor, head: Head) -> Tensor:
        return add_up(costs, self._batch.graph_of, len(self)) + head.run.exp()

    def directions(self, head: Head) -> Array:
        """Return how the logarithm of every time changes with what is learned of a platform, (n_networks, n_unknowns).

        The cost of a group by each of its terms, what the corrections see on average, weighed by cost, and the run.
        """
        batch = self._batch
        with torch.no_grad():
            terms = head.rates.exp()[batch.groups] * batch.terms
            factors = bounded(self._states @ head.weights + head.bias).exp()
            whole = self.latencies(head)
            shares = terms * (factors / whole[batch.graph_of])[:, None]
            place = batch.graph_of * len(GROUPS) + batch.groups
            groups = add_up(shares, place, len(self) * len(GROUPS))
            states = add_up(self._states * shares.sum(1, keepdim=True), batch.graph_of, len(self))
            run = (head.run.exp() / whole)[:, None]
        return torch.cat([groups.reshape(len(self), -1), states, run], 1).double().numpy()


def learn_head(known: KnownNetworks, start: Head, strength: float) -> Head:
    """Fit the head of a platform to times of networks and of their kernels, held to what it starts from.

    Parameters
    ----------
    known : KnownNetworks
        The networks.
    start : Head
        What it starts from.
    strength : float
        How strongly it is held to that.
    """
    change = [torch.zeros_like(value).requires_grad_(True) for value in vars(start).values()]
    shared = torch.zeros(len(TERMS), requires_grad=True)
    optimiser = torch.optim.Adam([*change, shared], lr=_RATE)
    for step in range(_STEPS):
        for group in optimiser.param_groups:
            group["lr"] = _RATE * (1 - step / _STEPS)
        optimiser.zero_grad()
        head = _changed(start, change, shared)
        held = sum((value**2).sum() for value in change) + 0.1 * (shared**2).sum()
        (known.off(head) + strength * held / len(known)).backward()
        optimiser.step()
    return _changed(start, [value.detach() for value in change], shared.detach())


def _changed(start: Head, change: Sequence[Tensor], shared: Tensor) -> Head:
    values = [value + by for value, by in zip(vars(start).values(), change, strict=True)]
    return Head(values[0] + shared, *values[1:])


def nearest_head(network: GraphNetwork, examples: Examples) -> Head:
    """Return the head of the platform whose times are the most nearly proportional to those measured, scaled."""
    errors = np.log(examples.latencies) - np.log(predict(network, examples.graphs))
    middle = np.median(errors, axis=0)
    best = int(np.abs(errors - middle).mean(0).argmin())
    return Head.of(network, best).slower(float(middle[best]))


def held_out_errors(
    network: GraphNetwork, examples: Examples, start: Head, folds: Sequence[Sequence[int]]
) -> dict[float, Array]:
    """Predict networks that were held out, by heads that are held to what they start from.

    Returns
    -------
    dict of float to ndarray of shape (n_networks,)
        By how strongly they are held, logarithms of predicted over measured times.
    """
    errors = {strength: np.zeros(len(examples.graphs)) for strength in STRENGTHS}
    for held in folds:
        known, unknown = KnownNetworks(network, examples.without(held)), examples.only(held)
        others = KnownNetworks(network, unknown)
        for strength, found in errors.items():
            head = learn_head(known, start, strength)
            with torch.no_grad():
                predicted = others.latencies(head).double().numpy()
            found[held] = np.log(predicted / unknown.latencies[:, 0])
    return errors


def with_head(network: GraphNetwork, head: Head, number: int | None = None) -> GraphNetwork:
    """Return a graph network that knows one platform more, or another head of one that it knows."""
    names = ("rates", "heads.weight", "heads.bias", "runs")
    state = {name: value.clone() for name, value in network.state_dict().items()}
    for name, value in zip(names, vars(head).values(), strict=True):
        if number is None:
            state[name] = torch.cat([state[name], value[None]])
        else:
            state[name][number] = value
    hidden, rounds = network.features.out_features, len(network.rounds)
    found = GraphNetwork(len(state["runs"]), hidden, rounds, network.dropout.p)
    found.load_state_dict(state)
    return found.eval()


def most_telling(directions: Array, count: int) -> list[int]:
    """Choose networks that together say the most about all: those that lower the mean variance of predictions the most.

    Networks that are unlike all others say much of themselves, and little of others; a design that is optimal in the
    determinant would take those first.

    Parameters
    ----------
    directions : ndarray of shape (n_networks, n_unknowns)
        What each depends on.
    count : int
        How many are chosen.

    Returns
    -------
    list of int
        Their numbers, in the order of what they add.

    References
    ----------
    .. [1] V. V. Fedorov, "Theory of Optimal Experiments", 1972: designs that are optimal in the mean variance over a
       region (I-optimal), which are found here greedily.
    """
    scaled = directions / np.maximum(directions.std(0), 1e-6 + 0.01 * directions.std())
    scaled = scaled / np.sqrt((scaled**2).sum(1).mean())
    # Of predictions, as far as those that were chosen leave it open.
    covariance = scaled @ scaled.T
    chosen: list[int] = []
    for _ in range(min(count, len(scaled))):
        unsure = covariance.diagonal() + _NOISE
        gains = (covariance**2).sum(axis=0) / unsure
        gains[chosen] = -np.inf
        best = int(gains.argmax())
        chosen.append(best)
        covariance = covariance - np.outer(covariance[best], covariance[best] / unsure[best])
    return chosen
