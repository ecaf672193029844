"""ONNX files as models that can be looked at: sizes fixed, weights left out, constants folded, shapes inferred."""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from nni_latency.errors import InvalidValueError, first_line, listed
from nni_latency.imports import require
from nni_latency.operators._inputs import Inputs, freeze_inputs
from nni_latency.operators._onnx_folding import Folding
from nni_latency.operators._onnx_tensors import TensorType, leave_out_weights, shape_in_file, type_in_file
from nni_latency.operators._op_spec import LARGEST_TENSOR, Shape

#: Bytes of a file at most, which is what the format itself allows, and nodes of a network.
_MOST_BYTES, _MOST_NODES = 2**31, 100_000


@dataclass(frozen=True)
class OnnxModel:
    """The graph of an ONNX file, with constants folded and shapes inferred.

    Parameters
    ----------
    nodes : tuple of (int, NodeProto)
        What is left to compute in an order in which it can run, with the place of each in the file.
    n_nodes : int
        Nodes in the file.
    types : dict of str to TensorType
        By tensor, as far as it is known.
    constants : dict of str to ndarray or None
        By tensor that does not depend on the inputs, its values where they are few.
    inputs, outputs : tuple of TensorType
        What the network takes and returns.
    """

    nodes: tuple[tuple[int, Any], ...]
    n_nodes: int
    types: dict[str, TensorType]
    constants: dict[str, NDArray[Any] | None]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]


def read_model(path: str | Path, batch_size: int | None = None, example_inputs: Any = None) -> OnnxModel:
    """Read a file, fold its constants and infer its shapes; raises as `nni_latency.operators.read_onnx`."""
    onnx = require("onnx", "Reading ONNX", "nni_latency[onnx]")
    model = load_onnx(path, batch_size, example_inputs)
    _check_inputs(model.graph, path)
    order = _ordered(model.graph, path)
    leave_out_weights(onnx, model)
    inputs = tuple(type_in_file(onnx, item) for item in fed_inputs(model.graph))
    folding = Folding(onnx, model, order)
    folding.run(path)
    return OnnxModel(
        tuple(folding.order),
        len(order),
        folding.types,
        folding.constants,
        inputs,
        tuple(folding.types.get(item.name, TensorType(())) for item in model.graph.output),
    )


def load_onnx(path: str | Path, batch_size: int | None = None, example_inputs: Any = None) -> Any:
    """Load an ONNX file with the sizes of its inputs fixed; weights in other files are not opened.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    MissingDependencyError, InvalidValueError
        As for `nni_latency.operators.read_onnx`.
    """
    onnx = require("onnx", "Reading ONNX", "nni_latency[onnx]")
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
    _fix_inputs(model, batch_size, None if example_inputs is None else freeze_inputs(example_inputs))
    return model


def _check(onnx: Any, model: Any, path: str | Path) -> None:
    """Raise `InvalidValueError` if a file holds no graph, one too large, or one of a version to come."""
    nodes = len(model.graph.node)
    if not nodes and not model.graph.output:
        raise InvalidValueError(f"{str(path)!r} is not an ONNX file that can be read: it holds no graph.")
    if nodes > _MOST_NODES:
        raise InvalidValueError(f"{str(path)!r} has {nodes} nodes, and {_MOST_NODES} are the most that are read.")
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


def fed_inputs(graph: Any) -> list[Any]:
    """Return the inputs of a graph that are fed; older files list weights among the inputs, too."""
    weights = {tensor.name for tensor in graph.initializer}
    return [item for item in graph.input if item.name not in weights]


def _fix_inputs(model: Any, batch_size: int | None, given: Inputs | None) -> None:
    """Fix the sizes of the inputs that the file leaves open, and the batch; forget shapes inferred for other sizes."""
    inputs = fed_inputs(model.graph)
    wanted = {} if given is None else _named_shapes([item.name for item in inputs], given)
    for item in inputs:
        sizes = item.type.tensor_type.shape.dim
        own = shape_in_file(item)
        shape = wanted.get(item.name, (batch_size or own[0] or 1, *own[1:]) if own else ())
        if len(shape) != len(own) or any(size and size != new for size, new in zip(own[1:], shape[1:], strict=True)):
            raise InvalidValueError(f"The input {item.name!r} has the shape {written(own)}. Got {written(shape)}.")
        if shape != own:
            for size, new in zip(sizes, shape, strict=True):
                if new:
                    size.dim_value = new
            del model.graph.value_info[:]
            for output in model.graph.output:
                output.type.tensor_type.ClearField("shape")


def _named_shapes(names: list[str], given: Inputs) -> dict[str, Shape]:
    """Return the shapes of the inputs by their names; those without a name are in the order of the file."""
    unknown = [name for name in given.kwargs if name not in names]
    if unknown or len(given.args) > len(names):
        raise InvalidValueError(
            f"The inputs of the file are {listed(names)}. Got {listed(unknown) or f'{len(given.args)} inputs'}."
        )
    found = {**dict(zip(names, given.args, strict=False)), **given.kwargs}
    return {name: tuple(tensor.shape) for name, tensor in found.items()}


def _check_inputs(graph: Any, path: str | Path) -> None:
    """Raise `InvalidValueError` if sizes of inputs are open; all are named."""
    found = [
        f"{item.name!r} {_written_dims(item)}"
        for item in fed_inputs(graph)
        if not all(shape_in_file(item)) or not item.type.tensor_type.HasField("shape")
    ]
    if found:
        raise InvalidValueError(
            f"Sizes of the inputs of {str(path)!r} are open: {listed(found)}. Give the shapes of its inputs "
            "(in Python as 'example_inputs'), such as 3,224,224."
        )


def _written_dims(item: Any) -> str:
    if not item.type.tensor_type.HasField("shape"):
        return "without a shape"
    sizes = item.type.tensor_type.shape.dim
    return "x".join(str(size.dim_value) if size.dim_value else size.dim_param or "?" for size in sizes)


def written(shape: Shape) -> str:
    return "x".join(str(size or "?") for size in shape) or "()"


def _ordered(graph: Any, path: str | Path) -> list[tuple[int, Any]]:
    """Return the nodes of a graph in an order in which they can run, those of the file where it is one."""
    makers = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    known = {item.name for item in (*graph.input, *graph.initializer)}
    known |= {item.values.name for item in graph.sparse_initializer}
    needs = [{makers[name] for name in node.input if name in makers and name not in known} for node in graph.node]
    unknown = [name for node in graph.node for name in node.input if name and name not in makers and name not in known]
    if unknown:
        raise InvalidValueError(f"{str(path)!r} takes tensors that nothing makes: {listed(dict.fromkeys(unknown))}.")
    takers: list[list[int]] = [[] for _ in graph.node]
    for place, sources in enumerate(needs):
        for source in sources:
            takers[source].append(place)
    ready = [place for place, sources in enumerate(needs) if not sources]
    found: list[tuple[int, Any]] = []
    left = list(map(len, needs))
    heapq.heapify(ready)
    while ready:
        place = heapq.heappop(ready)
        found.append((place, graph.node[place]))
        for taker in takers[place]:
            left[taker] -= 1
            if not left[taker]:
                heapq.heappush(ready, taker)
    if len(found) < len(graph.node):
        names = [name_of(graph.node[place]) for place, count in enumerate(left) if count]
        raise InvalidValueError(f"The graph of {str(path)!r} is cyclic: {listed(names)} take results of each other.")
    return found


def name_of(node: Any) -> str:
    """Return the name of a node, or of what it makes."""
    return str(node.name or next(iter(node.output), node.op_type))


def attributes_of(onnx: Any, node: Any) -> dict[str, Any]:
    """Return the attributes of a node."""
    return {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}


def details_of(onnx: Any, attributes: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return all attributes as text; tensors and graphs as digests of what they hold."""
    return tuple((name, _text(onnx, attributes[name])) for name in sorted(attributes))


def _text(onnx: Any, value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, onnx.TensorProto):
        return f"{list(value.dims)} {hashlib.sha256(onnx.numpy_helper.to_array(value).tobytes()).hexdigest()}"
    if hasattr(value, "SerializeToString"):
        return hashlib.sha256(value.SerializeToString(deterministic=True)).hexdigest()
    return f"[{', '.join(_text(onnx, item) for item in value)}]"
