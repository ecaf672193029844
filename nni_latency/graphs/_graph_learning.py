# SPDX-License-Identifier: Apache-2.0
"""Training of graph networks on relative errors, and their cross-validation over families."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import torch
from joblib import delayed, effective_n_jobs
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from nni_latency.graphs._encoding import EncodedGraph
from nni_latency.graphs._examples import Examples, Measurements, Part
from nni_latency.graphs._graph_network import N_INTERVALS, Batch, GraphNetwork, add_up, predict, starts_of
from nni_latency.graphs._intervals import Ranges
from nni_latency.graphs._rates import fit_rates
from nni_latency.graphs._side_by_side import side_by_side
from nni_latency.platforms import torch_threads

#: Epochs in which the learning rate rises. It falls with half a cosine, so that more epochs do not make errors larger.
_WARM_UP = 5

#: Decay of the moving average of the weights, per step.
_AVERAGED = 0.99

#: Relative error above which the loss is linear instead of quadratic (Huber).
_HUBER = 0.05

#: Weight of the loss on kernel times, relative to that on network latencies.
_PARTS = 3.0

#: Fields of `Targets` with one value per kernel.
_OF_KERNELS = ("platforms", "seconds", "shares", "overheads")

#: Called after every epoch; may raise.
Watch = Callable[[], None]

Array = NDArray[np.float64]

#: Seed offset of the graph networks of cross-validation.
_FIRST_HELD_OUT = 100


@dataclass(frozen=True)
class _Lesson:
    """Training task of one graph network."""

    examples: Examples
    settings: Settings
    others: Sequence[EncodedGraph] = ()


@dataclass(frozen=True)
class HeldOut:
    """Predictions of networks by models that were trained without their families.

    Parameters
    ----------
    errors : ndarray of shape (n_networks, n_platforms)
        Logarithms of predicted over measured times; NaN where not measured.
    distances : dict of int to ndarray of shape (n_operators, n_platforms)
        How far the operators of a network are outside of the sizes that were learned from, by its index.
    """

    errors: Array
    distances: Mapping[int, Array]


@dataclass(frozen=True)
class Fitting:
    """Training of graph networks, in one process or several.

    Parameters
    ----------
    settings : Settings
        Settings of every graph network; the seed is that of the first.
    n_jobs : int, optional
        Parallel processes, as in joblib; the result does not depend on it.
    on_epochs : callable
        Called with the number of epochs just finished.
    """

    settings: Settings
    n_jobs: int | None
    on_epochs: Callable[..., None]

    def hold_out(self, data: Measurements, n_folds: int, count: int, seed: int) -> HeldOut:
        """Predict every network by the mean of `count` graph networks that were trained without its family."""
        latencies, folds = data.examples.latencies, data.folds(n_folds, seed)
        lessons: list[_Lesson] = []
        for held in folds:
            graphs, rest = data.examples.only(held).graphs, data.examples.without(held)
            numbers = range(_FIRST_HELD_OUT + len(lessons), _FIRST_HELD_OUT + len(lessons) + count)
            lessons += [_Lesson(rest, self._settings(number), graphs) for number in numbers]
        logarithms, learned = np.zeros(latencies.shape), self._learned(lessons)
        for held in folds:
            logarithms[held] = sum(np.log(item.predictions) for item in islice(learned, count)) / count
        distances: dict[int, Array] = {}
        for held, lesson in zip(folds, lessons[::count], strict=True):
            ranges = Ranges.of(lesson.examples.graphs, lesson.examples.latencies)
            distances |= {row: ranges.distances(graph) for row, graph in zip(held, lesson.others, strict=True)}
        return HeldOut(logarithms - np.log(latencies), distances)

    def members(self, examples: Examples, count: int) -> list[GraphNetwork]:
        """Train several graph networks on all networks, with different seeds."""
        several = [_Lesson(examples, self._settings(member)) for member in range(count)]
        return [item.network for item in self._learned(several)]

    def _settings(self, number: int) -> Settings:
        return replace(self.settings, seed=self.settings.seed + number)

    def _learned(self, lessons: Sequence[_Lesson]) -> Iterator[Learned]:
        """Train the graph networks one after another, or in parallel; those of the same examples share a prior."""
        examples = {id(lesson.examples): lesson.examples for lesson in lessons}
        if effective_n_jobs(self.n_jobs) == 1:
            prior = cache(lambda number: prior_of(examples[number]))
            for lesson in lessons:
                rest = lesson.examples
                yield learn(rest, lesson.settings, lesson.others, self.on_epochs, prior(id(rest)))
            return
        priors = dict(zip(examples, side_by_side(map(delayed(prior_of), examples.values()), self.n_jobs), strict=True))
        calls = (
            delayed(learn)(lesson.examples, lesson.settings, lesson.others, prior=priors[id(lesson.examples)])
            for lesson in lessons
        )
        for learned in side_by_side(calls, self.n_jobs):
            self.on_epochs(lessons[0].settings.epochs)
            yield learned


@dataclass(frozen=True)
class Settings:
    """Training settings of a graph network.

    Parameters
    ----------
    hidden, n_layers, dropout
        As for `GraphNetwork`.
    epochs : int
        Number of epochs.
    batch_size : int
        Networks per step.
    learning_rate, weight_decay : float
        Learning rate and weight decay of AdamW.
    restraint : float
        Strength of the penalty that holds corrections to 1, weighted by cost.
    seed : int
        Seed of all randomness.
    """

    hidden: int = 48
    n_layers: int = 1
    dropout: float = 0.1
    epochs: int = 80
    batch_size: int = 16
    learning_rate: float = 2e-3
    weight_decay: float = 1e-2
    restraint: float = 0.1
    seed: int = 0


@dataclass(frozen=True)
class Targets:
    """Measured values of the networks of a batch.

    Parameters
    ----------
    latencies : Tensor of shape (n_graphs, n_platforms)
        Latencies [s]; NaN where not measured.
    operators, part_of : Tensor of shape (n_pairs,)
        Operators of kernels, and the index of the kernel that contains each.
    platforms, seconds, shares, overheads : Tensor of shape (n_kernels,)
        Of kernels: the index of the platform, the time [s], its share of the timed kernels of one network, and the
        overheads of a run that it includes.
    """

    latencies: Tensor
    operators: Tensor
    part_of: Tensor
    platforms: Tensor
    seconds: Tensor
    shares: Tensor
    overheads: Tensor

    @classmethod
    def of(cls, examples: Examples) -> Targets:
        """Return the targets of networks that form one batch."""
        return cls.joined(examples.graphs, list(map(cls.of_network, examples.latencies, examples.parts)))

    @classmethod
    def of_network(cls, latencies: Array, parts: Sequence[Part]) -> Targets:
        """Return the targets of one network."""
        pairs = [(operator, number) for number, part in enumerate(parts) for operator in part.operators]
        operators, part_of = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T
        seconds = torch.tensor([part.seconds for part in parts], dtype=torch.float32)
        return cls(
            torch.tensor(latencies, dtype=torch.float32).reshape(1, -1),
            operators,
            part_of,
            torch.tensor([part.platform for part in parts], dtype=torch.long),
            seconds,
            seconds / seconds.sum().clamp(min=1e-12),
            torch.tensor([part.overheads for part in parts]),
        )

    @classmethod
    def joined(cls, graphs: Sequence[EncodedGraph], items: Sequence[Targets]) -> Targets:
        """Join the targets of the networks of a batch, with operators and kernels renumbered across it."""
        first_operators = starts_of([len(graph) for graph in graphs])
        first_parts = starts_of([len(item.seconds) for item in items])
        return cls(
            torch.cat([item.latencies for item in items]),
            torch.cat([item.operators + first for item, first in zip(items, first_operators, strict=True)]),
            torch.cat([item.part_of + first for item, first in zip(items, first_parts, strict=True)]),
            *(torch.cat([getattr(item, name) for item in items]) for name in _OF_KERNELS),
        )


@dataclass(frozen=True)
class Learned:
    """A trained graph network.

    Parameters
    ----------
    network : GraphNetwork
        The averaged network after the last epoch.
    predictions : ndarray of shape (n_graphs, n_platforms)
        Predicted times of other networks [s].
    """

    network: GraphNetwork
    predictions: Array


def learn(
    examples: Examples,
    settings: Settings,
    others: Sequence[EncodedGraph] = (),
    watch: Watch = lambda: None,
    prior: Mapping[str, Tensor] | None = None,
) -> Learned:
    """Fit a graph network.

    Parameters
    ----------
    examples : Examples
        Training data.
    settings : Settings
        Training settings.
    others : sequence of EncodedGraph
        Networks to predict.
    watch : callable, optional
        Called after every epoch.
    prior : mapping of str to Tensor, optional
        `prior_of` the training data.
    """
    # Batches are small: a second thread gains a tenth on a free core, and slows training several times where it has
    # to wait for one.
    with torch.random.fork_rng(devices=[]), torch_threads(1):
        torch.manual_seed(settings.seed)
        return _Learning(examples, settings, prior or prior_of(examples)).run(others, watch)


class _Learning:
    def __init__(self, examples: Examples, settings: Settings, prior: Mapping[str, Tensor]) -> None:
        self._settings, self._random = settings, np.random.default_rng(settings.seed)
        self._examples = examples
        self._targets = list(map(Targets.of_network, examples.latencies, examples.parts))
        n_platforms = examples.latencies.shape[1]
        self._weights = platform_weights(examples.latencies)
        self.network = GraphNetwork(n_platforms, settings.hidden, settings.n_layers, settings.dropout)
        self.network.load_state_dict(prior, strict=False)
        shortest = np.where(np.isnan(examples.latencies), np.inf, examples.latencies).min(axis=0)
        self._shortest = torch.from_numpy(np.log(shortest)).float()
        self._bound_runs()
        self._average = copy.deepcopy(self.network).requires_grad_(False)
        self._optimiser = _optimiser(self.network, settings)

    def run(self, others: Sequence[EncodedGraph], watch: Watch) -> Learned:
        for epoch in range(self._settings.epochs):
            self._epoch(epoch)
            watch()
        return Learned(self._average.eval(), predict(self._average, others))

    def _epoch(self, epoch: int) -> None:
        falling = (1 + math.cos(math.pi * epoch / self._settings.epochs)) / 2
        for group in self._optimiser.param_groups:
            group["lr"] = self._settings.learning_rate * min(1.0, (epoch + 1) / _WARM_UP) * falling
        self.network.train()
        for batch, targets in self._batches():
            self._optimiser.zero_grad()
            self._loss(batch, targets).backward()
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
            self._optimiser.step()
            with torch.no_grad():
                self._bound_runs()
                for mean, new in zip(self._average.parameters(), self.network.parameters(), strict=True):
                    mean.lerp_(new, 1 - _AVERAGED)

    @torch.no_grad()
    def _bound_runs(self) -> None:
        """Keep the overhead of a run no longer than the shortest network."""
        self.network.runs.copy_(self.network.runs.minimum(self._shortest))

    def _batches(self) -> Iterator[tuple[Batch, Targets]]:
        order = self._random.permutation(len(self._targets))
        size = self._settings.batch_size
        for first in range(0, len(order), size):
            numbers = order[first : first + size]
            graphs = [self._examples.graphs[number] for number in numbers]
            yield Batch.of(graphs), Targets.joined(graphs, [self._targets[number] for number in numbers])

    def _loss(self, batch: Batch, targets: Targets) -> Tensor:
        priors, logarithms = self.network.priors(batch), self.network.logarithms(self.network.states(batch))
        costs = priors * logarithms.exp()
        whole = self.network.networks(costs, batch)
        shares = (priors / add_up(priors, batch.graph_of, batch.n_graphs)[batch.graph_of]).detach()
        restrained = (shares * logarithms**2).sum() / shares.sum()
        loss = networks_off(whole, targets.latencies, self._weights) + self._settings.restraint * restrained / _HUBER
        return loss + kernels_off(costs, self.network.runs, targets)


def networks_off(predicted: Tensor, measured: Tensor, weights: Tensor) -> Tensor:
    """Return the loss on network latencies, over those that were measured.

    Parameters
    ----------
    predicted, measured : Tensor of shape (n_graphs, n_platforms)
        Latencies [s]; NaN where not measured.
    weights : Tensor of shape (n_platforms,)
        Weight of a latency, by platform.
    """
    known = ~torch.isnan(measured)
    errors = functional.huber_loss(predicted[known].log(), measured[known].log(), delta=_HUBER, reduction="none")
    off: Tensor = (errors * weights.expand_as(measured)[known]).mean() / _HUBER
    return off


def kernels_off(costs: Tensor, runs: Tensor, targets: Targets) -> Tensor:
    """Return the loss on kernel times, over those that were measured.

    Parameters
    ----------
    costs : Tensor of shape (n_operators, n_platforms)
        Predicted costs of operators [s].
    runs : Tensor of shape (n_platforms,)
        Logarithms of the overhead of a run [s].
    targets : Targets
        Measured values.
    """
    if not len(targets.seconds):
        return costs.new_zeros(())
    places = targets.operators, targets.platforms[targets.part_of]
    times = add_up(costs[places], targets.part_of, len(targets.seconds))
    times = times + targets.overheads * runs.exp()[targets.platforms]
    errors = functional.huber_loss(times.clamp(min=1e-9).log(), targets.seconds.log(), delta=0.2, reduction="none")
    off: Tensor = _PARTS * (errors * targets.shares).sum() / targets.shares.sum()
    return off


def platform_weights(latencies: Array) -> Tensor:
    """Return the weight of a latency by platform: together, a platform weighs as the root of its number of networks.

    With equal weights of platforms, the few networks of some would decide what all have in common.
    """
    counts = np.maximum((~np.isnan(latencies)).sum(axis=0), 1)
    return torch.tensor(counts.sum() / np.sqrt(counts).sum() / np.sqrt(counts), dtype=torch.float32)


def _ends(values: Array) -> Array:
    """Return the ends of at most `N_INTERVALS` intervals of values: half have as many values, half as many distinct."""
    half = N_INTERVALS // 2
    often = np.quantile(values, np.linspace(0, 1, half + 1))
    distinct = np.quantile(np.unique(values), np.linspace(0, 1, N_INTERVALS - half + 2))
    return np.unique(np.concatenate([often, distinct]).astype(np.float32))


def _optimiser(network: GraphNetwork, settings: Settings) -> torch.optim.AdamW:
    prior = [network.rates, network.runs]
    correction = [value for name, value in network.named_parameters() if name not in ("rates", "runs")]
    groups: list[dict[str, Any]] = [{"params": correction}, {"params": prior, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, weight_decay=settings.weight_decay)


def prior_of(examples: Examples) -> dict[str, Tensor]:
    """Return what a network starts from: the intervals of its features, and the rates and overheads of the prior."""
    features = np.concatenate([graph.features for graph in examples.graphs])
    starts, widths = np.ones((2, features.shape[1], N_INTERVALS))
    for number, values in enumerate(features.T):
        ends = _ends(values)
        # The rest has no values.
        starts[number] = float(ends[-1]) + 1e6
        starts[number, : len(ends) - 1], widths[number, : len(ends) - 1] = ends[:-1], np.diff(ends)
    fitted = [fit_rates(examples, number) for number in range(examples.latencies.shape[1])]
    rates, runs = np.log([rates for rates, _ in fitted]), np.log([run for _, run in fitted])
    found = {"starts": starts, "widths": widths, "rates": rates, "runs": runs}
    return {name: torch.from_numpy(values).float() for name, values in found.items()}
