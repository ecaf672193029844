# SPDX-License-Identifier: Apache-2.0
"""Features of operators by kind: convolutions, matrix products, and elementwise operators."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from dataclasses import replace

from nni_latency.errors import InvalidValueError
from nni_latency.operators._features import (
    FeatureFunction,
    Features,
    elements_of,
    inputs_of,
    make_features,
    out_shape_of,
    outputs_of,
    params_of,
    size_of,
    spread,
    weights_of,
)
from nni_latency.operators._op_spec import OpSpec, Shape

#: Operations per element of a softmax: maximum, difference, exponential, sum, quotient.
SOFTMAX = 5

#: Gates of each recurrent kind, and operations per unit and step besides products and biases.
_LAYERS = {"lstm": (4, 22), "gru": (3, 17), "rnn_tanh": (1, 2), "rnn_relu": (1, 2)}

_RECURRENT = {**_LAYERS, **{f"{kind}_cell": work for kind, work in _LAYERS.items()}}

#: Kinds by their operations per output element.
_BY_OPERATIONS: dict[int, tuple[str, ...]] = {
    1: (
        *("relu", "threshold", "hardshrink", "tanh", "add", "sub", "mul", "multiply", "div", "pow", "maximum"),
        *("minimum", "floordiv", "mod", "remainder", "fmod", "floor_divide", "atan2", "square", "reciprocal", "neg"),
        *("abs", "sign", "exp", "expm1", "log", "log1p", "log2", "sqrt", "rsqrt", "sin", "cos", "tan", "erf", "atan"),
        *("floor", "ceil", "round", "trunc", "cumsum", "cumprod", "logical_not", "invert", "isnan", "gt", "ge", "lt"),
        *("le", "eq", "ne", "and", "or", "logical_and", "logical_or", "clamp_min", "clamp_max", "outer"),
        *("asin", "acos"),
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

#: Operations per output element.
POINTWISE: dict[str, int] = {
    **{kind: count for count, kinds in _BY_OPERATIONS.items() for kind in kinds},
    "softmax": SOFTMAX,
    "log_softmax": SOFTMAX,
    "softmin": SOFTMAX + 1,
}

#: Operations per input element, without affine parameters.
NORMALISATIONS: dict[str, int] = {
    # In inference, batch statistics are constant: one scale and one shift.
    "batch_norm": 2,
    # Mean, difference, square, sum, scale.
    "layer_norm": 5,
    "group_norm": 5,
    "instance_norm": 5,
    # Square, sum, scale.
    "rms_norm": 3,
    "normalize": 3,
}

#: Reductions: operations per input element, and per output element.
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

#: Kinds that only move or create elements.
MOVEMENTS: tuple[str, ...] = (
    *("cat", "concat", "concatenate", "stack", "hstack", "vstack", "copy", "clone", "index", "index_select", "gather"),
    *("pad", "constant_pad_nd", "roll", "flip", "repeat", "repeat_interleave", "tile", "where", "masked_fill", "tril"),
    *("triu", "channel_shuffle", "pixel_shuffle", "pixel_unshuffle", "scatter", "setitem", "fill", "one_hot", "rot90"),
    *("zeros", "ones", "empty", "full", "arange", "linspace", "eye", "zeros_like", "ones_like", "full_like", "zero"),
    *("empty_like", "new_zeros", "new_ones", "new_full", "new_empty", "meshgrid", "take_along_dim", "diag_embed"),
    *("tensor", "as_tensor", "masked_select", "nonzero"),
)

#: Operations per output element of an interpolation: differences and products of its neighbours.
_INTERPOLATIONS = {"nearest": 0, "nearest-exact": 0, "linear": 3, "bilinear": 7, "bicubic": 31, "trilinear": 15}


def convolution(op: OpSpec) -> Features:
    """Count a convolution: one multiply-add per output and weight of its window."""
    batch, channels, sizes = _split(op)
    kernel = spread(op["kernel_size"], len(sizes))
    seen = math.prod(kernel) * (channels // op.get("groups", 1))
    out = op["out_channels"]
    outputs = batch * out * math.prod(_convolved(sizes, kernel, op))
    return _counted(op, outputs, macs=outputs * seen, weights=out * seen)


def transposed(op: OpSpec) -> Features:
    """Count a transposed convolution: one multiply-add per input and weight of its window."""
    batch, channels, sizes = _split(op)
    kernel = spread(op["kernel_size"], len(sizes))
    out, groups = op["out_channels"], op.get("groups", 1)
    outputs = batch * out * math.prod(_widened(sizes, kernel, op))
    each = out // groups * math.prod(kernel)
    return _counted(op, outputs, macs=batch * channels * math.prod(sizes) * each, weights=channels * each)


def sides_of(op: OpSpec) -> tuple[Shape, Shape]:
    """Return the sizes of the picture that a convolution takes, and of the one that it returns.

    Raises
    ------
    InvalidValueError
        If the window does not fit into the picture.

    Examples
    --------
    >>> sides_of(OpSpec.of("conv2d", [(1, 8, 9, 12)], out_channels=8, kernel_size=3, stride=2, padding=0))
    ((9, 12), (4, 5))
    """
    _, _, sizes = _split(op)
    after = _widened if op.kind.startswith("conv_transpose") else _convolved
    return sizes, tuple(after(sizes, spread(op["kernel_size"], len(sizes)), op))


def _counted(op: OpSpec, outputs: int, *, macs: int, weights: int) -> Features:
    bias = bool(op.get("bias"))
    params = weights + op["out_channels"] * bias
    return make_features(op, outputs, macs=macs, other_flops=outputs * bias, params=params, convolution=True)


def _split(op: OpSpec) -> tuple[int, int, Shape]:
    """Return batch, channels and sizes; an input without batch dimension has batch size one."""
    shape, dimensions = op.input_shapes[0], int(op.kind[-2])
    batch = shape[0] if len(shape) == dimensions + 2 else 1
    return batch, shape[-dimensions - 1], shape[-dimensions:]


def _convolved(sizes: Shape, kernel: Shape, op: OpSpec) -> list[int]:
    """Return the sizes of a convolution's output; without 'padding' the window is 'same'-padded."""
    stride, dilation = spread(op["stride"], len(sizes)), spread(op.get("dilation", 1), len(sizes))
    if op.get("padding") is None:
        return [-(-size // step) for size, step in zip(sizes, stride, strict=True)]
    padding = _both_sides(op["padding"], len(sizes))
    found = [
        (size + both - gap * (window - 1) - 1) // step + 1
        for size, both, gap, window, step in zip(sizes, padding, dilation, kernel, stride, strict=True)
    ]
    return _checked(found, op)


def _widened(sizes: Shape, kernel: Shape, op: OpSpec) -> list[int]:
    """Return the output sizes of a transposed convolution; missing attributes are 0 or 1."""
    names = {"stride": 1, "output_padding": 0, "dilation": 1}
    stride, extra, dilation = (spread(op.get(name, usual), len(sizes)) for name, usual in names.items())
    padding = _both_sides(op.get("padding", 0), len(sizes))
    found = [
        (size - 1) * step - both + gap * (window - 1) + more + 1
        for size, step, both, gap, window, more in zip(sizes, stride, padding, dilation, kernel, extra, strict=True)
    ]
    return _checked(found, op)


def _both_sides(padding: int | tuple[int, ...], dimensions: int) -> list[int]:
    """Return the total padding of both sides; if they differ, the sides before precede the sides after."""
    sides = spread(padding, dimensions)
    behind = sides[dimensions:] or sides
    return [one + other for one, other in zip(sides[:dimensions], behind, strict=True)]


def _checked(sizes: list[int], op: OpSpec) -> list[int]:
    """Return the sizes of an output; raise `InvalidValueError` if one is empty."""
    if min(sizes, default=0) < 0:
        raise InvalidValueError(
            f"The operator {op.op_key!r} has a window that its input does not hold: its output would have the sizes "
            f"{sizes}."
        )
    return sizes


CONVOLUTIONS: dict[str, FeatureFunction] = {
    **{f"conv{n}d": convolution for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": transposed for n in (1, 2, 3)},
}


def _linear(op: OpSpec) -> Features:
    *rows, features = op.input_shapes[0]
    out, bias = op["out_features"], bool(op.get("bias"))
    outputs = math.prod(rows) * out
    return make_features(
        op, outputs, macs=outputs * features, other_flops=outputs * bias, params=features * out + out * bias
    )


def _bilinear(op: OpSpec) -> Features:
    outputs, (weights, *bias) = outputs_of(op), weights_of(op)
    _, first, second = weights
    macs = outputs * (first * second + first)
    return make_features(op, outputs, macs=macs, other_flops=outputs * len(bias))


def _matmul(op: OpSpec) -> Features:
    """Count a matrix product: every output is a sum over the last dimension of the first factor."""
    outputs = outputs_of(op)
    shapes = [*op.input_shapes, *weights_of(op)]
    return make_features(op, outputs, macs=outputs * shapes[0][-1])


def _add_matmul(op: OpSpec) -> Features:
    """Count the product of the last two of three inputs, plus the first."""
    outputs = outputs_of(op)
    return make_features(op, outputs, macs=outputs * op.input_shapes[-2][-1], other_flops=outputs)


def _einsum(op: OpSpec) -> Features:
    """Count a sum over products: a multiply-add for each index of every product of two factors, from the left.

    Runtimes multiply factor by factor, and sum over an index as soon as no later factor has it.
    """
    given, arrow, result = re.sub(r"\s", "", str(op.get("equation", ""))).partition("->")
    shapes = [*op.input_shapes, *weights_of(op)]
    sizes: dict[object, int] = {}
    factors: list[list[object]] = []
    for factor, shape in zip(given.split(","), shapes, strict=True):
        factors.append(_indices(factor, len(shape)))
        for index, size in zip(factors[-1], shape, strict=True):
            # A broadcast dimension has size 1 in one factor.
            sizes[index] = max(size, sizes.get(index, 1))
    outputs, counts = outputs_of(op), Counter(itertools.chain(*factors))
    if len(factors) == 1:
        return make_features(op, outputs, other_flops=math.prod(sizes.values()) - outputs)
    kept: set[object] = set(result if arrow else [index for index, count in counts.items() if count == 1])
    if not arrow or "..." in result:
        kept |= {index for index in counts if isinstance(index, int)}
    macs, product = 0, set(factors[0])
    for number, indices in enumerate(factors[1:], 2):
        product |= set(indices)
        macs += math.prod(sizes[index] for index in product)
        product &= kept.union(*factors[number:])
    return make_features(op, outputs, macs=macs)


def _indices(factor: str, dimensions: int) -> list[object]:
    """Name the dimensions of a factor; those of an ellipsis are numbered from the last one."""
    before, dots, after = factor.partition("...")
    rest = range(dimensions - len(before) - len(after), 0, -1) if dots else ()
    return [*before, *rest, *after]


def _attention(op: OpSpec) -> Features:
    """Count full attention, ignoring masks: scores, scale, softmax, weighted sum."""
    query, key, value, *masks = op.input_shapes
    batch = math.prod(query[:-2])
    scores = batch * query[-2] * key[-2]
    macs = scores * (query[-1] + value[-1])
    outputs = batch * query[-2] * value[-1]
    return make_features(op, outputs, macs=macs, other_flops=scores * (1 + SOFTMAX + len(masks)))


def _recurrent(op: OpSpec) -> Features:
    """Count a recurrent layer: products at every step, biases and gates."""
    gates, each = _RECURRENT[op.kind]
    matrices = [shape for shape in weights_of(op) if len(shape) == 2]
    biases = sum(shape[0] for shape in weights_of(op) if len(shape) == 1)
    units = sum(shape[0] for shape in matrices[::2]) // gates
    rows = math.prod(out_shape_of(op)[:-1])
    macs = rows * sum(math.prod(shape) for shape in matrices)
    return make_features(op, outputs_of(op), macs=macs, other_flops=rows * (biases + each * units))


def _quantised(op: OpSpec) -> Features:
    """Count a layer with packed weights: one multiply-add per output and weight that it uses."""
    outputs, (weight, *bias) = outputs_of(op), weights_of(op)
    return make_features(
        op,
        outputs,
        macs=outputs * math.prod(weight[1:]),
        other_flops=outputs * len(bias),
        convolution="conv" in op.kind,
    )


def _spectrum(op: OpSpec) -> Features:
    """Count a short-time Fourier transform of real numbers: for every frame a window, and half of 5 n log2 n."""
    size, outputs = int(op["n_fft"]), outputs_of(op)
    frames = outputs / (size // 2 + 1)
    return make_features(op, 2 * outputs, other_flops=round(frames * size * (1 + 2.5 * math.log2(size))))


def _transform(op: OpSpec) -> Features:
    """Count a Fourier transform of some length: 5 n log2 n for complex numbers, half of that for real ones."""
    length, is_real = int(op["length"]), op.input_shapes[0][-1:] == (1,)
    numbers = math.prod(op.input_shapes[0][:-1])
    each = (2.5 if is_real else 5) * math.log2(max(2, length))
    return make_features(op, outputs_of(op), other_flops=round(numbers * each))


def _embedding(op: OpSpec) -> Features:
    """Count a look-up, which reads only the returned rows."""
    outputs, indices = outputs_of(op), inputs_of(op)
    width = weights_of(op)[0][-1] if weights_of(op) else 1
    read = math.prod(op.input_shapes[0]) * width if op.kind == "embedding_bag" else outputs
    flops = read - outputs if op.kind == "embedding_bag" else 0
    return Features(
        flops=flops, params=params_of(op), memory=4 * (read + outputs) + 8 * indices, inputs=indices, outputs=outputs
    )


PRODUCTS: dict[str, FeatureFunction] = {
    "linear": _linear,
    "bilinear": _bilinear,
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "dot"), _matmul),
    **dict.fromkeys(("addmm", "addbmm", "baddbmm", "addmv"), _add_matmul),
    "einsum": _einsum,
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys(_RECURRENT, _recurrent),
    **{
        f"quantized_{layer}{way}": _quantised
        for layer in ("linear", "conv1d", "conv2d", "conv3d")
        for way in ("", "_relu", "_dynamic", "_relu_dynamic")
    },
    "stft": _spectrum,
    "dft": _transform,
    **dict.fromkeys(("embedding", "embedding_bag"), _embedding),
}


def _pointwise(op: OpSpec) -> Features:
    outputs = _broadcast(op)
    times = len(op.input_shapes) - 1 if op.kind in ("add", "maximum", "minimum") else 1
    return make_features(op, outputs, other_flops=max(1, times) * POINTWISE[op.kind] * outputs)


def _broadcast(op: OpSpec) -> int:
    """Return the number of output elements after broadcasting the inputs."""
    if op.get("out") is not None or len(op.input_shapes) < 2:
        return outputs_of(op)
    longest = max(map(len, op.input_shapes))
    padded = [(1,) * (longest - len(shape)) + shape for shape in op.input_shapes]
    return math.prod(map(max, zip(*padded, strict=True)))


def _normalisation(op: OpSpec) -> Features:
    elements = math.prod(op.input_shapes[0])
    if op.kind == "batch_norm":
        # Two parameters per channel, if any, and two statistics to read.
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


def _choice(op: OpSpec) -> Features:
    """Count the results of the branch that runs, all of which are passed on."""
    return make_features(op, inputs_of(op))


def _pooling(op: OpSpec) -> Features:
    """Count windows: comparisons for the maximum; a sum and a quotient for the average; powers, a sum and a root."""
    outputs, dimensions = outputs_of(op), int(op.kind[-2])
    window = math.prod(spread(op.get("kernel_size"), dimensions))
    each = {"max": window - 1, "avg": window, "lp": 2 * window}[op.kind.split("_")[0]]
    return make_features(op, outputs, other_flops=outputs * each)


def _adaptive_pooling(op: OpSpec) -> Features:
    """Count windows that partition the input; they overlap if it does not divide evenly."""
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
    """Count an addition per element of the source, the last input."""
    return make_features(op, math.prod(op.input_shapes[0]), other_flops=math.prod(op.input_shapes[-1]))


def _sorting(op: OpSpec) -> Features:
    """Count the comparisons of a sort, or of a heap of the largest elements."""
    kept = int(op.get("k", 0)) or (op.input_shapes[0] or (1,))[-1]
    return make_features(op, 2 * outputs_of(op), other_flops=elements_of(op) * max(1, math.ceil(math.log2(kept + 1))))


def _weight_norm(op: OpSpec) -> Features:
    """Count squares, their sums and a scale per element of the weight."""
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
    "if": _choice,
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
