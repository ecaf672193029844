# SPDX-License-Identifier: Apache-2.0
"""What neighbouring layers cost together, beyond the sum of their entries: in a table, and its fit to timed parts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import numpy as np
import scipy
import threadpoolctl
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat, NonNegativeInt

from nni_latency.documents import RECORD
from nni_latency.errors import InvalidValueError
from nni_latency.operators import OpSpec
from nni_latency.regression import huber_weights
from nni_latency.tables._plan import MeasurePlan

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Grid of the standard deviation of the cost of a pair at a tensor of mean size, as shares of the mean network.
_SPREADS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)

#: Standard deviation of a pair in one place from that of its kinds, as a share of the latter.
_OWN = (0.0, 0.3, 1.0)

#: Standard deviations of the costs of candidates, and of the speed of the machine at a network, as shares.
_OF_CANDIDATES, _OF_NETWORKS = 0.03, 0.02

#: Typical error of the time of a part: as a share of it, and as a share of the mean part; and the grid of its factor.
_OF_PART, _OF_MEAN_PART = 0.03, 0.01
_ERRORS = np.geomspace(0.25, 4.0, 9)

#: Fewest networks for a fit.
_FEWEST_NETWORKS = 8

#: Parts shorter than this share of the mean part are not measurements: an identity takes no time.
_NO_PART = 1e-3


@dataclass(frozen=True)
class LayerPair:
    """What two neighbouring layers of a table cost beyond the sum of their entries. Immutable.

    Choices of one kind cost the same beside any neighbour. The cost is negative for kinds that suit each other.

    Parameters
    ----------
    layers : tuple of str
        Names of the earlier and the later layer.
    kinds : tuple of tuple of int
        Kind of every choice of both layers, in the order of the choices.
    costs : tuple of tuple of float
        Cost by kind of the earlier and kind of the later choice, before calibration, in the unit of the table's metric;
        of a throughput, seconds per input.

    Raises
    ------
    InvalidValueError
        If a kind has no cost, the costs are not a matrix, or one is not finite.

    Examples
    --------
    >>> pair = LayerPair(("a", "b"), ((0, 0, 1), (0, 1)), ((0.0, 1e-5), (3e-5, 0.0)))
    >>> pair.by_choice.tolist()
    [[0.0, 1e-05], [0.0, 1e-05], [3e-05, 0.0]]
    """

    layers: Annotated[tuple[str, str], Field(description="the earlier and the later layer")]
    kinds: Annotated[
        tuple[tuple[NonNegativeInt, ...], tuple[NonNegativeInt, ...]],
        Field(description="kind of every choice of both layers, in their order"),
    ]
    costs: Annotated[
        tuple[tuple[FiniteFloat, ...], ...],
        Field(description="beyond the entries, by kind of the earlier and kind of the later choice"),
    ]

    __pydantic_config__ = RECORD

    def __post_init__(self) -> None:
        rows, columns = len(self.costs), len(self.costs[0]) if self.costs else 0
        earlier, later = (max(kinds, default=-1) for kinds in self.kinds)
        even = all(len(row) == columns for row in self.costs)
        if not even or earlier >= rows or later >= columns:
            found = f"{rows} rows of {columns}" if even else "rows of different lengths"
            raise InvalidValueError(
                f"The costs of the pair {' and '.join(self.layers)} must have a row for each of {earlier + 1} kinds "
                f"and a column for each of {later + 1}. Got {found}."
            )
        if not all(math.isfinite(cost) for row in self.costs for cost in row):
            raise InvalidValueError(f"The costs of the pair {' and '.join(self.layers)} must be finite.")

    @cached_property
    def by_choice(self) -> Floats:
        """Costs by choice, (n_choices of the earlier layer, n_choices of the later one)."""
        return np.array(self.costs)[np.ix_(*self.kinds)]

    def scaled(self, factor: float) -> LayerPair:
        """Return the same pair with costs scaled by `factor`."""
        return replace(self, costs=tuple(tuple(factor * cost for cost in row) for row in self.costs))


def check_pairs(pairs: Sequence[LayerPair], sizes: Mapping[str, int]) -> None:
    """Raise `InvalidValueError` if pairs are not chains of neighbours of layers with so many choices each."""
    order = list(sizes)
    for pair in pairs:
        wrong = [name for name in pair.layers if name not in sizes]
        if wrong:
            raise InvalidValueError(f"The pair {' and '.join(pair.layers)} names {wrong[0]!r}, which is not a layer.")
        for name, kinds in zip(pair.layers, pair.kinds, strict=True):
            if len(kinds) != sizes[name]:
                raise InvalidValueError(
                    f"The pair {' and '.join(pair.layers)} must have a kind for each of the {sizes[name]} choices of "
                    f"{name!r}. Got {len(kinds)}."
                )
        if order.index(pair.layers[1]) != order.index(pair.layers[0]) + 1:
            raise InvalidValueError(
                f"The layers of a pair must be neighbours, the earlier one first. Got {' and '.join(pair.layers)}."
            )
    if len({pair.layers for pair in pairs}) < len(pairs):
        raise InvalidValueError("A table must hold every pair of layers once.")


def least_total(pairs: Sequence[LayerPair], costs: Mapping[str, Sequence[float]]) -> float:
    """Return the sum of the cheapest network, by the costs of the choices of all layers and of pairs of neighbours."""
    behind = {pair.layers[1]: pair.by_choice for pair in pairs}
    least = np.zeros((1, 1))
    for name, column in costs.items():
        least = (least + behind.get(name, 0.0)).min(axis=0, keepdims=True).T + np.array(column)[:, None]
    return float(least.min())


def weighed_pairs(tables: Sequence[Sequence[LayerPair]], weights: Sequence[float]) -> tuple[LayerPair, ...]:
    """Return the weighted sum of the pairs of tables of the same layers; choices are of one kind if they are in all.

    Parameters
    ----------
    tables : sequence of sequence of LayerPair
        Pairs of each table; a pair that a table lacks costs nothing there.
    weights : sequence of float
        One per table.

    Raises
    ------
    InvalidValueError
        If the layers of a pair have other numbers of choices in one table than in another.

    Examples
    --------
    >>> pair = LayerPair(("a", "b"), ((0, 1), (0,)), ((0.0,), (2.0,)))
    >>> weighed_pairs([[pair], []], [0.5, 0.5])[0].by_choice.tolist()
    [[0.0], [1.0]]
    """
    found: dict[tuple[str, str], list[LayerPair]] = {}
    for pairs, weight in zip(tables, weights, strict=True):
        for pair in pairs:
            found.setdefault(pair.layers, []).append(pair.scaled(weight))
    return tuple(same[0] if len(same) == 1 else _added(same) for same in found.values())


def _added(pairs: Sequence[LayerPair]) -> LayerPair:
    """Add pairs of the same two layers."""
    sizes = dict.fromkeys(pair.by_choice.shape for pair in pairs)
    if len(sizes) > 1:
        raise InvalidValueError(
            f"The costs of the pair {' and '.join(pairs[0].layers)} can be added only for tables with the same choices "
            f"of both layers. Got {'; '.join(f'{first} and {second} choices' for first, second in sizes)}. Use tables "
            "of one space."
        )
    total = np.sum([pair.by_choice for pair in pairs], axis=0)
    sides = [list(zip(*(pair.kinds[side] for pair in pairs), strict=True)) for side in (0, 1)]
    known = [list(dict.fromkeys(side)) for side in sides]
    first, second = (tuple(names.index(kinds) for kinds in side) for names, side in zip(known, sides, strict=True))
    costs = total[np.ix_(*([side.index(kinds) for kinds in names] for names, side in zip(known, sides, strict=True)))]
    return LayerPair(pairs[0].layers, (first, second), tuple(map(tuple, costs.tolist())))


def kind_of(op: OpSpec) -> str:
    """Return what the cost beside a neighbour depends on: the kind of a candidate, and whether it is grouped."""
    return f"{op.kind}, grouped" if dict(op.attributes).get("groups", 1) != 1 else op.kind


@dataclass(frozen=True)
class Neighbours:
    """Kinds of the candidates of a plan, and sizes of the tensors between its layers.

    Parameters
    ----------
    kinds : tuple of ndarray of int of shape (n_choices,)
        Kind of every candidate by layer.
    sizes : ndarray of shape (n_layers - 1,)
        Elements of the tensor after every layer but the last, relative to their mean.
    """

    kinds: tuple[Ints, ...]
    sizes: Floats

    @classmethod
    def of(cls, plan: MeasurePlan) -> Neighbours | None:
        """Return the neighbours of a plan; None if it has a single layer, or all neighbours are of the same kinds."""
        named = [[kind_of(candidate.op) for candidate in layer.candidates.values()] for layer in plan.layers]
        shapes = [next(iter(layer.candidates.values())).op.input_shapes for layer in plan.layers[1:]]
        if len(named) < 2 or max(len(set(kinds)) for kinds in named) < 2 or not all(shapes):
            return None
        known = sorted({kind for kinds in named for kind in kinds})
        sizes = np.array([math.prod(shape[0]) for shape in shapes], dtype=np.float64)
        return cls(tuple(np.array([known.index(kind) for kind in kinds]) for kinds in named), sizes / sizes.mean())

    @property
    def count(self) -> int:
        """Number of kinds."""
        return 1 + max(int(kinds.max()) for kinds in self.kinds)

    def of_networks(self, networks: Ints) -> Ints:
        """Return the kinds in networks, (n, n_layers)."""
        return np.stack([kinds[chosen] for kinds, chosen in zip(self.kinds, networks.T, strict=True)], axis=1)


@dataclass(frozen=True)
class PairCosts:
    """Costs of pairs by kind, as the fit finds them.

    Parameters
    ----------
    neighbours : Neighbours
        Kinds and sizes.
    earlier, later : ndarray of shape (n_layers - 1, n_kinds, n_kinds)
        What a pair adds to the time of the earlier, and of the later layer of the two [s]; zero in the mean over the
        choices of the other layer.
    """

    neighbours: Neighbours
    earlier: Floats
    later: Floats

    def shares(self, networks: Ints) -> Floats:
        """Return what the neighbours of every layer add to its time, (n, n_layers) [s]."""
        kinds = self.neighbours.of_networks(networks)
        places = np.arange(kinds.shape[1] - 1)
        found = np.zeros(kinds.shape)
        found[:, :-1] += self.earlier[places, kinds[:, :-1], kinds[:, 1:]]
        found[:, 1:] += self.later[places, kinds[:, :-1], kinds[:, 1:]]
        return found

    def layer_pairs(self, names: Sequence[str]) -> tuple[LayerPair, ...]:
        """Return the pairs of a table whose layers have these names; kinds are numbered within each layer."""
        pairs = []
        for (one, other), matrix, (first, second) in zip(
            itertools.pairwise(names), self.earlier + self.later, itertools.pairwise(self.neighbours.kinds), strict=True
        ):
            (rows, row_of), (columns, column_of) = (np.unique(kinds, return_inverse=True) for kinds in (first, second))
            costs = [[float(f"{cost:.4g}") for cost in row] for row in matrix[np.ix_(rows, columns)].tolist()]
            if len(rows) * len(columns) > 1 and any(map(any, costs)):
                kinds = (tuple(row_of.tolist()), tuple(column_of.tolist()))
                pairs.append(LayerPair((one, other), kinds, tuple(map(tuple, costs))))
        return tuple(pairs)


def fit_pairs(networks: Ints, times: Floats, costs: Floats, entries: Ints, neighbours: Neighbours) -> PairCosts | None:
    r"""Fit the costs of pairs to the times of the parts of networks.

    The time of layer :math:`l` in a network is its cost :math:`c`, plus what the neighbours add. What a pair adds to
    either of its layers is proportional to the size of the tensor between them, with a factor for every pair of kinds,
    and one for each of its places. The factors, deviations of the candidates' costs and the speed of the machine at
    each network are normal a priori; the standard deviations of the factors and of the times maximise the marginal
    likelihood.

    Parameters
    ----------
    networks : ndarray of int of shape (n_networks, n_layers)
        Candidate of every layer.
    times : ndarray of shape (n_networks, n_layers)
        Time of every layer [s].
    costs : ndarray of shape (n_networks, n_layers)
        Cost of the candidates without regard to neighbours [s].
    entries : ndarray of int of shape (n_networks, n_layers)
        Index of the candidates among all.
    neighbours : Neighbours
        Kinds of the candidates.

    Returns
    -------
    PairCosts or None
        None if the marginal likelihood is largest without pairs, or there are few networks.
    """
    if len(networks) < _FEWEST_NETWORKS:
        return None
    unit = float(costs.sum(axis=1).mean())
    design, groups = _design(networks, costs / unit, entries, neighbours)
    rest = ((times - costs) / unit).ravel()
    errors = np.hypot(_OF_PART * costs, _OF_MEAN_PART * costs.mean()).ravel() / unit
    weights = np.where(costs.ravel() > _NO_PART * costs.mean(), 1 / errors**2, 0.0)
    # On a busy machine the threads of the BLAS wait for each other longer than the work takes.
    with threadpoolctl.threadpool_limits(1, user_api="blas"):
        found = _Parts(design, groups, rest, weights, costs / unit).likeliest()
        # Once more with little weight for what is far off.
        far = (rest - design @ found.mean) * np.sqrt(weights) / found.error
        found = _Parts(design, groups, rest, weights * huber_weights(far, 1.0), costs / unit).likeliest()
    if not found.spread:
        return None
    tied, own = (found.mean[groups == group] for group in (_TIED, _PLACE))
    shape = (2, neighbours.count, neighbours.count)
    factors = tied.reshape(shape)[:, None] + own.reshape(2, len(neighbours.sizes), *shape[1:])
    earlier, later = neighbours.sizes[:, None, None] * unit * factors
    shares = np.array([np.bincount(kinds, minlength=neighbours.count) / len(kinds) for kinds in neighbours.kinds])
    # An entry is the cost beside the mean of all neighbours.
    earlier = earlier - (earlier * shares[1:, None, :]).sum(axis=2, keepdims=True)
    later = later - (later * shares[:-1, :, None]).sum(axis=1, keepdims=True)
    return PairCosts(neighbours, earlier, later)


#: Groups of explanatory variables: pairs of kinds, the same in one place, and candidates.
_TIED, _PLACE, _CANDIDATE = 0, 1, 2


def _design(
    networks: Ints, costs: Floats, entries: Ints, neighbours: Neighbours
) -> tuple[scipy.sparse.csr_array, Ints]:
    """Return the explanatory matrix of the parts, and the group of each of its columns.

    Pairs come twice, for what they add to the earlier and to the later layer.
    """
    kinds, (n_networks, n_layers), count = neighbours.of_networks(networks), networks.shape, neighbours.count**2
    parts = np.arange(n_networks * n_layers).reshape(n_networks, n_layers)
    pairs = kinds[:, :-1] * neighbours.count + kinds[:, 1:]
    placed = 2 * count + np.arange(n_layers - 1) * count + pairs
    widths = (2 * count, 2 * count * (n_layers - 1), int(entries.max()) + 1)
    sizes = np.broadcast_to(neighbours.sizes, pairs.shape)
    blocks = [
        (parts[:, :-1], pairs, sizes),
        (parts[:, 1:], count + pairs, sizes),
        (parts[:, :-1], placed, sizes),
        (parts[:, 1:], count * (n_layers - 1) + placed, sizes),
        (parts, widths[0] + widths[1] + entries, costs),
    ]
    rows, columns, values = (np.concatenate([item.ravel() for item in column]) for column in zip(*blocks, strict=True))
    design = scipy.sparse.csr_array((values, (rows, columns)), shape=(parts.size, sum(widths)))
    return design, np.repeat([_TIED, _PLACE, _CANDIDATE], widths)


@dataclass(frozen=True)
class _Fit:
    """The posterior mean under given standard deviations, and the logarithm of the marginal likelihood of these."""

    evidence: float
    mean: Floats
    error: float
    spread: float


class _Parts:
    """Parts of networks as a linear model with normal errors; the speed at every network is integrated out."""

    def __init__(
        self, design: scipy.sparse.csr_array, groups: Ints, rest: Floats, weights: Floats, costs: Floats
    ) -> None:
        weighted = design * weights[:, None]
        self._groups, self._used = groups, int((weights > 0).sum())
        self._gram, self._moment = (design.T @ weighted).toarray(), weighted.T @ rest
        self._square = float(rest @ (weights * rest))
        # The speed at a network moves all its parts.
        shape = costs.shape
        moved = (weights.reshape(shape) * costs).ravel()
        self._totals = (moved.reshape(shape) * costs).sum(axis=1)
        rows = np.repeat(np.arange(shape[0]), shape[1])
        picks = scipy.sparse.csr_array((moved, (rows, np.arange(moved.size))), shape=(shape[0], moved.size))
        self._seen, self._speeds = (picks @ design).toarray(), picks @ rest

    def likeliest(self) -> _Fit:
        """Return the fit under which the parts are likeliest: first of pairs of kinds, then of each in its place."""
        # The error hardly depends on the spread, nor the other way round.
        best = self._best([(error, _SPREADS[len(_SPREADS) // 2], 0.0) for error in _ERRORS.tolist()])
        best = self._best([(best.error, spread, 0.0) for spread in (0.0, *_SPREADS)])
        if not best.spread:
            return best
        # Deviations of places explain a part of the errors.
        errors = [error for error in _ERRORS.tolist() if best.error / 2.1 < error <= best.error]
        return self._best([(error, best.spread, own) for own in _OWN for error in errors])

    def _best(self, tried: Sequence[tuple[float, float, float]]) -> _Fit:
        return max((self._fit(*deviations) for deviations in tried), key=lambda fit: fit.evidence)

    def _fit(self, error: float, spread: float, own: float) -> _Fit:
        # With the matrix determinant lemma and that of the inverse.
        ratio = _OF_NETWORKS**2 / (error**2 + _OF_NETWORKS**2 * self._totals)
        constant = -0.5 * (self._square - float(ratio @ self._speeds**2)) / error**2 - self._used * math.log(error)
        constant -= 0.5 * float(np.log1p(_OF_NETWORKS**2 * self._totals / error**2).sum())
        prior = np.array([spread, own * spread, _OF_CANDIDATES])[self._groups]
        kept = np.flatnonzero((prior > 0) & (np.diag(self._gram) > 0))
        seen, width = self._seen[:, kept], prior[kept]
        inner = (self._gram[np.ix_(kept, kept)] - seen.T @ (ratio[:, None] * seen)) / error**2
        right = width * (self._moment[kept] - seen.T @ (ratio * self._speeds)) / error**2
        factor = scipy.linalg.cho_factor(width[:, None] * inner * width + np.eye(len(kept)), lower=True)
        solved = scipy.linalg.cho_solve(factor, right)
        evidence = constant + 0.5 * float(solved @ right) - float(np.log(np.diag(factor[0])).sum())
        mean = np.zeros(len(prior))
        mean[kept] = width * solved
        return _Fit(evidence, mean, error, spread)
