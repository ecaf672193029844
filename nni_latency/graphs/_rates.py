"""What a unit of work costs, by group of operators: fitted by least squares, without any correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from nni_latency.graphs._encoding import GROUPS, TERMS, EncodedGraph
from nni_latency.graphs._examples import Examples
from nni_latency.regression import nonnegative

Array = NDArray[np.float64]

#: How strongly the costs of a group are held to those of all operators, and how far below they may be.
_SHARED, _FLOOR = 0.03, 0.1

#: What a run is expected to take besides, at first [s].
_RUN = 1e-5


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
