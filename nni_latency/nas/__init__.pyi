# SPDX-License-Identifier: Apache-2.0
from ._checkpoint import Checkpoint, SearchState
from ._datasets import Dataset, load_dataset
from ._derive import found_sample, freeze_trained, likeliest_sample, likeliest_together
from ._enas import ENAS
from ._expectation import ExpectedCost, ExpectedGroups, expected_cost
from ._fbnet import FBNet, FBNetLoss, SharedGumbelSoftmax
from ._penalty import LatencyPenalty, TargetPenalty, architecture_parameters
from ._profiler import LatencyFilter, LatencyProfiler
from ._report import CostReporting, cost_report, report_with_cost
from ._search import Epoch, SearchResult, Trial, run_search
from ._settings import STRATEGIES, SearchSettings, is_one_shot
from ._strategies import TPE, GridSearch, RandomOneShot, SearchAim, check_images, check_strategy, make_strategy
from ._trials import run_trials

__all__ = [
    "ENAS",
    "STRATEGIES",
    "TPE",
    "Checkpoint",
    "CostReporting",
    "Dataset",
    "Epoch",
    "ExpectedCost",
    "ExpectedGroups",
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
    "architecture_parameters",
    "check_images",
    "check_strategy",
    "cost_report",
    "expected_cost",
    "found_sample",
    "freeze_trained",
    "is_one_shot",
    "likeliest_sample",
    "likeliest_together",
    "load_dataset",
    "make_strategy",
    "report_with_cost",
    "run_search",
    "run_trials",
]
