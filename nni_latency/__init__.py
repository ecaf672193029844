"""True costs for neural architecture search: latency first, then energy, memory and throughput.

The names below load what they need on first use, so importing the package costs next to nothing.
"""

from typing import TYPE_CHECKING

from nni_latency.imports import lazy_exports

if TYPE_CHECKING:
    from nni_latency.analysis import ModelAnalysis
    from nni_latency.errors import LatencyError
    from nni_latency.estimators import Estimate, Estimator, LayerEstimator, NetworkEstimator, TableEstimator
    from nni_latency.loading import load_estimator
    from nni_latency.measurement import Measurement, Protocol
    from nni_latency.nas import FBNet, LatencyPenalty, LatencyProfiler
    from nni_latency.platforms import Platform
    from nni_latency.plugins import hookimpl
    from nni_latency.spaces import FBNetSpace
    from nni_latency.tables import LookupTable

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
    "load_estimator",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Estimate": "nni_latency.estimators",
        "Estimator": "nni_latency.estimators",
        "FBNet": "nni_latency.nas",
        "FBNetSpace": "nni_latency.spaces",
        "LatencyError": "nni_latency.errors",
        "LatencyPenalty": "nni_latency.nas",
        "LatencyProfiler": "nni_latency.nas",
        "LayerEstimator": "nni_latency.estimators",
        "LookupTable": "nni_latency.tables",
        "Measurement": "nni_latency.measurement",
        "ModelAnalysis": "nni_latency.analysis",
        "NetworkEstimator": "nni_latency.estimators",
        "Platform": "nni_latency.platforms",
        "Protocol": "nni_latency.measurement",
        "TableEstimator": "nni_latency.estimators",
        "hookimpl": "nni_latency.plugins",
        "load_estimator": "nni_latency.loading",
    },
)
