# SPDX-License-Identifier: Apache-2.0
from ._folds import Rows, conformal_factor, draw_folds, held_out
from ._gaussian import CORRELATIONS, Posterior, Spectrum, ordinary_weights, squared_distances
from ._process import Process, left_out, negative_log_likelihood
from ._robust import (
    can_correlate,
    deviation,
    group_means,
    group_quantiles,
    huber_locations,
    huber_losses,
    huber_weights,
    rank_correlation,
    weighted_quantile,
)
from ._sums import Correction, corrected, nonnegative, one_hot, proportional
from ._trees import Tree, Trees

__all__ = [
    "CORRELATIONS",
    "Correction",
    "Posterior",
    "Process",
    "Rows",
    "Spectrum",
    "Tree",
    "Trees",
    "can_correlate",
    "conformal_factor",
    "corrected",
    "deviation",
    "draw_folds",
    "group_means",
    "group_quantiles",
    "held_out",
    "huber_locations",
    "huber_losses",
    "huber_weights",
    "left_out",
    "negative_log_likelihood",
    "nonnegative",
    "one_hot",
    "ordinary_weights",
    "proportional",
    "rank_correlation",
    "squared_distances",
    "weighted_quantile",
]
