# SPDX-License-Identifier: Apache-2.0
"""Kinds of operators of ONNX nodes, and nodes equivalent to others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nni_latency.operators._onnx_inference import STANDARD, Inference, Value
from nni_latency.operators._op_spec import Shape

#: Nodes that compute nothing or return a view.
IDLE = frozenset(
    (
        *("Constant", "ConstantOfShape", "Shape", "Size", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"),
        *("Dropout", "Cast", "CastLike", "BitCast", "Slice", "Split", "Range", "Optional", "OptionalGetElement"),
        *("OptionalHasElement", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert"),
        *("SequenceLength", "SplitToSequence", "ZipMap"),
    )
)

#: Nodes whose lower-case name equals the kind of operator.
_SAME_NAME = (
    *("Relu", "Sigmoid", "Tanh", "Elu", "Selu", "Celu", "Softplus", "Softsign", "Mish", "Gelu", "Exp", "Log", "Sqrt"),
    *("Neg", "Abs", "Erf", "Floor", "Ceil", "Reciprocal", "Add", "Sub", "Mul", "Div", "Pow", "Sin", "Cos", "Softmax"),
    *("PRelu", "Where", "Round", "Sign", "Tan", "Sinh", "Cosh", "Asin", "Acos", "Atan", "Asinh", "Acosh", "Atanh"),
    *("CumSum", "CumProd", "IsNaN", "IsInf", "NonZero", "And", "Or", "Xor", "ArgMax", "ArgMin", "Unique", "Mod"),
    *("BitShift", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"),
)

#: Nodes with a fixed kind of operator.
PLAIN = {
    **{name: name.lower() for name in _SAME_NAME},
    "BatchNormalization": "batch_norm",
    "BiasAdd": "add",
    "BiasGelu": "gelu",
    "BiasSoftmax": "softmax",
    "BiasSplitGelu": "gelu",
    "BitwiseAnd": "bitwise_and",
    "BitwiseNot": "bitwise_not",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Compress": "masked_select",
    "Concat": "cat",
    "ConcatFromSequence": "cat",
    "DepthToSpace": "pixel_shuffle",
    "Equal": "eq",
    "Expand": "repeat",
    "EyeLike": "eye",
    "FastGelu": "gelu",
    "Gather": "index",
    "GatherElements": "gather",
    "GatherND": "index",
    "Greater": "gt",
    "GreaterOrEqual": "ge",
    "GroupNorm": "group_norm",
    "GroupNormalization": "group_norm",
    "HardSigmoid": "hardsigmoid",
    "HardSwish": "hardswish",
    "Hardmax": "argmax",
    "InstanceNormalization": "instance_norm",
    "LayerNormalization": "layer_norm",
    "LeakyRelu": "leaky_relu",
    "Less": "lt",
    "LessOrEqual": "le",
    "LogSoftmax": "log_softmax",
    "LpNormalization": "normalize",
    "Max": "maximum",
    "MaxUnpool": "scatter",
    "Mean": "add",
    "Min": "minimum",
    "Not": "logical_not",
    "OneHot": "one_hot",
    "Pad": "pad",
    "QLinearAdd": "add",
    "QuickGelu": "silu",
    "RMSNormalization": "rms_norm",
    "ReduceL1": "norm",
    "ReduceL2": "norm",
    "ReduceLogSum": "sum",
    "ReduceLogSumExp": "logsumexp",
    "ReduceMax": "amax",
    "ReduceMean": "mean",
    "ReduceMin": "amin",
    "ReduceProd": "prod",
    "ReduceSum": "sum",
    "ReduceSumSquare": "norm",
    "ReverseSequence": "flip",
    "RotaryEmbedding": "rotary_embedding",
    "Scatter": "scatter",
    "ScatterElements": "scatter",
    "ScatterND": "scatter",
    "Shrink": "softshrink",
    "SimplifiedLayerNormalization": "rms_norm",
    "SkipGroupNorm": "group_norm",
    "SkipLayerNormalization": "layer_norm",
    "SkipSimplifiedLayerNormalization": "rms_norm",
    "SpaceToDepth": "pixel_unshuffle",
    "Sum": "add",
    "SwiGLU": "glu",
    "Swish": "silu",
    "TensorScatter": "scatter",
    "ThresholdedRelu": "threshold",
    "Tile": "repeat",
    "Transpose": "copy",
}

#: Nodes whose kind depends on more than their names.
LAYERS = frozenset(
    (
        *("AffineGrid", "Attention", "Clip", "Col2Im", "Conv", "ConvTranspose", "DFT", "DeformConv", "Einsum"),
        *("FusedMatMul", "Gemm", "GlobalLpPool", "GridSample", "LRN", "MatMul", "MatMulNBits", "NhwcConv", "STFT"),
        *("TopK", "Trilu", "GroupQueryAttention", "MultiHeadAttention", "MaxPool", "AveragePool", "LpPool"),
        *("GlobalAveragePool", "GlobalMaxPool", "Resize", "Upsample", "LSTM", "GRU", "RNN"),
    )
)

#: Equivalent operator and input positions of operators in another form. Quantised operators take scales and zero points
#: between their data.
_STAND_FOR: dict[str, tuple[str, tuple[int, ...]]] = {
    "ConvInteger": ("Conv", (0, 1)),
    "DynamicQuantizeLSTM": ("LSTM", (0, 1, 2, 3, 4, 5, 6, 7)),
    "DynamicQuantizeMatMul": ("MatMul", (0, 1)),
    "FusedConv": ("Conv", (0, 1, 2)),
    "FusedGemm": ("Gemm", (0, 1, 2)),
    "MatMulInteger": ("MatMul", (0, 1)),
    "MatMulInteger16": ("MatMul", (0, 1)),
    "MatMulIntegerToFloat": ("MatMul", (0, 1)),
    "NhwcFusedConv": ("NhwcConv", (0, 1, 2)),
    "QGemm": ("Gemm", (0, 3, 6)),
    "QLinearAdd": ("Add", (0, 3)),
    "QLinearAveragePool": ("AveragePool", (0,)),
    "QLinearConcat": ("Concat", ()),
    "QLinearConv": ("Conv", (0, 3, 8)),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", (0,)),
    "QLinearLeakyRelu": ("LeakyRelu", (0,)),
    "QLinearMatMul": ("MatMul", (0, 3)),
    "QLinearMul": ("Mul", (0, 3)),
    "QLinearReduceMean": ("ReduceMean", (0,)),
    "QLinearSigmoid": ("Sigmoid", (0,)),
    "QLinearSoftmax": ("Softmax", (0,)),
    "TransposeMatMul": ("FusedMatMul", (0, 1)),
}

#: Domains of ONNX Runtime's operators; some files list them in the standard domain.
_RUNTIME = ("com.microsoft", "com.microsoft.nchwc", *STANDARD)

#: Operators of ONNX Runtime whose output has the shape of their first input.
_SHAPE_OF_FIRST = frozenset(
    (
        *("Gelu", "BiasGelu", "FastGelu", "QuickGelu", "BiasAdd", "BiasSoftmax", "GroupNorm", "SkipGroupNorm"),
        *("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "SimplifiedLayerNormalization"),
        *("RotaryEmbedding", "MultiHeadAttention", "GroupQueryAttention", "QuantizeLinear", "DequantizeLinear"),
        *("BiasDropout", "BitmaskDropout", "GemmaRotaryEmbedding", "LayerNormalization", "RMSNormalization"),
    )
)

#: Constants other than weights: running means and variances, and shapes.
_STATISTICS = {"BatchNormalization": (3, 4)}

#: Element types of weights.
_OF_WEIGHTS = ("float32", "float16", "bfloat16", "float64", "int8", "uint8", "int4", "uint4")


def is_described(node: Any) -> bool:
    """Whether a node is known as one operator, so that its function body is not expanded."""
    if node.domain not in _RUNTIME:
        return False
    return node.op_type in PLAIN or node.op_type in IDLE or node.op_type in LAYERS or node.op_type in _STAND_FOR


def equivalent(onnx: Any, node: Any, inputs: tuple[Value | None, ...]) -> tuple[Any, tuple[Value | None, ...]]:
    """Return the equivalent operator of a node, with its inputs."""
    if node.domain not in _RUNTIME or node.op_type not in _STAND_FOR:
        return node, inputs
    kind, places = _STAND_FOR[node.op_type]
    if kind == "Concat":
        # Scale and zero point of the result, then tensor, scale and zero point of every joined input.
        places = tuple(range(2, len(inputs), 3))
    # The equivalent has channels first, in the version of the standard that the file names.
    known = [item for item in node.attribute if item.name != "opset" and (item.name != "channels_last" or item.i)]
    found = onnx.NodeProto(op_type=kind, name=node.name, output=node.output, attribute=known)
    places = tuple(place for place in places if place < len(inputs))
    found.input.extend(node.input[place] for place in places)
    return found, tuple(inputs[place] for place in places)


def returned_shapes(node: Any, inputs: Sequence[Value | None], attributes: Mapping[str, Any]) -> dict[str, Shape]:
    """Return the output shapes of an operator that the package onnx does not infer, such as one of ONNX Runtime."""
    if node.domain not in _RUNTIME or not inputs or inputs[0] is None:
        return {}
    if node.op_type in _SHAPE_OF_FIRST:
        return {node.output[0]: inputs[0].shape}
    shape = _RETURNED[node.op_type](inputs, attributes) if node.op_type in _RETURNED else None
    return {} if shape is None else {node.output[0]: shape}


def _needed(inputs: Sequence[Value | None], place: int) -> Value:
    found = inputs[place] if place < len(inputs) else None
    if found is None:
        raise ValueError(f"it lacks its input {place}")
    return found


def _of_attention(inputs: Sequence[Value | None], attributes: Mapping[str, Any]) -> Shape:
    sizes = attributes.get("qkv_hidden_sizes") or [_needed(inputs, 1).shape[1] // 3]
    return (*_needed(inputs, 0).shape[:2], sizes[-1])


def _of_product(inputs: Sequence[Value | None], attributes: Mapping[str, Any]) -> Shape:
    """Return the shape of a product with optionally transposed factors."""
    first, second = (
        transposed_if(_needed(inputs, place).shape, attributes.get(f"trans{'AB'[place]}", 0)) for place in (0, 1)
    )
    outer = max(first[:-2], second[:-2], key=len)
    return (*outer, first[-2], second[-1])


def transposed_if(shape: Shape, is_asked: Any) -> Shape:
    """Return the shape, with the last two sizes swapped if requested."""
    return (*shape[:-2], shape[-1], shape[-2]) if is_asked else shape


def _of_grid(inputs: Sequence[Value | None], attributes: Mapping[str, Any]) -> Shape | None:
    """Return the shape of a sampling grid: a position for every pixel of an image; None if its size is unknown."""
    size = _needed(inputs, 1).data
    if size is None:
        return None
    if size.size not in (4, 5):
        raise ValueError(f"its size must have 4 or 5 numbers, and has {size.size}")
    batch, _, *sides = map(int, size.reshape(-1))
    return (batch, *sides, len(sides))


def _of_packed(inputs: Sequence[Value | None], attributes: Mapping[str, Any]) -> Shape:
    return (*_needed(inputs, 0).shape[:-1], int(attributes["N"]))


def _of_embeddings(inputs: Sequence[Value | None], attributes: Mapping[str, Any]) -> Shape:
    return (*_needed(inputs, 0).shape, _needed(inputs, 2).shape[-1])


def _of_channels_last(inputs: Sequence[Value | None], attributes: Mapping[str, Any]) -> Shape:
    """Return the shape of a channels-last convolution with symmetric padding."""
    shape, kernel = _needed(inputs, 0).shape, _needed(inputs, 1).shape
    sizes = shape[1:-1]
    ones = [1] * len(sizes)
    pads = attributes.get("pads", [0] * 2 * len(sizes))
    spans = [gap * (side - 1) for gap, side in zip(attributes.get("dilations", ones), kernel[2:], strict=True)]
    rows = zip(sizes, pads[: len(sizes)], pads[len(sizes) :], spans, attributes.get("strides", ones), strict=True)
    return (shape[0], *((size + one + two - span - 1) // step + 1 for size, one, two, span, step in rows), kernel[0])


_RETURNED: dict[str, Callable[[Sequence[Value | None], Mapping[str, Any]], Shape | None]] = {
    "AffineGrid": _of_grid,
    "Attention": _of_attention,
    "EmbedLayerNormalization": _of_embeddings,
    "FusedMatMul": _of_product,
    "MatMulNBits": _of_packed,
    "NhwcConv": _of_channels_last,
    "TransposeMatMul": _of_product,
}


def holds_weights(kind: str, inputs: Sequence[Value | None]) -> Iterable[Value]:
    """Return the inputs of an operator that are weights."""
    idle = _STATISTICS.get(kind, ())
    return (
        item
        for place, item in enumerate(inputs)
        if item is not None and item.is_constant and place not in idle and item.dtype in _OF_WEIGHTS
    )


def runtime_hints(
    inference: Inference, node: Any, inputs: Sequence[Value | None], attributes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the output types of an operator that the package onnx does not infer, by tensor."""
    dtype = inputs[0].dtype if inputs and inputs[0] is not None else "float32"
    shapes = returned_shapes(node, inputs, attributes)
    return {name: inference.value(shape, dtype).type for name, shape in shapes.items()}
