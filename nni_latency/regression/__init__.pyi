from ._document import ProcessDocument, TreesDocument
from ._gaussian import CORRELATIONS, Posterior, Spectrum, ordinary_weights, squared_distances
from ._intervals import conformal_factor
from ._process import Process, left_out, unlikelihood
from ._robust import (
    deviation,
    group_means,
    group_quantiles,
    huber_locations,
    huber_losses,
    huber_weights,
    weighted_quantile,
)
from ._trees import Tree, Trees

__all__ = [
    "CORRELATIONS",
    "Posterior",
    "Process",
    "ProcessDocument",
    "Spectrum",
    "Tree",
    "Trees",
    "TreesDocument",
    "conformal_factor",
    "deviation",
    "group_means",
    "group_quantiles",
    "huber_locations",
    "huber_losses",
    "huber_weights",
    "left_out",
    "ordinary_weights",
    "squared_distances",
    "unlikelihood",
    "weighted_quantile",
]
