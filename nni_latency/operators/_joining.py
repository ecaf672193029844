"""Networks in ONNX joined to one: one behind another, side by side, and with layers before and behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from nni_latency.errors import InvalidValueError
from nni_latency.imports import require
from nni_latency.operators._export import OnnxNetwork

#: How many sizes a feature map has.
_RANK_OF_MAPS = 4

#: Attributes of a window of 3 x 3 that leaves a feature map as large as it is.
_SAME_SIZE: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 1]}

#: Operators that bring their input into the layout that they want.
_CONVOLUTIONS = ("Conv", "ConvTranspose")

#: By the rank of an input, a layer that makes one like it.
_FEEDING: dict[int, tuple[str, dict[str, Any]]] = {
    2: ("Softmax", {"axis": -1}),
    3: ("Softmax", {"axis": -1}),
    _RANK_OF_MAPS: ("MaxPool", _SAME_SIZE),
}

#: ONNX's number of the type float32.
_REAL = 1


def join_onnx(networks: Sequence[OnnxNetwork]) -> OnnxNetwork:
    """Join networks that run one after another, each on what the one before returned, into one.

    Parameters
    ----------
    networks : sequence of OnnxNetwork
        At least one, each with one output, and all but the first with one input.

    Raises
    ------
    InvalidValueError
        If one has another number of inputs or outputs.
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


def beside_onnx(networks: Sequence[OnnxNetwork], n_inputs: Sequence[int]) -> OnnxNetwork:
    """Put networks that have nothing to do with each other side by side into one.

    Parameters
    ----------
    networks : sequence of OnnxNetwork
        At least one.
    n_inputs : sequence of int
        By network, how many inputs it is given; the one that they become is given all of them, in order.
    """
    onnx = require("onnx", "Joining networks", "onnx")
    parts = [onnx.compose.add_prefix(item.model, f"part{index}/") for index, item in enumerate(networks)]
    before = 0
    for part, count in zip(parts, n_inputs, strict=True):
        for item in reversed(part.graph.input):  # so that no new name is one that is still to be changed
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


def fed_onnx(network: OnnxNetwork) -> OnnxNetwork:
    """Put cheap layers before every input of a network, which make it as the layer before would in a larger network.

    Feature maps pass a pooling of 3 x 3, rows of numbers a softmax; runtimes fuse neither with what follows. What works
    in whatever memory layout it finds, such as an activation, finds that of convolutions: a depthwise one runs before
    the pooling. Inputs of other shapes, and whole numbers, stay as they are.
    """
    onnx, model = _copied(network)
    in_layout = _read_by_convolutions(model.graph)
    layers = []
    for number, item in enumerate(model.graph.input):
        if not _is_fed(item):
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
        kind, attributes = _FEEDING[len(shape)]
        layers.append(onnx.helper.make_node(kind, [before], [made], f"feed{number}", **attributes))
        _rename_input(model.graph, item.name, made)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*layers, *nodes])
    return OnnxNetwork(model, network.n_labels, network.is_joined)


def consumed_onnx(network: OnnxNetwork, *, all_maps: bool = False) -> OnnxNetwork:
    """Put a cheap layer behind what works on one feature map in any memory layout, such as an activation or a shuffle.

    What a network returns is written to memory of its own. In a larger network another operator reads it, and the
    runtime uses its memory again, or writes the result where the input was. `fed_onnx` comes afterwards, because it
    puts other tensors in the place of the inputs.

    Parameters
    ----------
    network : OnnxNetwork
        A network, or several side by side.
    all_maps : bool, default=False
        Put it behind every feature map that is returned. A runtime may fuse only what another operator reads: ONNX
        Runtime runs a hard swish behind a convolution as a kernel of its own where the network ends with it.
    """
    onnx, model = _copied(network)
    maps = Counter(_part_of(item.name) for item in model.graph.input if _is_fed(item))
    in_layout = {_part_of(name) for name in _read_by_convolutions(model.graph)}
    kind, attributes = _FEEDING[_RANK_OF_MAPS]
    for number, item in enumerate(model.graph.output):
        part = _part_of(item.name)
        is_map = _is_fed(item) and len(_shape_of(item)) == _RANK_OF_MAPS
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
    """Return the part of a joined network to which a tensor belongs."""
    return name.partition("/")[0]


def _read_by_convolutions(graph: Any) -> set[str]:
    return {name for node in graph.node if node.op_type in _CONVOLUTIONS for name in node.input}


def _shape_of(item: Any) -> list[int]:
    return [size.dim_value for size in item.type.tensor_type.shape.dim]


def _is_fed(item: Any) -> bool:
    """Whether there is a layer that makes such a tensor: one of real numbers, of a rank that networks pass on."""
    return item.type.tensor_type.elem_type == _REAL and len(_shape_of(item)) in _FEEDING


def _rename_input(graph: Any, old: str, new: str) -> None:
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name == old:
                node.input[index] = new
