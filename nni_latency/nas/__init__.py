"""The glue to NNI: profilers, penalties, strategies, and a whole search."""

from typing import TYPE_CHECKING

from nni_latency.imports import lazy_exports

if TYPE_CHECKING:
    from nni_latency.nas._datasets import Dataset, load_dataset
    from nni_latency.nas._fbnet import FBNet
    from nni_latency.nas._loss import FBNetLoss
    from nni_latency.nas._mask import SharedGumbelSoftmax
    from nni_latency.nas._penalty import LatencyPenalty
    from nni_latency.nas._profiler import LatencyProfiler

__all__ = [
    "Dataset",
    "Epoch",
    "FBNet",
    "FBNetLoss",
    "LatencyPenalty",
    "LatencyProfiler",
    "SearchResult",
    "SearchSettings",
    "SharedGumbelSoftmax",
    "load_dataset",
    "run_search",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Dataset": "nni_latency.nas._datasets",
        "Epoch": "nni_latency.nas._search",
        "FBNet": "nni_latency.nas._fbnet",
        "FBNetLoss": "nni_latency.nas._loss",
        "LatencyPenalty": "nni_latency.nas._penalty",
        "LatencyProfiler": "nni_latency.nas._profiler",
        "SearchResult": "nni_latency.nas._search",
        "SearchSettings": "nni_latency.nas._search",
        "SharedGumbelSoftmax": "nni_latency.nas._mask",
        "load_dataset": "nni_latency.nas._datasets",
        "run_search": "nni_latency.nas._search",
    },
)
