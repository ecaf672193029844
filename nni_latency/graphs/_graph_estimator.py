"""`GraphNetworkEstimator`: one platform of a `GraphPredictor`, wherever an estimator is asked for."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError
from nni_latency.estimators import Estimate, NetworkEstimator
from nni_latency.files import write_atomically
from nni_latency.graphs._graph_predictor import GraphPredictor
from nni_latency.operators import Trace, export_onnx, trace_onnx, without_weights
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

    def __init__(self, predictor: GraphPredictor, platform: Platform) -> None:
        self.predictor, self.platform = predictor, platform

    def estimate(self, model: Any, example_inputs: Any = None) -> Estimate:
        """Estimate a network.

        Parameters
        ----------
        model : nn.Module, str, Path or Trace
            A module, which is exported to ONNX, because that is what was learned from; an ONNX file; or a graph.
        example_inputs : Tensor or tuple of Tensor
            What it takes; for an ONNX file only where it leaves sizes open.

        Raises
        ------
        InvalidValueError
            If the model cannot be read or exported, or model and inputs do not fit each other.
        MissingDependencyError
            If the package onnx or torch_geometric is not installed.
        """
        return self.predictor.estimate(graph_of(model, example_inputs))[self.platform.id]


def graph_of(model: Any, example_inputs: Any = None, batch_size: int | None = None) -> Trace:
    """Return the graph of a module, an ONNX file, or a graph, in the form in which ONNX files have it.

    Raises
    ------
    InvalidValueError
        If it cannot be read or exported.
    """
    if isinstance(model, Trace):
        return model
    if isinstance(model, (str, Path)):
        return trace_onnx(model, batch_size, example_inputs)
    if example_inputs is None:
        raise InvalidValueError("A module needs 'example_inputs': costs depend on the shapes. Got None.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        write_atomically(path, without_weights(export_onnx(model, example_inputs).model).SerializeToString())
        return trace_onnx(path)
