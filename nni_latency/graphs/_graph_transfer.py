# SPDX-License-Identifier: Apache-2.0
"""Adding a platform to a graph predictor from a few networks: heads, errors and intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nni_latency.errors import InvalidValueError, listed
from nni_latency.graphs._encoding import GROUPS, TERMS
from nni_latency.graphs._examples import Examples, Measurements
from nni_latency.graphs._graph_document import LearnedGraphs
from nni_latency.graphs._graph_learning import Targets, kernels_off, networks_off
from nni_latency.graphs._graph_network import Batch, GraphNetwork, add_up, bounded, predict, predict_operators
from nni_latency.graphs._intervals import Ranges, doubts_of, spreads_with, widths_of
from nni_latency.graphs._rates import LEAST_ADDED, fit_rates, group_totals
from nni_latency.regression import Rows, draw_folds, held_out

#: Strengths of the regularisation of a new platform to its start; one is chosen by cross-validation.
STRENGTHS = (0.1, 1.0, 10.0)

#: Training steps, and the initial learning rate.
_STEPS, _RATE = 150, 0.04

#: Variance of a measurement, relative to the variance of a typical network.
_NOISE = 0.1

Array = NDArray[np.float64]

#: Folds of the cross-validation.
_FOLDS = 5

#: Fewest networks to add a platform from.
_FEWEST = 5

#: Error of held-out networks by rates alone from which a platform starts from them, relative to the deviation of the
#: nearest platform from proportional times. Learning from a related platform halves that deviation.
_UNRELATED = 0.5


def add_platform(
    known: LearnedGraphs, data: Measurements, confidence: float, seed: int, watch: Callable[[int, int], None] | None
) -> LearnedGraphs:
    """Add a platform to a predictor, or retrain one of its platforms; see `GraphPredictor.adapt`.

    Raises
    ------
    InvalidValueError
        If there are fewer than 5 networks, or they were measured on several platforms.
    """
    if len(data.platforms) > 1:
        names = listed(platform.id for platform in data.platforms)
        raise InvalidValueError(f"One platform is added at a time. Got networks measured on {names}.")
    if len(data.examples.graphs) < _FEWEST:
        raise InvalidValueError(
            f"A platform is learned from at least {_FEWEST} networks. Got {len(data.examples.graphs)}."
        )
    platform, latencies = data.platforms[0], data.examples.latencies[:, 0]
    ids = [item.id for item in known.platforms]
    place = ids.index(platform.id) if platform.id in ids else len(ids)
    number = place if place < len(ids) else None
    folds = draw_folds(range(len(latencies)), _FOLDS, seed)
    is_related = _is_related(known.members[0], data.examples, number, folds)
    starts_near = is_related or number is not None
    members, errors = _learned(known, data.examples, number, folds, starts_near, watch)
    ranges = Ranges.of(data.examples.graphs, data.examples.latencies)
    if is_related:
        ranges = ranges.widened(known.ranges)
    factors = np.array(
        [
            widths_of(
                doubts_of(predict_operators(members, graph)[1][:, [place]], ranges.distances(graph)),
                known.doubt_weights,
            )
            for graph in data.examples.graphs
        ]
    )
    spread = spreads_with(errors[:, None], factors, data.family_of, confidence)[0] * (1 + 1 / math.sqrt(len(latencies)))
    return LearnedGraphs(
        platforms=_put(known.platforms, place, platform),
        members=members,
        spreads=np.array(_put(tuple(known.spreads), place, spread)),
        doubt_weights=known.doubt_weights,
        ranges=known.ranges.joined(ranges, place),
        widths=_with_rows(known.widths, place, factors[:, 0] * spread),
        held_out=_with_rows(known.held_out, place, errors),
        latencies=_with_rows(known.latencies, place, latencies),
        unmeasured_spread=known.unmeasured_spread,
        counts=np.array(_put(tuple(known.counts), place, len(latencies))),
        families=tuple(sorted({*known.families, *data.families})),
        kinds=tuple(sorted({*known.kinds, *data.kinds})),
        held_out_families=(*known.held_out_families, *data.family_of),
    )


def _learned(
    known: LearnedGraphs,
    examples: Examples,
    number: int | None,
    folds: Sequence[Rows],
    starts_near: bool,
    watch: Callable[[int, int], None] | None,
) -> tuple[list[GraphNetwork], Array]:
    """Return the graph networks with a head for the platform, and the logarithmic errors of held-out networks.

    The held-out errors select the strength of the regularisation of heads.
    """
    by_strength = held_out_errors(known.members[0], examples, starts_near, folds)
    strength = min(by_strength, key=lambda item: float(np.abs(by_strength[item]).mean()))
    members = []
    for done, member in enumerate(known.members, 1):
        head = learn_head(KnownNetworks(member, examples), starting_head(member, examples, starts_near), strength)
        members.append(with_head(member, head, number))
        if watch is not None:
            watch(done, len(known.members))
    return members, by_strength[strength]


def _put(items: tuple[Any, ...], place: int, item: Any) -> tuple[Any, ...]:
    """Return a copy of `items` with `item` at an index, or appended."""
    return (*items[:place], item, *items[place + 1 :])


def _with_rows(known: Array, place: int, column: Array) -> Array:
    """Append rows for networks measured on one platform only, and clear the previous values of that platform."""
    rows, columns = known.shape
    found = np.full((rows + len(column), max(columns, place + 1)), np.nan)
    found[:rows, :columns] = known
    found[:rows, place] = np.nan
    found[rows:, place] = column
    return found


@dataclass(frozen=True)
class Head:
    """Parameters of a graph network for one platform.

    Parameters
    ----------
    rates : Tensor of shape (n_groups, n_terms)
        Logarithms of the cost of a unit of each term.
    weights : Tensor of shape (hidden,)
        Weights of the corrections.
    bias, run : Tensor
        Bias of the corrections; and the logarithm of the overhead of a run.
    """

    rates: Tensor
    weights: Tensor
    bias: Tensor
    run: Tensor

    @classmethod
    def of(cls, network: GraphNetwork, number: int) -> Head:
        """Return the head of a platform of a graph network."""
        values = (network.rates[number], network.heads.weight[number], network.heads.bias[number], network.runs[number])
        return cls(*(value.detach().clone() for value in values))

    @classmethod
    def uncorrected(cls, network: GraphNetwork, rates: Array, run: float) -> Head:
        """Return a head of the given rates and overhead of a run [s], with all corrections 1."""
        logarithms = torch.from_numpy(np.log(rates)).float()
        return cls(logarithms, torch.zeros_like(network.heads.weight[0]), torch.zeros(()), torch.tensor(math.log(run)))

    def slower(self, logarithm: float) -> Head:
        """Return a head with all times scaled, by the logarithm of the factor."""
        return Head(self.rates + logarithm, self.weights, self.bias, self.run + logarithm)


class KnownNetworks:
    """Networks encoded by one graph network, with cached states.

    Parameters
    ----------
    network : GraphNetwork
        The graph network.
    examples : Examples
        The networks, with their measurements on one platform.
    """

    def __init__(self, network: GraphNetwork, examples: Examples) -> None:
        self._batch, self._targets = Batch.of(examples.graphs), Targets.of(examples)
        network.eval()
        with torch.inference_mode():
            states = network.states(self._batch)
        # Inference tensors cannot take part in autograd.
        self._states = states.clone()

    def __len__(self) -> int:
        return self._batch.n_graphs

    def latencies(self, head: Head) -> Tensor:
        """Return the predicted times of the networks on a platform [s]."""
        return self._whole(self._costs(head), head)

    def off(self, head: Head) -> Tensor:
        """Return the loss on networks, and on their kernels where these were timed."""
        costs = self._costs(head)
        errors = networks_off(self._whole(costs, head)[:, None], self._targets.latencies, torch.ones(1))
        return errors + kernels_off(costs[:, None], head.run[None], self._targets)

    def _costs(self, head: Head) -> Tensor:
        priors = (head.rates.exp()[self._batch.groups] * self._batch.terms).sum(1)
        costs: Tensor = priors * bounded(self._states @ head.weights + head.bias).exp()
        return costs

    def _whole(self, costs: Tensor, head: Head) -> Tensor:
        return add_up(costs, self._batch.graph_of, len(self)) + self._batch.overheads[:, 0] * head.run.exp()

    def directions(self, head: Head) -> Array:
        """Return the gradients of the logarithms of times with respect to a head, (n_networks, n_unknowns).

        Unknowns are the logarithmic rates by group and term, the weights of the corrections, and the overhead of a run.
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
            run = self._batch.overheads * head.run.exp() / whole[:, None]
        return torch.cat([groups.reshape(len(self), -1), states, run], 1).double().numpy()


def learn_head(known: KnownNetworks, start: Head, strength: float) -> Head:
    """Fit the head of a platform to times of networks and of their kernels, regularised to its start.

    Parameters
    ----------
    known : KnownNetworks
        Training data.
    start : Head
        Initial head.
    strength : float
        Strength of the regularisation.
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


def _deviations(network: GraphNetwork, examples: Examples) -> tuple[Array, Array]:
    """Return the ratio to the times of every platform, and the mean deviation from it, as logarithms."""
    errors = np.log(examples.latencies) - np.log(predict(network, examples.graphs))
    middle = np.median(errors, axis=0)
    return middle, np.abs(errors - middle).mean(0)


def _is_related(network: GraphNetwork, examples: Examples, number: int | None, folds: Sequence[Rows]) -> bool:
    """Return whether times on another platform are so nearly proportional that it is worth starting from.

    The alternative is rates fitted to the networks alone, scored on held-out ones.
    """

    def fit(known: Rows) -> Callable[[Rows], Array]:
        rates, run = fit_rates(examples.only(known.tolist()), 0, LEAST_ADDED)

        def answer(unknown: Rows) -> Array:
            graphs = [examples.graphs[row] for row in unknown]
            runs = run * np.array([graph.overheads for graph in graphs])
            found: Array = group_totals(graphs) @ rates.ravel() + runs
            return found

        return answer

    others = np.delete(_deviations(network, examples)[1], [] if number is None else [number])
    off = np.log(held_out(len(examples.graphs), folds, fit) / examples.latencies[:, 0])
    return not len(others) or bool(np.abs(off).mean() > _UNRELATED * others.min())


def starting_head(network: GraphNetwork, examples: Examples, starts_near: bool) -> Head:
    """Return the head that learning starts from.

    With `starts_near` it is that of the platform with the most nearly proportional times, scaled to the measured ones,
    with an overhead of a run that is no longer than the shortest network. Otherwise, as for a GPU where only CPUs are
    known, it has rates fitted to the networks, and no corrections.
    """
    if not starts_near:
        return Head.uncorrected(network, *fit_rates(examples, 0, LEAST_ADDED))
    ratios, deviations = _deviations(network, examples)
    best = int(deviations.argmin())
    head = Head.of(network, best).slower(float(ratios[best]))
    return replace(head, run=head.run.clamp(max=math.log(examples.latencies.min())))


def held_out_errors(
    network: GraphNetwork, examples: Examples, starts_near: bool, folds: Sequence[Rows]
) -> dict[float, Array]:
    """Predict held-out networks by heads with each strength of the regularisation.

    Parameters
    ----------
    network, examples, starts_near
        As for `starting_head`.
    folds : sequence of ndarray of int
        Networks that are held out together.

    Returns
    -------
    dict of float to ndarray of shape (n_networks,)
        Logarithms of predicted over measured times, by strength.
    """
    errors = {strength: np.zeros(len(examples.graphs)) for strength in STRENGTHS}
    start = starting_head(network, examples, starts_near)
    for fold in folds:
        held = fold.tolist()
        rest, unknown = examples.without(held), examples.only(held)
        if not starts_near:  # Unlike a ratio, rates fitted to all networks know the held-out ones.
            start = starting_head(network, rest, starts_near)
        known, others = KnownNetworks(network, rest), KnownNetworks(network, unknown)
        for strength, found in errors.items():
            head = learn_head(known, start, strength)
            with torch.no_grad():
                predicted = others.latencies(head).double().numpy()
            found[fold] = np.log(predicted / unknown.latencies[:, 0])
    return errors


def with_head(network: GraphNetwork, head: Head, number: int | None = None) -> GraphNetwork:
    """Return a graph network with a head appended, or with one of its heads replaced."""
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
    """Choose the jointly most informative networks: those that lower the mean variance of predictions the most.

    Outliers are informative mostly about themselves; a D-optimal design, which maximises the determinant, would choose
    them first.

    Parameters
    ----------
    directions : ndarray of shape (n_networks, n_unknowns)
        Gradients of each network's logarithmic time.
    count : int
        Number of networks to choose.

    Returns
    -------
    list of int
        Their indices, in order of decreasing gain.

    References
    ----------
    .. [1] V. V. Fedorov, "Theory of Optimal Experiments", 1972: designs with the least mean variance over a region
       (I-optimal), which are constructed greedily here.
    """
    scaled = directions / np.maximum(directions.std(0), 1e-6 + 0.01 * directions.std())
    scaled = scaled / np.sqrt((scaled**2).sum(1).mean())
    # Posterior covariance of the predictions, given the chosen networks.
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
