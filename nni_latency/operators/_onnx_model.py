# SPDX-License-Identifier: Apache-2.0
"""Loading of ONNX files: ordered nodes, attributes and tensors."""

from __future__ import annotations

import graphlib
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError, first_line, listed
from nni_latency.operators._op_spec import LARGEST_TENSOR, Shape
from nni_latency.units import number_of

#: Largest file size [byte], the limit of the format, and largest number of nodes.
_MOST_BYTES, _MOST_NODES = 2**31, 100_000

#: Minimum of attributes with the same meaning in all operators.
_LEAST = {
    **dict.fromkeys(("group", "strides", "dilations", "kernel_shape", "hidden_size", "num_heads", "blocksize"), 1),
    **dict.fromkeys(("q_num_heads", "kv_num_heads", "num_groups", "num_scan_inputs", "size", "K", "N"), 1),
    **dict.fromkeys(("output_padding", "output_shape"), 0),
}

#: Minimum padding of a window; negative paddings of `Pad` crop.
_OF_WINDOWS = frozenset(("Conv", "ConvTranspose", "DeformConv", "MaxPool", "AveragePool", "LpPool", "MaxUnpool"))

#: Maximum of these attributes.
_MOST = 2**31

#: Minimum number of elements of a removed tensor; smaller ones may be shapes, axes or bounds.
LEFT_OUT = 64

#: External data location of removed tensors.
_ELSEWHERE = "weights-left-out"

#: Types of inputs that are read; None is a tensor of unknown shape and elements.
_TENSORS = ("tensor_type", None)

_VALUES = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")


def open_onnx(onnx: Any, path: str | Path) -> Any:
    """Load an ONNX file unchanged; external data files are not opened.

    Raises
    ------
    InvalidValueError
        If it cannot be read, is too large, or is of a newer version.
    """
    try:
        size = Path(path).stat().st_size
        if not Path(path).is_file():
            # Reading a pipe or a device might never end.
            raise InvalidValueError(f"Cannot read the ONNX file {str(path)!r}: it is not a regular file.")
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
    except Exception as error:  # protobuf has its own errors
        raise InvalidValueError(
            f"{str(path)!r} is not an ONNX file that can be read: {first_line(error).rstrip('.')}."
        ) from error
    _check(onnx, model, path)
    return model


def _check(onnx: Any, model: Any, path: str | Path) -> None:
    """Raise `InvalidValueError` if a file has no graph, is too large, or is of a newer version."""
    nodes = len(model.graph.node)
    if not nodes and not model.graph.output:
        raise InvalidValueError(f"{str(path)!r} is not an ONNX file that can be read: it holds no graph.")
    if nodes > _MOST_NODES:
        raise InvalidValueError(
            f"{str(path)!r} has {number_of(nodes, 'node')}, and {_MOST_NODES} are the most that are read."
        )
    tensors = list(initializers_of(model))
    negative = [tensor.name for tensor in tensors if any(size < 0 for size in tensor.dims)]
    if negative:
        raise InvalidValueError(f"{str(path)!r} has tensors with sizes below 0: {listed(negative)}.")
    large = [tensor.name for tensor in tensors if math.prod(tensor.dims) > LARGEST_TENSOR]
    large += [item.name for item in model.graph.input if math.prod(shape_in_file(item)) > LARGEST_TENSOR]
    if large:
        raise InvalidValueError(f"{str(path)!r} has tensors of more than 2^40 numbers: {listed(large)}.")
    kinds = {item.name: item.type.WhichOneof("value") for item in model.graph.input}
    others = [f"{name!r} ({kind.removesuffix('_type')})" for name, kind in kinds.items() if kind not in _TENSORS]
    if others:
        raise InvalidValueError(f"{str(path)!r} cannot be read: its inputs must be tensors. It takes {listed(others)}.")
    newest = onnx.defs.onnx_opset_version()
    opset = max((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), default=1)
    if opset > newest:
        raise InvalidValueError(
            f"{str(path)!r} has opset {opset}, and the package onnx {onnx.__version__} knows up to {newest}. "
            "Update it with: pip install --upgrade onnx"
        )


def ordered(graph: Any, path: str | Path) -> list[tuple[int, Any]]:
    """Return the nodes that the outputs of a graph need, in topological order; that of the file if it is one.

    Converters leave the other nodes behind. OpenVINO removes them; ONNX Runtime runs them.

    Returns
    -------
    list of (int, NodeProto)
        Index in the file and node.

    Raises
    ------
    InvalidValueError
        If an input of a node has no producer, or the graph is cyclic.
    """
    nodes = list(graph.node)
    makers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    known = {item.name for item in (*graph.input, *graph.initializer)}
    known |= {item.values.name for item in graph.sparse_initializer}
    needs = [[name for name in taken_by(node) if name not in known] for node in nodes]
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
    needed = _needed([makers[item.name] for item in graph.output if item.name in makers], sources)
    return [(place, nodes[place]) for place in places if place in needed]


def _needed(wanted: list[int], sources: Sequence[Iterable[int]]) -> set[int]:
    """Return the nodes on which the wanted ones depend, themselves included."""
    found: set[int] = set()
    while wanted:
        place = wanted.pop()
        if place not in found:
            found.add(place)
            wanted += sources[place]
    return found


def taken_by(node: Any) -> list[str]:
    """Return the names of the tensors that an ``onnx.NodeProto`` takes, those for its branches and loops included."""
    found = [name for name in node.input if name]
    for attribute in node.attribute:
        for body in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
            own = {item.name for item in (*body.input, *body.initializer)}
            own |= {name for inner in body.node for name in inner.output}
            own |= {item.values.name for item in body.sparse_initializer}
            found += [name for inner in body.node for name in taken_by(inner) if name not in own]
            found += [item.name for item in body.output if item.name not in own]
    return found


def name_of(node: Any) -> str:
    """Return the name of a node, or else of its first output."""
    return str(node.name or next(iter(node.output), node.op_type))


def attributes_of(onnx: Any, node: Any) -> dict[str, Any]:
    """Return the attributes of a node."""
    return {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}


def check_attributes(onnx: Any, node: Any, schema: Any | None) -> None:
    """Check the attributes of a node against the schema of its operator and general bounds.

    Raises
    ------
    ValueError
        If an attribute is missing, has another type, or is out of bounds.
    """
    if schema is not None:
        _check_types(node, schema)
    for item in node.attribute:
        least = 0 if item.name == "pads" and node.op_type in _OF_WINDOWS else _LEAST.get(item.name)
        if item.type == onnx.AttributeProto.FLOAT and math.isnan(item.f):
            raise ValueError(f"its attribute {item.name!r} is not a number")
        if least is None or item.type not in (onnx.AttributeProto.INT, onnx.AttributeProto.INTS):
            continue
        values = [item.i] if item.type == onnx.AttributeProto.INT else list(item.ints)
        wrong = [value for value in values if not least <= value < _MOST]
        if wrong:
            raise ValueError(f"its attribute {item.name!r} must be from {least} up to 2^31. It has {wrong[0]}")


def _check_types(node: Any, schema: Any) -> None:
    known = schema.attributes
    for item in node.attribute:
        wanted = known[item.name].type if item.name in known else None
        if wanted is not None and int(wanted.value) != int(item.type):
            raise ValueError(f"its attribute {item.name!r} must be of the type {wanted.name}")
    given = {item.name for item in node.attribute}
    missing = [name for name, attribute in known.items() if attribute.required and name not in given]
    if missing:
        raise ValueError(f"it lacks the attribute {missing[0]!r}")


def details_of(onnx: Any, attributes: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return all attributes as text; tensors and graphs as digests of their content."""
    return tuple((name, _text(onnx, attributes[name])) for name in sorted(attributes))


def _text(onnx: Any, value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, onnx.TensorProto):
        return f"{list(value.dims)} {hashlib.sha256(_bytes(onnx, value)).hexdigest()}"
    if hasattr(value, "SerializeToString"):
        return hashlib.sha256(value.SerializeToString(deterministic=True)).hexdigest()
    return f"[{', '.join(_text(onnx, item) for item in value)}]"


def _bytes(onnx: Any, tensor: Any) -> bytes:
    """Return the values of a tensor in any encoding; the raw content if they cannot be read."""
    try:
        found: bytes = onnx.numpy_helper.to_array(tensor).tobytes()
    except Exception:  # tensors of a file may be malformed
        found = tensor.SerializeToString(deterministic=True)
    return found


def shape_in_file(item: Any) -> Shape:
    """Return the sizes of a tensor; dynamic sizes, written as -1 by older PaddlePaddle files, are 0."""
    return tuple(max(0, size.dim_value) for size in item.type.tensor_type.shape.dim)


def dtype_name(onnx: Any, number: int) -> str:
    """Return torch's name of an element type."""
    name = onnx.TensorProto.DataType.Name(number).lower() if number else "float"
    return {"float": "float32", "double": "float64"}.get(name, name)


def element_type(onnx: Any, dtype: str) -> int:
    """Return the element type of a name: the inverse of `dtype_name`."""
    name = {"float32": "float", "float64": "double"}.get(dtype, dtype)
    number: int = onnx.TensorProto.DataType.Value(name.upper())
    return number


def fractional(onnx: Any) -> tuple[int, ...]:
    """Return the floating-point element types."""
    kinds = onnx.TensorProto
    return kinds.FLOAT, kinds.FLOAT16, kinds.BFLOAT16, kinds.DOUBLE


def nested(graph: Any) -> Iterator[Any]:
    """Yield a graph and those of its branches and loops, outer ones first."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from nested(inner)


def parts_of(model: Any) -> Iterator[Any]:
    """Yield the graph and the functions of a model, with their branches and loops."""
    for body in (model.graph, *model.functions):
        yield from nested(body)


def initializers_of(model: Any) -> Iterator[Any]:
    """Yield the weights of an ``onnx.ModelProto``, those in functions, branches and loops included."""
    for part in parts_of(model):
        # A function holds none, but its branches may.
        yield from getattr(part, "initializer", ())


def leave_out_weights(onnx: Any, model: Any) -> None:
    """Remove the values of larger floating-point tensors from a model."""
    for tensor in initializers_of(model):
        if tensor.data_type in fractional(onnx) and math.prod(tensor.dims) >= LEFT_OUT:
            leave_out(onnx, tensor)


def leave_out(onnx: Any, tensor: Any) -> None:
    tensor.ClearField("raw_data")
    for name in _VALUES:
        tensor.ClearField(name)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    del tensor.external_data[:]
    tensor.external_data.add(key="location", value=_ELSEWHERE)


def lacks_values(onnx: Any, tensor: Any) -> bool:
    """Whether the values of a tensor are external or missing."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return True
    return math.prod(tensor.dims) > 0 and not (tensor.raw_data or any(getattr(tensor, name) for name in _VALUES))


def tensor_type_of(kind: Any | None) -> Any | None:
    """Return the type of a tensor, or of the tensors in a sequence or an optional value; None if there is none."""
    while kind is not None:
        which = kind.WhichOneof("value")
        if which in ("tensor_type", "sparse_tensor_type"):
            return getattr(kind, which)
        if which not in ("sequence_type", "optional_type"):
            return None
        kind = getattr(kind, which).elem_type
    return None


def sizes_of(onnx: Any, kind: Any) -> list[int | None] | None:
    """Return the sizes of a tensor's type, with None for dynamic sizes; None if the rank is unknown."""
    tensor = tensor_type_of(kind)
    if tensor is None or not tensor.HasField("shape"):
        return None
    return [size.dim_value if size.HasField("dim_value") else None for size in tensor.shape.dim]
