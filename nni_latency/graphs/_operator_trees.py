# SPDX-License-Identifier: Apache-2.0
"""Operator costs on one platform: rates fitted by least squares, and boosted trees that correct them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import scipy
from numpy.typing import NDArray

from nni_latency.graphs._encoding import GROUPS, N_FEATURES, TERMS, EncodedGraph
from nni_latency.graphs._examples import Examples, Part
from nni_latency.regression import Trees, nonnegative

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingRegressor

#: Strength of the shrinkage of a group's costs to those of all operators, and their lower bound relative to these.
_SHARED, _FLOOR = 0.03, 0.1

#: Number of networks with timed kernels up to which the shrinkage is as strong; with more, a group may cost a hundred
#: times as much as others.
_FEW = 60

#: Lower bound of the common costs, relative to the nominal machine; and where a platform is added, which may be a GPU:
#: an H200 computes 8,000 times as fast, while its calls cost more.
_LEAST, LEAST_ADDED = 0.02, 1e-4

#: Scale of the overhead of a run [s], and number of values of it that are compared.
_RUN, _RUNS = 1e-5, 101

Array = NDArray[np.float64]

#: Fewest networks with kernel times for training trees.
FEWEST_NETWORKS = 100

#: Bound of the targets, logarithms of the ratio of the time to the rates' prediction.
_FARTHEST = 3.0

#: Lower bound of the share of the first kernel after subtracting the overhead of a run.
_LEAST_LEFT = 0.05

#: Rows on which predictions are compared with scikit-learn's.
_COMPARED = 1000

#: Lower bound of the weight of an operator in a kernel, so that fused operators are represented.
_LEAST_WEIGHT = 1e-4

#: Features of an operator's inputs: sizes and work, which come first among the features.
_N_READ = 6

#: Columns of an operator: its features; the groups and kinds of itself, of its inputs and of its readers.
N_COLUMNS = N_FEATURES + 6 + _N_READ


@dataclass(frozen=True)
class OperatorTrees:
    """Costs of operators on one platform. Immutable.

    Unlike a graph network, which generalises from a whole neighbourhood, trees see only an operator and its direct
    neighbours, and fit the measurements more closely. On unseen families their errors differ.

    Parameters
    ----------
    rates : ndarray of shape (n_groups, n_terms)
        Cost of a unit of each term.
    run : float
        Overhead of a run [s].
    trees : Trees
        Predict the logarithm of the correction factor of the rates.
    """

    rates: Array
    run: float
    trees: Trees

    def costs(self, graph: EncodedGraph, described: Described) -> Array:
        """Return the costs of operators [s], (n_operators,)."""
        return _priors(self.rates, graph) * self._factors(described)

    def _factors(self, described: Described) -> Array:
        """Return the correction factors of operators, (n_operators,)."""
        found: Array = np.exp(self.trees.predict(described.rows))[described.row_of]
        return found

    def latency(self, graph: EncodedGraph, described: Described) -> float:
        """Return the time of a network [s]."""
        return float(self.costs(graph, described).sum()) + self.run

    def latencies(self, graphs: Sequence[EncodedGraph]) -> Array:
        """Return the times of networks [s], (n_graphs,)."""
        return np.array([self.latency(graph, describe(graph)) for graph in graphs])

    def moved(self, examples: Examples, platform: int) -> OperatorTrees:
        """Transfer the trees to another platform by refitting their rates to its measurements.

        The corrections, such as for fusion, are similar across devices with one runtime, and carry more information
        than a few networks.

        Parameters
        ----------
        examples : Examples
            Networks measured on the other platform.
        platform : int
            Index of the other platform.
        """
        graphs = [replace(graph, terms=self._terms(graph)) for graph in examples.graphs]
        here = Examples(graphs, examples.latencies, examples.parts)
        totals = np.array([group_totals(graph) for graph in graphs])
        factors, run = fit_rates(totals, here.latencies[:, platform], kernels_of(here, platform), LEAST_ADDED)
        return OperatorTrees(self.rates * factors, run, self.trees)._with_run(examples, platform)

    def continued(self, examples: Examples, platform: int, seed: int) -> OperatorTrees:
        """Transfer the trees to another platform and continue training on its kernel times.

        Parameters
        ----------
        examples : Examples
            Networks of which at least one has kernels that were timed on the other platform.
        platform : int
            Index of the other platform.
        seed : int
            Seed of the boosting.
        """
        moved = self.moved(examples, platform)
        boosting = _boosting(seed, max_iter=60, max_leaf_nodes=15, min_samples_leaf=20)
        more = _learned(boosting, examples, platform, lambda graph: moved.costs(graph, describe(graph)), moved.run)
        return OperatorTrees(moved.rates, moved.run, moved.trees + more)._with_run(examples, platform)

    def _with_run(self, examples: Examples, platform: int) -> OperatorTrees:
        """Return the trees with the overhead of a run that brings sums of operators closest to short networks.

        Kernels of long networks tell little about it. It is no longer than the shortest network.
        """
        measured = examples.latencies[:, platform]
        known = ~np.isnan(measured)
        costs = replace(self, run=0.0).latencies(
            [graph for graph, is_known in zip(examples.graphs, known, strict=True) if is_known]
        )
        runs = np.linspace(0.0, measured[known].min(), _RUNS)
        off = [np.abs(np.log((costs + run) / measured[known])).mean() for run in runs]
        return replace(self, run=float(runs[np.argmin(off)]))

    def _terms(self, graph: EncodedGraph) -> NDArray[np.float32]:
        """Return the cost of each term of operators [s], (n_operators, n_terms)."""
        costs = self.rates[graph.groups] * graph.terms * self._factors(describe(graph))[:, None]
        return costs.astype(np.float32)

    def tensors(self) -> dict[str, NDArray[np.generic]]:
        """Return the state as arrays, by name."""
        return {"rates": self.rates, "run": np.array([self.run]), **self.trees.arrays()}

    @classmethod
    def read(cls, tensors: Mapping[str, NDArray[np.generic]]) -> OperatorTrees:
        """Restore trees from arrays.

        Raises
        ------
        KeyError, ValueError
            If an array is missing, or does not match the others.
        """
        rates, run = tensors["rates"].astype(np.float64), float(tensors["run"].astype(np.float64)[0])
        if rates.shape != (len(GROUPS), len(TERMS)) or not (np.isfinite(rates).all() and np.isfinite(run)):
            raise ValueError("the rates of trees are not numbers by group and term.")
        return cls(rates, run, Trees.of_arrays(tensors).check(N_COLUMNS))


#: Trees by platform; None where the kernels of too few networks were timed.
PlatformTrees = tuple[OperatorTrees | None, ...]


def learn_trees(examples: Examples, platform: int, seed: int) -> OperatorTrees:
    """Train trees on the kernel times of one platform.

    Parameters
    ----------
    examples : Examples
        Networks, some of whose kernels were timed there; see `has_enough`.
    platform : int
        Index of the platform.
    seed : int
        Seed of the boosting.
    """
    known = examples.only(timed(examples, platform))
    totals = np.array([group_totals(graph) for graph in known.graphs])
    rates, run = fit_rates(totals, known.latencies[:, platform], kernels_of(known, platform))
    boosting = _boosting(seed, max_iter=150, max_leaf_nodes=63, max_depth=8, min_samples_leaf=10)
    trees = _learned(boosting, known, platform, lambda graph: _priors(rates, graph), run)
    return OperatorTrees(rates, run, trees)._with_run(examples, platform)


def _boosting(seed: int, **shape: int) -> HistGradientBoostingRegressor:
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(
        learning_rate=0.08, l2_regularization=1.0, early_stopping=False, random_state=seed, **shape
    )


def _learned(
    boosting: HistGradientBoostingRegressor,
    examples: Examples,
    platform: int,
    costs: Callable[[EncodedGraph], Array],
    run: float,
) -> Trees:
    """Train on the logarithm of the ratio of kernel times to the expected costs of their operators."""
    rows, targets, weights = [], [], []
    for graph, parts in zip(examples.graphs, examples.parts, strict=True):
        described, priors = columns(graph), costs(graph)
        here = [part for part in parts if part.platform == platform and part.seconds > 0]
        whole = sum(part.seconds for part in here)
        for part in here:
            numbers = list(part.operators)
            expected = float(priors[numbers].sum())
            rows.append(described[numbers])
            targets += len(numbers) * [np.log(_without_run(part, run) / expected)]
            weights.append(part.seconds / whole * priors[numbers] / expected + _LEAST_WEIGHT)
    # In the precision of inference, so that values on a threshold fall on the same side.
    features = np.concatenate(rows).astype(np.float32)
    boosting.fit(features, np.clip(targets, -_FARTHEST, _FARTHEST), np.concatenate(weights))
    return Trees.of_histograms(boosting, features[:_COMPARED])


def has_enough(examples: Examples, platform: int) -> bool:
    """Return whether kernels of enough networks were timed on a platform to train trees."""
    return len(timed(examples, platform)) >= FEWEST_NETWORKS


def timed(examples: Examples, platform: int) -> list[int]:
    """Return the indices of networks whose kernels were timed on a platform."""
    return [
        number
        for number, parts in enumerate(examples.parts)
        if not np.isnan(examples.latencies[number, platform]) and any(part.platform == platform for part in parts)
    ]


def _without_run(part: Part, run: float) -> float:
    return max(part.seconds - run * part.is_first, _LEAST_LEFT * part.seconds)


def _priors(rates: Array, graph: EncodedGraph) -> Array:
    found: Array = (rates[graph.groups] * graph.terms).sum(axis=1)
    return found


@dataclass(frozen=True)
class Described:
    """Columns of the operators of a network. Immutable.

    Equal operators share one row: networks repeat their blocks.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, N_COLUMNS)
        Distinct rows.
    row_of : ndarray of shape (n_operators,)
        Index of the row of each operator.
    """

    rows: Array
    row_of: NDArray[np.intp]


def describe(graph: EncodedGraph) -> Described:
    """Return the columns of the operators of a network, without duplicate rows."""
    rows, row_of = np.unique(columns(graph), axis=0, return_inverse=True)
    return Described(rows, row_of.ravel())


def columns(graph: EncodedGraph) -> Array:
    """Return the columns of operators, (n_operators, N_COLUMNS); -1 where there is no neighbour.

    Features of inputs are averaged; of several readers, the last one is used.
    """
    count = len(graph)
    read, sources = np.zeros((count, _N_READ)), np.zeros(count)
    around = np.full((count, 4), -1.0)
    taken, given = graph.edges
    np.add.at(read, given, graph.features[taken, :_N_READ])
    np.add.at(sources, given, 1.0)
    around[given, 0], around[given, 1] = graph.kinds[taken], graph.groups[taken]
    around[taken, 2], around[taken, 3] = graph.kinds[given], graph.groups[given]
    own = np.column_stack([graph.features, graph.groups, graph.kinds])
    return np.hstack([own, around, read / np.maximum(sources, 1.0)[:, None]]).astype(np.float64)


@dataclass(frozen=True)
class Kernels:
    """Kernels of networks, in the form for fitting rates.

    Parameters
    ----------
    totals : ndarray of shape (n_kernels, n_groups, n_terms)
        Terms of the kernels by group.
    seconds, shares : ndarray of shape (n_kernels,)
        Times [s], and shares of the time of all kernels of their networks.
    firsts : ndarray of shape (n_kernels,)
        1 for kernels that include the overhead of a run, 0 for others.
    """

    totals: Array
    seconds: Array
    shares: Array
    firsts: Array


def kernels_of(examples: Examples, platform: int) -> Kernels | None:
    """Return the kernels that were timed on a platform; None if there are none."""
    totals, seconds, shares, firsts = [], [], [], []
    for graph, parts in zip(examples.graphs, examples.parts, strict=True):
        here = [part for part in parts if part.platform == platform and part.seconds > 0]
        whole = sum(part.seconds for part in here)
        for part in here:
            totals.append(group_totals(graph, part.operators))
            seconds.append(part.seconds)
            shares.append(part.seconds / whole)
            firsts.append(float(part.is_first))
    if not totals:
        return None
    return Kernels(np.array(totals), np.array(seconds), np.array(shares), np.array(firsts))


def group_totals(graph: EncodedGraph, operators: Sequence[int] | None = None) -> Array:
    """Return the terms of a network, or of some of its operators, by group, (n_groups, n_terms)."""
    chosen = slice(None) if operators is None else list(operators)
    totals = np.zeros((len(GROUPS), len(TERMS)))
    np.add.at(totals, graph.groups[chosen], graph.terms[chosen].astype(np.float64))
    return totals


def fit_rates(
    totals: Array, measured: Array, kernels: Kernels | None = None, least: float = _LEAST
) -> tuple[Array, float]:
    """Fit the cost of a unit of each term, by group, to times of networks, on relative errors.

    Parameters
    ----------
    totals : ndarray of shape (n_graphs, n_groups, n_terms)
        Terms of the networks by group.
    measured : ndarray of shape (n_graphs,)
        Times of the networks [s].
    kernels : Kernels, optional
        Kernels to fit in addition, those of a network with the same total weight as the network.
    least : float
        Lower bound of the rates that all groups share.

    Returns
    -------
    rates : ndarray of shape (n_groups, n_terms)
        Positive rates.
    run : float
        Positive overhead of a run [s].
    """
    n_graphs, n_groups, n_terms = totals.shape
    runs = np.full(n_graphs, _RUN)
    together = np.column_stack([totals.sum(1), runs]) / measured[:, None]
    common = np.maximum(nonnegative(together, np.ones(n_graphs)), least)
    start = np.concatenate([np.tile(common[:-1], n_groups), common[-1:]])
    design = np.column_stack([totals.reshape(n_graphs, -1), runs]) / measured[:, None] * start
    wanted = np.ones(n_graphs)
    if kernels is not None:
        flat = np.column_stack([kernels.totals.reshape(len(kernels.seconds), -1), _RUN * kernels.firsts])
        weights = np.sqrt(kernels.shares)
        design = np.vstack([design, flat / kernels.seconds[:, None] * start * weights[:, None]])
        wanted = np.concatenate([wanted, weights])
    shared = _SHARED if kernels is None else _SHARED * min(1.0, _FEW / n_graphs)
    held = shared * np.sqrt(n_graphs / len(start)) * np.eye(len(start))
    # Use normal equations: there are many more kernels than rates.
    gram = design.T @ design + held.T @ held
    right = design.T @ wanted + held.T @ held.sum(1)
    factors = _nonnegative(gram, right)
    found = start * np.maximum(factors, _FLOOR)
    return found[:-1].reshape(n_groups, n_terms), float(found[-1] * _RUN)


def _nonnegative(gram: Array, right: Array) -> Array:
    """Solve normal equations under nonnegativity constraints."""
    lower = np.linalg.cholesky(gram + 1e-9 * np.trace(gram) / len(gram) * np.eye(len(gram)))
    solved: Array = scipy.optimize.nnls(lower.T, np.linalg.solve(lower, right), maxiter=30 * len(gram))[0]
    return solved
