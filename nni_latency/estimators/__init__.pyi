# SPDX-License-Identifier: Apache-2.0
from ._additive import AdditiveCost, additive_cost, cheapest_selection, likeliest_within
from ._base import Estimate, Estimator, LayerEstimator, LayerShare, NetworkEstimator, layer_shares
from ._breakdown import Breakdown, OperatorShare, break_down, estimate_layers, estimate_selection
from ._choice_cost import ChoiceCost, CostTable, Derived, GroupedCost, sample_error
from ._distil import Distillation, distil
from ._ensemble import LayerEnsemble, NetworkEnsemble, make_ensemble
from ._estimated_table import estimate_table
from ._fallback import Agreement, FallbackEstimator, NetworkFallback, with_fallback
from ._kernel import KernelCosts, KernelEstimator
from ._measuring import ON_DEMAND, GraphEstimator, MeasuredNetworkEstimator, MeasuringEstimator, ModuleEstimator
from ._operator_predictor import OperatorPredictor, PredictedRest, nominal_time
from ._scores import Scores, score
from ._table import Missing, TableEstimator
from ._transfer import TransferEstimator
from .acts import ActsEstimator, ActsLine, acts_schema
from .transfer import CellEncoding, FewSourcesWarning, Recovery, encoding_of, transfer_schema

__all__ = [
    "ON_DEMAND",
    "ActsEstimator",
    "ActsLine",
    "AdditiveCost",
    "Agreement",
    "Breakdown",
    "CellEncoding",
    "ChoiceCost",
    "CostTable",
    "Derived",
    "Distillation",
    "Estimate",
    "Estimator",
    "FallbackEstimator",
    "FewSourcesWarning",
    "GraphEstimator",
    "GroupedCost",
    "KernelCosts",
    "KernelEstimator",
    "LayerEnsemble",
    "LayerEstimator",
    "LayerShare",
    "MeasuredNetworkEstimator",
    "MeasuringEstimator",
    "Missing",
    "ModuleEstimator",
    "NetworkEnsemble",
    "NetworkEstimator",
    "NetworkFallback",
    "OperatorPredictor",
    "OperatorShare",
    "PredictedRest",
    "Recovery",
    "Scores",
    "TableEstimator",
    "TransferEstimator",
    "acts_schema",
    "additive_cost",
    "break_down",
    "cheapest_selection",
    "distil",
    "encoding_of",
    "estimate_layers",
    "estimate_selection",
    "estimate_table",
    "layer_shares",
    "likeliest_within",
    "make_ensemble",
    "nominal_time",
    "sample_error",
    "score",
    "transfer_schema",
    "with_fallback",
]
