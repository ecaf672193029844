"""Operators of an ONNX file, by shape inference: no runtime, and no weights, which may be absent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError
from nni_latency.imports import require
from nni_latency.operators._arguments import one_if_square
from nni_latency.operators._onnx_model import OnnxModel, attributes_of, details_of, name_of, read_model
from nni_latency.operators._op_spec import OpSpec, Shape
from nni_latency.operators._trace import Graph, TracedOperator

#: Nodes that compute nothing, or look at memory in another way.
_IDLE = frozenset(
    (
        *("Constant", "ConstantOfShape", "Shape", "Size", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"),
        *("Dropout", "Cast", "CastLike", "Slice", "Split", "Range"),
    )
)

#: Nodes that have the name of one of our kinds, but for capital letters.
_SAME_NAME = (
    *("Relu", "Sigmoid", "Tanh", "Elu", "Selu", "Celu", "Softplus", "Softsign", "Mish", "Gelu", "Exp", "Log", "Sqrt"),
    *("Neg", "Abs", "Erf", "Floor", "Ceil", "Reciprocal", "Add", "Sub", "Mul", "Div", "Pow", "Sin", "Cos", "Softmax"),
    *("PRelu", "Where"),
)

#: Nodes of one kind of ours.
_PLAIN = {
    **{name: name.lower() for name in _SAME_NAME},
    "ArgMax": "argmax",
    "BatchNormalization": "batch_norm",
    "Concat": "cat",
    "DepthToSpace": "pixel_shuffle",
    "Equal": "eq",
    "Expand": "repeat",
    "Gather": "index",
    "Greater": "gt",
    "GroupNormalization": "group_norm",
    "HardSigmoid": "hardsigmoid",
    "HardSwish": "hardswish",
    "InstanceNormalization": "instance_norm",
    "LayerNormalization": "layer_norm",
    "LeakyRelu": "leaky_relu",
    "Less": "lt",
    "LogSoftmax": "log_softmax",
    "Max": "maximum",
    "Min": "minimum",
    "Pad": "pad",
    "ReduceMax": "amax",
    "ReduceMean": "mean",
    "ReduceMin": "amin",
    "ReduceSum": "sum",
    "SpaceToDepth": "pixel_unshuffle",
    "Tile": "repeat",
    "Transpose": "copy",
}

#: Kinds whose weights are parameters of a layer, and kinds whose weights are one of the numbers that they work on.
_WEIGHTED = ("layer_norm", "group_norm", "instance_norm", "prelu")
_WORKING = ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "where")


def read_onnx(path: str | Path, batch_size: int | None = None, example_inputs: Any = None) -> Graph:
    """Read the operators of an ONNX file, and where each takes its inputs from.

    Shapes are inferred, and what does not depend on the inputs is computed beforehand, as runtimes do it. Weights need
    not be there; those in other files are never opened.

    Parameters
    ----------
    path : str or Path
        The file, of any opset that the package ``onnx`` knows.
    batch_size : int, optional
        First dimension of the inputs; without it, what the file says, or 1 where that is open.
    example_inputs : Tensor, sequence or dict, optional
        What the network takes, as for `nni_latency.operators.trace`, for a file that leaves sizes of its inputs open.

    Returns
    -------
    Graph
        As `nni_latency.operators.trace` returns it; the nodes of the file stand for calls. A kind of node that is not
        known stands under its own name in small letters, so that `count_operators` lists it as not counted.

    Raises
    ------
    MissingDependencyError
        If the package ``onnx`` is not installed.
    InvalidValueError
        If the file cannot be read, is too large or cyclic, sizes of its inputs are open, its shapes cannot be inferred,
        or the inputs are not those of the file.
    """
    onnx = require("onnx", "Reading ONNX", "nni_latency[onnx]")
    model = read_model(path, batch_size, example_inputs)
    operators: list[TracedOperator] = []
    # By the name of a tensor, the operators that it comes from.
    writers: dict[str, tuple[int, ...]] = {}
    for place, item in model.nodes:
        sources = tuple(dict.fromkeys(number for name in item.input for number in writers.get(name, ())))
        if item.op_type not in _IDLE:
            node = _Node.of(onnx, item, model)
            details = details_of(onnx, node.attributes)
            operators.append(TracedOperator(node.name, _describe(node, str(path)), sources, place, details))
            sources = (len(operators) - 1,)
        writers.update(dict.fromkeys(item.output, sources))
    shapes = [tuple(tensor.shape for tensor in some) for some in (model.outputs, model.inputs)]
    return Graph(tuple(operators), model.n_nodes, *shapes)


#: The same, by an older name.
trace_onnx = read_onnx


@dataclass(frozen=True)
class _Node:
    """One node: its name and kind, shapes of its data, weights and output, attributes, and values that are constant."""

    name: str
    kind: str
    domain: str
    data: tuple[Shape, ...]
    weights: tuple[Shape, ...]
    out: Shape
    attributes: Mapping[str, Any]
    dtype: str
    values: tuple[Any, ...]

    @classmethod
    def of(cls, onnx: Any, node: Any, model: OnnxModel) -> _Node:
        known = [name for name in node.input if name in model.types]
        types = [model.types[name].dtype for name in known] or ["float32"]
        return cls(
            name_of(node),
            node.op_type,
            node.domain,
            tuple(model.types[name].shape for name in known if name not in model.constants),
            tuple(model.types[name].shape for name in known if name in model.constants),
            model.types[node.output[0]].shape if node.output[0] in model.types else (0,),
            attributes_of(onnx, node),
            next((dtype for dtype in types if "float" in dtype), types[0]),
            tuple(model.constants.get(name) for name in node.input),
        )


def _describe(node: _Node, path: str) -> OpSpec:
    if any(size < 1 for shape in (*node.data, node.out) for size in shape):
        kind = f"{node.domain}.{node.kind}" if node.domain else node.kind
        raise InvalidValueError(
            f"The shapes of {node.name!r} in {path!r}, an operator {kind}, are not known: they depend on data, or the "
            "operator is not one of ONNX. Save the file with the shapes of its tensors (value_info)."
        )
    try:
        op = _DESCRIBED.get(node.kind, _generic)(node)
    except (LookupError, TypeError, ValueError) as error:  # what the file says of it is not what the operator needs
        reason = error or type(error).__name__
        raise InvalidValueError(
            f"The node {node.name!r} in {path!r}, an operator {node.kind}, is not valid: {reason}."
        ) from error
    return replace(op, dtype=node.dtype)


def _generic(node: _Node) -> OpSpec:
    kind = _PLAIN.get(node.kind, node.kind.lower())
    data = (*node.data, *(shape for shape in node.weights if shape)) if kind in _WORKING else node.data
    attributes = _out(node, data)
    if node.weights and kind in _WEIGHTED:
        attributes["weights"] = "+".join("x".join(map(str, shape)) for shape in node.weights)
    return OpSpec.of(kind, data or [node.out], **attributes)


def _out(node: _Node, data: tuple[Shape, ...]) -> dict[str, Any]:
    return {"out": node.out} if node.out and node.out != (data[0] if data else None) else {}


def _clip(node: _Node) -> OpSpec:
    """Describe an activation with bounds, which are attributes of older files and inputs of newer ones."""
    bounds = {name: node.attributes[name] for name in ("min", "max") if name in node.attributes}
    for name, value in zip(("min", "max"), node.values[1:], strict=False):
        if value is not None and value.size == 1:
            bounds[name] = float(value)
    return OpSpec.of("clamp", [node.data[0]], **bounds)


def _window(node: _Node, dimensions: int) -> tuple[Shape, Shape, Shape]:
    """Return strides, dilations and the sum of the padding on both sides."""
    given = node.attributes
    ones = (1,) * dimensions
    pads = tuple(given.get("pads", (0,) * 2 * dimensions))
    both = tuple(before + after for before, after in zip(pads[:dimensions], pads[dimensions:], strict=True))
    return tuple(given.get("strides", ones)), tuple(given.get("dilations", ones)), both


def _convolution(node: _Node) -> OpSpec:
    weight, *rest = node.weights or node.data[1:]
    kernel = weight[2:]
    stride, dilation, padding = _window(node, len(kernel))
    attributes: dict[str, Any] = {
        "out_channels": weight[0],
        "kernel_size": one_if_square(kernel),
        "stride": one_if_square(stride),
        "groups": int(node.attributes.get("group", 1)),
        "bias": bool(rest),
    }
    if set(dilation) != {1}:
        attributes["dilation"] = one_if_square(dilation)
    # Without 'padding' the output is the input over the stride, rounded up.
    if node.out[2:] != tuple(-(-size // step) for size, step in zip(node.data[0][2:], stride, strict=True)):
        attributes["padding"] = one_if_square(tuple(side // 2 for side in padding))
    return OpSpec.of(f"conv{len(kernel)}d", [node.data[0]], **attributes)


def _transposed(node: _Node) -> OpSpec:
    weight, *rest = node.weights or node.data[1:]
    kernel, groups = weight[2:], int(node.attributes.get("group", 1))
    stride, dilation, padding = _window(node, len(kernel))
    extra = tuple(node.attributes.get("output_padding", (0,) * len(kernel)))
    attributes: dict[str, Any] = {
        "out_channels": weight[1] * groups,
        "kernel_size": one_if_square(kernel),
        "stride": one_if_square(stride),
        "dilation": one_if_square(dilation),
        "padding": one_if_square(tuple(side // 2 for side in padding)),
        "output_padding": one_if_square(extra),
    }
    return OpSpec.of(f"conv_transpose{len(kernel)}d", [node.data[0]], groups=groups, bias=bool(rest), **attributes)


def _gemm(node: _Node) -> OpSpec:
    if not node.weights:
        return OpSpec.of("matmul", node.data[:2], out=node.out)
    return OpSpec.of("linear", [node.data[0]], out_features=node.out[-1], bias=len(node.weights) > 1)


def _matmul(node: _Node) -> OpSpec:
    if len(node.weights) == 1 and len(node.weights[0]) == 2 and node.data:
        return OpSpec.of("linear", [node.data[0]], out_features=node.weights[0][-1], bias=False)
    return OpSpec.of("matmul", (*node.data, *node.weights)[:2], out=node.out)


def _pooling(node: _Node) -> OpSpec:
    kernel = tuple(node.attributes["kernel_shape"])
    stride, _, _ = _window(node, len(kernel))
    kind = f"{'max' if node.kind == 'MaxPool' else 'avg'}_pool{len(kernel)}d"
    sizes: dict[str, Any] = {"kernel_size": one_if_square(kernel), "stride": one_if_square(stride)}
    return OpSpec.of(kind, [node.data[0]], out=node.out, **sizes)


def _global_pooling(node: _Node) -> OpSpec:
    dimensions = len(node.data[0]) - 2
    how = "avg" if node.kind == "GlobalAveragePool" else "max"
    return OpSpec.of(f"adaptive_{how}_pool{dimensions}d", [node.data[0]], output_size=1, out=node.out)


def _resize(node: _Node) -> OpSpec:
    mode = node.attributes.get("mode", b"nearest")
    name = mode.decode() if isinstance(mode, bytes) else str(mode)
    name = {"linear": "bilinear", "cubic": "bicubic"}.get(name, name)
    return OpSpec.of("interpolate", [node.data[0]], mode=name, out=node.out)


def _recurrent(node: _Node) -> OpSpec:
    inputs, recurrent, *biases = node.weights
    directions, rows, width = inputs
    weights = [f"{rows}x{width}", f"{rows}x{recurrent[-1]}"] * directions
    weights += [str(shape[-1] // 2) for shape in biases[:1]] * 2 * directions
    steps, batch = node.data[0][:2]
    out = (steps, batch, directions * recurrent[-1])
    kind = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn_tanh"}[node.kind]
    return OpSpec.of(kind, [node.data[0]], weights="+".join(weights), out=out)


_DESCRIBED: dict[str, Callable[[_Node], OpSpec]] = {
    "Clip": _clip,
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "Gemm": _gemm,
    "MatMul": _matmul,
    **dict.fromkeys(("MaxPool", "AveragePool"), _pooling),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _global_pooling),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
}
