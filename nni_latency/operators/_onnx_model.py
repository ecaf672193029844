"""ONNX files as models that can be looked at, with their nodes in order."""

from __future__ import annotations

import graphlib
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError, first_line, listed
from nni_latency.operators._onnx_tensors import shape_in_file
from nni_latency.operators._op_spec import LARGEST_TENSOR
from nni_latency.units import number_of

#: Bytes of a file at most, which is what the format itself allows, and nodes of a network.
_MOST_BYTES, _MOST_NODES = 2**31, 100_000


def open_onnx(onnx: Any, path: str | Path) -> Any:
    """Load an ONNX file as it is; weights in other files are not opened.

    Raises
    ------
    InvalidValueError
        If it cannot be read, is too large, or is of a version to come.
    """
    try:
        size = Path(path).stat().st_size
        if size > _MOST_BYTES:
            raise InvalidValueError(
                f"The ONNX file {str(path)!r} has {size / 2**30:.1f} GiB, and 2 GiB are the most that can be read. "
                "Save its weights as external data: they are not needed."
            )
        model = onnx.load(str(path), load_external_data=False)
    except OSError as error:
        raise InvalidValueError(f"Cannot read the ONNX file {str(path)!r}: {error.strerror or error}.") from error
    except InvalidValueError:
        raise
    except Exception as error:  # protobuf has errors of its own
        raise InvalidValueError(
            f"{str(path)!r} is not an ONNX file that can be read: {first_line(error).rstrip('.')}."
        ) from error
    _check(onnx, model, path)
    return model


def _check(onnx: Any, model: Any, path: str | Path) -> None:
    """Raise `InvalidValueError` if a file holds no graph, one too large, or one of a version to come."""
    nodes = len(model.graph.node)
    if not nodes and not model.graph.output:
        raise InvalidValueError(f"{str(path)!r} is not an ONNX file that can be read: it holds no graph.")
    if nodes > _MOST_NODES:
        raise InvalidValueError(
            f"{str(path)!r} has {number_of(nodes, 'node')}, and {_MOST_NODES} are the most that are read."
        )
    negative = [tensor.name for tensor in model.graph.initializer if any(size < 0 for size in tensor.dims)]
    if negative:
        raise InvalidValueError(f"{str(path)!r} has tensors with sizes below 0: {listed(negative)}.")
    large = [tensor.name for tensor in model.graph.initializer if math.prod(tensor.dims) > LARGEST_TENSOR]
    large += [item.name for item in model.graph.input if math.prod(shape_in_file(item)) > LARGEST_TENSOR]
    if large:
        raise InvalidValueError(f"{str(path)!r} has tensors of more than 2^40 numbers: {listed(large)}.")
    newest = onnx.defs.onnx_opset_version()
    opset = max((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), default=1)
    if opset > newest:
        raise InvalidValueError(
            f"{str(path)!r} has opset {opset}, and the package onnx {onnx.__version__} knows up to {newest}. "
            "Update it with: pip install --upgrade onnx"
        )


def ordered(graph: Any, path: str | Path) -> list[tuple[int, Any]]:
    """Return the nodes of a graph in an order in which they can run, that of the file if it is one.

    Returns
    -------
    list of (int, NodeProto)
        With the place of each in the file.

    Raises
    ------
    InvalidValueError
        If a node takes what nothing makes, or the graph is cyclic.
    """
    nodes = list(graph.node)
    makers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    known = {item.name for item in (*graph.input, *graph.initializer)}
    known |= {item.values.name for item in graph.sparse_initializer}
    needs = [[name for name in _taken(node) if name not in known] for node in nodes]
    unknown = [name for names in needs for name in names if name not in makers]
    if unknown:
        raise InvalidValueError(f"{str(path)!r} takes tensors that nothing makes: {listed(dict.fromkeys(unknown))}.")
    sources = [{makers[name] for name in names} for names in needs]
    places: Iterable[int] = range(len(nodes))
    if any(source >= place for place, some in enumerate(sources) for source in some):
        try:
            places = graphlib.TopologicalSorter(dict(enumerate(sources))).static_order()
            places = list(places)
        except graphlib.CycleError as error:
            names = listed(name_of(nodes[place]) for place in sorted(set(error.args[1])))
            raise InvalidValueError(
                f"The graph of {str(path)!r} is cyclic: {names} take results of each other."
            ) from error
    return [(place, nodes[place]) for place in places]


def _taken(node: Any) -> list[str]:
    """Return what a node takes, and what the branches and loops in it take from around them."""
    found = [name for name in node.input if name]
    for attribute in node.attribute:
        for body in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
            own = {item.name for item in (*body.input, *body.initializer)}
            own |= {name for inner in body.node for name in inner.output}
            own |= {item.values.name for item in body.sparse_initializer}
            found += [name for inner in body.node for name in _taken(inner) if name not in own]
            found += [item.name for item in body.output if item.name not in own]
    return found


def name_of(node: Any) -> str:
    """Return the name of a node, or of what it makes."""
    return str(node.name or next(iter(node.output), node.op_type))
