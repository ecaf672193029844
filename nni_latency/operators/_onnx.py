"""Operators of an ONNX file, by shape inference: no runtime, and no weights, which may be absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError
from nni_latency.files import readable
from nni_latency.imports import require
from nni_latency.operators._onnx_attributes import details_of
from nni_latency.operators._onnx_inputs import check_inputs, load_onnx
from nni_latency.operators._onnx_model import ordered
from nni_latency.operators._onnx_nodes import describe_node
from nni_latency.operators._onnx_tensors import leave_out_weights
from nni_latency.operators._onnx_walk import Walk
from nni_latency.operators._trace import Graph


def read_onnx(path: str | Path, batch_size: int | None = None, example_inputs: Any = None) -> Graph:
    """Read the operators of an ONNX file, and where each takes its inputs from.

    Shapes are inferred, and what does not depend on the inputs is computed beforehand, as runtimes do it. Weights need
    not be there; those in other files are never opened. Functions of the file are expanded, and the bodies of loops
    are counted as often as they run.

    Parameters
    ----------
    path : str or Path
        The file, of any opset that the package ``onnx`` knows.
    batch_size : int, optional
        First dimension of the inputs; without it, what the file says, or 1 where that is open.
    example_inputs : Tensor, sequence or dict, optional
        What the network takes, as for `nni_latency.operators.trace`, for a file that leaves sizes of its inputs open.

    Returns
    -------
    Graph
        As `nni_latency.operators.trace` returns it; the nodes of the file stand for calls. A kind of node that is not
        known stands under its own name in small letters, so that `count_operators` lists it as not counted. What had
        to be assumed, such as how often a loop runs whose end depends on data, stands in its ``remarks``.

    Raises
    ------
    MissingDependencyError
        If the package ``onnx`` is not installed.
    InvalidValueError
        If the file cannot be read, is too large or cyclic, sizes of its inputs are open, a node is not valid,
        or the inputs are not those of the file.
    """
    onnx = require("onnx", "Reading ONNX", "onnx")
    model = load_onnx(path, batch_size, example_inputs)
    with readable(path, "an ONNX file", InvalidValueError):
        check_inputs(model.graph, path)
        nodes = ordered(model.graph, path)
        leave_out_weights(onnx, model)
        walk = Walk(onnx, model, lambda node: (describe_node(node), details_of(onnx, node.attributes)), str(path))
        inputs, outputs = walk.run(model.graph, nodes)
        returned, taken = (tuple(tensor.shape for tensor in some) for some in (outputs, inputs))
        return Graph(tuple(walk.operators), len(nodes), returned, taken, walk.remarks)
