"""Networks in the form in which ONNX files have them, without their weights."""

from __future__ import annotations

import copy
import tempfile
import threading
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError, LatencyError, reason_of
from nni_latency.operators import Graph, Inputs, export_onnx, freeze_inputs, load_onnx, read_onnx, without_weights

_EXPORTING = threading.Lock()


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
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        path.write_bytes(light_onnx(model, example_inputs))
        return read_onnx(path)


def light_onnx(model: Any, example_inputs: Any = None, batch_size: int | None = None) -> bytes:
    """Return a network as an ONNX file without weights, some kB, with all sizes fixed.

    Parameters
    ----------
    model : nn.Module, str or Path
        A module, which is exported; or an ONNX file.
    example_inputs : Tensor, sequence or dict, optional
        What it takes; for an ONNX file only where it leaves sizes open.
    batch_size : int, optional
        First dimension of the inputs of an ONNX file.

    Raises
    ------
    InvalidValueError
        If it cannot be read or exported.
    MissingDependencyError
        If the package onnx is not installed.
    """
    if isinstance(model, (str, Path)):
        light = without_weights(load_onnx(model, batch_size, example_inputs))
    elif example_inputs is None:
        raise InvalidValueError("A module needs 'example_inputs': costs depend on the shapes. Got None.")
    else:
        light = _exported(model, freeze_inputs(example_inputs, device=None))
    content: bytes = light.SerializeToString()
    return content


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
        raise InvalidValueError(f"{type(model).__name__} cannot be run on these inputs: {reason_of(error)}") from error
