"""Features of operators that go through their elements: activations, arithmetic, normalisation, reductions, copies.

An elementary function such as an exponential, a root or a comparison is one operation. What is done once a row, such as
the root of a variance, is left out beside what is done for every number of it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from nni_latency.operators._features import (
    FeatureFunction,
    Features,
    elements_of,
    make_features,
    out_shape_of,
    outputs_of,
    size_of,
    spread,
    weights_of,
)
from nni_latency.operators._op_spec import OpSpec
from nni_latency.operators._product_features import SOFTMAX

#: Kinds by the operations that they take for a number of the output.
_BY_OPERATIONS: dict[int, tuple[str, ...]] = {
    1: (
        *("relu", "threshold", "hardshrink", "tanh", "add", "sub", "mul", "multiply", "div", "pow", "maximum"),
        *("minimum", "floordiv", "mod", "remainder", "fmod", "floor_divide", "atan2", "square", "reciprocal", "neg"),
        *("abs", "sign", "exp", "expm1", "log", "log1p", "log2", "sqrt", "rsqrt", "sin", "cos", "tan", "erf", "atan"),
        *("floor", "ceil", "round", "trunc", "cumsum", "cumprod", "logical_not", "invert", "isnan", "gt", "ge", "lt"),
        *(
            "le",
            "eq",
            "ne",
            "and",
            "or",
            "logical_and",
            "logical_or",
            "clamp_min",
            "clamp_max",
            "outer",
            "asin",
            "acos",
        ),
        *("sinh", "cosh", "asinh", "acosh", "atanh", "isinf", "xor", "logical_xor", "bitwise_and", "bitwise_or"),
        *("bitwise_xor", "bitwise_not", "bitshift"),
    ),
    2: (
        *("hardtanh", "relu6", "leaky_relu", "prelu", "rrelu", "tanhshrink", "softshrink", "clamp", "clip"),
        *("dequantizelinear", "quantize_per_tensor", "quantize_per_channel", "dequantize"),
    ),
    3: ("softplus", "softsign", "lerp", "addcmul", "addcdiv", "logit", "quantizelinear", "rotary_embedding"),
    4: ("elu", "sigmoid", "hardsigmoid", "log_sigmoid", "logsigmoid"),
    5: ("selu", "celu", "gelu", "silu", "mish", "hardswish", "glu", "dynamicquantizelinear"),
}

#: Operations a number of the output.
POINTWISE: dict[str, int] = {
    **{kind: count for count, kinds in _BY_OPERATIONS.items() for kind in kinds},
    "softmax": SOFTMAX,
    "log_softmax": SOFTMAX,
    "softmin": SOFTMAX + 1,
}

#: Operations a number of the input; those of affine parameters come on top.
NORMALISATIONS: dict[str, int] = {
    # In inference the statistics of a batch are known: one scale and one shift.
    "batch_norm": 2,
    # Mean, difference, square, sum, scale.
    "layer_norm": 5,
    "group_norm": 5,
    "instance_norm": 5,
    # Square, sum, scale.
    "rms_norm": 3,
    "normalize": 3,
}

#: What makes one number of many: operations a number of the input, and a number of the output.
REDUCTIONS: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("sum", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all"), (1, -1)),
    "mean": (1, 0),
    "var": (4, 0),
    "std": (4, 1),
    "norm": (2, 0),
    "vector_norm": (2, 0),
    "logsumexp": (4, 0),
    "cosine_similarity": (3, 2),
}

#: What only moves numbers, or makes them of nothing.
MOVEMENTS: tuple[str, ...] = (
    *("cat", "concat", "concatenate", "stack", "hstack", "vstack", "copy", "clone", "index", "index_select", "gather"),
    *("pad", "constant_pad_nd", "roll", "flip", "repeat", "repeat_interleave", "tile", "where", "masked_fill", "tril"),
    *("triu", "channel_shuffle", "pixel_shuffle", "pixel_unshuffle", "scatter", "setitem", "fill", "one_hot", "rot90"),
    *("zeros", "ones", "empty", "full", "arange", "linspace", "eye", "zeros_like", "ones_like", "full_like", "zero"),
    *("empty_like", "new_zeros", "new_ones", "new_full", "new_empty", "meshgrid", "take_along_dim", "diag_embed"),
    *("tensor", "as_tensor", "masked_select", "nonzero"),
)

#: Operations a number of the output of an interpolation: differences and products between its neighbours.
_INTERPOLATIONS = {"nearest": 0, "nearest-exact": 0, "linear": 3, "bilinear": 7, "bicubic": 31, "trilinear": 15}


def _pointwise(op: OpSpec) -> Features:
    outputs = _broadcast(op)
    times = len(op.input_shapes) - 1 if op.kind in ("add", "maximum", "minimum") else 1
    return make_features(op, outputs, other_flops=max(1, times) * POINTWISE[op.kind] * outputs)


def _broadcast(op: OpSpec) -> int:
    """Return the elements of the output of inputs that are broadcast to each other's shapes."""
    if op.get("out") is not None or len(op.input_shapes) < 2:
        return outputs_of(op)
    longest = max(map(len, op.input_shapes))
    padded = [(1,) * (longest - len(shape)) + shape for shape in op.input_shapes]
    return math.prod(map(max, zip(*padded, strict=True)))


def _normalisation(op: OpSpec) -> Features:
    elements = math.prod(op.input_shapes[0])
    if op.kind == "batch_norm":
        # Two parameters a channel, unless it has none, and two statistics that are read as well.
        channels = op.input_shapes[0][1]
        each = 0 if not op.get("affine", True) else 1 + bool(op.get("bias", True))
        made = make_features(op, elements, other_flops=2 * elements, params=each * channels)
        return replace(made, memory=made.memory + size_of(op) * 2 * channels)
    affine = len(str(op.get("weights", "")).split("+")) if op.get("weights") else 0
    return make_features(op, elements, other_flops=(NORMALISATIONS[op.kind] + affine) * elements)


def _local_response(op: OpSpec) -> Features:
    """Count squares, their sums over neighbouring channels, scale, shift, power and quotient."""
    elements = math.prod(op.input_shapes[0])
    return make_features(op, elements, other_flops=(op.get("size", 1) + 5) * elements)


def _reduction(op: OpSpec) -> Features:
    each, more = REDUCTIONS[op.kind]
    # Two inputs of the same shape are compared pair by pair: the largest of two tensors.
    if len(op.input_shapes) == 2 and op.kind in ("max", "min"):
        return make_features(op, _broadcast(op), other_flops=_broadcast(op))
    outputs = outputs_of(op) if op.get("out") is not None else 1
    return make_features(op, outputs, other_flops=max(0, each * elements_of(op) + more * outputs))


def _movement(op: OpSpec) -> Features:
    return make_features(op, _broadcast(op) if op.kind in ("where", "masked_fill") else outputs_of(op))


def _pooling(op: OpSpec) -> Features:
    """Count windows: comparisons for the largest; a sum and a quotient for the average; powers, a sum and a root."""
    outputs, dimensions = outputs_of(op), int(op.kind[-2])
    window = math.prod(spread(op.get("kernel_size"), dimensions))
    each = {"max": window - 1, "avg": window, "lp": 2 * window}[op.kind.split("_")[0]]
    return make_features(op, outputs, other_flops=outputs * each)


def _adaptive_pooling(op: OpSpec) -> Features:
    """Count windows that divide the input; they overlap where it does not divide evenly."""
    dimensions, out = int(op.kind[-2]), out_shape_of(op)
    inside, after = op.input_shapes[0][-dimensions:], out[-dimensions:]
    covered = math.prod(_covered(size, pieces) for size, pieces in zip(inside, after, strict=True))
    outputs = math.prod(out)
    flops = math.prod(out[:-dimensions]) * covered
    return make_features(op, outputs, other_flops=flops if "avg" in op.kind else flops - outputs)


def _covered(size: int, pieces: int) -> int:
    return sum(-(-(index + 1) * size // pieces) - index * size // pieces for index in range(pieces))


def _global_average_pool(op: OpSpec) -> Features:
    return make_features(op, math.prod(op.input_shapes[0][:2]), other_flops=math.prod(op.input_shapes[0]))


def _interpolation(op: OpSpec) -> Features:
    mode, outputs = str(op.get("mode", "nearest")), outputs_of(op)
    each = _INTERPOLATIONS.get(mode)
    flops = elements_of(op) if each is None else each * outputs
    return make_features(op, outputs, other_flops=flops)


def _grid_sample(op: OpSpec) -> Features:
    each = _INTERPOLATIONS.get(str(op.get("mode", "bilinear")), 7)
    return make_features(op, outputs_of(op), other_flops=each * outputs_of(op))


def _fold(op: OpSpec) -> Features:
    """Count the additions of overlapping windows."""
    return make_features(op, outputs_of(op), other_flops=elements_of(op))


def _accumulation(op: OpSpec) -> Features:
    """Count an addition for every number of the source, which comes last."""
    return make_features(op, math.prod(op.input_shapes[0]), other_flops=math.prod(op.input_shapes[-1]))


def _sorting(op: OpSpec) -> Features:
    """Count the comparisons of a sort, or of a heap of the largest numbers."""
    kept = int(op.get("k", 0)) or (op.input_shapes[0] or (1,))[-1]
    return make_features(op, 2 * outputs_of(op), other_flops=elements_of(op) * max(1, math.ceil(math.log2(kept + 1))))


def _weight_norm(op: OpSpec) -> Features:
    """Count squares, their sums and a scale for every number of the weight."""
    weight = max(weights_of(op) or op.input_shapes, key=math.prod)
    return make_features(op, math.prod(weight), other_flops=3 * math.prod(weight))


def _nothing(op: OpSpec) -> Features:
    return Features()


ELEMENTWISE: dict[str, FeatureFunction] = {
    **dict.fromkeys(POINTWISE, _pointwise),
    **dict.fromkeys(NORMALISATIONS, _normalisation),
    "local_response_norm": _local_response,
    **dict.fromkeys(REDUCTIONS, _reduction),
    **dict.fromkeys(MOVEMENTS, _movement),
    **{f"{how}_pool{n}d": _pooling for how in ("max", "avg", "lp") for n in (1, 2, 3)},
    **{f"adaptive_{how}_pool{n}d": _adaptive_pooling for how in ("avg", "max") for n in (1, 2, 3)},
    "global_average_pool": _global_average_pool,
    "interpolate": _interpolation,
    "grid_sample": _grid_sample,
    "fold": _fold,
    **dict.fromkeys(("index_add", "scatter_add", "index_put"), _accumulation),
    **dict.fromkeys(("topk", "sort", "argsort", "msort", "unique"), _sorting),
    "weight_norm": _weight_norm,
    "identity": _nothing,
}
