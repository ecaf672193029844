"""The attributes of nodes in ONNX files: their values, as text, and whether they can be."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

#: The least that an attribute may be, where every operator that has it takes it for the same.
_LEAST = {
    **dict.fromkeys(("group", "strides", "dilations", "kernel_shape", "hidden_size", "num_heads", "blocksize"), 1),
    **dict.fromkeys(("q_num_heads", "kv_num_heads", "num_groups", "num_scan_inputs", "size", "K", "N"), 1),
    **dict.fromkeys(("output_padding", "output_shape"), 0),
}

#: The least that paddings of a window may be; those of `Pad` may cut something off.
_OF_WINDOWS = frozenset(("Conv", "ConvTranspose", "DeformConv", "MaxPool", "AveragePool", "LpPool", "MaxUnpool"))

#: The most that any of these may be.
_MOST = 2**31


def attributes_of(onnx: Any, node: Any) -> dict[str, Any]:
    """Return the attributes of a node."""
    return {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}


def check_attributes(onnx: Any, node: Any, schema: Any | None) -> None:
    """Check the attributes of a node by the schema of its operator, and by what they can be at all.

    Raises
    ------
    ValueError
        If one is missing, has another type, or is outside of what it may be.
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
    """Return all attributes as text; tensors and graphs as digests of what they hold."""
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
    """Return the values of a tensor, however the file holds them; what it holds, if they cannot be read."""
    try:
        found: bytes = onnx.numpy_helper.to_array(tensor).tobytes()
    except Exception:  # a file may say anything of its tensors
        found = tensor.SerializeToString(deterministic=True)
    return found
