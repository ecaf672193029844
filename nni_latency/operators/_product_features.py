"""Features of matrix products, attention and recurrent layers."""

from __future__ import annotations

import math
import re

from nni_latency.operators._features import (
    FeatureFunction,
    Features,
    inputs_of,
    make_features,
    out_shape_of,
    outputs_of,
    params_of,
    weights_of,
)
from nni_latency.operators._op_spec import OpSpec

#: Operations a number of a softmax: largest, difference, exponential, sum, quotient.
SOFTMAX = 5

#: By recurrent kind: gates, and operations of a unit and step besides the products and biases.
_LAYERS = {"lstm": (4, 22), "gru": (3, 17), "rnn_tanh": (1, 2), "rnn_relu": (1, 2)}
_RECURRENT = {**_LAYERS, **{f"{kind}_cell": work for kind, work in _LAYERS.items()}}


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
    """Count a product of two factors: every output is a sum over the last dimension of the first one."""
    outputs = outputs_of(op)
    shapes = [*op.input_shapes, *weights_of(op)]
    return make_features(op, outputs, macs=outputs * shapes[0][-1])


def _add_matmul(op: OpSpec) -> Features:
    """Count a product of the last two of three inputs, to which the first is added."""
    outputs = outputs_of(op)
    return make_features(op, outputs, macs=outputs * op.input_shapes[-2][-1], other_flops=outputs)


def _einsum(op: OpSpec) -> Features:
    """Count a sum over products as one pass over all its indices, with a multiply-add for each factor but one."""
    equation = re.sub(r"\s", "", str(op.get("equation", "")))
    factors = equation.partition("->")[0].split(",")
    shapes = [*op.input_shapes, *weights_of(op)]
    sizes: dict[object, int] = {}
    for factor, shape in zip(factors, shapes, strict=True):
        for index, size in zip(_indices(factor, len(shape)), shape, strict=True):
            # What is broadcast has the size 1 in one factor.
            sizes[index] = max(size, sizes.get(index, 1))
    steps, outputs = math.prod(sizes.values()), outputs_of(op)
    if len(factors) == 1:
        return make_features(op, outputs, other_flops=steps - outputs)
    return make_features(op, outputs, macs=(len(factors) - 1) * steps)


def _indices(factor: str, dimensions: int) -> list[object]:
    """Name the dimensions of a factor; those that an ellipsis stands for are numbered from the last one."""
    before, dots, after = factor.partition("...")
    rest = range(dimensions - len(before) - len(after), 0, -1) if dots else ()
    return [*before, *rest, *after]


def _attention(op: OpSpec) -> Features:
    """Count attention in full, without regard to masks: scores, scale, softmax, weighted sum."""
    query, key, value, *masks = op.input_shapes
    batch = math.prod(query[:-2])
    scores = batch * query[-2] * key[-2]
    macs = scores * (query[-1] + value[-1])
    outputs = batch * query[-2] * value[-1]
    return make_features(op, outputs, macs=macs, other_flops=scores * (1 + SOFTMAX + len(masks)))


def _recurrent(op: OpSpec) -> Features:
    """Count a recurrent layer: its products at every step, biases, and what the gates do."""
    gates, each = _RECURRENT[op.kind]
    matrices = [shape for shape in weights_of(op) if len(shape) == 2]
    biases = sum(shape[0] for shape in weights_of(op) if len(shape) == 1)
    units = sum(shape[0] for shape in matrices[::2]) // gates
    rows = math.prod(out_shape_of(op)[:-1])
    macs = rows * sum(math.prod(shape) for shape in matrices)
    return make_features(op, outputs_of(op), macs=macs, other_flops=rows * (biases + each * units))


def _quantised(op: OpSpec) -> Features:
    """Count a layer whose weights are packed: every output takes a multiply-add for each weight that it sees."""
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
    """Count a look-up, which reads only the rows that it returns."""
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
