# SPDX-License-Identifier: Apache-2.0
"""ONNX files without weights: removal of weights, and replacement by random ones."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nni_latency.errors import InvalidValueError
from nni_latency.files import readable
from nni_latency.imports import require
from nni_latency.operators._export import OnnxNetwork
from nni_latency.operators._inputs import Inputs
from nni_latency.operators._onnx import fed_inputs, fit_branches, load_onnx, written
from nni_latency.operators._onnx_model import (
    dtype_name,
    fractional,
    initializers_of,
    lacks_values,
    leave_out_weights,
    parts_of,
    shape_in_file,
)


def without_weights(model: Any) -> Any:
    """Return an ONNX model without the values of its weights, a few kB in size.

    Parameters
    ----------
    model : onnx.ModelProto
        The network.

    Returns
    -------
    onnx.ModelProto
        A copy whose larger floating-point tensors refer to a missing external file.
    """
    onnx = require("onnx", "Writing ONNX", "onnx")
    light = type(model)()
    light.CopyFrom(model)
    leave_out_weights(onnx, light)
    return light


def onnx_network(path: str | Path, batch_size: int | None = None, example_inputs: Any = None) -> OnnxNetwork:
    """Read an executable network from an ONNX file; missing weights are random.

    External weights are never opened and also random, which does not affect the latency.

    Parameters
    ----------
    path, batch_size, example_inputs
        As for `read_onnx`.

    Returns
    -------
    OnnxNetwork
        Its parts are the nodes of the file, as counted by `read_onnx`. If weights are missing, layers that share a
        tensor without values, or a vector that an exporter deduplicated, get separate ones.

    Raises
    ------
    MissingDependencyError, InvalidValueError
        As for `read_onnx`.
    """
    onnx = require("onnx", "Reading ONNX", "onnx")
    model = load_onnx(path, batch_size, example_inputs)
    with readable(path, "an ONNX file", InvalidValueError):
        fit_branches(model, path)
        _number(model.graph)
        count = len(model.graph.node)
        generator = np.random.default_rng(0)
        if any(lacks_values(onnx, tensor) for tensor in initializers_of(model)):
            _set_apart(onnx, model.graph)
        spreads = _spreads(model)
        for tensor in initializers_of(model):
            if lacks_values(onnx, tensor):
                if tensor.data_type not in fractional(onnx):
                    raise InvalidValueError(
                        f"The tensor {tensor.name!r} of {str(path)!r} has no values in the file. It holds whole "
                        "numbers, which cannot be made up. Save the network with them."
                    )
                _fill(onnx, tensor, spreads, generator)
    return OnnxNetwork(model, count)


@dataclass(frozen=True)
class OnnxBuild:
    """Builds the network of an ONNX file like `onnx_network`: the build of a subject. Immutable.

    Parameters
    ----------
    path, batch_size, example_inputs
        As for `onnx_network`.
    content : bytes, optional
        Content of the file, for a machine without it.
    """

    path: str
    batch_size: int | None = None
    example_inputs: Any = None
    content: bytes | None = field(default=None, repr=False)

    def __call__(self) -> OnnxNetwork:
        """Build the network."""
        if self.content is None:
            return onnx_network(self.path, self.batch_size, self.example_inputs)
        with tempfile.TemporaryDirectory() as folder:
            # Keep the original name for messages.
            path = Path(folder, Path(self.path).name)
            path.write_bytes(self.content)
            return onnx_network(path, self.batch_size, self.example_inputs)

    def carried(self) -> OnnxBuild:
        """Return a copy that holds the content of the file, so that another machine can build the network.

        Raises
        ------
        InvalidValueError
            If the file cannot be read.
        """
        try:
            return replace(self, content=Path(self.path).read_bytes())
        except OSError as error:
            raise InvalidValueError(f"Cannot read {self.path!r}: {error.strerror or error}.") from error


def onnx_inputs(path: str | Path, batch_size: int | None = None, example_inputs: Any = None) -> Inputs:
    """Return the inputs of the network of an ONNX file without values, in the order of the file.

    Parameters
    ----------
    path, batch_size, example_inputs
        As for `read_onnx`.

    Raises
    ------
    MissingDependencyError, InvalidValueError
        As for `read_onnx`, and if an input size is dynamic.
    """
    onnx = require("onnx", "Reading ONNX", "onnx")
    model = load_onnx(path, batch_size, example_inputs)
    with readable(path, "an ONNX file", InvalidValueError):
        found = []
        for item in fed_inputs(model.graph):
            sizes = shape_in_file(item)
            if not all(sizes):
                raise InvalidValueError(
                    f"The input {item.name!r} of {str(path)!r} has the open shape {written(sizes)}. "
                    "Give example inputs."
                )
            found.append(torch.empty(sizes, dtype=_dtype_of(onnx, item, path), device="meta"))
        return Inputs(tuple(found))


def _dtype_of(onnx: Any, item: Any, path: str | Path) -> torch.dtype:
    """Return the element type of an input that can be filled with numbers."""
    number = item.type.tensor_type.elem_type
    name = dtype_name(onnx, number)
    dtype = getattr(torch, name, None)
    if not number or not isinstance(dtype, torch.dtype):
        raise InvalidValueError(
            f"The input {item.name!r} of {str(path)!r} holds elements of the type {name}, of which no example can be "
            "made."
        )
    return dtype


def _spreads(model: Any) -> dict[str, tuple[float, float]]:
    """Return the mean and standard deviation of random weights by name, chosen to avoid underflow and overflow."""
    dims = {tensor.name: tuple(tensor.dims) for tensor in initializers_of(model)}
    found: dict[str, tuple[float, float]] = {}
    for node in (node for part in parts_of(model) for node in part.node):
        if node.op_type == "BatchNormalization":
            # Scale and variance are 1, shift and mean are 0.
            found |= dict.fromkeys((node.input[1], node.input[4]), (1.0, 0.0))
            found |= dict.fromkeys(node.input[2:4], (0.0, 0.0))
        elif len(node.input) > 1 and node.input[1] in dims:
            shape = dims[node.input[1]]
            taken = math.prod(shape[1:]) if node.op_type == "Conv" else shape[0] if shape else 1
            found[node.input[1]] = (0.0, 1 / math.sqrt(max(1, taken)))
    return found


def _fill(onnx: Any, tensor: Any, spreads: Mapping[str, tuple[float, float]], generator: np.random.Generator) -> None:
    """Fill a tensor with random values."""
    values = _random(tuple(tensor.dims), *spreads.get(tensor.name, (0.0, 0.1)), generator)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    tensor.CopyFrom(onnx.numpy_helper.from_array(values.astype(dtype), tensor.name))


def _set_apart(onnx: Any, graph: Any) -> None:
    """Give layers separate copies of a shared tensor: of one without values, and of a vector such as slopes.

    Exporters deduplicate equal tensors, such as the biases of an untrained network, and may add an Identity for each
    further layer. In a trained network the tensors differ, and a runtime may fuse operators that it does not fuse with
    shared tensors: OpenVINO adds a shared bias in a separate node, and lays out pictures anew for a PReLU with shared
    slopes, which can take longer than the convolution before it.
    """
    kinds, results, used = fractional(onnx), {item.name for item in graph.output}, set[str]()
    shared = {
        tensor.name: tensor
        for tensor in graph.initializer
        if tensor.data_type in kinds
        and (lacks_values(onnx, tensor) or math.prod(tensor.dims) == max(tensor.dims, default=1))
    }
    for node in list(graph.node):
        if node.op_type == "Identity" and node.input[0] in shared and node.output[0] not in results:
            shared[node.output[0]] = _copied(graph, shared[node.input[0]], node.output[0])
            graph.node.remove(node)
        elif node.op_type == "PRelu" and node.input[1] in shared:
            slopes = node.input[1]
            if slopes in used:
                # The names of nodes are numbered, so that this is the only one.
                node.input[1] = f"slopes of {node.name}"
                _copied(graph, shared[slopes], node.input[1])
            used.add(slopes)


def _copied(graph: Any, tensor: Any, name: str) -> Any:
    """Add a copy of a tensor to a graph, under another name."""
    own = graph.initializer.add()
    own.CopyFrom(tensor)
    own.name = name
    return own


def _random(shape: tuple[int, ...], mean: float, spread: float, generator: np.random.Generator) -> NDArray[np.float32]:
    return (mean + spread * generator.standard_normal(shape, dtype=np.float32)).astype(np.float32)


def _number(graph: Any) -> None:
    """Add the index of every node to its name and the names of its results, and that of every input to its name.

    Runtimes address inputs by name, and may name nodes after their results. Names in a file may already contain numbers
    with another meaning.
    """
    renamed = {item.name: f"input{place}" for place, item in enumerate(fed_inputs(graph))}
    for place, node in enumerate(graph.node):
        node.name = f"/call{place}/{node.name or node.op_type}"
        renamed |= {name: f"/call{place}/{name}" for name in node.output if name}
    for item in (*graph.input, *graph.output, *graph.value_info):
        item.name = renamed.get(item.name, item.name)
    _rename(graph, renamed)


def _rename(graph: Any, renamed: Mapping[str, str]) -> None:
    """Rename the inputs and outputs of nodes, including those in branches and loops."""
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename(inner, renamed)
                for item in inner.output:
                    item.name = renamed.get(item.name, item.name)
