from ._intervals import conformal_factor
from ._robust import (
    deviation,
    group_means,
    group_quantiles,
    huber_locations,
    huber_losses,
    huber_weights,
    weighted_quantile,
)

__all__ = [
    "conformal_factor",
    "deviation",
    "group_means",
    "group_quantiles",
    "huber_locations",
    "huber_losses",
    "huber_weights",
    "weighted_quantile",
]
