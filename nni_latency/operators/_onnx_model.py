"""ONNX files as models that can be looked at: sizes fixed, weights left out, constants folded, shapes inferred."""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.errors import InvalidValueError, listed
from nni_latency.imports import require
from nni_latency.operators._inputs import Inputs, freeze_inputs
from nni_latency.operators._op_spec import LARGEST_TENSOR, Shape

#: Bytes of a file at most, which is what the format itself allows, and nodes of a network.
_MOST_BYTES, _MOST_NODES = 2**31, 100_000

#: Numbers that a tensor has at least to be left out; smaller ones may be shapes, axes or bounds.
LEFT_OUT = 64

#: Numbers of a constant at most that is computed; shapes are small.
_COMPUTED = 2**16

#: How often shapes are inferred and constants computed in turns, at most.
_MOST_PASSES = 50

#: Where the values of a tensor are said to be that were left out.
_ELSEWHERE = "weights-left-out"

_VALUES = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")

#: Nodes that give something else every time, or run other graphs.
_NEVER_CONSTANT = frozenset(
    (
        *("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"),
        *("If", "Loop", "Scan", "Optional", "SequenceEmpty"),
    )
)


@dataclass(frozen=True)
class TensorType:
    """Shape and element type of a tensor in a file; sizes that are open are 0."""

    shape: Shape
    dtype: str = "float32"


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
    folding = _Folding(onnx, model, order)
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
        raise InvalidValueError(f"{str(path)!r} is not an ONNX file that can be read: {_line(error)}") from error
    _check(onnx, model, path)
    _fix_inputs(model, batch_size, None if example_inputs is None else freeze_inputs(example_inputs))
    return model


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__).rstrip(".") + "."


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


def shape_in_file(item: Any) -> Shape:
    return tuple(size.dim_value for size in item.type.tensor_type.shape.dim)


def type_in_file(onnx: Any, item: Any) -> TensorType:
    return TensorType(shape_in_file(item), _dtype(onnx, item.type.tensor_type.elem_type))


def _dtype(onnx: Any, number: int) -> str:
    """Name an element type as torch does."""
    name = onnx.TensorProto.DataType.Name(number).lower() if number else "float"
    return {"float": "float32", "double": "float64"}.get(name, name)


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


def fractional(onnx: Any) -> tuple[int, ...]:
    """Return the element types of numbers with fractions."""
    kinds = onnx.TensorProto
    return kinds.FLOAT, kinds.FLOAT16, kinds.BFLOAT16, kinds.DOUBLE


def leave_out_weights(onnx: Any, model: Any) -> None:
    """Take the values of larger tensors of numbers with fractions out of a model."""
    for tensor in model.graph.initializer:
        if tensor.data_type in fractional(onnx) and math.prod(tensor.dims) >= LEFT_OUT:
            _leave_out(onnx, tensor)


def _leave_out(onnx: Any, tensor: Any) -> None:
    tensor.ClearField("raw_data")
    for name in _VALUES:
        tensor.ClearField(name)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    del tensor.external_data[:]
    tensor.external_data.add(key="location", value=_ELSEWHERE)


def lacks_values(onnx: Any, tensor: Any) -> bool:
    """Whether the values of a tensor are in another file, or nowhere."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return True
    return math.prod(tensor.dims) > 0 and not (tensor.raw_data or any(getattr(tensor, name) for name in _VALUES))


@dataclass
class _Folding:
    """Infers shapes and computes what does not depend on the inputs, in turns: each may need the other."""

    onnx: Any
    model: Any
    order: list[tuple[int, Any]]
    types: dict[str, TensorType] = field(default_factory=dict)
    constants: dict[str, NDArray[Any] | None] = field(default_factory=dict)

    def run(self, path: str | Path) -> None:
        """Go on until nothing is left to be folded."""
        self._take_initializers()
        for _ in range(_MOST_PASSES):
            self._infer(path)
            if not self._fold():
                return

    def _take_initializers(self) -> None:
        for tensor in self.model.graph.initializer:
            few = math.prod(tensor.dims) <= _COMPUTED and not lacks_values(self.onnx, tensor)
            self.constants[tensor.name] = self._values(tensor) if few else None

    def _values(self, tensor: Any) -> NDArray[Any] | None:
        try:
            found: NDArray[Any] = self.onnx.numpy_helper.to_array(tensor)
        except Exception:  # a file may say anything of its tensors
            return None
        return found

    def _infer(self, path: str | Path) -> None:
        nodes = [type(node).FromString(node.SerializeToString()) for _, node in self.order]
        del self.model.graph.node[:]
        self.model.graph.node.extend(nodes)
        try:
            graph = self.onnx.shape_inference.infer_shapes(self.model, data_prop=True).graph
        except Exception as error:  # onnx has errors of its own
            raise InvalidValueError(f"The shapes in {str(path)!r} cannot be inferred: {_line(error)}") from error
        for item in (*graph.input, *graph.value_info, *graph.output):
            self.types[item.name] = type_in_file(self.onnx, item)
        for tensor in graph.initializer:
            self.types[tensor.name] = TensorType(tuple(tensor.dims), _dtype(self.onnx, tensor.data_type))
        self.order = [(place, node) for (place, _), node in zip(self.order, nodes, strict=True)]

    def _fold(self) -> bool:
        """Compute constants; return whether there were any."""
        left = [(place, node) for place, node in self.order if not (self._is_constant(node) and self._compute(node))]
        is_progress = len(left) < len(self.order)
        self.order = left
        return is_progress

    def _is_constant(self, node: Any) -> bool:
        if node.op_type in _NEVER_CONSTANT or node.domain not in ("", "ai.onnx"):
            return False
        if node.op_type in ("Shape", "Size"):
            return self._is_whole(node.input[0])
        return all(name in self.constants for name in node.input if name)

    def _is_whole(self, name: str) -> bool:
        found = self.types.get(name)
        return found is not None and all(found.shape)

    def _has_few_values(self, node: Any) -> bool:
        return all(self.constants[name] is not None for name in node.input if name)

    def _compute(self, node: Any) -> bool:
        """Take the results of a node for constants; return whether that is possible."""
        values = {name: value for name, value in zip(node.output, self._evaluate(node), strict=True) if name}
        if any(value is None and not self._is_whole(name) for name, value in values.items()):
            return False
        for name, value in values.items():
            if value is None:
                number = self._element_type(name)
                tensor = self.onnx.TensorProto(name=name, dims=self.types[name].shape, data_type=number)
                _leave_out(self.onnx, tensor)
            else:
                tensor = self.onnx.numpy_helper.from_array(value, name)
            self.model.graph.initializer.append(tensor)
            self.types[name] = TensorType(tuple(tensor.dims), _dtype(self.onnx, tensor.data_type))
            self.constants[name] = value
        return True

    def _element_type(self, name: str) -> int:
        dtype = self.types[name].dtype
        number: int = self.onnx.TensorProto.DataType.Value(
            {"float32": "FLOAT", "float64": "DOUBLE"}.get(dtype, dtype.upper())
        )
        return number

    def _evaluate(self, node: Any) -> Sequence[NDArray[Any] | None]:
        """Return the results of a node, None where they are large or cannot be computed."""
        nothing = [None] * len(node.output)
        if node.op_type in ("Shape", "Size") and node.input[0] not in self.constants:
            return [self._shape(node)]
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            return [self._values(node.attribute[0].t)]
        sizes = [math.prod(self.types[name].shape) for name in node.output if name in self.types]
        if not self._has_few_values(node) or any(size > _COMPUTED for size in sizes):
            return nothing
        helper = self.onnx.helper
        names = [name for name in dict.fromkeys(node.input) if name]
        feeds = {name: self.constants[name] for name in names}
        infos = [[helper.make_empty_tensor_value_info(name) for name in some if name] for some in (names, node.output)]
        graph = helper.make_graph([node], "constant", *infos)
        single = helper.make_model(graph, opset_imports=self.model.opset_import)
        reference = require("onnx.reference", "Reading ONNX", "nni_latency[onnx]")
        try:
            found = iter(reference.ReferenceEvaluator(single).run(None, feeds))
            return [np.asarray(next(found)) if name else None for name in node.output]
        except Exception:  # an operator that the evaluator lacks; its shape is known all the same
            return nothing

    def _shape(self, node: Any) -> NDArray[Any]:
        shape = self.types[node.input[0]].shape
        if node.op_type == "Size":
            return np.array(math.prod(shape), dtype=np.int64)
        bounds = {item.name: item.i for item in node.attribute}
        return np.array(shape[bounds.get("start", 0) : bounds.get("end")], dtype=np.int64)


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
