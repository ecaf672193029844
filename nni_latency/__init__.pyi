# SPDX-License-Identifier: Apache-2.0
from .analysis import ModelAnalysis
from .errors import LatencyError
from .estimators import Estimate, Estimator, LayerEstimator, NetworkEstimator, TableEstimator
from .loading import list_estimators, load_estimator
from .measurement import Measurement, Protocol
from .nas import FBNet, LatencyPenalty, LatencyProfiler
from .platforms import Platform
from .plugins import hookimpl
from .spaces import FBNetSpace
from .tables import LookupTable

__all__ = [
    "Estimate",
    "Estimator",
    "FBNet",
    "FBNetSpace",
    "LatencyError",
    "LatencyPenalty",
    "LatencyProfiler",
    "LayerEstimator",
    "LookupTable",
    "Measurement",
    "ModelAnalysis",
    "NetworkEstimator",
    "Platform",
    "Protocol",
    "TableEstimator",
    "hookimpl",
    "list_estimators",
    "load_estimator",
]
