"""What of an ONNX file does not depend on its inputs, and which shapes follow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nni_latency.errors import InvalidValueError, first_line
from nni_latency.imports import require
from nni_latency.operators._onnx_tensors import (
    TensorType,
    dtype_name,
    element_type,
    lacks_values,
    leave_out,
    type_in_file,
)

#: Numbers of a constant at most that is computed; shapes are small.
_COMPUTED = 2**16

#: How often shapes are inferred and constants computed in turns, at most.
_MOST_PASSES = 50

#: Nodes that give something else every time, or run other graphs.
_NEVER_CONSTANT = frozenset(
    (
        *("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"),
        *("If", "Loop", "Scan", "Optional", "SequenceEmpty"),
    )
)


@dataclass
class Folding:
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
            raise InvalidValueError(
                f"The shapes in {str(path)!r} cannot be inferred: {first_line(error).rstrip('.')}."
            ) from error
        for item in (*graph.input, *graph.value_info, *graph.output):
            self.types[item.name] = type_in_file(self.onnx, item)
        for tensor in graph.initializer:
            self.types[tensor.name] = TensorType(tuple(tensor.dims), dtype_name(self.onnx, tensor.data_type))
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
                number = element_type(self.onnx, self.types[name].dtype)
                tensor = self.onnx.TensorProto(name=name, dims=self.types[name].shape, data_type=number)
                leave_out(self.onnx, tensor)
            else:
                tensor = self.onnx.numpy_helper.from_array(value, name)
            self.model.graph.initializer.append(tensor)
            self.types[name] = TensorType(tuple(tensor.dims), dtype_name(self.onnx, tensor.data_type))
            self.constants[name] = value
        return True

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
