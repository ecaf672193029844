"""`GraphNetworkEstimator`: one platform of a `GraphPredictor`, wherever an estimator is asked for."""

from __future__ import annotations

import copy
import tempfile
import threading
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError, LatencyError
from nni_latency.estimators import Estimate, NetworkEstimator
from nni_latency.graphs._graph_predictor import GraphPredictor
from nni_latency.operators import Graph, Inputs, export_onnx, freeze_inputs, read_onnx, without_weights
from nni_latency.platforms import Platform

_EXPORTING = threading.Lock()


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
            If the package onnx or torch_geometric is not installed.
        """
        return self.predictor.estimate(graph_of(model, example_inputs))[self.platform.id]


def graph_of(model: Any, example_inputs: Any = None, batch_size: int | None = None) -> Graph:
    """Return the graph of a module, an ONNX file, or a graph, in the form in which ONNX files have it.

    Raises
    ------
    InvalidValueError
        If it cannot be read or exported.
    """
    if isinstance(model, Graph):
        return model
    if isinstance(model, (str, Path)):
        return read_onnx(model, batch_size, example_inputs)
    if example_inputs is None:
        raise InvalidValueError("A module needs 'example_inputs': costs depend on the shapes. Got None.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        path.write_bytes(_exported(model, freeze_inputs(example_inputs, device=None)).SerializeToString())
        return read_onnx(path)


def _exported(model: Any, inputs: Inputs) -> Any:
    """Export a module without its weights."""
    if inputs.kwargs:
        raise InvalidValueError("A module that is exported to ONNX takes its inputs one by one. Got inputs by name.")
    try:
        # The exporter belongs to the process, and the network stays as it is.
        with _EXPORTING:
            return without_weights(export_onnx(copy.deepcopy(model).eval(), inputs.tensors).model)
    except LatencyError:
        raise
    except Exception as error:  # the forward pass of a network may raise anything
        first = next(iter(str(error).splitlines()), "")
        raise InvalidValueError(
            f"{type(model).__name__} cannot be run on these inputs: {type(error).__name__}: {first}"
        ) from error
