"""The glue to NNI: profilers, penalties and strategies."""

from typing import TYPE_CHECKING

from nni_latency.imports import lazy_exports

if TYPE_CHECKING:
    from nni_latency.nas._fbnet import FBNet
    from nni_latency.nas._loss import FBNetLoss
    from nni_latency.nas._mask import SharedGumbelSoftmax
    from nni_latency.nas._penalty import LatencyPenalty
    from nni_latency.nas._profiler import LatencyProfiler

__all__ = [
    "FBNet",
    "FBNetLoss",
    "LatencyPenalty",
    "LatencyProfiler",
    "SharedGumbelSoftmax",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "FBNet": "nni_latency.nas._fbnet",
        "FBNetLoss": "nni_latency.nas._loss",
        "LatencyPenalty": "nni_latency.nas._penalty",
        "LatencyProfiler": "nni_latency.nas._profiler",
        "SharedGumbelSoftmax": "nni_latency.nas._mask",
    },
)
