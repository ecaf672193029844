# SPDX-License-Identifier: Apache-2.0
"""Joining of exported networks, and layers around them as in a larger network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from nni_latency.errors import InvalidValueError
from nni_latency.imports import require
from nni_latency.operators._export import OnnxNetwork

#: Number of dimensions of a feature map.
_RANK_OF_MAPS = 4

#: Attributes of a 3 x 3 window that preserves the size of a feature map.
_SAME_SIZE: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 1]}

#: Operators that convert their input to their own layout.
_CONVOLUTIONS = ("Conv", "ConvTranspose")

#: Layer that produces an input of the given rank.
_PRODUCERS: dict[int, tuple[str, dict[str, Any]]] = {
    2: ("Softmax", {"axis": -1}),
    3: ("Softmax", {"axis": -1}),
    _RANK_OF_MAPS: ("MaxPool", _SAME_SIZE),
}

#: ONNX's code of the type float32.
_REAL = 1


def join_onnx(networks: Sequence[OnnxNetwork]) -> OnnxNetwork:
    """Join networks into a chain in which each takes the output of the one before.

    Parameters
    ----------
    networks : sequence of OnnxNetwork
        At least one network, each with one output, and all but the first with one input.

    Raises
    ------
    InvalidValueError
        If a network has another number of inputs or outputs.
    """
    onnx = require("onnx", "Joining networks", "onnx")
    parts = [onnx.compose.add_prefix(item.model, f"part{index}/") for index, item in enumerate(networks)]
    whole = parts[0]
    for part in parts[1:]:
        if len(whole.graph.output) != 1 or len(part.graph.input) != 1:
            raise InvalidValueError("Networks that run one after another must pass on one tensor.")
        before, after = whole.graph.output[0].name, part.graph.input[0].name
        _rename_input(part.graph, after, before)
        whole.graph.node.extend(part.graph.node)
        whole.graph.initializer.extend(part.graph.initializer)
        whole.graph.value_info.extend(part.graph.value_info)
        del whole.graph.output[:]
        whole.graph.output.extend(part.graph.output)
        if part.graph.output[0].name == after:  # a part that returns its input
            whole.graph.output[0].name = before
    return OnnxNetwork(whole, len(parts), is_joined=True)


def parallel_onnx(networks: Sequence[OnnxNetwork], n_inputs: Sequence[int]) -> OnnxNetwork:
    """Combine independent networks into one network with parallel branches.

    Parameters
    ----------
    networks : sequence of OnnxNetwork
        At least one network.
    n_inputs : sequence of int
        Number of inputs of each network; the combined network takes all of them in order.
    """
    onnx = require("onnx", "Joining networks", "onnx")
    parts = [onnx.compose.add_prefix(item.model, f"part{index}/") for index, item in enumerate(networks)]
    before = 0
    for part, count in zip(parts, n_inputs, strict=True):
        for item in reversed(part.graph.input):  # in reverse, so that a new name never equals a name not yet changed
            prefix, _, number = item.name.rpartition("input")
            name = f"{prefix}input{before + int(number)}"
            _rename_input(part.graph, item.name, name)
            item.name = name
        before += count
    whole = parts[0]
    for part in parts[1:]:
        for field in ("node", "initializer", "value_info", "input", "output"):
            getattr(whole.graph, field).extend(getattr(part.graph, field))
    return OnnxNetwork(whole, len(parts), is_joined=True)


def add_producers(network: OnnxNetwork) -> OnnxNetwork:
    """Add a cheap layer before every input of a network to imitate the preceding layer of a larger network.

    Feature maps pass a 3 x 3 pooling, rows of numbers a softmax; runtimes fuse neither with the next layer. Operators
    that keep the memory layout of their input, such as activations, get that of convolutions: a depthwise convolution
    runs before the pooling. Inputs of other shapes and integers are unchanged.
    """
    onnx, model = _copied(network)
    in_layout = _read_by_convolutions(model.graph)
    layers = []
    for number, item in enumerate(model.graph.input):
        if not _has_producer(item):
            continue
        shape, before, made = _shape_of(item), item.name, f"fed{number}"
        if len(shape) == _RANK_OF_MAPS and item.name not in in_layout:
            before, weights = f"convolved{number}", f"feed{number}/weights"
            values = np.full((shape[1], 1, 3, 3), 1 / 9, np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(values, weights))
            options = {**_SAME_SIZE, "group": shape[1]}
            layers.append(
                onnx.helper.make_node("Conv", [item.name, weights], [before], f"feed{number}/convolution", **options)
            )
        kind, attributes = _PRODUCERS[len(shape)]
        layers.append(onnx.helper.make_node(kind, [before], [made], f"feed{number}", **attributes))
        _rename_input(model.graph, item.name, made)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*layers, *nodes])
    return OnnxNetwork(model, network.n_labels, network.is_joined)


def add_consumers(network: OnnxNetwork, *, all_maps: bool = False) -> OnnxNetwork:
    """Add a cheap layer after operators on one feature map that accept any memory layout, such as activations.

    Outputs of a network are written to separate memory. In a larger network, another operator reads them, and the
    runtime reuses the memory or computes in place. Call `add_producers` afterwards, because it replaces the inputs.

    Parameters
    ----------
    network : OnnxNetwork
        A network, or several in parallel.
    all_maps : bool, default=False
        Whether to add the layer after every returned feature map. A runtime may fuse only operators whose result is
        read: ONNX Runtime runs a hard swish after a convolution as a separate kernel if it ends the network.
    """
    onnx, model = _copied(network)
    maps = Counter(_part_of(item.name) for item in model.graph.input if _has_producer(item))
    in_layout = {_part_of(name) for name in _read_by_convolutions(model.graph)}
    kind, attributes = _PRODUCERS[_RANK_OF_MAPS]
    for number, item in enumerate(model.graph.output):
        part = _part_of(item.name)
        is_map = _has_producer(item) and len(_shape_of(item)) == _RANK_OF_MAPS
        is_wanted = all_maps or (part not in in_layout and maps[part] == 1)
        if is_map and is_wanted:
            read = f"read{number}"
            model.graph.node.append(onnx.helper.make_node(kind, [item.name], [read], f"reader{number}", **attributes))
            item.name = read
    return OnnxNetwork(model, network.n_labels, network.is_joined)


def _copied(network: OnnxNetwork) -> tuple[Any, Any]:
    """Return the package onnx, and a copy of a network's model."""
    onnx = require("onnx", "Joining networks", "onnx")
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    return onnx, model


def _part_of(name: str) -> str:
    """Return the part of a joined network that a tensor belongs to."""
    return name.partition("/")[0]


def _read_by_convolutions(graph: Any) -> set[str]:
    return {name for node in graph.node if node.op_type in _CONVOLUTIONS for name in node.input}


def _shape_of(item: Any) -> list[int]:
    return [size.dim_value for size in item.type.tensor_type.shape.dim]


def _has_producer(item: Any) -> bool:
    """Whether a layer can produce such a tensor: real numbers of a supported rank."""
    return item.type.tensor_type.elem_type == _REAL and len(_shape_of(item)) in _PRODUCERS


def _rename_input(graph: Any, old: str, new: str) -> None:
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name == old:
                node.input[index] = new
