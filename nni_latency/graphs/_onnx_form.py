# SPDX-License-Identifier: Apache-2.0
"""Networks in the operators of ONNX files, without their weights."""

from __future__ import annotations

import copy
import tempfile
import threading
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError, LatencyError, reason_of
from nni_latency.files import readable
from nni_latency.operators import (
    Graph,
    Inputs,
    export_onnx,
    freeze_inputs,
    initialised,
    load_onnx,
    read_onnx,
    require_operators,
    trace,
    without_weights,
)

_EXPORTING = threading.Lock()


def graph_of(model: Any, example_inputs: Any = None, batch_size: int | None = None) -> Graph:
    """Return the graph of a module, an ONNX file or a graph, in the operators of ONNX files.

    A module with an operator that ONNX lacks is traced instead, as calls of torch functions.

    Raises
    ------
    InvalidValueError
        If it cannot be read or exported, or contains no operators with a cost.
    """
    if isinstance(model, Graph):
        return model
    if isinstance(model, (str, Path)):
        found, name = read_onnx(model, batch_size, example_inputs), str(model)
    else:
        found, name = _graph_of_module(model, example_inputs), type(model).__name__
    require_operators(found.operators, name)
    return found


def _graph_of_module(model: Any, example_inputs: Any) -> Graph:
    try:
        light = light_onnx(model, example_inputs)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "network.onnx"
            path.write_bytes(light)
            return read_onnx(path)
    except InvalidValueError as error:
        return _traced(model, example_inputs, error)


def _traced(model: Any, example_inputs: Any, error: InvalidValueError) -> Graph:
    """Trace a module that cannot be exported; if that fails too, raise the error of the export."""
    if example_inputs is None:
        raise error
    try:
        return trace(model, example_inputs, by="graph")
    except InvalidValueError:
        raise error from None


def light_onnx(model: Any, example_inputs: Any = None, batch_size: int | None = None) -> bytes:
    """Return a network as an ONNX file of a few kB, without weights and with all sizes fixed.

    Parameters
    ----------
    model : nn.Module, str or Path
        A module, which is exported; or an ONNX file.
    example_inputs : Tensor, sequence or dict, optional
        Inputs of the model; for an ONNX file needed only where it leaves sizes open.
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
        with readable(model, "an ONNX file", InvalidValueError):
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
    ready = initialised(model, inputs)
    try:
        # The exporter has global state; export a copy, so that the network is not changed.
        with _EXPORTING:
            return without_weights(export_onnx(copy.deepcopy(ready).eval(), inputs.tensors).model)
    except LatencyError:
        raise
    except Exception as error:  # the forward pass of a network may raise anything
        raise InvalidValueError(f"{type(model).__name__} cannot be run on these inputs: {reason_of(error)}") from error
