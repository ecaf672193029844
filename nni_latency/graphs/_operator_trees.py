"""What each operator costs on one platform: rates fitted by least squares, and boosted trees that correct them."""

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

#: How strongly the costs of a group are held to those of all operators, and how far below they may be.
_SHARED, _FLOOR = 0.03, 0.1

#: What a run is expected to take besides, at first [s].
_RUN = 1e-5

Array = NDArray[np.float64]

#: Networks with times of kernels from which trees are learned at least.
FEWEST_NETWORKS = 100

#: How far from what its rates say an operator is learned to be, as a logarithm.
_FARTHEST = 3.0

#: What is left at least of the first kernel, without what a run takes besides, as a share.
_LEAST_LEFT = 0.05

#: Rows of which the trees must say what scikit-learn says.
_COMPARED = 1000

#: What every operator of a kernel counts at least, so that those that a runtime fuses are seen, too.
_LEAST_WEIGHT = 1e-4

#: Numbers about what an operator reads: sizes and work, which stand first among the features.
_N_READ = 6

#: Numbers about an operator: its features; the groups and kinds of itself, of what it reads and of what reads it.
N_COLUMNS = N_FEATURES + 6 + _N_READ


@dataclass(frozen=True)
class OperatorTrees:
    """Costs of operators on one platform. Immutable.

    A graph network sees a whole neighbourhood, and generalises from it; trees see an operator and what is next to it,
    and stay closer to what was measured. On families that neither has seen, they are wrong in different places.

    Parameters
    ----------
    rates : ndarray of shape (n_groups, n_terms)
        What a unit of each term costs.
    run : float
        What a run takes besides [s].
    trees : Trees
        The logarithm of the factor on what rates say.
    """

    rates: Array
    run: float
    trees: Trees

    def costs(self, graph: EncodedGraph, described: Described) -> Array:
        """Return what operators cost [s], (n_operators,)."""
        return _priors(self.rates, graph) * self._factors(described)

    def _factors(self, described: Described) -> Array:
        """Return by how much operators differ from what their rates say, (n_operators,)."""
        found: Array = np.exp(self.trees.predict(described.rows))[described.row_of]
        return found

    def latency(self, graph: EncodedGraph, described: Described) -> float:
        """Return the time of a network [s]."""
        return float(self.costs(graph, described).sum()) + self.run

    def latencies(self, graphs: Sequence[EncodedGraph]) -> Array:
        """Return the times of networks [s], (n_graphs,)."""
        return np.array([self.latency(graph, describe(graph)) for graph in graphs])

    def moved(self, examples: Examples, platform: int) -> OperatorTrees:
        """Return them for another platform: with rates that are fitted to what was measured there.

        What operators take beyond their rates, as where a runtime fuses them, is much the same on devices with one
        runtime, and tells more than a few networks can.

        Parameters
        ----------
        examples : Examples
            Networks that were measured on the other platform.
        platform : int
            Its number.
        """
        graphs = [replace(graph, terms=self._terms(graph)) for graph in examples.graphs]
        here = Examples(graphs, examples.latencies, examples.parts)
        totals = np.array([group_totals(graph) for graph in graphs])
        factors, run = fit_rates(totals, here.latencies[:, platform], kernels_of(here, platform))
        return OperatorTrees(self.rates * factors, run, self.trees)

    def continued(self, examples: Examples, platform: int, seed: int) -> OperatorTrees:
        """Return them for another platform, where they learn on by the times of kernels there.

        Parameters
        ----------
        examples : Examples
            Networks whose kernels were timed on the other platform, at least one.
        platform : int
            Its number.
        seed : int
            Of the boosting.
        """
        moved = self.moved(examples, platform)
        boosting = _boosting(seed, max_iter=60, max_leaf_nodes=15, min_samples_leaf=20)
        more = _learned(boosting, examples, platform, lambda graph: moved.costs(graph, describe(graph)), moved.run)
        return OperatorTrees(moved.rates, moved.run, moved.trees + more)

    def _terms(self, graph: EncodedGraph) -> NDArray[np.float32]:
        """Return what each term of operators costs [s], (n_operators, n_terms)."""
        costs = self.rates[graph.groups] * graph.terms * self._factors(describe(graph))[:, None]
        return costs.astype(np.float32)

    def tensors(self) -> dict[str, NDArray[np.generic]]:
        """Return all that it knows as arrays, by name."""
        return {"rates": self.rates, "run": np.array([self.run]), **self.trees.arrays()}

    @classmethod
    def read(cls, tensors: Mapping[str, NDArray[np.generic]]) -> OperatorTrees:
        """Make it of arrays.

        Raises
        ------
        KeyError, ValueError
            If one is missing, or does not fit the others.
        """
        rates, run = tensors["rates"].astype(np.float64), float(tensors["run"].astype(np.float64)[0])
        if rates.shape != (len(GROUPS), len(TERMS)) or not (np.isfinite(rates).all() and np.isfinite(run)):
            raise ValueError("the rates of trees are not numbers by group and term.")
        return cls(rates, run, Trees.of_arrays(tensors).check(N_COLUMNS))


#: By platform; None where the kernels of too few networks were timed.
PlatformTrees = tuple[OperatorTrees | None, ...]


def learn_trees(examples: Examples, platform: int, seed: int) -> OperatorTrees:
    """Learn what operators cost on one platform, from times of kernels.

    Parameters
    ----------
    examples : Examples
        Networks, some of whose kernels were timed there; see `has_enough`.
    platform : int
        Number of the platform.
    seed : int
        Of the boosting.
    """
    known = examples.only(timed(examples, platform))
    totals = np.array([group_totals(graph) for graph in known.graphs])
    rates, run = fit_rates(totals, known.latencies[:, platform], kernels_of(known, platform))
    boosting = _boosting(seed, max_iter=150, max_leaf_nodes=63, max_depth=8, min_samples_leaf=10)
    return OperatorTrees(rates, run, _learned(boosting, known, platform, lambda graph: _priors(rates, graph), run))


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
    """Learn by which factor, as a logarithm, kernels differ from what their operators are expected to cost."""
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
    # In the precision in which trees are asked later, so that values on a threshold stay on their side.
    features = np.concatenate(rows).astype(np.float32)
    boosting.fit(features, np.clip(targets, -_FARTHEST, _FARTHEST), np.concatenate(weights))
    return Trees.of_histograms(boosting, features[:_COMPARED])


def has_enough(examples: Examples, platform: int) -> bool:
    """Return whether the kernels of enough networks were timed on a platform to learn trees from."""
    return len(timed(examples, platform)) >= FEWEST_NETWORKS


def timed(examples: Examples, platform: int) -> list[int]:
    """Return the numbers of networks whose kernels were timed on a platform."""
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
    """What trees see of the operators of a network. Immutable.

    Operators that are equal are one row: networks repeat their blocks.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, N_COLUMNS)
        What is seen of operators that differ.
    row_of : ndarray of shape (n_operators,)
        By operator, the number of its row.
    """

    rows: Array
    row_of: NDArray[np.intp]


def describe(graph: EncodedGraph) -> Described:
    """Return what trees of all platforms see of the operators of a network."""
    rows, row_of = np.unique(columns(graph), axis=0, return_inverse=True)
    return Described(rows, row_of.ravel())


def columns(graph: EncodedGraph) -> Array:
    """Return the numbers about operators, (n_operators, N_COLUMNS); -1 where nothing is next to one.

    What it reads counts by its mean, and what reads it by the last of them.
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
    """Kernels of networks, as rates are fitted to them.

    Parameters
    ----------
    totals : ndarray of shape (n_kernels, n_groups, n_terms)
        Terms by group.
    seconds, shares : ndarray of shape (n_kernels,)
        Their times [s], and their parts of the times of all kernels of their networks.
    firsts : ndarray of shape (n_kernels,)
        1 for those that hold what a run takes besides, 0 for all others.
    """

    totals: Array
    seconds: Array
    shares: Array
    firsts: Array


def kernels_of(examples: Examples, platform: int) -> Kernels | None:
    """Return the kernels that were timed on a platform, if there are any."""
    totals, seconds, shares, firsts = [], [], [], []
    for graph, parts in zip(examples.graphs, examples.parts, strict=True):
        timed = [part for part in parts if part.platform == platform and part.seconds > 0]
        whole = sum(part.seconds for part in timed)
        for part in timed:
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


def fit_rates(totals: Array, measured: Array, kernels: Kernels | None = None) -> tuple[Array, float]:
    """Fit what a unit of each term costs, by group, to times of networks, on relative errors.

    Parameters
    ----------
    totals : ndarray of shape (n_graphs, n_groups, n_terms)
        Terms by group.
    measured : ndarray of shape (n_graphs,)
        Times [s].
    kernels : Kernels, optional
        Kernels that count beside the networks, those of a network as much as the network.

    Returns
    -------
    rates : ndarray of shape (n_groups, n_terms)
        Positive.
    run : float
        What a run takes besides [s]; positive.
    """
    n_graphs, n_groups, n_terms = totals.shape
    runs = np.full(n_graphs, _RUN)
    shared = np.column_stack([totals.sum(1), runs]) / measured[:, None]
    common = np.maximum(nonnegative(shared, np.ones(n_graphs)), 0.02)
    start = np.concatenate([np.tile(common[:-1], n_groups), common[-1:]])
    design = np.column_stack([totals.reshape(n_graphs, -1), runs]) / measured[:, None] * start
    wanted = np.ones(n_graphs)
    if kernels is not None:
        flat = np.column_stack([kernels.totals.reshape(len(kernels.seconds), -1), _RUN * kernels.firsts])
        weights = np.sqrt(kernels.shares)
        design = np.vstack([design, flat / kernels.seconds[:, None] * start * weights[:, None]])
        wanted = np.concatenate([wanted, weights])
    held = _SHARED * np.sqrt(n_graphs / len(start)) * np.eye(len(start))
    # As normal equations: there are many more kernels than rates.
    gram = design.T @ design + held.T @ held
    right = design.T @ wanted + held.T @ held.sum(1)
    factors = _nonnegative(gram, right)
    found = start * np.maximum(factors, _FLOOR)
    return found[:-1].reshape(n_groups, n_terms), float(found[-1] * _RUN)


def _nonnegative(gram: Array, right: Array) -> Array:
    """Solve normal equations for numbers that are not negative."""
    lower = np.linalg.cholesky(gram + 1e-9 * np.trace(gram) / len(gram) * np.eye(len(gram)))
    solved: Array = scipy.optimize.nnls(lower.T, np.linalg.solve(lower, right), maxiter=30 * len(gram))[0]
    return solved
