# SPDX-License-Identifier: Apache-2.0
from ._blocks import Variation
from ._family import (
    BlockFamily,
    Family,
    Member,
    NetworkFamily,
    block_families,
    families,
    find_families,
    generate_onnx,
    generated_files,
    members_in_turn,
    save_onnx,
)
from ._graph_estimator import GraphNetworkEstimator
from ._graph_network import OperatorCost
from ._graph_predictor import GraphPredictor
from ._intervals import UNFAMILIAR
from ._measured_network import MeasuredNetwork, read_measured
from ._mixed_networks import MIXED
from ._network_latencies import GROUND_TRUTH, NetworkLatency, latency_conflicts, read_nnlqp, write_nnlqp
from ._onnx_form import graph_of, light_onnx
from ._shipped import (
    PRETRAINED,
    find_predictor,
    own_predictor,
    shipped_digest,
    shipped_predictor,
    usual_predictor,
)

__all__ = [
    "GROUND_TRUTH",
    "MIXED",
    "PRETRAINED",
    "UNFAMILIAR",
    "BlockFamily",
    "Family",
    "GraphNetworkEstimator",
    "GraphPredictor",
    "MeasuredNetwork",
    "Member",
    "NetworkFamily",
    "NetworkLatency",
    "OperatorCost",
    "Variation",
    "block_families",
    "families",
    "find_families",
    "find_predictor",
    "generate_onnx",
    "generated_files",
    "graph_of",
    "latency_conflicts",
    "light_onnx",
    "members_in_turn",
    "own_predictor",
    "read_measured",
    "read_nnlqp",
    "save_onnx",
    "shipped_digest",
    "shipped_predictor",
    "usual_predictor",
    "write_nnlqp",
]
