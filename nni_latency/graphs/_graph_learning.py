"""How graph networks learn, on relative errors; which networks are held out, and how many epochs are best."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from joblib import delayed, effective_n_jobs
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from nni_latency.graphs._encoding import EncodedGraph
from nni_latency.graphs._examples import Examples, Measurements, Part
from nni_latency.graphs._graph_network import Batch, GraphNetwork, add_up, predict, starts_of
from nni_latency.graphs._operator_trees import (
    PlatformTrees,
    describe,
    fit_rates,
    group_totals,
    has_enough,
    kernels_of,
    learn_trees,
)
from nni_latency.graphs._side_by_side import side_by_side
from nni_latency.platforms import torch_threads

#: How much of the averaged weights is kept at every step.
_AVERAGED = 0.99

#: From which relative error on it counts in proportion, and no longer as a square.
_HUBER = 0.05

#: How much times of kernels count beside those of networks.
_PARTS = 0.3

#: Fields of `Targets` with one number for every kernel.
_OF_KERNELS = ("platforms", "seconds", "shares", "firsts")

#: Told after every epoch; may raise.
Watch = Callable[[], None]

Array = NDArray[np.float64]

#: Seed of the first graph network that is held out from something.
_FIRST_HELD_OUT = 100

#: What an error counts at least, as a logarithm of a factor.
_LEAST_ERROR = 1e-6

#: By how much errors must fall for more epochs to be worth it, as a ratio: curves are flat near their lowest points.
_WORTH_IT = 0.005


@dataclass(frozen=True)
class _Lesson:
    """What one graph network learns."""

    examples: Examples
    settings: Settings
    others: Sequence[EncodedGraph] = ()


@dataclass(frozen=True)
class Fitting:
    """How graph networks and trees learn, on one process or several.

    Parameters
    ----------
    settings : Settings
        Of every graph network; its seed is that of the first.
    n_jobs : int, optional
        Processes that learn side by side, as joblib takes it; they learn the same as one does.
    told : callable
        Told after how many epochs, each time that some are done.
    """

    settings: Settings
    n_jobs: int | None
    told: Callable[..., None]

    def hold_out(self, data: Measurements, n_folds: int, seed: int) -> tuple[Array, int]:
        """Predict every network by what has not seen its family.

        Returns
        -------
        errors : ndarray of shape (n_networks, n_platforms)
            Logarithms of predicted over measured times.
        epochs : int
            After how many the graph networks were best, over all networks that were held out.
        """
        latencies, folds, lessons = data.examples.latencies, data.folds(n_folds, seed), []
        for fold, held in enumerate(folds):
            graphs = data.examples.only(held).graphs
            lessons.append(_Lesson(data.examples.without(held), self._settings(_FIRST_HELD_OUT + fold), graphs))
        told = np.full((self.settings.epochs, *latencies.shape), np.nan)
        for held, learned in zip(folds, self._learned(lessons), strict=True):
            told[:, held] = np.log(learned.told)
        epochs = _best_epoch(told - np.log(latencies), data.family_of)
        errors = np.full(latencies.shape, np.nan)
        for held, lesson in zip(folds, lessons, strict=True):
            predicted = with_trees(told[epochs - 1, held], self.trees(lesson.examples), lesson.others)
            errors[held] = predicted - np.log(latencies[held])
        return errors, epochs

    def members(self, examples: Examples, count: int, epochs: int) -> list[Learned]:
        """Learn from all networks, by several graph networks with other random numbers."""
        several = [_Lesson(examples, replace(self._settings(member), epochs=epochs)) for member in range(count)]
        return list(self._learned(several))

    def trees(self, examples: Examples) -> PlatformTrees:
        """Learn trees for every platform of which the times of kernels are known."""
        platforms = range(examples.latencies.shape[1])
        # Examples are sent to a process for those alone that have something to learn.
        chosen = [number for number in platforms if has_enough(examples, number)]
        learning = (delayed(learn_trees)(examples, number, self.settings.seed) for number in chosen)
        found = dict(zip(chosen, side_by_side(learning, self.n_jobs), strict=True))
        return tuple(found.get(number) for number in platforms)

    def _settings(self, number: int) -> Settings:
        return replace(self.settings, seed=self.settings.seed + number)

    def _learned(self, lessons: Sequence[_Lesson]) -> Iterator[Learned]:
        """Learn by one graph network after another, or by several side by side."""
        if effective_n_jobs(self.n_jobs) == 1:
            for lesson in lessons:
                yield learn(lesson.examples, lesson.settings, lesson.others, self.told)
            return
        calls = (delayed(learn)(lesson.examples, lesson.settings, lesson.others) for lesson in lessons)
        for learned in side_by_side(calls, self.n_jobs):
            self.told(lessons[0].settings.epochs)
            yield learned


def _best_epoch(errors: Array, families: Sequence[str]) -> int:
    """Return after how many epochs errors are least: families count alike, and platforms in proportion to their errors.

    A mean over all latencies would go by the platforms with the most networks, and the worst predicted families. Where
    errors are next to the same, fewer epochs are better.

    Parameters
    ----------
    errors : ndarray of shape (n_epochs, n_networks, n_platforms)
        Logarithms of predicted over measured times; NaN where there is none.
    families : sequence of str
        By network.
    """
    off, known, names = np.abs(errors), ~np.isnan(errors[0]), np.array(families)
    found = np.zeros(len(errors))
    for column in range(errors.shape[2]):
        rows = [np.flatnonzero(known[:, column] & (names == name)) for name in sorted(set(families))]
        by_family = [off[:, some, column].mean(axis=1) for some in rows if len(some)]
        if by_family:
            found += np.log(np.mean(by_family, axis=0) + _LEAST_ERROR) / errors.shape[2]
    return int(np.argmax(found <= found.min() + _WORTH_IT)) + 1


def with_trees(logarithms: Array, trees: PlatformTrees, graphs: Sequence[EncodedGraph]) -> Array:
    """Return the logarithms of predicted times, (n_graphs, n_platforms): the mean with what trees say, if there are."""
    found = logarithms.copy()
    known = [(number, item) for number, item in enumerate(trees) if item is not None]
    for row, graph in enumerate(graphs if known else ()):
        described = describe(graph)
        for number, item in known:
            found[row, number] = (found[row, number] + np.log(item.latency(graph, described))) / 2
    return found


@dataclass(frozen=True)
class Settings:
    """How it learns.

    Parameters
    ----------
    hidden, n_layers, dropout
        As for `GraphNetwork`.
    epochs : int
        Times that every network is seen.
    batch_size : int
        Networks of a step.
    rate, decay : float
        Of AdamW.
    restraint : float
        How strongly corrections are held to 1, weighed by cost.
    seed : int
        Of everything random.
    """

    hidden: int = 48
    n_layers: int = 2
    dropout: float = 0.1
    epochs: int = 80
    batch_size: int = 16
    rate: float = 2e-3
    decay: float = 1e-2
    restraint: float = 0.1
    seed: int = 0


@dataclass(frozen=True)
class Targets:
    """What was measured of the networks of a batch.

    Parameters
    ----------
    latencies : Tensor of shape (n_graphs, n_platforms)
        Their times [s]; NaN where they were not measured.
    operators, part_of : Tensor of shape (n_pairs,)
        Operators of kernels, and the number of the kernel that each is part of.
    platforms, seconds, shares, firsts : Tensor of shape (n_kernels,)
        Of kernels: the number of the platform, the time [s], its share in the kernels of one network, and 1 where what
        a run takes besides is in it.
    """

    latencies: Tensor
    operators: Tensor
    part_of: Tensor
    platforms: Tensor
    seconds: Tensor
    shares: Tensor
    firsts: Tensor

    @classmethod
    def of(cls, examples: Examples) -> Targets:
        """Return what was measured of networks that are one batch."""
        return cls.joined(examples.graphs, list(map(cls.of_network, examples.latencies, examples.parts)))

    @classmethod
    def of_network(cls, latencies: Array, parts: Sequence[Part]) -> Targets:
        """Return what was measured of one network."""
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
            torch.tensor([float(part.is_first) for part in parts]),
        )

    @classmethod
    def joined(cls, graphs: Sequence[EncodedGraph], items: Sequence[Targets]) -> Targets:
        """Join what was measured of each network of a batch: operators and kernels are numbered through it."""
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
    """A network that has learned.

    Parameters
    ----------
    network : GraphNetwork
        As it was after the last epoch.
    told : ndarray of shape (n_epochs, n_graphs, n_platforms)
        Times of other networks, as it predicted them after every epoch [s].
    """

    network: GraphNetwork
    told: Array


def learn(
    examples: Examples, settings: Settings, others: Sequence[EncodedGraph] = (), watch: Watch = lambda: None
) -> Learned:
    """Fit a graph network.

    Parameters
    ----------
    examples : Examples
        What it learns from.
    settings : Settings
        How.
    others : sequence of EncodedGraph
        Networks that it predicts after every epoch.
    watch : callable, optional
        Called after every epoch.
    """
    # Batches are small: a second thread gains a tenth where it has a processor of its own, and costs several times as
    # much where it has to wait for one.
    with torch.random.fork_rng(devices=[]), torch_threads(1):
        torch.manual_seed(settings.seed)
        return _Learning(examples, settings).run(others, watch)


class _Learning:
    def __init__(self, examples: Examples, settings: Settings) -> None:
        self._settings, self._random = settings, np.random.default_rng(settings.seed)
        self._examples = examples
        self._targets = list(map(Targets.of_network, examples.latencies, examples.parts))
        n_platforms = examples.latencies.shape[1]
        self._weights = _weights(examples.latencies)
        self.network = GraphNetwork(n_platforms, settings.hidden, settings.n_layers, settings.dropout)
        prepare(self.network, examples)
        self._average = copy.deepcopy(self.network).requires_grad_(False)

    def run(self, others: Sequence[EncodedGraph], watch: Watch) -> Learned:
        told = []
        for epoch in range(1, self._settings.epochs + 1):
            self._epoch(epoch)
            told.append(predict(self._average, others))
            watch()
        return Learned(self._average.eval(), np.array(told))

    def _epoch(self, epoch: int) -> None:
        if epoch == 1:
            self._optimiser = _optimiser(self.network, self._settings)
        self.network.train()
        for batch, targets in self._batches():
            for group in self._optimiser.param_groups:
                group["lr"] = group["base"] * min(1.0, epoch / 5)
            self._optimiser.zero_grad()
            self._loss(batch, targets).backward()
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
            self._optimiser.step()
            with torch.no_grad():
                for mean, new in zip(self._average.parameters(), self.network.parameters(), strict=True):
                    mean.lerp_(new, 1 - _AVERAGED)

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
    """Return how far networks are from what was measured, as far as they were.

    Parameters
    ----------
    predicted, measured : Tensor of shape (n_graphs, n_platforms)
        What networks take [s]; NaN where one was not measured.
    weights : Tensor of shape (n_platforms,)
        What a latency of each platform counts.
    """
    known = ~torch.isnan(measured)
    errors = functional.huber_loss(predicted[known].log(), measured[known].log(), delta=_HUBER, reduction="none")
    off: Tensor = (errors * weights.expand_as(measured)[known]).mean() / _HUBER
    return off


def kernels_off(costs: Tensor, runs: Tensor, targets: Targets) -> Tensor:
    """Return how far the kernels of networks are from what was measured, as far as they were timed.

    Parameters
    ----------
    costs : Tensor of shape (n_operators, n_platforms)
        What operators take [s].
    runs : Tensor of shape (n_platforms,)
        Logarithms of what a run takes besides.
    targets : Targets
        What was measured.
    """
    if not len(targets.seconds):
        return costs.new_zeros(())
    places = targets.operators, targets.platforms[targets.part_of]
    times = add_up(costs[places], targets.part_of, len(targets.seconds))
    times = times + targets.firsts * runs.exp()[targets.platforms]
    errors = functional.huber_loss(times.clamp(min=1e-9).log(), targets.seconds.log(), delta=0.2, reduction="none")
    off: Tensor = _PARTS * (errors * targets.shares).sum() / targets.shares.sum()
    return off


def _weights(latencies: Array) -> Tensor:
    """Return what a latency of each platform counts: all platforms alike, however many networks were measured there."""
    counts = np.maximum((~np.isnan(latencies)).sum(axis=0), 1)
    return torch.tensor(counts.mean() / counts, dtype=torch.float32)


def _optimiser(network: GraphNetwork, settings: Settings) -> torch.optim.AdamW:
    slow = [network.rates, network.runs]
    fast = [value for name, value in network.named_parameters() if name not in ("rates", "runs")]
    return torch.optim.AdamW(
        [
            {"params": fast, "lr": settings.rate, "base": settings.rate, "weight_decay": settings.decay},
            {"params": slow, "lr": settings.rate, "base": settings.rate, "weight_decay": 0.0},
        ]
    )


def prepare(network: GraphNetwork, examples: Examples) -> None:
    """Set what a network starts from: the scale of its features, and what operators cost without corrections."""
    features = np.concatenate([graph.features for graph in examples.graphs])
    network.centre.copy_(torch.from_numpy(features.mean(0)))
    network.spread.copy_(torch.from_numpy(np.maximum(features.std(0), 1e-2)))
    totals = np.array([group_totals(graph) for graph in examples.graphs])
    for number, measured in enumerate(examples.latencies.T):
        known = ~np.isnan(measured)
        kernels = kernels_of(examples, number)
        rates, run = fit_rates(totals[known], measured[known], kernels)
        with torch.no_grad():
            network.rates[number] = torch.from_numpy(np.log(rates))
            network.runs[number] = float(np.log(run))
