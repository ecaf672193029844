"""The glue to NNI: profilers, penalties, strategies, and a whole search."""

from typing import TYPE_CHECKING

from nni_latency.imports import lazy_exports

if TYPE_CHECKING:
    from nni_latency.nas._checkpoint import Checkpoint, SearchState
    from nni_latency.nas._datasets import Dataset, load_dataset
    from nni_latency.nas._enas import ENAS
    from nni_latency.nas._fbnet import FBNet
    from nni_latency.nas._filter import LatencyFilter
    from nni_latency.nas._likeliest import found_sample, likeliest_sample
    from nni_latency.nas._loss import FBNetLoss
    from nni_latency.nas._mask import SharedGumbelSoftmax
    from nni_latency.nas._multi_trial import TPE, GridSearch
    from nni_latency.nas._penalty import LatencyPenalty
    from nni_latency.nas._profiler import LatencyProfiler
    from nni_latency.nas._random_one_shot import RandomOneShot
    from nni_latency.nas._report import CostReporting, cost_report, report_with_cost
    from nni_latency.nas._search import Epoch, SearchResult, Trial, run_search
    from nni_latency.nas._strategies import (
        STRATEGIES,
        SearchAim,
        check_images,
        check_strategy,
        is_one_shot,
        make_strategy,
    )
    from nni_latency.nas._target import TargetPenalty
    from nni_latency.nas._training import SearchSettings
    from nni_latency.nas._trials import run_trials

__all__ = [
    "ENAS",
    "STRATEGIES",
    "TPE",
    "Checkpoint",
    "CostReporting",
    "Dataset",
    "Epoch",
    "FBNet",
    "FBNetLoss",
    "GridSearch",
    "LatencyFilter",
    "LatencyPenalty",
    "LatencyProfiler",
    "RandomOneShot",
    "SearchAim",
    "SearchResult",
    "SearchSettings",
    "SearchState",
    "SharedGumbelSoftmax",
    "TargetPenalty",
    "Trial",
    "check_images",
    "check_strategy",
    "cost_report",
    "found_sample",
    "is_one_shot",
    "likeliest_sample",
    "load_dataset",
    "make_strategy",
    "report_with_cost",
    "run_search",
    "run_trials",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "STRATEGIES": "nni_latency.nas._strategies",
        "SearchAim": "nni_latency.nas._strategies",
        "check_images": "nni_latency.nas._strategies",
        "check_strategy": "nni_latency.nas._strategies",
        "is_one_shot": "nni_latency.nas._strategies",
        "make_strategy": "nni_latency.nas._strategies",
        "run_trials": "nni_latency.nas._trials",
        "Trial": "nni_latency.nas._search",
        "Checkpoint": "nni_latency.nas._checkpoint",
        "CostReporting": "nni_latency.nas._report",
        "Dataset": "nni_latency.nas._datasets",
        "ENAS": "nni_latency.nas._enas",
        "Epoch": "nni_latency.nas._search",
        "FBNet": "nni_latency.nas._fbnet",
        "FBNetLoss": "nni_latency.nas._loss",
        "GridSearch": "nni_latency.nas._multi_trial",
        "LatencyFilter": "nni_latency.nas._filter",
        "LatencyPenalty": "nni_latency.nas._penalty",
        "LatencyProfiler": "nni_latency.nas._profiler",
        "RandomOneShot": "nni_latency.nas._random_one_shot",
        "SearchResult": "nni_latency.nas._search",
        "SearchSettings": "nni_latency.nas._training",
        "SearchState": "nni_latency.nas._checkpoint",
        "SharedGumbelSoftmax": "nni_latency.nas._mask",
        "TPE": "nni_latency.nas._multi_trial",
        "TargetPenalty": "nni_latency.nas._target",
        "cost_report": "nni_latency.nas._report",
        "found_sample": "nni_latency.nas._likeliest",
        "likeliest_sample": "nni_latency.nas._likeliest",
        "load_dataset": "nni_latency.nas._datasets",
        "report_with_cost": "nni_latency.nas._report",
        "run_search": "nni_latency.nas._search",
    },
)
