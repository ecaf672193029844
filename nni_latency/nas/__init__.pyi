from ._checkpoint import Checkpoint, SearchState
from ._datasets import Dataset, load_dataset
from ._enas import ENAS
from ._fbnet import FBNet
from ._filter import LatencyFilter
from ._likeliest import found_sample, likeliest_sample
from ._loss import FBNetLoss
from ._mask import SharedGumbelSoftmax
from ._multi_trial import TPE, GridSearch
from ._penalty import LatencyPenalty
from ._profiler import LatencyProfiler
from ._random_one_shot import RandomOneShot
from ._report import CostReporting, cost_report, report_with_cost
from ._search import Epoch, SearchResult, Trial, run_search
from ._settings import STRATEGIES, SearchSettings, is_one_shot
from ._strategies import SearchAim, check_images, check_strategy, make_strategy
from ._target import TargetPenalty
from ._trials import run_trials

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
