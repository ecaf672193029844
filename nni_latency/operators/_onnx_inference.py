# SPDX-License-Identifier: Apache-2.0
"""Inference of the outputs of ONNX nodes: shapes, element types, and constant values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.errors import first_line
from nni_latency.imports import require
from nni_latency.operators._onnx_model import dtype_name, element_type, lacks_values, sizes_of, tensor_type_of
from nni_latency.operators._op_spec import LARGEST_TENSOR, Shape

#: Largest number of elements of a constant whose values are kept; shapes are small.
_KEPT = 2**16

#: Largest number of elements of a constant that can determine a shape.
_DECIDING = 2**12

#: Non-deterministic nodes.
RANDOM = frozenset(
    ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli")
)

#: Domains of the standard ONNX operators.
STANDARD = ("", "ai.onnx")


@dataclass(frozen=True)
class Value:
    """A tensor of a network, with the properties known without running the network.

    Parameters
    ----------
    shape : tuple of int
        Shape of the tensor.
    dtype : str
        Element type in torch's notation.
    type : onnx.TypeProto
        ONNX type of the tensor.
    is_constant : bool
        Whether it is independent of the inputs of the network.
    data : ndarray or None
        The values of a small constant.
    writers : tuple of int
        Indices of the operators that produce it.
    parameters : tuple of str
        Names of the weights in the file that a constant consists of.
    is_assumed : bool
        Whether its shape depends on data or on an unknown operator.
    """

    shape: Shape
    dtype: str
    type: Any = field(repr=False, compare=False)
    is_constant: bool = False
    data: NDArray[Any] | None = field(default=None, repr=False)
    writers: tuple[int, ...] = ()
    parameters: tuple[str, ...] = ()
    is_assumed: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def assumed_shape(sizes: Sequence[int | None] | None, given: Sequence[Value]) -> Shape:
    """Fill dynamic sizes from an input of the same rank, or put all its elements in the first dimension."""
    if not given:
        return tuple(size or 1 for size in sizes or ())
    # The result follows the first input, except for look-ups and comparisons with something larger.
    first = next((item for item in given if not item.is_constant), given[0])
    if sizes is None:
        return first.shape
    like = next((item.shape for item in given if len(item.shape) == len(sizes) and not item.is_constant), None)
    if like is not None:
        return tuple(other if size is None else size for size, other in zip(sizes, like, strict=True))
    left = max(1, first.size // max(1, math.prod(size for size in sizes if size is not None)))
    found: list[int] = []
    for size in sizes:
        found.append(left if size is None else size)
        left = 1 if size is None else left
    return tuple(found)


def _at_most_nonzero(node: Any, place: int, given: Sequence[Value]) -> Shape:
    return len(given[0].shape), given[0].size


def _at_most_selected(node: Any, place: int, given: Sequence[Value]) -> Shape:
    """Return the largest output shape of a suppression: the limit of boxes per class and image, or all boxes."""
    boxes, scores = given[0].shape, given[1].shape
    most = given[2].data if len(given) > 2 else None
    kept = min(boxes[1], int(most.reshape(-1)[0])) if most is not None and most.size else boxes[1]
    return scores[0] * scores[1] * max(1, kept), 3


def _at_most_compressed(node: Any, place: int, given: Sequence[Value]) -> Shape:
    """Return the shape if nothing is removed; without an axis, the input is flattened."""
    axes = [item.i for item in node.attribute if item.name == "axis"]
    return given[0].shape if axes and place == 0 else (given[0].size if not axes else given[0].shape[axes[0]],)


#: Largest output shape of operators with data-dependent output sizes.
AT_MOST: dict[str, Callable[[Any, int, Sequence[Value]], Shape]] = {
    "NonZero": _at_most_nonzero,
    "NonMaxSuppression": _at_most_selected,
    "Compress": _at_most_compressed,
    "Unique": _at_most_compressed,
}


def without_data(value: Value) -> Value:
    """Return the same tensor with unknown values."""
    return replace(value, is_constant=False, data=None)


@dataclass(frozen=True)
class Inferred:
    """Outputs of a node, and whether sizes were assumed."""

    values: tuple[Value | None, ...]
    is_assumed: bool = False


@dataclass
class Inference:
    """Infers the outputs of nodes from the schemas of the package onnx, one node at a time.

    Parameters
    ----------
    onnx : module
        The package.
    ir_version : int
        Format version of the file.
    """

    onnx: Any
    ir_version: int
    _schemas: dict[tuple[str, str, int], Any] = field(default_factory=dict)
    _evaluators: dict[bytes, Any] = field(default_factory=dict)

    def value(self, shape: Shape, dtype: str, **known: Any) -> Value:
        """Create a value of a shape and an element type."""
        kind = self.onnx.helper.make_tensor_type_proto(element_type(self.onnx, dtype), list(shape))
        return Value(shape, dtype, kind, **known)

    def constant(self, data: NDArray[Any] | None, shape: Shape, dtype: str, **known: Any) -> Value:
        """Create a constant; its values are kept if they are few."""
        kept = data if data is not None and data.size <= _KEPT else None
        return self.value(shape, dtype, is_constant=True, data=kept, **known)

    def as_floats(self, values: Sequence[Value | None]) -> tuple[Value | None, ...]:
        """Return single-precision tensors of the same shapes."""
        return tuple(item and replace(item, type=self.value(item.shape, "float32").type) for item in values)

    def typed_as(self, found: Inferred, inputs: Sequence[Value | None]) -> Inferred:
        """Return the inferred outputs with the element type of the first input."""
        dtype = next((item.dtype for item in inputs if item is not None), "float32")
        values = (item and replace(item, dtype=dtype, type=self.value(item.shape, dtype).type) for item in found.values)
        return replace(found, values=tuple(values))

    def of_tensor(self, tensor: Any, name: str = "") -> Value:
        """Create a value from a tensor in the file; ``name`` identifies it if it holds weights."""
        shape, data = tuple(tensor.dims), None
        if math.prod(shape) <= _KEPT and not lacks_values(self.onnx, tensor):
            try:
                data = self.onnx.numpy_helper.to_array(tensor)
            except Exception:  # tensors of a file may be malformed
                data = None
        parameters = (name,) if name and math.prod(shape) > 1 else ()
        return self.constant(data, shape, dtype_name(self.onnx, tensor.data_type), parameters=parameters)

    def of_type(self, kind: Any) -> Value:
        """Create a value from a type in the file; dynamic sizes are 1."""
        sizes, tensor = sizes_of(self.onnx, kind) or [], tensor_type_of(kind)
        dtype = dtype_name(self.onnx, tensor.elem_type if tensor is not None else 0)
        return Value(tuple(1 if size is None else size for size in sizes), dtype, kind)

    def schema(self, node: Any, opsets: Mapping[str, int]) -> Any | None:
        """Return the schema of a node; None if the package onnx has none."""
        domain = "" if node.domain in STANDARD else node.domain
        version = opsets.get(domain, self.onnx.defs.onnx_opset_version() if not domain else 1)
        key = node.op_type, domain, version
        if key not in self._schemas:
            try:
                found = self.onnx.defs.get_schema(node.op_type, version, domain)
            except Exception:  # onnx has its own error, in a private module
                found = None
            self._schemas[key] = found
        return self._schemas[key]

    def function_of(
        self, node: Any, schema: Any, inputs: Sequence[Value | None], opsets: Mapping[str, int]
    ) -> Any | None:
        """Return the function body of an operator; None if onnx does not define one."""
        version = opsets[""]
        try:
            if schema.has_function:
                content = schema.get_function_with_opset_version(version)
            elif schema.has_context_dependent_function:
                types = [b"" if item is None else item.type.SerializeToString() for item in inputs]
                content = schema.get_context_dependent_function_with_opset_version(
                    version, node.SerializeToString(), types
                )
            else:
                return None
            found = self.onnx.FunctionProto.FromString(content)
        except Exception:  # onnx has no body for this version or these inputs
            return None
        return found if found.node else None

    def infer(
        self,
        node: Any,
        inputs: Sequence[Value | None],
        opsets: Mapping[str, int],
        hints: Mapping[str, Any],
    ) -> Inferred:
        """Return the outputs of a node.

        Parameters
        ----------
        node : onnx.NodeProto
            A node other than a branch, loop or local function.
        inputs : sequence of Value or None
            Inputs of the node; None for an omitted input.
        opsets : dict of str to int
            Opset version by domain.
        hints : dict of str to TypeProto
            Types declared in the file, by tensor.

        Returns
        -------
        Inferred
            A value for every output; None for an omitted output.

        Raises
        ------
        ValueError
            If the inputs are invalid for the operator.
        """
        schema = self.schema(node, opsets)
        if node.op_type == "STFT" and not any(item.name == "onesided" for item in node.attribute):
            # Set the schema's default, which its inference function does not apply.
            node = type(node).FromString(node.SerializeToString())
            node.attribute.add(name="onesided", i=1, type=self.onnx.AttributeProto.INT)
        if node.op_type == "Range":
            # Runtimes accept one-element tensors as scalar bounds; the schema does not.
            inputs = [item and self._as_scalar(item) for item in inputs]
        given = [item for item in inputs if item is not None]
        is_constant = bool(node.output) and node.op_type not in RANDOM and all(item.is_constant for item in given)
        if schema is not None and node.domain in STANDARD and (is_constant or node.op_type in ("Shape", "Size")):
            folded = self._folded(node, schema, inputs, opsets)
            if folded is not None:
                return Inferred(folded)
        types = self._types(node, schema, inputs, opsets)
        parameters = tuple(dict.fromkeys(name for item in given for name in item.parameters)) if is_constant else ()
        found: list[Value | None] = []
        is_assumed = False
        for place, name in enumerate(node.output):
            if not name:
                found.append(None)
                continue
            shape, dtype, known = self._completed(node, place, types.get(name), hints.get(name), given)
            self._check(shape)
            inherited = any(item.is_assumed for item in given)
            is_assumed = is_assumed or not known
            made = self.value(shape, dtype, is_assumed=inherited or not known, parameters=parameters)
            kind = types.get(name)
            if kind is not None and kind.WhichOneof("value") in ("sequence_type", "optional_type"):
                made = replace(made, type=kind)
            found.append(replace(made, is_constant=is_constant and schema is not None))
        return Inferred(tuple(found), is_assumed)

    def _folded(
        self, node: Any, schema: Any, inputs: Sequence[Value | None], opsets: Mapping[str, int]
    ) -> tuple[Value | None, ...] | None:
        """Return the constant outputs of a node; None if they cannot be computed or are large."""
        given = [item for item in inputs if item is not None]
        is_assumed = any(item.is_assumed for item in given)
        if node.op_type in ("Shape", "Size") and given:
            data = _shape_data(node, given[0].shape)
            return (self.constant(data, data.shape, "int64", is_assumed=given[0].is_assumed),)
        if node.op_type == "Constant":
            return self._constant_node(node)
        if any(item.data is None for item in given):
            return None
        types = self._types(node, schema, inputs, opsets)
        if node.op_type not in AT_MOST and not all(self._is_small(kind) for kind in types.values()):
            return None
        arrays = self._evaluated(node, inputs, opsets)
        if arrays is None:
            return None
        parameters = tuple(dict.fromkeys(name for item in given for name in item.parameters))
        return tuple(
            None if array is None else self._of_array(array, parameters=parameters, is_assumed=is_assumed)
            for array in arrays
        )

    def _as_scalar(self, value: Value) -> Value:
        made = self.value((), value.dtype, is_constant=value.is_constant, is_assumed=value.is_assumed)
        return replace(made, data=None if value.data is None else value.data.reshape(-1)[0].reshape(()))

    def _is_small(self, kind: Any) -> bool:
        sizes = sizes_of(self.onnx, kind)
        return sizes is not None and math.prod(math.inf if size is None else size for size in sizes) <= _KEPT

    def _of_array(self, array: NDArray[Any], **known: Any) -> Value:
        number = self.onnx.helper.np_dtype_to_tensor_dtype(array.dtype) if array.dtype.kind not in "USO" else 8
        return self.constant(array, tuple(array.shape), dtype_name(self.onnx, number), **known)

    def _constant_node(self, node: Any) -> tuple[Value | None, ...] | None:
        (attribute, *_) = [*node.attribute] or [None]
        if attribute is None:
            raise ValueError("it has no value")
        value = self.onnx.helper.get_attribute_value(attribute)
        if attribute.name == "value":
            return (self.of_tensor(value, node.output[0]),)
        if attribute.name == "sparse_value":
            shape = tuple(value.dims)
            return (self.constant(None, shape, dtype_name(self.onnx, value.values.data_type)),)
        kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
        array = np.asarray(value, dtype=kinds.get(attribute.name, object))
        return (self._of_array(array),)

    def _types(
        self, node: Any, schema: Any | None, inputs: Sequence[Value | None], opsets: Mapping[str, int]
    ) -> dict[str, Any]:
        """Infer types from the schema of a node; empty without a schema, or if assumed inputs do not match.

        Raises
        ------
        ValueError
            If the inputs are invalid for the operator.
        """
        if schema is None:
            return {}
        named = [(name, item) for name, item in zip(node.input, inputs, strict=True) if item is not None]
        data = {
            name: self.onnx.numpy_helper.from_array(item.data, name)
            for name, item in named
            if item.data is not None and item.data.size <= _DECIDING and item.data.dtype.kind != "O"
        }
        imports = [self.onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        try:
            found = self.onnx.shape_inference.infer_node_outputs(
                schema,
                node,
                {name: item.type for name, item in named},
                data,
                opset_imports=imports,
                ir_version=self.ir_version,
            )
        except Exception as error:  # onnx has its own error, in a private module
            if any(item.is_assumed for _, item in named):
                return {}
            raise ValueError(first_line(error).rstrip(".")) from error
        return dict(found)

    def _completed(
        self, node: Any, place: int, kind: Any | None, hint: Any | None, given: Sequence[Value]
    ) -> tuple[Shape, str, bool]:
        """Return shape and element type of an output, and whether they are known; dynamic sizes are assumed."""
        sizes = None if kind is None else sizes_of(self.onnx, kind)
        hinted = None if hint is None else sizes_of(self.onnx, hint)
        if hinted is not None and (sizes is None or len(sizes) == len(hinted)):
            # Files write 0 or -1 for a dynamic size.
            hinted = [size if size is not None and size > 0 else None for size in hinted]
            sizes = hinted if sizes is None else [a if a is not None else b for a, b in zip(sizes, hinted, strict=True)]
        tensor = tensor_type_of(kind) or tensor_type_of(hint)
        number = tensor.elem_type if tensor is not None else 0
        dtype = dtype_name(self.onnx, number) if number else given[0].dtype if given else "float32"
        if sizes is not None and None not in sizes:
            return tuple(size or 0 for size in sizes), dtype, True
        if node.op_type in AT_MOST and node.domain in STANDARD:
            return AT_MOST[node.op_type](node, place, given), dtype, False
        return assumed_shape(sizes, given), dtype, False

    def _check(self, shape: Shape) -> None:
        made = f"it would return a tensor of {'x'.join(map(str, shape))}"
        if any(size < 0 for size in shape):
            raise ValueError(f"{made}, with a size below 0")
        if math.prod(shape) > LARGEST_TENSOR:
            raise ValueError(f"{made}, and 2^40 numbers are the most that are read")

    def _evaluated(
        self, node: Any, inputs: Sequence[Value | None], opsets: Mapping[str, int]
    ) -> list[NDArray[Any] | None] | None:
        """Evaluate a node; return None if the package onnx cannot."""
        evaluator = self._evaluator(node, opsets)
        if evaluator is None:
            return None
        feeds = {name: item.data for name, item in zip(node.input, inputs, strict=True) if item is not None}
        try:
            with np.errstate(all="ignore"):
                found = iter(evaluator.run(None, feeds))
                return [np.asarray(next(found)) if name else None for name in node.output]
        except Exception:  # the values are not shapes, and the operator is kept
            return None

    def _evaluator(self, node: Any, opsets: Mapping[str, int]) -> Any | None:
        key = node.SerializeToString(deterministic=True)
        if key not in self._evaluators:
            helper = self.onnx.helper
            names = [name for name in dict.fromkeys(node.input) if name]
            infos = [
                [helper.make_empty_tensor_value_info(name) for name in some if name] for some in (names, node.output)
            ]
            graph = helper.make_graph([node], "constant", *infos)
            imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
            reference = require("onnx.reference", "Reading ONNX", "onnx")
            try:
                self._evaluators[key] = reference.ReferenceEvaluator(helper.make_model(graph, opset_imports=imports))
            except Exception:  # the evaluator lacks the operator
                self._evaluators[key] = None
        return self._evaluators[key]


def _shape_data(node: Any, shape: Shape) -> NDArray[Any]:
    if node.op_type == "Size":
        return np.array(math.prod(shape), dtype=np.int64)
    bounds = {item.name: item.i for item in node.attribute}
    return np.array(shape[bounds.get("start", 0) : bounds.get("end")], dtype=np.int64)
