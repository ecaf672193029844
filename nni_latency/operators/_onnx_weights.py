"""ONNX files without their weights: how they are left out, and how random ones take their place."""

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
from nni_latency.operators._onnx import fed_inputs, load_onnx, written
from nni_latency.operators._onnx_model import fractional, lacks_values, leave_out_weights, shape_in_file


def without_weights(model: Any) -> Any:
    """Return an ONNX model without the values of its weights, a few kB.

    Parameters
    ----------
    model : onnx.ModelProto
        The network.

    Returns
    -------
    onnx.ModelProto
        A copy, whose larger tensors of numbers with fractions are said to be in a file that does not exist.
    """
    onnx = require("onnx", "Writing ONNX", "onnx")
    light = type(model)()
    light.CopyFrom(model)
    leave_out_weights(onnx, light)
    return light


def onnx_network(path: str | Path, batch_size: int | None = None, example_inputs: Any = None) -> OnnxNetwork:
    """Read a network that can be run from an ONNX file; what weights it lacks are random.

    Weights in other files are never opened: they are random, too, which a latency does not depend on.

    Parameters
    ----------
    path, batch_size, example_inputs
        As for `read_onnx`.

    Returns
    -------
    OnnxNetwork
        Its parts are the nodes of the file, as `read_onnx` counts them. A layer that shares a tensor without values
        with others has separate values.

    Raises
    ------
    MissingDependencyError, InvalidValueError
        As for `read_onnx`.
    """
    onnx = require("onnx", "Reading ONNX", "onnx")
    model = load_onnx(path, batch_size, example_inputs)
    with readable(path, "an ONNX file", InvalidValueError):
        _number(model.graph)
        count = len(model.graph.node)
        generator = np.random.default_rng(0)
        spreads, made_up = _spreads(model.graph), dict[str, Any]()
        for tensor in model.graph.initializer:
            if lacks_values(onnx, tensor):
                if tensor.data_type not in fractional(onnx):
                    raise InvalidValueError(
                        f"The tensor {tensor.name!r} of {str(path)!r} has no values in the file. It holds whole "
                        "numbers, which cannot be made up. Save the network with them."
                    )
                made_up[tensor.name] = tensor
                _fill(onnx, tensor, spreads, generator)
        _set_apart(onnx, model.graph, made_up, spreads, generator)
    return OnnxNetwork(model, count)


@dataclass(frozen=True)
class OnnxBuild:
    """Makes the network of an ONNX file, as `onnx_network` does: the build of a subject. Immutable.

    Parameters
    ----------
    path, batch_size, example_inputs
        As for `onnx_network`.
    content : bytes, optional
        What is in the file, for a machine that does not have it.
    """

    path: str
    batch_size: int | None = None
    example_inputs: Any = None
    content: bytes | None = field(default=None, repr=False)

    def __call__(self) -> OnnxNetwork:
        """Make it."""
        if self.content is None:
            return onnx_network(self.path, self.batch_size, self.example_inputs)
        with tempfile.TemporaryDirectory() as folder:
            # Its own name, which messages use.
            path = Path(folder, Path(self.path).name)
            path.write_bytes(self.content)
            return onnx_network(path, self.batch_size, self.example_inputs)

    def carried(self) -> OnnxBuild:
        """Return one that holds what is in the file, so that it can be made on another machine.

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
    """Return what the network of an ONNX file takes, without values, in the order of the file.

    Parameters
    ----------
    path, batch_size, example_inputs
        As for `read_onnx`.

    Raises
    ------
    MissingDependencyError, InvalidValueError
        As for `read_onnx`, and if a size of an input is open.
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
            dtype = str(onnx.helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type))
            found.append(torch.empty(sizes, dtype=getattr(torch, dtype), device="meta"))
        return Inputs(tuple(found))


def _spreads(graph: Any) -> dict[str, tuple[float, float]]:
    """Return the mean and spread of random weights by name, with which numbers neither vanish nor overflow."""
    dims = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    found: dict[str, tuple[float, float]] = {}
    for node in graph.node:
        if node.op_type == "BatchNormalization":
            # Scale and variance are one, shift and mean nothing.
            found |= dict.fromkeys((node.input[1], node.input[4]), (1.0, 0.0))
            found |= dict.fromkeys(node.input[2:4], (0.0, 0.0))
        elif len(node.input) > 1 and node.input[1] in dims:
            shape = dims[node.input[1]]
            taken = math.prod(shape[1:]) if node.op_type == "Conv" else shape[0] if shape else 1
            found[node.input[1]] = (0.0, 1 / math.sqrt(max(1, taken)))
    return found


def _fill(onnx: Any, tensor: Any, spreads: Mapping[str, tuple[float, float]], generator: np.random.Generator) -> None:
    """Give a tensor random values."""
    values = _random(tuple(tensor.dims), *spreads.get(tensor.name, (0.0, 0.1)), generator)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    tensor.CopyFrom(onnx.numpy_helper.from_array(values.astype(dtype), tensor.name))


def _set_apart(
    onnx: Any,
    graph: Any,
    made_up: Mapping[str, Any],
    spreads: Mapping[str, tuple[float, float]],
    generator: np.random.Generator,
) -> None:
    """Give layers separate values where the file has them share a tensor whose values are made up.

    An exporter writes equal tensors once, such as the biases of a network that was never trained, and an Identity for
    each further layer. In a trained network they differ, and a runtime may fuse what it does not where they are shared:
    OpenVINO adds such a bias in a separate node.
    """
    for node in list(graph.node):
        if node.op_type == "Identity" and node.input[0] in made_up:
            own = graph.initializer.add()
            own.CopyFrom(made_up[node.input[0]])
            own.name = node.output[0]
            _fill(onnx, own, spreads, generator)
            graph.node.remove(node)


def _random(shape: tuple[int, ...], mean: float, spread: float, generator: np.random.Generator) -> NDArray[np.float32]:
    return (mean + spread * generator.standard_normal(shape, dtype=np.float32)).astype(np.float32)


def _number(graph: Any) -> None:
    """Write the number of every node into its name and those of its results, and those of inputs into theirs.

    Runtimes are asked for inputs by their names, and name what they make of a node by its results, too. A file may have
    such numbers in its names, which are those of another count.
    """
    renamed = {item.name: f"input{place}" for place, item in enumerate(fed_inputs(graph))}
    for place, node in enumerate(graph.node):
        node.name = f"/call{place}/{node.name or node.op_type}"
        renamed |= {name: f"/call{place}/{name}" for name in node.output if name}
    for item in (*graph.input, *graph.output, *graph.value_info):
        item.name = renamed.get(item.name, item.name)
    _rename(graph, renamed)


def _rename(graph: Any, renamed: Mapping[str, str]) -> None:
    """Rename what nodes take and return, those of branches and loops included."""
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename(inner, renamed)
                for item in inner.output:
                    item.name = renamed.get(item.name, item.name)
