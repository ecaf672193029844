# SPDX-License-Identifier: Apache-2.0
"""Rates of operators on one platform: what a unit of work or traffic costs, by group, fitted by least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import sparse

from nni_latency.graphs._encoding import GROUPS, RELATED, TERMS, EncodedGraph
from nni_latency.graphs._examples import Examples
from nni_latency.regression import nonnegative

#: Strength of the shrinkage of a group's costs to those of all operators or of a related group, and their lower bound
#: relative to those of all.
_SHARED, _FLOOR = 0.03, 0.1

#: Strength of the shrinkage to the costs of a related group, relative to that to the costs of all: times of kernels
#: tell the two apart, times of networks alone do not.
_TIE = 50.0

#: Terms whose cost does not depend on the group, and the strength of the shrinkage to the costs of all: what a picture
#: costs that is laid out anew is known of few groups.
_ALIKE, _HELD_ALIKE = ("laid_out", "crowded"), 50.0

#: Number of networks with timed kernels up to which the shrinkage is as strong; with more, a group may cost a hundred
#: times as much as others.
_FEW = 60

#: Lower bound of the common costs, relative to the nominal machine; and where a platform is added, which may be a GPU:
#: an H200 computes 8,000 times as fast, while its calls cost more.
_LEAST, LEAST_ADDED = 0.02, 1e-4

#: Upper bound of the common cost of an inner loop, relative to the nominal machine, where ten nanoseconds are nominal.
_MOST_LOOPS, _LOOPS = 0.2, TERMS.index("loops")

#: Fits, of which each but the first takes the expected times from the one before, and the factor by which these may be
#: off.
_ROUNDS, _FAR_OFF = 2, 4.0

#: Scale of the overhead of a run [s].
_RUN = 1e-5

Array = NDArray[np.float64]


@dataclass(frozen=True)
class _Kernels:
    """Kernels of networks, in the form for fitting rates.

    Parameters
    ----------
    totals : csr_array of shape (n_kernels, n_groups * n_terms)
        Terms of the kernels by group.
    seconds, shares : ndarray of shape (n_kernels,)
        Times [s], and shares of the time of all kernels of their networks.
    overheads : ndarray of shape (n_kernels,)
        Overheads of a run that the times include.
    """

    totals: sparse.csr_array
    seconds: Array
    shares: Array
    overheads: Array


def _kernels_of(examples: Examples, platform: int) -> _Kernels | None:
    """Return the kernels that were timed on a platform; None if there are none."""
    operators, shares, timed = [], [], []
    for graph, parts in zip(examples.graphs, examples.parts, strict=True):
        here = [part for part in parts if part.platform == platform and part.seconds > 0]
        whole = sum(part.seconds for part in here)
        operators.append((graph, [operator for part in here for operator in part.operators]))
        shares += [part.seconds / whole for part in here]
        timed += here
    if not timed:
        return None
    rows = np.repeat(np.arange(len(timed)), [len(part.operators) for part in timed])
    totals = _totals(operators, rows, len(timed))
    seconds, overheads = (np.array([getattr(part, name) for part in timed]) for name in ("seconds", "overheads"))
    return _Kernels(totals, seconds, np.array(shares), overheads)


def group_totals(graphs: Sequence[EncodedGraph]) -> sparse.csr_array:
    """Return the terms of networks by group, (n_graphs, n_groups * n_terms)."""
    rows = np.repeat(np.arange(len(graphs)), [len(graph) for graph in graphs])
    return _totals([(graph, slice(None)) for graph in graphs], rows, len(graphs))


def _totals(
    operators: Sequence[tuple[EncodedGraph, Sequence[int] | slice]], rows: NDArray[np.int64], n_rows: int
) -> sparse.csr_array:
    """Add up the terms of operators of networks by group and row, (n_rows, n_groups * n_terms)."""
    groups = np.concatenate([graph.groups[chosen] for graph, chosen in operators])
    values = np.concatenate([graph.terms[chosen] for graph, chosen in operators]).astype(np.float64)
    columns = groups[:, None] * len(TERMS) + np.arange(len(TERMS))
    places = np.repeat(rows, len(TERMS)), columns.ravel()
    return sparse.coo_array((values.ravel(), places), (n_rows, len(GROUPS) * len(TERMS))).tocsr()


def fit_rates(examples: Examples, platform: int, least: float = _LEAST) -> tuple[Array, float]:
    """Fit the cost of a unit of each term, by group, to times of networks and of their kernels.

    Errors are relative to the geometric mean of the measured and the expected time, by least squares with weights
    from the fit before. The kernels of a network have the same total weight as the network.

    Parameters
    ----------
    examples : Examples
        The networks, of which those count that were measured on the platform.
    platform : int
        Index of the platform.
    least : float
        Lower bound of the rates that all groups share.

    Returns
    -------
    rates : ndarray of shape (n_groups, n_terms)
        Positive rates.
    run : float
        Positive overhead of a run with one output [s].
    """
    rows = np.flatnonzero(~np.isnan(examples.latencies[:, platform])).tolist()
    measured, kernels = examples.latencies[rows, platform], _kernels_of(examples, platform)
    totals = group_totals([examples.graphs[row] for row in rows])
    runs = _RUN * np.array([examples.graphs[row].overheads for row in rows])
    n_graphs, n_groups, n_terms = len(rows), len(GROUPS), len(TERMS)
    together = totals.toarray().reshape(n_graphs, n_groups, n_terms).sum(axis=1)
    relative = np.column_stack([together, runs]) / measured[:, None]
    common = np.maximum(nonnegative(relative, np.ones(n_graphs)), least)
    # Without kernels, loops stand for whatever networks with many channels have in common.
    common[_LOOPS] = min(common[_LOOPS], _MOST_LOOPS)
    start = np.concatenate([np.tile(common[:-1], n_groups), common[-1:]])
    work, seconds, weights = _with_runs(totals, runs), measured, np.ones(n_graphs)
    if kernels is not None:
        work = sparse.vstack([work, _with_runs(kernels.totals, _RUN * kernels.overheads)]).tocsr()
        seconds = np.concatenate([seconds, kernels.seconds])
        weights = np.concatenate([weights, np.sqrt(kernels.shares)])
    shared = _SHARED if kernels is None else _SHARED * min(1.0, _FEW / n_graphs)
    held = shared * np.sqrt(n_graphs / len(start)) * _shrinkage()
    found, expected = start, seconds
    for _ in range(_ROUNDS):
        # Divided by the measured time alone, half as much would be a smaller error than twice as much.
        expected = np.clip(expected, seconds / _FAR_OFF, seconds * _FAR_OFF)
        scale = weights / np.sqrt(seconds * expected)
        design = work.multiply(scale[:, None]).multiply(start[None, :]).tocsr()
        # Use normal equations: there are many more kernels than rates.
        gram = (design.T @ design).toarray() + held.T @ held
        right = design.T @ (scale * seconds) + held.T @ held.sum(1)
        found = start * np.maximum(_nonnegative(gram, right), _FLOOR)
        expected = work @ found
    return found[:-1].reshape(n_groups, n_terms), float(found[-1] * _RUN)


def _shrinkage() -> Array:
    """Return the differences that are shrunk: of rates from the common ones, or from those of a related group."""
    found, is_alike = np.eye(len(GROUPS) * len(TERMS) + 1), np.isin(TERMS, _ALIKE)
    for group, related in RELATED.items():
        rows, columns = (GROUPS.index(name) * len(TERMS) + np.flatnonzero(~is_alike) for name in (group, related))
        found[rows, rows], found[rows, columns] = _TIE, -_TIE
    alike = np.flatnonzero(np.tile(is_alike, len(GROUPS)))
    found[alike, alike] = _HELD_ALIKE
    return found


def _with_runs(totals: sparse.csr_array, runs: Array) -> sparse.csr_array:
    """Append the overheads of a run as the last column."""
    return sparse.hstack([totals, sparse.csr_array(runs[:, None])]).tocsr()


def _nonnegative(gram: Array, right: Array) -> Array:
    """Solve normal equations under nonnegativity constraints."""
    lower = np.linalg.cholesky(gram + 1e-9 * np.trace(gram) / len(gram) * np.eye(len(gram)))
    solved: Array = scipy.optimize.nnls(lower.T, np.linalg.solve(lower, right), maxiter=30 * len(gram))[0]
    return solved
