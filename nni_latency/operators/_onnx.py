# SPDX-License-Identifier: Apache-2.0
"""Operators of an ONNX file by shape inference, without a runtime; weights may be absent."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError, listed
from nni_latency.files import readable
from nni_latency.imports import require
from nni_latency.operators._graph import Graph
from nni_latency.operators._inputs import InputShape, freeze_inputs
from nni_latency.operators._onnx_frames import Node
from nni_latency.operators._onnx_model import (
    details_of,
    dtype_name,
    leave_out_weights,
    name_of,
    nested,
    open_onnx,
    ordered,
    parts_of,
    shape_in_file,
)
from nni_latency.operators._onnx_nodes import describe_node
from nni_latency.operators._onnx_walk import Walk
from nni_latency.operators._op_spec import LARGEST_TENSOR, OpSpec, Shape
from nni_latency.units import number_of

#: Batch sizes to probe: primes, which rarely equal products of other sizes.
_PROBES = (7, 11, 13, 17, 19, 23)

#: Nodes that process a sequence step by step.
_RECURRENT = frozenset(("RNN", "GRU", "LSTM", "DynamicQuantizeLSTM"))


def read_onnx(path: str | Path, batch_size: int | None = None, example_inputs: Any = None) -> Graph:
    """Read the operators of an ONNX file and their data flow.

    Shapes are inferred, constants are folded, and of nodes with the same inputs and attributes one is counted, as in
    runtimes. Weights may be absent; external data files are never opened. Functions of the file are expanded, and loop
    bodies are counted once per iteration.

    Parameters
    ----------
    path : str or Path
        The file, of any opset that the package ``onnx`` supports.
    batch_size : int, optional
        First dimension of the inputs; by default that of the file, or 1 if it is dynamic.
    example_inputs : Tensor, sequence or dict, optional
        Inputs of the network, as for `nni_latency.operators.trace`, for a file with dynamic input sizes.

    Returns
    -------
    Graph
        Graph as returned by `nni_latency.operators.trace`, with nodes of the file in place of calls. An unknown kind of
        node keeps its name in lower case, so that `count_operators` lists it as not counted. Assumptions, such as the
        iterations of a data-dependent loop, are listed in its ``remarks``.

    Raises
    ------
    MissingDependencyError
        If the package ``onnx`` is not installed.
    InvalidValueError
        If this is no path, or the file cannot be read, is too large or cyclic, input sizes are dynamic, a node is
        invalid, or the inputs do not match the file.
    """
    onnx = require("onnx", "Reading ONNX", "onnx")
    model = load_onnx(path, batch_size, example_inputs)
    with readable(path, "an ONNX file", InvalidValueError):
        check_inputs(model.graph, path)
        nodes = ordered(model.graph, path)
        leave_out_weights(onnx, model)
        walk = Walk(onnx, model, lambda node: (describe_node(node), details_of(onnx, node.attributes)), str(path))
        inputs, outputs = walk.run(model.graph, nodes)
        returned, taken = (tuple(tensor.shape for tensor in some) for some in (outputs, inputs))
        remarks = (*walk.remarks, *_unused(model.graph, {place for place, _ in nodes}))
        return Graph(tuple(walk.operators), len(nodes), returned, taken, remarks)


def _unused(graph: Any, needed: Container[int]) -> Iterator[str]:
    """Yield a remark on the nodes that no output needs, if any computes something."""
    names = [name_of(node) for place, node in enumerate(graph.node) if place not in needed and node.input]
    if names:
        yield f"no output needs {listed(names)}: left out, although ONNX Runtime runs such nodes"


def load_onnx(path: str | Path, batch_size: int | None = None, example_inputs: Any = None) -> Any:
    """Load an ONNX file with fixed input sizes; external data files are not opened.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    MissingDependencyError, InvalidValueError
        As for `nni_latency.operators.read_onnx`.
    """
    onnx = require("onnx", "Reading ONNX", "onnx")
    with readable(path, "an ONNX file", InvalidValueError):
        model = open_onnx(onnx, path)
        _Fixing(onnx, model, str(path), batch_size).fix(example_inputs)
    return model


def fit_branches(model: Any, path: str | Path) -> None:
    """Replace branches that cannot run with inputs of these sizes by the alternative, which `read_onnx` counts.

    A file for inputs of several sizes has a branch for each. Runtimes infer the shapes of all of them, and refuse the
    network because of one that never runs.
    """
    nodes = (node for part in parts_of(model) for node in part.node)
    if all(node.op_type != "If" for node in nodes) or any(map(_is_open, fed_inputs(model.graph))):
        return
    onnx = require("onnx", "Reading ONNX", "onnx")
    walk = Walk(onnx, model, lambda node: (describe_node(node), ()), str(path))
    # A network that cannot be counted may run nevertheless.
    with contextlib.suppress(InvalidValueError):
        walk.run(model.graph, ordered(model.graph, path))
    for branch, other in walk.unfit:
        branch.CopyFrom(other)


def fed_inputs(graph: Any) -> list[Any]:
    """Return the inputs of a graph without weights, which older files list among the inputs."""
    weights = {tensor.name for tensor in graph.initializer}
    return [item for item in graph.input if item.name not in weights]


def check_inputs(graph: Any, path: str | Path) -> None:
    """Raise `InvalidValueError` if input sizes are dynamic; all are listed."""
    found = [f"{item.name!r} {_written_dims(item)}" for item in fed_inputs(graph) if _is_open(item)]
    if found:
        raise InvalidValueError(
            f"Sizes of the inputs of {str(path)!r} are open: {listed(found)}. Give the shapes of its inputs "
            "(in Python as 'example_inputs'), such as 3,224,224."
        )


def written(shape: Shape) -> str:
    return "x".join(str(size or "?") for size in shape) or "()"


def _written_dims(item: Any) -> str:
    if not _has_shape(item):
        return "without a shape"
    sizes = item.type.tensor_type.shape.dim
    return "x".join(str(size.dim_value) if size.dim_value > 0 else size.dim_param or "?" for size in sizes)


def _has_shape(item: Any) -> bool:
    return bool(item.type.tensor_type.HasField("shape"))


def _is_open(item: Any) -> bool:
    return not _has_shape(item) or not all(shape_in_file(item))


@dataclass(frozen=True)
class _Given:
    """Given sizes of one input, and whether they include the batch."""

    shape: Shape
    is_whole: bool = True


class _Fixing:
    """Fixes the input sizes of a model."""

    def __init__(self, onnx: Any, model: Any, path: str, batch_size: int | None) -> None:
        self._onnx, self._model, self._path, self._batch_size = onnx, model, path, batch_size
        self._inputs = fed_inputs(model.graph)
        self._sizes: dict[str, int] = {}
        self._steps: set[int] = set()
        self._results: set[Shape] = set()

    def fix(self, example_inputs: Any) -> None:
        """Fix dynamic sizes from the given inputs, then set the batch size if requested.

        Raises
        ------
        InvalidValueError
            If the given inputs contradict the file or the requested batch size.
        """
        given = {} if example_inputs is None else self._given(example_inputs)
        self._check_batch(given)
        for item in self._inputs:
            if item.name in given:
                self._set(item, given[item.name].shape)
        self._take_named()
        for item in self._inputs:
            own = shape_in_file(item)
            if own and not own[0]:
                self._set(item, (self._batch_size or 1, *own[1:]))
                self._take_named()
        if self._batch_size is not None and not any(map(_is_open, self._inputs)):
            self._set_batch(self._batch_size, [name for name, shape in given.items() if shape.is_whole])

    def _given(self, example_inputs: Any) -> dict[str, _Given]:
        """Return the given shapes by input name, checked against the inputs."""
        found = {}
        for name, shape in self._by_name(example_inputs).items():
            item = next(item for item in self._inputs if item.name == name)
            found[name] = self._whole(item, shape) if isinstance(shape, InputShape) else _Given(tuple(shape.shape))
            self._check(item, found[name].shape)
        return found

    def _by_name(self, example_inputs: Any) -> dict[str, Any]:
        """Assign the given inputs to names; inputs without a name are in the order of the file."""
        if isinstance(example_inputs, Sequence) and all(isinstance(item, InputShape) for item in example_inputs):
            args = [item for item in example_inputs if not item.name]
            kwargs = {item.name: item for item in example_inputs if item.name}
        else:
            frozen = freeze_inputs(example_inputs)
            args, kwargs = list(frozen.args), dict(frozen.kwargs)
        names = [item.name for item in self._inputs]
        unknown = [name for name in kwargs if name not in names]
        free = [name for name in names if name not in kwargs]
        if unknown or len(args) > len(free):
            raise InvalidValueError(
                f"The inputs of {self._path!r} are {listed(names) or 'none'}. Got "
                f"{listed(unknown) or number_of(len(args) + len(kwargs), 'input')}."
            )
        return {**dict(zip(free, args, strict=False)), **kwargs}

    def _whole(self, item: Any, given: InputShape) -> _Given:
        """Return the shape of an input; its sizes may be given without the batch."""
        own, kind = shape_in_file(item), dtype_name(self._onnx, item.type.tensor_type.elem_type)
        if given.dtype and given.dtype != kind:
            raise InvalidValueError(
                f"The input {item.name!r} of {self._path!r} has the element type {kind}. Got {given.dtype}."
            )
        if not _has_shape(item):
            # The rank is unknown.
            return _Given(given.shape(self._batch_size or 1, len(given.sizes)))
        if given.is_whole(len(own)):
            return _Given(given.shape(self._batch_size or 1, len(own)))
        return _Given(given.shape((own[0] if own else 0) or self._batch_size or 1), is_whole=False)

    def _check(self, item: Any, shape: Shape) -> None:
        """Raise `InvalidValueError` if a shape contradicts the file."""
        own = shape_in_file(item)
        if _has_shape(item) and len(shape) != len(own):
            without = f" or, without the batch, {len(own) - 1}" if len(own) > 1 else ""
            raise InvalidValueError(
                f"The input {item.name!r} of {self._path!r} has the shape {written(own)}: it takes "
                f"{number_of(len(own), 'size')}{without}. Got {written(shape)}."
            )
        fixed = [str(size) for size, new in zip(own, shape, strict=False) if size and size != new]
        if fixed:
            raise InvalidValueError(
                f"The input {item.name!r} of {self._path!r} has the shape {written(own)}, in which the file fixes "
                f"{listed(fixed)}. Got {written(shape)}."
            )
        if math.prod(shape) > LARGEST_TENSOR:
            raise InvalidValueError(f"The input {item.name!r} has more than 2^40 numbers: {written(shape)}.")

    def _check_batch(self, given: dict[str, _Given]) -> None:
        """Raise `InvalidValueError` if the given shape of the batched input has another batch size."""
        main = self._main()
        shape = given[main.name] if main is not None and main.name in given else None
        if main is None or shape is None or self._batch_size is None or not (shape.is_whole and shape_in_file(main)):
            return
        if not shape_in_file(main)[0] and shape.shape[0] != self._batch_size:
            raise InvalidValueError(
                f"The input {main.name!r} of {self._path!r} is given as {written(shape.shape)}, and the batch size as "
                f"{self._batch_size}. Omit one of them."
            )

    def _main(self) -> Any | None:
        """Return the first input that has dimensions."""
        return next((item for item in self._inputs if not _has_shape(item) or shape_in_file(item)), None)

    def _set(self, item: Any, shape: Shape) -> None:
        """Set the sizes of an input, and apply them to all sizes of the same name."""
        self._note_names(item, shape)
        own = shape_in_file(item)
        if shape == own and _has_shape(item):
            return
        if not _has_shape(item):
            item.type.tensor_type.shape.SetInParent()
            for _ in shape:
                item.type.tensor_type.shape.dim.add()
        for size, new in zip(item.type.tensor_type.shape.dim, shape, strict=True):
            if new:
                size.dim_value = new
        _forget_shapes(self._model.graph)

    def _note_names(self, item: Any, shape: Shape) -> None:
        names = _names(item)
        for name, new in zip(names, shape, strict=False):
            # Some exporters use one name for all dynamic sizes.
            if name and new and names.count(name) == 1:
                self._sizes.setdefault(name, new)

    def _take_named(self) -> None:
        """Fix dynamic sizes with a known name: a name denotes one size in the whole file."""
        for item in self._inputs:
            names, own = _names(item), shape_in_file(item)
            found = tuple(
                size or (self._sizes.get(name, 0) if names.count(name) == 1 else 0)
                for name, size in zip(names, own, strict=True)
            )
            if found != own:
                self._set(item, found)

    def _set_batch(self, batch_size: int, given: Sequence[str]) -> None:
        """Set the batch size of a file that fixes it, if the fixed size is a batch.

        Raises
        ------
        InvalidValueError
            If the first size of the inputs is not a batch: with another size, the nodes are inconsistent, or the size
            does not reach the outputs.
        """
        main = self._main()
        if main is None or shape_in_file(main)[0] == batch_size:
            return
        own = shape_in_file(main)[0]
        free = [main, *(item for item in self._inputs if item is not main and item.name not in given)]
        batched = {item.name: 0 for item in free if shape_in_file(item)[:1] == (own,)}
        if main.name not in given:
            batched, reason = self._probe(batched, free, own)
        else:
            reason = "its shape is given with it"
        if reason:
            raise InvalidValueError(
                f"The first size of the input {main.name!r} of {self._path!r} is {own}, and it is not a batch that can "
                f"be set to {batch_size}: {reason}. Omit the batch size."
            )
        self._set_places(batched, batch_size)

    def _probe(self, batched: dict[str, int], free: Sequence[Any], own: int) -> tuple[dict[str, int], str]:
        """Set the batch to another size, and check where it appears.

        Parameters
        ----------
        batched : dict of str to int
            Inputs, and the axis of the batch in each.
        free : sequence of ValueInfoProto
            Inputs whose sizes may change, the batched one first.
        own : int
            Batch size in the file.

        Returns
        -------
        tuple of dict and str
            The batched inputs, and the reason if the size is not a batch; empty if it is one.
        """
        before, shapes = self._outputs(), {item.name: shape_in_file(item) for item in free}
        sizes = {own, *self._steps, *(size for shape in (*before, *self._results) for size in shape)}
        probe = next((size for size in _PROBES if size not in sizes), max(sizes) + 1)
        try:
            self._set_places(batched, probe)
            after = self._outputs()
            # The state of a recurrent network has the same shape as input and output.
            grown = {old: place for old, new in zip(before, after, strict=True) for place in _grown(old, new)}
            states = {item.name: grown[shapes[item.name]] for item in free[1:] if shapes[item.name] in grown}
            if states:
                self._restore(shapes)
                batched = {**batched, **states}
                self._set_places(batched, probe)
                after = self._outputs()
        except InvalidValueError as error:
            return batched, f"with {probe} in its place, {_lowered(str(error).rstrip('.'))}"
        if probe in self._steps:
            return batched, "a recurrent layer takes its steps along it"
        if any(shape.count(probe) > 1 for shape in self._results):
            return batched, "a node compares all of it with all of it, as in a sequence"
        is_first = any(new[:1] == (probe,) for new in after)
        is_kept = all(
            old == new or [old[place] for place in _grown(old, new)] == [own]
            for old, new in zip(before, after, strict=True)
        )
        return batched, "" if is_first and is_kept else "it does not arrive as the first size of the outputs"

    def _restore(self, shapes: dict[str, Shape]) -> None:
        for item in self._inputs:
            for size, old in zip(item.type.tensor_type.shape.dim, shapes.get(item.name, ()), strict=False):
                size.dim_value = old

    def _set_places(self, places: dict[str, int], size: int) -> None:
        for item in self._inputs:
            if item.name in places:
                item.type.tensor_type.shape.dim[places[item.name]].dim_value = size
        _forget_shapes(self._model.graph)

    def _outputs(self) -> tuple[Shape, ...]:
        """Return the output shapes; record internal shapes and the number of recurrent steps."""
        graph = self._model.graph
        self._steps, self._results = set(), set()

        def describe(node: Node) -> tuple[OpSpec, tuple[tuple[str, str], ...]]:
            if node.kind in _RECURRENT and node.inputs and node.inputs[0] is not None:
                layout = node.attributes.get("layout", 0)
                self._steps.update(node.inputs[0].shape[layout : layout + 1])
            self._results.update(item.shape for item in node.outputs)
            return _describe(node)

        walk = Walk(self._onnx, self._model, describe, self._path)
        return tuple(item.shape for item in walk.run(graph, ordered(graph, self._path))[1])


def _grown(old: Shape, new: Shape) -> list[int]:
    """Return the axes in which two shapes differ; empty if their ranks differ."""
    return [place for place, (a, b) in enumerate(zip(old, new, strict=False)) if a != b] if len(old) == len(new) else []


def _lowered(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _describe(node: Node) -> tuple[OpSpec, tuple[tuple[str, str], ...]]:
    """Describe a node by its outputs, which suffices if only shapes matter."""
    return OpSpec.of("identity", [node.outputs[0].shape]), ()


def _names(item: Any) -> list[str]:
    return [size.dim_param for size in item.type.tensor_type.shape.dim] if _has_shape(item) else []


def _forget_shapes(graph: Any) -> None:
    """Remove the shapes in the file, which are for other sizes."""
    for part in nested(graph):
        del part.value_info[:]
        for output in part.output:
            # Outputs of branches need no type; touching it would make one without an element type.
            if output.type.HasField("tensor_type"):
                output.type.tensor_type.ClearField("shape")
