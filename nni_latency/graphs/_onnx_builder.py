# SPDX-License-Identifier: Apache-2.0
"""`OnnxBuilder`: an ONNX network written node by node, with the shapes of its tensors at hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nni_latency.imports import require
from nni_latency.operators import taken_by

#: Version of the file format, and that for operator sets from 21 on.
_IR_VERSION, _NEWER_IR_VERSION, _NEWER_OPSET = 8, 10, 21

#: Domain of ONNX Runtime's own operators.
RUNTIME = "com.microsoft"

#: Largest constant whose values shapes depend on.
_SMALL = 64

_Float = np.float32


class OnnxBuilder:
    """Writes an ONNX network node by node. Weights have random values.

    Parameters
    ----------
    generator : numpy.random.Generator
        Source of the values of weights.
    opset : int
        Version of the operator set.

    Examples
    --------
    >>> net = OnnxBuilder(np.random.default_rng(0), 17)
    >>> data = net.input(1, 3, 8, 8)
    >>> found = net("Relu", net("Conv", data, net.weight(4, 3, 3, 3), pads=[1, 1, 1, 1]))
    >>> net.shape(found), len(net.model(found).graph.node)
    ((1, 4, 8, 8), 2)
    """

    def __init__(self, generator: np.random.Generator, opset: int) -> None:
        self._onnx = require("onnx", "Writing ONNX", "onnx")
        self._generator, self.opset = generator, opset
        self._types: dict[str, Any] = {}
        self._values: dict[str, Any] = {}
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        # Nodes and weights of branches.
        self._n_inner, self._n_inner_weights = 0, 0

    def input(self, *sizes: int) -> str:
        """Add an input of single precision."""
        name = f"input{len(self._inputs)}"
        kind = self._onnx.helper.make_tensor_type_proto(self._onnx.TensorProto.FLOAT, sizes)
        self._inputs.append(self._onnx.helper.make_value_info(name, kind))
        self._types[name] = kind
        return name

    def weight(self, *sizes: int) -> str:
        """Add a weight with random values."""
        taken = math.prod(sizes[1:]) if len(sizes) > 1 else 1
        return self.constant(self._generator.standard_normal(sizes, dtype=_Float) / math.sqrt(max(1, taken)))

    def positive(self, *sizes: int) -> str:
        """Add a weight with random values between 0.5 and 1.5, such as a variance."""
        return self.constant(self._generator.uniform(0.5, 1.5, sizes).astype(_Float))

    def number(self, value: float) -> str:
        """Add a constant number of single precision."""
        return self.constant(np.array(value, dtype=_Float))

    def whole(self, *values: int) -> str:
        """Add a constant list of whole numbers."""
        return self.constant(np.array(values, dtype=np.int64))

    def constant(self, values: ArrayLike) -> str:
        """Add a constant."""
        array: NDArray[Any] = np.asarray(values)
        name = f"weight{len(self._values) + self._n_inner_weights}"
        self._values[name] = self._onnx.numpy_helper.from_array(array, name)
        self._types[name] = self._onnx.helper.make_tensor_type_proto(self._values[name].data_type, array.shape)
        return name

    def __call__(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one result; an empty name stands for an input that is left out."""
        return self.several(kind, *inputs, count=1, **attributes)[0]

    def shaped(self, kind: str, *inputs: str, shape: Sequence[int], domain: str = "", **attributes: Any) -> str:
        """Add a node with one result whose shape the package onnx does not infer."""
        node, (name,) = self._node(kind, inputs, 1, domain, attributes)
        self._types[name] = self._onnx.helper.make_tensor_type_proto(self._onnx.TensorProto.FLOAT, shape)
        self._nodes.append(node)
        return name

    def several(self, kind: str, *inputs: str, count: int, **attributes: Any) -> list[str]:
        """Add a node with several results."""
        onnx = self._onnx
        node, results = self._node(kind, inputs, count, "", attributes)
        schema = onnx.defs.get_schema(kind, self.opset, "")
        given = {name: self._types[name] for name in inputs if name}
        small = (name for name in inputs if name in self._values and math.prod(self._values[name].dims) <= _SMALL)
        data = {name: self._values[name] for name in small}
        opsets = [onnx.helper.make_opsetid("", self.opset)]
        found = onnx.shape_inference.infer_node_outputs(schema, node, given, data, opset_imports=opsets)
        self._types |= {name: found[name] for name in results}
        self._nodes.append(node)
        return results

    def either(self, condition: str, *branches: Callable[[], str]) -> str:
        """Add a node that runs the first of two branches if a condition holds, and otherwise the second.

        Each branch writes its nodes and returns its result. The results have the same type.
        """
        helper, outer, known = self._onnx.helper, self._nodes, set(self._values)
        graphs: list[Any] = []
        for branch in branches:
            self._n_inner, self._nodes = len(self), []
            result = branch()
            weights = [self._values.pop(name) for name in list(self._values) if name not in known]
            self._n_inner_weights += len(weights)
            kind = helper.make_value_info(result, self._types[result])
            graphs.append(helper.make_graph(self._nodes, f"branch{len(graphs)}", [], [kind], weights))
        self._n_inner, self._nodes = len(self) - len(outer), outer
        then, other = graphs
        node, (name,) = self._node("If", [condition], 1, "", {"then_branch": then, "else_branch": other})
        self._types[name] = self._types[then.output[0].name]
        self._nodes.append(node)
        return name

    def _node(
        self, kind: str, inputs: Sequence[str], count: int, domain: str, attributes: dict[str, Any]
    ) -> tuple[Any, list[str]]:
        """Make a node, and return it with the names of its results."""
        number = len(self)
        results = [f"value{number}_{place}" for place in range(count)]
        name = f"{kind}_{number}"
        return self._onnx.helper.make_node(kind, inputs, results, name, domain=domain, **attributes), results

    def __len__(self) -> int:
        """Return the number of nodes, those of branches included."""
        return len(self._nodes) + self._n_inner

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the sizes of a tensor.

        Raises
        ------
        ValueError
            If they do not follow from the inputs.
        """
        sizes = [size.dim_value for size in self._types[name].tensor_type.shape.dim]
        if not all(sizes):
            raise ValueError(f"The shape of {name} does not follow from the inputs: {sizes}.")
        return tuple(sizes)

    def reshape(self, data: str, *sizes: int) -> str:
        """Give a tensor other sizes."""
        return self("Reshape", data, self.whole(*sizes))

    def reduce(self, kind: str, data: str, axes: Sequence[int], *, keep: bool = True) -> str:
        """Reduce dimensions; the axes are an attribute or an input by the version of the operator set."""
        since = 13 if kind == "ReduceSum" else 18
        if self.opset >= since:
            return self(kind, data, self.whole(*axes), keepdims=int(keep))
        return self(kind, data, axes=list(axes), keepdims=int(keep))

    def split(self, data: str, count: int, axis: int) -> list[str]:
        """Divide a dimension into equal parts."""
        size = self.shape(data)[axis] // count
        return self.several("Split", data, self.whole(*[size] * count), count=count, axis=axis)

    def slice(self, data: str, axis: int, start: int, end: int, step: int = 1) -> str:
        """Take a part of a dimension."""
        return self("Slice", data, *(self.whole(value) for value in (start, end, axis, step)))

    def unsqueeze(self, data: str, *axes: int) -> str:
        """Insert dimensions of size 1."""
        return self("Unsqueeze", data, self.whole(*axes))

    def model(self, *outputs: str) -> Any:
        """Return the network as an ``onnx.ModelProto``, without nodes that no output needs: some runtimes run them."""
        helper = self._onnx.helper
        used, nodes = set(outputs), []
        for node in reversed(self._nodes):
            if not used.isdisjoint(node.output):
                nodes.append(node)
                used.update(taken_by(node))
        nodes.reverse()
        weights = [value for name, value in self._values.items() if name in used]
        results = [helper.make_value_info(name, self._types[name]) for name in outputs]
        graph = helper.make_graph(nodes, "blocks", self._inputs, results, weights)
        opsets = [helper.make_opsetid("", self.opset)]
        if any(node.domain for node in nodes):
            opsets.append(helper.make_opsetid(RUNTIME, 1))
        version = _IR_VERSION if self.opset < _NEWER_OPSET else _NEWER_IR_VERSION
        return helper.make_model(graph, opset_imports=opsets, ir_version=version)
