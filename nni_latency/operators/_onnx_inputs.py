"""Inputs of ONNX files: which are fed, and the sizes that are given to those that the file leaves open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError, listed
from nni_latency.operators._inputs import Inputs
from nni_latency.operators._onnx_tensors import shape_in_file
from nni_latency.operators._op_spec import Shape


def fed_inputs(graph: Any) -> list[Any]:
    """Return the inputs of a graph that are fed; older files list weights among the inputs, too."""
    weights = {tensor.name for tensor in graph.initializer}
    return [item for item in graph.input if item.name not in weights]


def fix_inputs(model: Any, batch_size: int | None, given: Inputs | None) -> None:
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


def check_inputs(graph: Any, path: str | Path) -> None:
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
