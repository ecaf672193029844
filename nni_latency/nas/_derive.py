# SPDX-License-Identifier: Apache-2.0
"""Deriving the network of a search: the likeliest one within a range of costs, taken out with its weights."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from nni_latency.errors import InvalidValueError, MismatchError, UnreachableTargetError, listed
from nni_latency.estimators import ChoiceCost, likeliest_within
from nni_latency.nas._expectation import expected_cost
from nni_latency.nas._nni import MixedOperation
from nni_latency.nas._penalty import architecture_logits
from nni_latency.nas._profiler import LatencyProfiler
from nni_latency.spaces import network_of

#: How far below the expected cost the network found may be.
_TOLERANCE = 0.05

#: Of the local search: prices of cost, random networks to start from, and draws to find them.
_PRICES, _STARTS, _DRAWS = 12, 4, 1000


def likeliest_sample(
    profiler: LatencyProfiler,
    max: float,  # noqa: A002
    min: float = 0.0,  # noqa: A002
) -> dict[str, Any]:
    """Return the most probable network of a supernet that has been searched, of all that cost at most `max`.

    What DARTS and GumbelDARTS export takes the most probable choice of every label, and Proxyless draws at random:
    neither asks what it costs. A penalty makes the mean network cheap, and this finds the one that keeps the limit: by
    exact search where the cost is a sum over labels (see `likeliest_within`), otherwise by local search.

    Parameters
    ----------
    profiler : LatencyProfiler
        Made with the very space object that was searched.
    max : float
        Highest cost, in the SI unit of the metric.
    min : float, default=0.0
        Lowest cost wanted; given up where no network lies between.

    Returns
    -------
    dict
        The sample, ``{label: choice}``; a space of the same class freezes it.

    Raises
    ------
    MismatchError
        If the profiler's space is not a supernet with architecture parameters.
    UnreachableTargetError
        If no network is that cheap.

    Examples
    --------
    >>> experiment.run()                                                                       # doctest: +SKIP
    >>> best = likeliest_sample(profiler, max=0.002)                                           # doctest: +SKIP
    """
    cost: Any = profiler.cost
    labels = list(cost.choices)
    logits = architecture_logits(profiler.space)
    lacking = [label for label in labels if label not in logits]
    if lacking:
        raise MismatchError(
            f"The space of the profiler has no architecture parameters for {listed(lacking)}: it is not the one "
            "that was searched, or not by a differentiable strategy."
        )
    with torch.no_grad():
        scores = {label: torch.log_softmax(logits[label]().double(), -1).tolist() for label in labels}
    if cost.separable:
        return likeliest_within(cost, list(scores.values()), max, floor=min)
    cost.check_target(max)
    mutables = profiler.space.simplify()
    found = likeliest_together(cost, scores, max, floor=min)
    # Choices of several values stand as tuples in a cost and as lists in a sample.
    return {label: list(value) if hasattr(mutables[label], "n_chosen") else value for label, value in found.items()}


def found_sample(profiler: LatencyProfiler, target: float, fill: float | None = None) -> dict[str, Any]:
    """Return the network that a differentiable search stands for, of all that cost at most `target`.

    With a `fill` it is the most probable of those that use at least this share of the target. Without one it is the
    most probable of those that cost about what the probabilities expect, or the target if that is less. The most
    probable of all would be a poor choice: where the probabilities are still flat, a slight lead of the cheapest
    candidate in every layer makes a network far below the target, which is hardly more probable than any other.

    Parameters
    ----------
    profiler : LatencyProfiler
        Made with the very space object that was searched.
    target : float
        Highest cost, in the SI unit of the metric.
    fill : float, optional
        Least share of the target to be used, in (0, 1]; given up where no network is found that does.

    Returns
    -------
    dict
        The sample, ``{label: choice}``.
    """
    if fill is not None:
        return likeliest_sample(profiler, max=target, min=fill * target)
    expected = expected_cost(profiler.cost)
    logits = architecture_logits(profiler.space)
    with torch.no_grad():
        rows = [logits[label]().double() for label in expected.labels]
        mean = float(expected(expected.softmax(rows)))
    return likeliest_sample(profiler, max=target, min=(1 - _TOLERANCE) * min(target, mean))


def likeliest_together(
    cost: ChoiceCost,
    scores: Mapping[str, Sequence[float]],
    target: float,
    *,
    floor: float = 0.0,
    exhaustive: int = 4096,
) -> dict[str, Any]:
    """Find a most probable network whose cost is at most `target`, where choices act together.

    There is no dynamic programme for it. Small spaces are searched exhaustively. In others, one choice after the other
    is changed to the best sum of log-probability and priced cost, for a rising price of cost, from the most probable
    network on and from random ones; the best of all networks seen on the way that keep the limit is then improved, one
    and two choices at a time.

    Parameters
    ----------
    cost : ChoiceCost
        Costs of networks.
    scores : mapping of str to sequence of float
        By label the logarithm of each choice's probability.
    target : float
        Highest cost allowed.
    floor : float, default=0.0
        Lowest cost wanted; given up where no network was found above it.
    exhaustive : int, default=4096
        Spaces with at most this many networks are searched exhaustively.

    Raises
    ------
    UnreachableTargetError
        If no network was found that is that cheap.
    """
    search = _Search(cost, scores)
    if math.prod(map(len, search.scores)) <= exhaustive:
        for every in itertools.product(*(range(len(row)) for row in search.scores)):
            search.value(every)
    else:
        for start in search.starts():
            network = start
            for price in [*np.geomspace(0.01, 1e4, _PRICES), math.inf]:
                network = search.descend(network, price / target)
    allowed = [seen for seen, value in search.seen.items() if value <= target]
    if not allowed:
        raise UnreachableTargetError(f"No network was found that costs at most {target:g}.")
    wanted = [seen for seen in allowed if search.seen[seen] >= floor] or allowed
    lowest = floor if search.seen[wanted[0]] >= floor else 0.0
    # Of a small space every network has been seen, so nothing is left to improve.
    best = search.improve(sorted(wanted, key=search.score)[-1], lowest, target)
    return search.named(best)


class _Search:
    """Networks by the indices of their choices, with what they cost, each computed once."""

    def __init__(self, cost: ChoiceCost, scores: Mapping[str, Sequence[float]]) -> None:
        self.cost = cost
        self.labels = list(scores)
        self.scores = [list(row) for row in scores.values()]
        self.seen: dict[tuple[int, ...], float] = {}

    def named(self, network: Sequence[int]) -> dict[str, Any]:
        chosen = zip(self.labels, network, strict=True)
        return {label: self.cost.choices[label][index] for label, index in chosen}

    def score(self, network: Sequence[int]) -> float:
        return sum(row[index] for row, index in zip(self.scores, network, strict=True))

    def value(self, network: Sequence[int]) -> float:
        """Return what a network costs; infinitely much if its choices do not go together."""
        key = tuple(network)
        if key not in self.seen:
            try:
                self.seen[key] = float(self.cost(self.named(key)))
            except InvalidValueError:
                self.seen[key] = math.inf
        return self.seen[key]

    def descend(self, network: Sequence[int], price: float) -> list[int]:
        """Change one choice after the other while log-probability less priced cost rises."""
        best, gain = list(network), -math.inf
        while (now := self._gain(best, price)) > gain:
            gain = now
            for place, row in enumerate(self.scores):
                options = [[*best[:place], index, *best[place + 1 :]] for index in range(len(row))]
                best = max(options, key=lambda option: self._gain(option, price))
        return best

    def improve(self, network: Sequence[int], lowest: float, target: float) -> list[int]:
        """Exchange one or two choices while that is more probable and keeps the range."""
        best = list(network)
        while True:
            better = [n for n in self._around(best) if self.score(n) > self.score(best) + 1e-12]
            better.sort(key=self.score, reverse=True)
            step = next((n for n in better if lowest <= self.value(n) <= target), None)
            if step is None:
                return best
            best = step

    def starts(self) -> list[list[int]]:
        """Return the most probable network and random ones, whose choices go together where such could be drawn."""
        generator = np.random.default_rng(0)
        drawn = ([int(generator.integers(len(row))) for row in self.scores] for _ in range(_DRAWS))
        valid = itertools.islice((network for network in drawn if self.value(network) < math.inf), _STARTS)
        return [[int(np.argmax(row)) for row in self.scores], *valid]

    def _gain(self, network: Sequence[int], price: float) -> float:
        value = self.value(network)
        if price == math.inf or value == math.inf:
            return -value
        return self.score(network) - price * value

    def _around(self, network: list[int]) -> Iterator[list[int]]:
        places = range(len(network))
        single = [(place, index) for place in places for index in range(len(self.scores[place]))]
        for first, one in single:
            changed = [*network]
            changed[first] = one
            yield changed
            for second, other in single:
                if second > first:
                    twice = [*changed]
                    twice[second] = other
                    yield twice


def freeze_trained(supernet: Any, sample: Mapping[str, Any]) -> nn.Module:
    """Return a network of a supernet, with the weights that it has there, made as the space itself makes it.

    NNI 3.0 takes the weights of an operation whose arguments are searched in a form that its own loading refuses: with
    a bias that the operation does not have, and with numbers that are not weights. Here exactly the weights of the
    operation are loaded. Parts that a space leaves out of its own networks, but that a supernet has to hold, would
    give other names to the weights, so these are put into a network of the space.
    """
    operations = [module for module in supernet.modules() if isinstance(module, MixedOperation)]
    for operation in operations:
        # Instead of the class's method, for this supernet alone.
        operation.__dict__["freeze"] = partial(_freeze_operation, operation)
    try:
        network: nn.Module = supernet.freeze(dict(sample))
    finally:
        for operation in operations:
            operation.__dict__.pop("freeze", None)
    try:
        # What is drawn for weights that are not kept must not change what comes after.
        with torch.random.fork_rng():
            own: nn.Module = network_of(supernet, sample).anew()
    except InvalidValueError:  # of a space that cannot be made again
        return network
    return _moved(network, own)


def _freeze_operation(operation: Any, sample: Mapping[str, Any]) -> nn.Module:
    arguments = {
        **operation.init_arguments,
        **{name: mutable.freeze(sample) for name, mutable in operation.mutable_arguments.items()},
    }
    network: nn.Module = operation.bound_type(**arguments)
    known = network.state_dict()
    found = operation.freeze_weight(**arguments)
    network.load_state_dict({name: found[name] for name in known if found.get(name) is not None}, strict=False)
    return network


def _moved(network: nn.Module, own: nn.Module) -> nn.Module:
    """Put the weights of one network into another of the same parts in the same order; the first where they differ."""
    weights, wanted = network.state_dict(), own.state_dict()
    shapes = [[tuple(value.shape) for value in state.values()] for state in (weights, wanted)]
    if list(weights) == list(wanted) or shapes[0] != shapes[1]:
        return network
    own.load_state_dict(dict(zip(wanted, weights.values(), strict=True)))
    return own.to(next(network.parameters()).device)
