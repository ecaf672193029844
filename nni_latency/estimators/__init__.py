"""Estimators: what answers "what does this cost?"."""

from nni_latency.estimators._additive import AdditiveCost, additive_cost, cheapest_selection, likeliest_within
from nni_latency.estimators._base import Estimate, Estimator, LayerEstimator, NetworkEstimator
from nni_latency.estimators._reading import read_estimator
from nni_latency.estimators._table import LayerShare, Missing, TableEstimator

__all__ = [
    "AdditiveCost",
    "Estimate",
    "Estimator",
    "LayerEstimator",
    "LayerShare",
    "Missing",
    "NetworkEstimator",
    "TableEstimator",
    "additive_cost",
    "cheapest_selection",
    "likeliest_within",
    "read_estimator",
]
