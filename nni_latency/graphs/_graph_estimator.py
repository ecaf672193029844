"""`GraphNetworkEstimator`: one platform of a `GraphPredictor`, wherever an estimator is asked for."""

from __future__ import annotations

from typing import Any

from nni_latency.estimators import Estimate, NetworkEstimator
from nni_latency.graphs._graph_predictor import GraphPredictor
from nni_latency.graphs._onnx_form import graph_of
from nni_latency.platforms import Platform


class GraphNetworkEstimator(NetworkEstimator):
    """Network-based: a graph network predicts the latency of whole networks, operator by operator.

    Parameters
    ----------
    predictor : GraphPredictor
        What has learned.
    platform : Platform
        One of its platforms.
    """

    metric = "latency"
    reads_onnx = True

    def __init__(self, predictor: GraphPredictor, platform: Platform) -> None:
        self.predictor, self.platform = predictor, platform

    def estimate(self, model: Any, example_inputs: Any = None) -> Estimate:
        """Estimate a network.

        Parameters
        ----------
        model : nn.Module, str, Path or Graph
            A module, which is exported to ONNX, because that is what was learned from; an ONNX file; or a graph.
        example_inputs : Tensor or tuple of Tensor
            What it takes; for an ONNX file only where it leaves sizes open.

        Raises
        ------
        InvalidValueError
            If the model cannot be read or exported, or model and inputs do not fit each other.
        MissingDependencyError
            If the package onnx does not load.
        """
        return self.predictor.estimate(graph_of(model, example_inputs))[self.platform.id]
