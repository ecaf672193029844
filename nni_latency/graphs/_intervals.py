# SPDX-License-Identifier: Apache-2.0
"""Intervals of predictions: conformal, and wider where a network is unlike those that were learned from.

Half the width of an interval, as a logarithm, is a base of the platform times ``1 + weights @ doubts``. The doubts of a
network are measured on it alone: how far its operators are outside of the sizes that were learned from, and how short
it is. The weights are fitted to errors of held-out networks; the base is the quantile of these errors over their
widths, so that the intervals cover the held-out networks as often as they claim: locally weighted conformal
prediction [1]_.

References
----------
.. [1] J. Lei et al., "Distribution-Free Predictive Inference for Regression", JASA 113, 2018.
   https://arxiv.org/abs/1604.04173
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from nni_latency.graphs._encoding import EncodedGraph
from nni_latency.graphs._mixed_networks import MIXED
from nni_latency.graphs._operator_features import KINDS
from nni_latency.operators import OpSpec
from nni_latency.regression import weighted_quantile

Array = NDArray[np.float64]

#: Doubts about a network.
DOUBTS = ("sizes outside of those learned", "short")

#: Phrases that name what is unfamiliar in a network: kinds of operators, and sizes of known kinds.
UNFAMILIAR = ("operators never learned from", "sizes outside of those learned from")

#: Features that are compared with the ranges: work, inputs, outputs, parameters; the first of all features.
_N_COMPARED = 4

#: Distance of an operator of a kind that was never learned from, and the largest one of a known kind, in powers of two.
FARTHEST = 4.0

#: Factor by which the cost of an operator of an unknown kind may be larger than predicted.
_UNKNOWN = 5.0

#: Latency below which a network is short [s].
_SHORT = 1e-3

#: Largest doubt of each kind.
_MOST = np.array([FARTHEST, 4.0])

#: Smallest typical error, as a logarithm.
_LEAST = 1e-3

#: Share of the time from which operators outside of the known sizes are named, and their distance.
_NAMED_SHARE, _NAMED_DISTANCE = 0.05, 0.5


@dataclass(frozen=True)
class Ranges:
    """Sizes of the operators that were learned from, by platform and kind.

    Parameters
    ----------
    low, high : ndarray of shape (n_platforms, n_kinds + 1, 4)
        Smallest and largest logarithms of operations, inputs, outputs and parameters; infinite where a kind never
        occurred. Index 0 is of all kinds that are not distinguished.
    """

    low: NDArray[np.float32]
    high: NDArray[np.float32]

    @classmethod
    def of(cls, graphs: Sequence[EncodedGraph], latencies: Array) -> Ranges:
        """Return the ranges over the networks that were measured on each platform.

        Parameters
        ----------
        graphs : sequence of EncodedGraph
            Networks.
        latencies : ndarray of shape (n_graphs, n_platforms)
            Latencies [s]; NaN where not measured.
        """
        shape = latencies.shape[1], len(KINDS) + 1, _N_COMPARED
        low, high = np.full(shape, np.inf, np.float32), np.full(shape, -np.inf, np.float32)
        for graph, measured in zip(graphs, latencies, strict=True):
            features = graph.features[:, :_N_COMPARED]
            for platform in np.flatnonzero(~np.isnan(measured)):
                np.minimum.at(low[platform], graph.kinds, features)
                np.maximum.at(high[platform], graph.kinds, features)
        return cls(low, high)

    def check(self, n_platforms: int) -> Ranges:
        """Return the ranges themselves.

        Raises
        ------
        ValueError
            If there is not one for every platform and kind.
        """
        if {self.low.shape, self.high.shape} != {(n_platforms, len(KINDS) + 1, _N_COMPARED)}:
            raise ValueError("there must be ranges for every platform and kind of operator.")
        return self

    def distances(self, graph: EncodedGraph) -> Array:
        """Return how far operators are outside of the ranges, (n_operators, n_platforms), in powers of two."""
        features = graph.features[None, :, :_N_COMPARED]
        low, high = self.low[:, graph.kinds], self.high[:, graph.kinds]
        with np.errstate(invalid="ignore"):
            beyond = np.maximum(low - features, features - high).clip(min=0).max(axis=2)
        found: Array = np.minimum(beyond, FARTHEST).T.astype(np.float64)
        return found

    def widened(self, others: Ranges) -> Ranges:
        """Return the ranges, which also hold what other platforms have learned, on any of them."""
        return Ranges(
            np.minimum(self.low, others.low.min(axis=0, keepdims=True)),
            np.maximum(self.high, others.high.max(axis=0, keepdims=True)),
        )

    def joined(self, other: Ranges, place: int) -> Ranges:
        """Return the ranges with those of another platform appended, or in place of a known one."""
        pairs = zip((self.low, self.high), (other.low, other.high), strict=True)
        low, high = (np.concatenate([known[:place], new, known[place + 1 :]]) for known, new in pairs)
        return Ranges(low, high)


def doubts_of(costs: Array, distances: Array) -> Array:
    """Return the doubts about a network, (n_platforms, n_doubts).

    Parameters
    ----------
    costs : ndarray of shape (n_operators, n_platforms)
        Predicted costs of its operators [s].
    distances : ndarray of shape (n_operators, n_platforms)
        See `Ranges.distances`.
    """
    # What is unknown may be predicted too small: its share counts as if it took longer.
    weights = costs * np.where(distances >= FARTHEST, _UNKNOWN, 1.0)
    outside = (weights * distances).sum(0) / weights.sum(0)
    short = np.log(_SHORT / np.maximum(costs.sum(0), 1e-9)).clip(min=0)
    found: Array = np.minimum(np.column_stack([outside, short]), _MOST)
    return found


def weights_of_doubts(errors: Array, doubts: Array, importance: Array) -> Array:
    """Fit how much each doubt widens intervals, relative to a network without doubts, (n_doubts,).

    Parameters
    ----------
    errors : ndarray of shape (n_networks, n_platforms)
        Logarithms of predicted over measured latencies of held-out networks; NaN where not measured.
    doubts : ndarray of shape (n_networks, n_platforms, n_doubts)
        Doubts about them.
    importance : ndarray of shape (n_networks, n_platforms)
        Weight of each error.
    """
    known = ~np.isnan(errors)
    typical = np.array(
        [
            max(_LEAST, weighted_quantile(np.abs(column[some]), weights[some], 0.5)) if some.any() else 1.0
            for column, weights, some in zip(errors.T, importance.T, known.T, strict=True)
        ]
    )
    # Errors of less than five times the typical one: a few accidents must not decide.
    relative = np.minimum(np.abs(errors) / typical, 5.0)[known]
    roots = np.sqrt(importance[known])
    design = np.column_stack([np.ones(len(relative)), doubts[known]])
    found, _ = scipy.optimize.nnls(design * roots[:, None], relative * roots)
    weights: Array = found[1:] / max(found[0], 0.1)
    return weights


def widths_of(doubts: Array, weights: Array) -> Array:
    """Return the factors by which doubts widen intervals."""
    found: Array = 1 + doubts @ weights
    return found


def conformal_spread(scores: Array, importance: Array, confidence: float) -> float:
    """Return the quantile of errors over their widths that covers a further network with the given probability.

    Infinite scores are not expected; with few networks the largest one counts.
    """
    level = min(1.0, confidence * (1 + 1 / len(scores)))
    return weighted_quantile(scores, importance, level)


def importance_of(errors: Array, families: Sequence[str]) -> Array:
    """Return a weight for each error, (n_networks, n_platforms).

    On each platform, published families count alike, and together as much as all networks of random blocks.
    """
    found = np.zeros(errors.shape)
    names, known, is_block = np.array(families), ~np.isnan(errors), _are_blocks(families)
    for name in sorted({*families} - MIXED):
        rows = names == name
        found[rows] = known[rows] / np.maximum(1, known[rows].sum(0))
    found[~is_block] /= np.maximum(1, found[~is_block].sum(0))
    found[is_block] = known[is_block] / np.maximum(1, known[is_block].sum(0))
    return found


def _are_blocks(families: Sequence[str]) -> NDArray[np.bool_]:
    """Whether each family is of random blocks."""
    return np.isin(np.array(families), sorted(MIXED))


def spreads_with(errors: Array, widths: Array, families: Sequence[str], confidence: float) -> Array:
    """Return half the width of the interval of a network without doubts, by platform, as a logarithm.

    It covers published families as well as networks of random blocks: the wider of both intervals counts, because one
    cannot tell which of them the networks of others resemble.
    """
    importance, is_block = importance_of(errors, families), _are_blocks(families)
    found = []
    for column in range(errors.shape[1]):
        known = ~np.isnan(errors[:, column])
        parts = [some for some in (known & is_block, known & ~is_block) if some.any()]
        scores = np.abs(errors[:, column]) / widths[:, column]
        spreads = [conformal_spread(scores[some], importance[some, column], confidence) for some in parts]
        found.append(max(spreads, default=math.inf))
    return np.array(found)


def unfamiliar(ops: Sequence[OpSpec], distances: Array, shares: Array) -> tuple[str, ...]:
    """Name the operators that widen an interval.

    Parameters
    ----------
    ops : sequence of OpSpec
        Operators of a network.
    distances, shares : ndarray of shape (n_operators,)
        See `Ranges.distances`; and predicted shares of the time.

    Returns
    -------
    tuple of str
        A phrase for kinds that were never learned from, and one for sizes outside of those learned from.
    """
    is_new = distances >= FARTHEST
    is_outside = (distances >= _NAMED_DISTANCE) & ~is_new
    found = []
    for what, chosen, least in zip(UNFAMILIAR, (is_new, is_outside), (0.0, _NAMED_SHARE), strict=True):
        by_kind: dict[str, float] = {}
        for op, is_chosen, share in zip(ops, chosen, shares, strict=True):
            if is_chosen:
                by_kind[op.kind] = by_kind.get(op.kind, 0.0) + float(share)
        named = [kind for kind, share in by_kind.items() if share >= least]
        if named:
            found.append(f"{what}: {', '.join(sorted(named))}")
    return tuple(found)
