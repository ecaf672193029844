# SPDX-License-Identifier: Apache-2.0
"""Conversion of ONNX nodes (kinds, shapes and attributes) to an `OpSpec`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from nni_latency.operators._calls import one_if_square
from nni_latency.operators._feature_table import supported_kinds
from nni_latency.operators._onnx_frames import Node
from nni_latency.operators._onnx_inference import STANDARD, Value
from nni_latency.operators._onnx_kinds import PLAIN, transposed_if
from nni_latency.operators._op_spec import OpSpec, Shape
from nni_latency.units import number_of

#: Nodes along one dimension, with the attribute's default.
_AXIS = {
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "OneHot"), -1),
    **dict.fromkeys(("ArgMax", "ArgMin", "Concat", "Gather", "GatherElements", "ScatterElements"), 0),
}

#: Kinds whose weights are parameters of a layer, and kinds whose weights are operands.
_WEIGHTED = ("layer_norm", "group_norm", "instance_norm", "prelu", "rms_norm")
_WORKING = ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "where")


def describe_node(node: Node) -> OpSpec:
    """Describe a node with a computation.

    Raises
    ------
    ArithmeticError, LookupError, TypeError, ValueError
        If its inputs or attributes are invalid for its operator.
    """
    describe = _DESCRIBED.get(node.kind, _generic) if node.domain in (*STANDARD, "com.microsoft") else _generic
    op = describe(node)
    return OpSpec(op.kind, op.input_shapes, op.attributes, _dtype(node))


def _dtype(node: Node) -> str:
    """Return the element type of an operator: that of the first floating-point input."""
    types = [item.dtype for item in node.inputs if item is not None] or [item.dtype for item in node.outputs]
    return next((dtype for dtype in types if "float" in dtype), types[0])


def _data(node: Node) -> list[Shape]:
    return [item.shape for item in node.inputs if item is not None and not item.is_constant]


def _weights(node: Node) -> list[Shape]:
    return [item.shape for item in node.inputs if item is not None and item.is_constant]


def _needed(node: Node, place: int) -> Value:
    found = node.inputs[place] if place < len(node.inputs) else None
    if found is None:
        raise ValueError(f"it lacks its input {place}")
    return found


def _has(node: Node, place: int) -> bool:
    return place < len(node.inputs) and node.inputs[place] is not None


def _generic(node: Node) -> OpSpec:
    kind = PLAIN.get(node.kind) if node.domain in (*STANDARD, "com.microsoft") else None
    if kind is None:
        kind = node.kind.lower()
        # A torch function of the same name may compute something else.
        kind = f"onnx_{kind}" if kind in supported_kinds() else kind
    data = _data(node)
    if kind in _WORKING:
        data += [shape for shape in _weights(node) if shape]
    attributes = {**_out(node, data), **_dimensions(node)}
    if kind in _WEIGHTED and _weights(node):
        attributes["weights"] = "+".join("x".join(map(str, shape)) for shape in _weights(node) if shape)
    return OpSpec.of(kind, data or [node.outputs[0].shape], **attributes)


def _out(node: Node, data: Sequence[Shape]) -> dict[str, Any]:
    out = node.outputs[0].shape
    return {"out": out} if out and out != (data[0] if data else None) else {}


def _dimensions(node: Node) -> dict[str, Any]:
    """Return the dimensions along which a node works, as torch names them, or what else determines its code."""
    rank = len(_needed(node, 0).shape)
    if node.kind in _AXIS and rank:
        return {"dim": int(node.attributes.get("axis", _AXIS[node.kind])) % rank}
    if node.kind == "Transpose":
        perm = tuple(node.attributes.get("perm", range(rank)[::-1]))
        return {"dims": perm}
    if node.kind == "CumSum" and rank and (axis := _number(node, 1)) is not None:
        return {"dim": int(axis) % rank}
    if node.kind == "Pad":
        return {"mode": _mode(node, "constant")}
    if node.kind == "Pow" and (exponent := _number(node, 1)) is not None:
        return {"exponent": exponent}
    if node.kind.startswith("Reduce") and rank:
        axes = node.attributes.get("axes")
        if axes is None and _has(node, 1) and (given := _needed(node, 1).data) is not None:
            axes = given.reshape(-1).tolist()
        return {"dim": tuple(sorted(int(axis) % rank for axis in axes or range(rank)))}
    return {}


def _number(node: Node, place: int) -> float | None:
    """Return the value of an input that is a constant number; None for any other."""
    data = _needed(node, place).data if _has(node, place) else None
    return float(data.reshape(-1)[0]) if data is not None and data.size == 1 else None


def _clip(node: Node) -> OpSpec:
    """Describe an activation with bounds: attributes in older files, inputs in newer ones.

    Infinite bounds are ignored.
    """
    bounds = {name: float(node.attributes[name]) for name in ("min", "max") if name in node.attributes}
    for name, value in zip(("min", "max"), node.inputs[1:], strict=False):
        if value is not None and value.data is not None and value.data.size == 1:
            bounds[name] = float(value.data.reshape(-1)[0])
    wrong = [name for name, bound in bounds.items() if math.isnan(bound)]
    if wrong:
        raise ValueError(f"its {wrong[0]} is not a number")
    finite: dict[str, Any] = {name: bound for name, bound in bounds.items() if math.isfinite(bound)}
    return OpSpec.of("clamp", [_needed(node, 0).shape], **finite)


def _window(node: Node, dimensions: int) -> tuple[Shape, Shape]:
    """Return strides and dilations."""
    ones = (1,) * dimensions
    found = tuple(tuple(node.attributes.get(name) or ones) for name in ("strides", "dilations"))
    if any(len(sizes) != dimensions for sizes in found):
        raise ValueError(f"its strides and dilations must be {number_of(dimensions, 'number')} each")
    return found[0], found[1]


def _padding(both: Sequence[int], starts: Sequence[int]) -> int | Shape:
    """Return padding: a number per dimension, or the sides before and after if they differ."""
    behind = [total - start for total, start in zip(both, starts, strict=True)]
    return one_if_square(tuple(starts) if list(starts) == behind else (*starts, *behind))


def _starts(node: Node, both: Sequence[int]) -> list[int]:
    """Return the padding before each dimension, given the sum of both sides."""
    pads = list(node.attributes.get("pads", ()))[: len(both)]
    if node.attributes.get("auto_pad", b"NOTSET") == b"NOTSET" and len(pads) == len(both):
        return [min(start, total) for start, total in zip(pads, both, strict=True)]
    is_lower = node.attributes.get("auto_pad") == b"SAME_LOWER"
    return [total - total // 2 if is_lower else total // 2 for total in both]


def _convolution(node: Node) -> OpSpec:
    data, weight, out = _needed(node, 0).shape, _needed(node, 1).shape, node.outputs[0].shape
    kernel, groups = weight[2:], int(node.attributes.get("group", 1))
    if len(data) != len(weight) or not kernel:
        raise ValueError(f"it takes an input of {number_of(len(data), 'dimension')} and weights of {len(weight)}")
    if weight[1] * groups != data[1] or weight[0] % groups:
        raise ValueError(
            f"its weights {weight} in {number_of(groups, 'group')} do not fit an input with "
            f"{number_of(data[1], 'channel')}"
        )
    stride, dilation = _window(node, len(kernel))
    attributes: dict[str, Any] = {
        "out_channels": weight[0],
        "kernel_size": one_if_square(kernel),
        "stride": one_if_square(stride),
        "groups": groups,
        "bias": _has(node, 2),
    }
    if set(dilation) != {1}:
        attributes["dilation"] = one_if_square(dilation)
    # Without 'padding', the output size is the input size over the stride, rounded up.
    if out[2:] != tuple(-(-size // step) for size, step in zip(data[2:], stride, strict=True)):
        pads = node.attributes.get("pads", [0] * 2 * len(kernel))
        both = [one + two for one, two in zip(pads[: len(kernel)], pads[len(kernel) :], strict=True)]
        if node.attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
            both = [0] * len(kernel)
        attributes["padding"] = _padding(both, _starts(node, both))
    return OpSpec.of(f"conv{len(kernel)}d", [data], **attributes)


def _channels_last(node: Node) -> OpSpec:
    """Describe a channels-last convolution as the channels-first one."""
    first = [_needed(node, 0), node.outputs[0]]
    data, out = (
        Value((item.shape[0], item.shape[-1], *item.shape[1:-1]), item.dtype, None, item.is_constant) for item in first
    )
    return _convolution(Node(node.name, "Conv", "", node.attributes, (data, *node.inputs[1:]), (out,)))


def _transposed_convolution(node: Node) -> OpSpec:
    data, weight, out = _needed(node, 0).shape, _needed(node, 1).shape, node.outputs[0].shape
    kernel, groups = weight[2:], int(node.attributes.get("group", 1))
    if len(data) != len(weight) or weight[0] != data[1] or weight[0] % groups:
        raise ValueError(f"its weights {weight} in {number_of(groups, 'group')} do not fit an input of shape {data}")
    stride, dilation = _window(node, len(kernel))
    extra = tuple(node.attributes.get("output_padding", (0,) * len(kernel)))
    # Derived from the output sizes, because 'auto_pad' and 'output_shape' may replace 'pads'.
    rows = zip(data[2:], out[2:], kernel, stride, dilation, extra, strict=True)
    both = [step * (size - 1) + gap * (side - 1) + 1 + more - after for size, after, side, step, gap, more in rows]
    widened = tuple(more - min(0, total) for more, total in zip(extra, both, strict=True))
    both = [max(0, total) for total in both]
    attributes: dict[str, Any] = {
        "out_channels": weight[1] * groups,
        "kernel_size": one_if_square(kernel),
        "stride": one_if_square(stride),
        "dilation": one_if_square(dilation),
        "padding": _padding(both, _starts(node, both)),
        "output_padding": one_if_square(widened),
    }
    return OpSpec.of(f"conv_transpose{len(kernel)}d", [data], groups=groups, bias=_has(node, 2), **attributes)


def _gemm(node: Node) -> OpSpec:
    first, second = _needed(node, 0), _needed(node, 1)
    return _product(
        node,
        transposed_if(first.shape, node.attributes.get("transA")),
        transposed_if(second.shape, node.attributes.get("transB")),
    )


def _product(node: Node, first: Shape, second: Shape) -> OpSpec:
    """Describe a matrix product; either factor may be a weight."""
    if not first or not second:
        raise ValueError("its factors must have at least one dimension")
    is_weight = [_needed(node, place).is_constant for place in (0, 1)]
    out = node.outputs[0].shape
    if is_weight == [False, True] and len(second) == 2:
        return OpSpec.of("linear", [first], out_features=second[-1], bias=_has(node, 2))
    if is_weight[0]:
        return OpSpec.of("matmul", [first, second], out=out, learned=f"{'x'.join(map(str, first))}+")
    return OpSpec.of("matmul", [first, second], out=out)


def _matmul(node: Node) -> OpSpec:
    return _product(node, _needed(node, 0).shape, _needed(node, 1).shape)


def _packed_product(node: Node) -> OpSpec:
    """Describe a product with weights of a few bits, packed into bytes."""
    return OpSpec.of("linear", [_needed(node, 0).shape], out_features=int(node.attributes["N"]), bias=_has(node, 5))


def _pooling(node: Node) -> OpSpec:
    kernel = tuple(node.attributes["kernel_shape"])
    stride, _ = _window(node, len(kernel))
    how = {"MaxPool": "max", "AveragePool": "avg", "LpPool": "lp"}[node.kind]
    sizes: dict[str, Any] = {"kernel_size": one_if_square(kernel), "stride": one_if_square(stride)}
    if len(node.outputs) > 1:
        sizes["return_indices"] = True
    return OpSpec.of(f"{how}_pool{len(kernel)}d", [_needed(node, 0).shape], out=node.outputs[0].shape, **sizes)


def _global_pooling(node: Node) -> OpSpec:
    data = _needed(node, 0).shape
    how = "max" if node.kind == "GlobalMaxPool" else "avg"
    return OpSpec.of(f"adaptive_{how}_pool{len(data) - 2}d", [data], output_size=1, out=node.outputs[0].shape)


def _global_norm(node: Node) -> OpSpec:
    return OpSpec.of("norm", [_needed(node, 0).shape], out=node.outputs[0].shape)


def _resize(node: Node) -> OpSpec:
    return OpSpec.of("interpolate", [_needed(node, 0).shape], mode=_mode(node, "nearest"), out=node.outputs[0].shape)


def _mode(node: Node, usual: str) -> str:
    mode = node.attributes.get("mode", usual.encode())
    name = mode.decode(errors="replace") if isinstance(mode, bytes) else str(mode)
    return {"linear": "bilinear", "cubic": "bicubic"}.get(name, name)


def _affine_grid(node: Node) -> OpSpec:
    size = _needed(node, 1).data
    known: dict[str, Any] = {} if size is None else {"size": tuple(map(int, size.reshape(-1)))}
    return OpSpec.of("affine_grid", [_needed(node, 0).shape], out=node.outputs[0].shape, **known)


def _grid_sample(node: Node) -> OpSpec:
    shapes = [_needed(node, place).shape for place in (0, 1)]
    return OpSpec.of("grid_sample", shapes, mode=_mode(node, "bilinear"), out=node.outputs[0].shape)


def _recurrent(node: Node) -> OpSpec:
    data, inputs, recurrent = (_needed(node, place).shape for place in (0, 1, 2))
    directions, hidden, gates = inputs[0], recurrent[-1], {"LSTM": 4, "GRU": 3, "RNN": 1}[node.kind]
    if len(data) != 3 or sorted(inputs[1:]) != sorted((gates * hidden, data[-1])):
        # Quantised weights may be transposed; their sizes are the same.
        hidden = int(node.attributes.get("hidden_size", hidden))
        if len(data) != 3 or sorted(inputs[1:]) != sorted((gates * hidden, data[-1])):
            raise ValueError(f"its weights {inputs} do not fit an input of shape {data}")
    rows, width = gates * hidden, data[-1]
    weights = [f"{rows}x{width}", f"{rows}x{hidden}"] * directions
    weights += [str(rows)] * 2 * directions if _has(node, 3) else []
    first, second = data[:2]
    kind = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn_tanh"}[node.kind]
    return OpSpec.of(kind, [data], weights="+".join(weights), out=(first, second, directions * hidden))


def _attention(node: Node) -> OpSpec:
    """Describe attention with projections (ONNX Runtime) or of projected inputs (ONNX)."""
    if node.domain not in STANDARD:
        return _projected_attention(node)
    query, key, value = (_needed(node, place).shape for place in (0, 1, 2))
    past = node.inputs[4].shape[-2] if _has(node, 4) and node.inputs[4] is not None else 0
    if len(query) == 3:
        heads = [int(node.attributes[name]) for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
        query, key, value = (
            (shape[0], count, shape[1], shape[2] // count)
            for shape, count in zip((query, key, value), heads, strict=True)
        )
    return _heads(node, query, (*key[:-2], key[-2] + past, key[-1]), (*value[:-2], value[-2] + past, value[-1]))


def _heads(node: Node, query: Shape, key: Shape, value: Shape) -> OpSpec:
    return OpSpec.of("scaled_dot_product_attention", [query, key, value], **_out(node, [query]))


def _projected_attention(node: Node) -> OpSpec:
    data, weight = _needed(node, 0).shape, _needed(node, 1).shape
    batch, tokens, heads = data[0], data[1], int(node.attributes["num_heads"])
    sizes = tuple(node.attributes.get("qkv_hidden_sizes") or (weight[1] // 3,) * 3)
    projected = OpSpec.of("linear", [data], out_features=weight[1], bias=_has(node, 2))
    shapes = [(batch, heads, tokens, size // heads) for size in sizes]
    attended = OpSpec.of("scaled_dot_product_attention", shapes)
    calls = f"{projected.op_key} {attended.op_key}"
    return OpSpec.of("attention", [data], calls=calls, **_out(node, [data]))


def _several_heads(node: Node) -> OpSpec:
    """Describe ONNX Runtime's attention with concatenated heads; key and value may have fewer heads."""
    query = _needed(node, 0).shape
    key, value = (node.inputs[place].shape if _has(node, place) else query for place in (1, 2))  # type: ignore[union-attr]
    heads = int(node.attributes["num_heads"])
    if len(query) != 3 or len(key) != 3 or len(value) != 3:
        raise ValueError("its inputs must be of batch, tokens and channels")
    fewer = int(node.attributes.get("kv_num_heads", heads))
    counts = (heads, fewer, fewer)
    shapes = [(s[0], count, s[1], s[2] // count) for s, count in zip((query, key, value), counts, strict=True)]
    return _heads(node, *shapes)


def _spectrum(node: Node) -> OpSpec:
    """Describe a short-time Fourier transform; the frame length is that of the window or given by an input."""
    out = node.outputs[0].shape
    bins = out[-2]
    is_half = int(node.attributes.get("onesided", 1))
    size = 2 * (bins - 1) if is_half else bins
    return OpSpec.of("stft", [_needed(node, 0).shape], n_fft=max(1, size), out=out[:-1])


def _transform(node: Node) -> OpSpec:
    """Describe a Fourier transform; the last dimension holds real and imaginary parts."""
    data = _needed(node, 0).shape
    axis = node.inputs[2].data if _has(node, 2) and node.inputs[2] is not None else None
    place = (
        int(axis.reshape(-1)[0]) if axis is not None else int(node.attributes.get("axis", -2 if _has(node, 1) else 1))
    )
    return OpSpec.of("dft", [data], length=max(1, data[place]), out=node.outputs[0].shape)


def _deformed_convolution(node: Node) -> OpSpec:
    """Describe a deformable convolution by its multiply-adds, without the interpolation."""
    return _convolution(
        Node(node.name, "Conv", "", node.attributes, (*node.inputs[:2], *node.inputs[3:4]), node.outputs)
    )


def _einsum(node: Node) -> OpSpec:
    equation = node.attributes["equation"].decode(errors="replace").replace(" ", "")
    return OpSpec.of(
        "einsum", [item.shape for item in node.inputs if item], equation=equation, out=node.outputs[0].shape
    )


def _largest(node: Node) -> OpSpec:
    data, out = _needed(node, 0).shape, node.outputs[0].shape
    axis = int(node.attributes.get("axis", -1)) % max(1, len(data))
    return OpSpec.of("topk", [data], k=max(1, out[axis] if axis < len(out) else 1), out=out)


def _local_response(node: Node) -> OpSpec:
    return OpSpec.of("local_response_norm", [_needed(node, 0).shape], size=int(node.attributes["size"]))


def _triangle(node: Node) -> OpSpec:
    return OpSpec.of("triu" if int(node.attributes.get("upper", 1)) else "tril", [_needed(node, 0).shape])


def _columns(node: Node) -> OpSpec:
    return OpSpec.of("fold", [_needed(node, 0).shape], out=node.outputs[0].shape)


_DESCRIBED: dict[str, Callable[[Node], OpSpec]] = {
    "AffineGrid": _affine_grid,
    "Attention": _attention,
    "Clip": _clip,
    "Col2Im": _columns,
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "DFT": _transform,
    "DeformConv": _deformed_convolution,
    "Einsum": _einsum,
    "FusedMatMul": _gemm,
    "Gemm": _gemm,
    "GlobalLpPool": _global_norm,
    "GridSample": _grid_sample,
    "LRN": _local_response,
    "MatMul": _matmul,
    "MatMulNBits": _packed_product,
    "NhwcConv": _channels_last,
    "STFT": _spectrum,
    "TopK": _largest,
    "Trilu": _triangle,
    **dict.fromkeys(("GroupQueryAttention", "MultiHeadAttention"), _several_heads),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pooling),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _global_pooling),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
}
