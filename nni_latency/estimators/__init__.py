"""Cost estimators."""

from nni_latency.estimators._additive import (
    AdditiveCost,
    additive_cost,
    cheapest_selection,
    likeliest_within,
    separable_cost,
)
from nni_latency.estimators._base import Estimate, Estimator, LayerEstimator, NetworkEstimator
from nni_latency.estimators._breakdown import Breakdown, OperatorShare, break_down
from nni_latency.estimators._choice_cost import ChoiceCost
from nni_latency.estimators._derived import Derived
from nni_latency.estimators._distil import Distillation, distil
from nni_latency.estimators._ensemble import LayerEnsemble, NetworkEnsemble, make_ensemble
from nni_latency.estimators._estimated_table import estimate_operator_table, estimate_table
from nni_latency.estimators._fallback import Agreement, FallbackEstimator, NetworkFallback, with_fallback
from nni_latency.estimators._grouped import CostTable, GroupedCost
from nni_latency.estimators._layer_share import LayerShare, layer_shares
from nni_latency.estimators._measured_layers import GraphEstimator, ModuleEstimator
from nni_latency.estimators._measured_network import MeasuredNetworkEstimator
from nni_latency.estimators._measuring import ON_DEMAND, MeasuringEstimator
from nni_latency.estimators._operator_predictor import OperatorPredictor, nominal_time
from nni_latency.estimators._operator_table import OperatorTableEstimator
from nni_latency.estimators._predicted_rest import PredictedRest
from nni_latency.estimators._reading import read_estimator, read_saved, table_estimator
from nni_latency.estimators._sample_error import sample_error
from nni_latency.estimators._scores import Scores, score
from nni_latency.estimators._selection import estimate_layers, estimate_selection
from nni_latency.estimators._table import Missing, TableEstimator
from nni_latency.estimators._transfer import TransferEstimator
from nni_latency.estimators.acts import ActsEstimator, ActsLine, acts_schema, conformal_factor
from nni_latency.estimators.transfer import CellEncoding, FewSourcesWarning, Recovery, encoding_of, transfer_schema

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
    "OperatorTableEstimator",
    "PredictedRest",
    "Recovery",
    "Scores",
    "TableEstimator",
    "TransferEstimator",
    "acts_schema",
    "additive_cost",
    "break_down",
    "cheapest_selection",
    "conformal_factor",
    "distil",
    "encoding_of",
    "estimate_layers",
    "estimate_operator_table",
    "estimate_selection",
    "estimate_table",
    "layer_shares",
    "likeliest_within",
    "make_ensemble",
    "nominal_time",
    "read_estimator",
    "read_saved",
    "sample_error",
    "score",
    "separable_cost",
    "table_estimator",
    "transfer_schema",
    "with_fallback",
]
