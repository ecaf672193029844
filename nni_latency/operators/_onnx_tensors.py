"""Tensors of ONNX files: shapes, element types, and values that are left out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from nni_latency.operators._op_spec import Shape

#: Numbers that a tensor has at least to be left out; smaller ones may be shapes, axes or bounds.
LEFT_OUT = 64

#: Where the values of a tensor are said to be that were left out.
_ELSEWHERE = "weights-left-out"

_VALUES = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")


@dataclass(frozen=True)
class TensorType:
    """Shape and element type of a tensor in a file; sizes that are open are 0."""

    shape: Shape
    dtype: str = "float32"


def shape_in_file(item: Any) -> Shape:
    """Return the sizes of a tensor; those that are open, which older files of PaddlePaddle write as -1, are 0."""
    return tuple(max(0, size.dim_value) for size in item.type.tensor_type.shape.dim)


def type_in_file(onnx: Any, item: Any) -> TensorType:
    return TensorType(shape_in_file(item), dtype_name(onnx, item.type.tensor_type.elem_type))


def dtype_name(onnx: Any, number: int) -> str:
    """Name an element type as torch does."""
    name = onnx.TensorProto.DataType.Name(number).lower() if number else "float"
    return {"float": "float32", "double": "float64"}.get(name, name)


def element_type(onnx: Any, dtype: str) -> int:
    """Return the element type of which `dtype_name` is the name."""
    name = {"float32": "float", "float64": "double"}.get(dtype, dtype)
    number: int = onnx.TensorProto.DataType.Value(name.upper())
    return number


def fractional(onnx: Any) -> tuple[int, ...]:
    """Return the element types of numbers with fractions."""
    kinds = onnx.TensorProto
    return kinds.FLOAT, kinds.FLOAT16, kinds.BFLOAT16, kinds.DOUBLE


def leave_out_weights(onnx: Any, model: Any) -> None:
    """Take the values of larger tensors of numbers with fractions out of a model."""
    for tensor in model.graph.initializer:
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
    """Whether the values of a tensor are in another file, or nowhere."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return True
    return math.prod(tensor.dims) > 0 and not (tensor.raw_data or any(getattr(tensor, name) for name in _VALUES))


def tensor_type_of(kind: Any | None) -> Any | None:
    """Return the type of a tensor, or of the tensors in a sequence or an optional value; None where it has none."""
    while kind is not None:
        which = kind.WhichOneof("value")
        if which in ("tensor_type", "sparse_tensor_type"):
            return getattr(kind, which)
        if which not in ("sequence_type", "optional_type"):
            return None
        kind = getattr(kind, which).elem_type
    return None


def sizes_of(onnx: Any, kind: Any) -> list[int | None] | None:
    """Return the sizes of a tensor's type, None for those that are open; None where even their number is open."""
    tensor = tensor_type_of(kind)
    if tensor is None or not tensor.HasField("shape"):
        return None
    return [size.dim_value if size.HasField("dim_value") else None for size in tensor.shape.dim]
