# SPDX-License-Identifier: Apache-2.0
"""Rates of operators on one platform: what a unit of work or traffic costs, by group, fitted by least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from nni_latency.graphs._encoding import GROUPS, TERMS, EncodedGraph
from nni_latency.graphs._examples import Examples
from nni_latency.regression import nonnegative

#: Strength of the shrinkage of a group's costs to those of all operators, and their lower bound relative to these.
_SHARED, _FLOOR = 0.03, 0.1

#: Number of networks with timed kernels up to which the shrinkage is as strong; with more, a group may cost a hundred
#: times as much as others.
_FEW = 60

#: Lower bound of the common costs, relative to the nominal machine; and where a platform is added, which may be a GPU:
#: an H200 computes 8,000 times as fast, while its calls cost more.
_LEAST, LEAST_ADDED = 0.02, 1e-4

#: Scale of the overhead of a run [s].
_RUN = 1e-5

Array = NDArray[np.float64]


@dataclass(frozen=True)
class _Kernels:
    """Kernels of networks, in the form for fitting rates.

    Parameters
    ----------
    totals : ndarray of shape (n_kernels, n_groups, n_terms)
        Terms of the kernels by group.
    seconds, shares : ndarray of shape (n_kernels,)
        Times [s], and shares of the time of all kernels of their networks.
    overheads : ndarray of shape (n_kernels,)
        Overheads of a run that the times include.
    """

    totals: Array
    seconds: Array
    shares: Array
    overheads: Array


def _kernels_of(examples: Examples, platform: int) -> _Kernels | None:
    """Return the kernels that were timed on a platform; None if there are none."""
    totals, seconds, shares, overheads = [], [], [], []
    for graph, parts in zip(examples.graphs, examples.parts, strict=True):
        here = [part for part in parts if part.platform == platform and part.seconds > 0]
        whole = sum(part.seconds for part in here)
        for part in here:
            totals.append(group_totals(graph, part.operators))
            seconds.append(part.seconds)
            shares.append(part.seconds / whole)
            overheads.append(part.overheads)
    if not totals:
        return None
    return _Kernels(np.array(totals), np.array(seconds), np.array(shares), np.array(overheads))


def group_totals(graph: EncodedGraph, operators: Sequence[int] | None = None) -> Array:
    """Return the terms of a network, or of some of its operators, by group, (n_groups, n_terms)."""
    chosen = slice(None) if operators is None else list(operators)
    totals = np.zeros((len(GROUPS), len(TERMS)))
    np.add.at(totals, graph.groups[chosen], graph.terms[chosen].astype(np.float64))
    return totals


def fit_rates(examples: Examples, platform: int, least: float = _LEAST) -> tuple[Array, float]:
    """Fit the cost of a unit of each term, by group, to times of networks and of their kernels, on relative errors.

    The kernels of a network have the same total weight as the network.

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
    totals = np.array([group_totals(examples.graphs[row]) for row in rows])
    runs = _RUN * np.array([examples.graphs[row].overheads for row in rows])
    n_graphs, n_groups, n_terms = totals.shape
    together = np.column_stack([totals.sum(1), runs]) / measured[:, None]
    common = np.maximum(nonnegative(together, np.ones(n_graphs)), least)
    start = np.concatenate([np.tile(common[:-1], n_groups), common[-1:]])
    design = np.column_stack([totals.reshape(n_graphs, -1), runs]) / measured[:, None] * start
    wanted = np.ones(n_graphs)
    if kernels is not None:
        flat = np.column_stack([kernels.totals.reshape(len(kernels.seconds), -1), _RUN * kernels.overheads])
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
