"""Operators of an ONNX file, by shape inference: no runtime, and no weights, which may be absent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError, listed
from nni_latency.imports import require
from nni_latency.operators._arguments import one_if_square
from nni_latency.operators._inputs import Inputs, freeze_inputs
from nni_latency.operators._op_spec import OpSpec, Shape
from nni_latency.operators._trace import Trace, TracedOperator

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
    "Clip": "clamp",
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


def read_onnx(path: str | Path, batch_size: int | None = None, example_inputs: Any = None) -> list[tuple[str, OpSpec]]:
    """List the operators of an ONNX file, with their shapes.

    Parameters
    ----------
    path : str or Path
        The file. Its weights need not be there.
    batch_size : int, optional
        First dimension of the inputs; without it, what the file says, or 1 where that is open.
    example_inputs : Tensor, sequence or dict, optional
        What the network takes, as for `nni_latency.operators.trace`, for a file that leaves sizes of its inputs open.

    Returns
    -------
    list of (str, OpSpec)
        Name of the node and what it computes, in order. A kind of node that is not known stands under its own name in
        small letters, so that it is listed as not counted.

    Raises
    ------
    MissingDependencyError
        If the package ``onnx`` is not installed.
    InvalidValueError
        If the file cannot be read, its shapes cannot be inferred, or the inputs are not those of the file.
    """
    return [(item.name, item.op) for item in trace_onnx(path, batch_size, example_inputs).operators]


def trace_onnx(path: str | Path, batch_size: int | None = None, example_inputs: Any = None) -> Trace:
    """Read the operators of an ONNX file, and where each takes its inputs from.

    Parameters
    ----------
    path, batch_size, example_inputs
        As for `read_onnx`.

    Returns
    -------
    Trace
        As `nni_latency.operators.trace` returns it; nodes stand for calls.

    Raises
    ------
    MissingDependencyError, InvalidValueError
        As for `read_onnx`.
    """
    graph, shapes, weights, onnx = _read(path, batch_size, example_inputs)
    operators: list[TracedOperator] = []
    # By the name of a tensor, the operators that it comes from.
    writers: dict[str, tuple[int, ...]] = {}
    for place, item in enumerate(graph.node):
        node = _Node.of(onnx, item, shapes, weights)
        sources = tuple(dict.fromkeys(number for name in item.input for number in writers.get(name, ())))
        if node.kind not in _IDLE:
            operators.append(TracedOperator(node.name, _describe(node, str(path)), sources, place))
            sources = (len(operators) - 1,)
        writers.update(dict.fromkeys(item.output, sources))
    return Trace(tuple(operators), len(graph.node), tuple(map(shape_in_file, graph.output)))


def load_onnx(path: str | Path, batch_size: int | None = None, example_inputs: Any = None) -> Any:
    """Load an ONNX file with the sizes of its inputs fixed; weights in other files are not opened.

    Returns
    -------
    onnx.ModelProto

    Raises
    ------
    MissingDependencyError, InvalidValueError
        As for `read_onnx`.
    """
    onnx = require("onnx", "Reading ONNX", "nni_latency[onnx]")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except OSError as error:
        raise InvalidValueError(f"Cannot read the ONNX file {str(path)!r}: {error.strerror or error}.") from error
    except Exception as error:  # protobuf has errors of its own
        raise InvalidValueError(f"{str(path)!r} is not an ONNX file that can be read: {error}") from error
    _fix_inputs(model, batch_size, None if example_inputs is None else freeze_inputs(example_inputs))
    return model


def _read(path: str | Path, batch_size: int | None, example_inputs: Any) -> tuple[Any, dict[str, Shape], Any, Any]:
    """Return the graph of a file, the shapes of its tensors, those of its weights, and the package that reads it."""
    onnx = require("onnx", "Reading ONNX", "nni_latency[onnx]")
    model = load_onnx(path, batch_size, example_inputs)
    weights = {item.name: tuple(item.dims) for item in model.graph.initializer}
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception as error:  # onnx has errors of its own
        first = next(iter(str(error).splitlines()), type(error).__name__)
        raise InvalidValueError(f"The shapes in {str(path)!r} cannot be inferred: {first}") from error
    shapes = dict(weights)
    for item in (*graph.input, *graph.value_info, *graph.output):
        shapes.setdefault(item.name, shape_in_file(item))
    return graph, shapes, weights, onnx


@dataclass(frozen=True)
class _Node:
    """One node: its name and kind, shapes of its data, weights and output, and attributes."""

    name: str
    kind: str
    data: tuple[Shape, ...]
    weights: tuple[Shape, ...]
    out: Shape
    attributes: Mapping[str, Any]

    @classmethod
    def of(cls, onnx: Any, node: Any, shapes: Mapping[str, Shape], weights: Mapping[str, Shape]) -> _Node:
        known = [name for name in node.input if name in shapes]
        return cls(
            node.name or node.output[0],
            node.op_type,
            tuple(shapes[name] for name in known if name not in weights),
            tuple(weights[name] for name in known if name in weights),
            shapes.get(node.output[0], ()),
            {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute},
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


def written(shape: Shape) -> str:
    return "x".join(str(size or "?") for size in shape) or "()"


def shape_in_file(item: Any) -> Shape:
    return tuple(size.dim_value for size in item.type.tensor_type.shape.dim)


def _describe(node: _Node, path: str) -> OpSpec:
    if any(size < 1 for shape in (*node.data, node.out) for size in shape) or not (node.data or node.out):
        raise InvalidValueError(
            f"The shape of {node.name!r} in {path!r} is not known: give the shapes of its inputs, or give the file "
            "fixed input sizes, for example with onnx.tools.update_model_dims."
        )
    made = _DESCRIBED.get(node.kind)
    return made(node) if made is not None else _generic(node)


def _generic(node: _Node) -> OpSpec:
    kind = _PLAIN.get(node.kind, node.kind.lower())
    data = (*node.data, *(shape for shape in node.weights if shape)) if kind in _WORKING else node.data
    attributes = _out(node, data)
    if node.weights and kind in _WEIGHTED:
        attributes["weights"] = "+".join("x".join(map(str, shape)) for shape in node.weights)
    return OpSpec.of(kind, data or [node.out], **attributes)


def _out(node: _Node, data: tuple[Shape, ...]) -> dict[str, Any]:
    return {"out": node.out} if node.out and node.out != (data[0] if data else None) else {}


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
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "Gemm": _gemm,
    "MatMul": _matmul,
    **dict.fromkeys(("MaxPool", "AveragePool"), _pooling),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _global_pooling),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
}
