# SPDX-License-Identifier: Apache-2.0
"""Features of a single operator: its work, shapes and attributes, and the order in which it meets memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from nni_latency.graphs._memory_order import groups_of, inner_loops, length_of, moved_dims, out_shape, run_of
from nni_latency.graphs._windows import Coverage, coverage_of
from nni_latency.operators import OpSpec, form_of, size_of_attribute, work_of

#: Kind of an operator whose cost another one includes.
MERGED = "merged"

#: Vector widths; channels are padded to a multiple of one of these.
_LANES = (4, 8, 16)

#: Names of the kinds that are distinguished; all others share one code.
KINDS = (
    *("relu", "relu6", "clamp", "threshold", "abs", "neg", "sign", "floor", "ceil", "round", "leaky_relu", "prelu"),
    *("add", "sub", "mul", "maximum", "minimum", "pow 2", "pow 3", "div", "reciprocal", "sqrt", "pow 0.5", "mod"),
    *("eq", "lt", "le", "gt", "ge", "logical_not", "and", "or", "xor", "where", "isnan"),
    *("hardsigmoid", "hardswish", "sigmoid", "silu", "softsign", "tanh", "erf", "exp", "gelu", "elu", "selu", "celu"),
    *("softplus", "mish", "log", "sin", "cos", "pow", "tan", "atan", "asin", "acos", "sinh", "cosh", "asinh", "acosh"),
    *("atanh", "quantizelinear", "dequantizelinear", "dynamicquantizelinear"),
    *("mean", "sum", "amax", "amin", "prod", "norm", "logsumexp", "argmax", "argmin", "cumsum", "topk"),
    *("softmax", "log_softmax", "batch_norm", "layer_norm", "rms_norm", "group_norm", "instance_norm", "normalize"),
    *("local_response_norm", "max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d"),
    "max_pool2d with indices",
    *("lp_pool1d", "lp_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
    *(
        "adaptive_max_pool1d",
        "adaptive_max_pool2d",
        "copy",
        "cat",
        "repeat",
        "pad",
        "pad reflect",
        "pad edge",
        "flip",
        "index",
        "gather",
    ),
    *("scatter", "one_hot", "tril", "triu", "pixel_shuffle", "pixel_unshuffle", "interpolate nearest"),
    *("interpolate bilinear", "interpolate bicubic", "grid_sample", "fold"),
    *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear", "matmul"),
    *("einsum", "scaled_dot_product_attention", "lstm", "gru", "rnn_tanh", "stft", "dft", "nonzero", "if", MERGED),
)

_CODES = {name: number for number, name in enumerate(KINDS, 1)}

#: Names of powers by their exponents.
_POWERS = {2.0: "pow 2", 3.0: "pow 3", 0.5: "pow 0.5"}

#: Factors of a plain product.
_PAIR = 2

_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")

#: Steps of a recurrent layer that take as long as what it does before the first: 10 to 29 on three machines, two
#: runtimes.
_SET_UP = 15

#: Bytes of an element by its type; of all others 4.
_ITEM_SIZES = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}

_N_WORK, _N_SHAPES, _N_LAYOUT, _N_WINDOWS = 7, 16, 10, 3

#: Number of features of an operator, and of amounts.
N_OWN, N_AMOUNTS = _N_WORK + _N_SHAPES + 2 * len(_LANES) + _N_LAYOUT + _N_WINDOWS, 9


@dataclass(frozen=True)
class DescribedOperator:
    """Encoding of a single operator, without its neighbours.

    Parameters
    ----------
    features : tuple of float
        Features, `N_OWN` of them.
    amounts : tuple of float
        Operations inside of the picture, operations with padded pictures and channels, elements of inputs, outputs and
        weights, elements of weights that are read in a run, calls, inner loops, and operations of a sum of products
        that begins with the first and the last factor.
    kind : int
        Index into `KINDS` plus one; 0 for any other kind.
    uncounted : str
        Its kind if its work is unknown, otherwise empty.
    """

    features: tuple[float, ...]
    amounts: tuple[float, ...]
    kind: int
    uncounted: str


@lru_cache(maxsize=2**15)
def describe_operator(op: OpSpec) -> DescribedOperator:
    """Describe an operator."""
    if op.kind == MERGED:
        return DescribedOperator((0.0,) * N_OWN, (0.0,) * N_AMOUNTS, _CODES[MERGED], "")
    work, counted = work_of(op)
    moved = work.inputs + work.outputs + work.params
    logs = [_log(value) for value in (work.flops, work.inputs, work.outputs, work.params, work.macs, moved)]
    filled = 1 + _waste(_width(op), _LANES[-1]) if work.macs else 1.0
    outer = work_of(_from_both_ends(op))[0].flops if has_several_factors(op) else 0
    steps, directions = _steps(op)
    calls = directions * (steps + _SET_UP) if op.kind in _RECURRENT else 1
    windows = coverage_of(op) if counted else Coverage()
    sizes = (work.inputs, work.outputs, work.params, work.params * steps)
    return DescribedOperator(
        (*logs, _log(work.flops) - _log(moved), *_shape_features(op), *_layout_features(op), *windows.features),
        (*map(float, (work.flops * windows.inside, work.flops * filled, *sizes, calls)), inner_loops(op), float(outer)),
        _CODES.get(name_of(op), 0),
        "" if counted else op.kind,
    )


def has_several_factors(op: OpSpec) -> bool:
    """Whether an operator is a sum of products of three factors or more, whose cost depends on their order.

    Examples
    --------
    >>> has_several_factors(OpSpec.of("einsum", [(1, 4), (4, 4), (1, 4)], equation="bi,ij,bj->b", out=(1,)))
    True
    """
    factors = str(op.get("equation", "")).partition("->")[0].split(",")
    return op.kind == "einsum" and len(op.input_shapes) == len(factors) > _PAIR


def _from_both_ends(op: OpSpec) -> OpSpec:
    """Return a sum of products with the last factor second: OpenVINO begins with the first and the last one.

    Where these have no index in common, their product may be a thousand times as large as the result.
    """
    factors, arrow, result = str(op.get("equation")).partition("->")
    order = [0, len(op.input_shapes) - 1, *range(1, len(op.input_shapes) - 1)]
    equation = ",".join(factors.split(",")[place] for place in order) + arrow + result
    attributes = tuple((name, equation if name == "equation" else value) for name, value in op.attributes)
    return replace(op, input_shapes=tuple(op.input_shapes[place] for place in order), attributes=attributes)


def name_of(op: OpSpec) -> str:
    """Return the name of the kind of an operator, with the mode or the exponent that determines its code."""
    if op.kind == "pow":
        return _POWERS.get(op.get("exponent", 0.0), "pow")
    if op.kind == "interpolate":
        mode = str(op.get("mode", "nearest"))
        return f"interpolate {mode if f'interpolate {mode}' in _CODES else 'bilinear'}"
    if op.get("return_indices") and f"{op.kind} with indices" in _CODES:
        return f"{op.kind} with indices"
    if op.kind == "pad":
        return f"pad {op.get('mode')}" if f"pad {op.get('mode')}" in _CODES else "pad"
    return op.kind


def _steps(op: OpSpec) -> tuple[int, int]:
    """Return the steps of a recurrent layer, at each of which it reads all its weights, and its directions."""
    if op.kind not in _RECURRENT or not op.input_shapes or len(op.input_shapes[0]) < 2:
        return 1, 1
    directions = max(1, str(op.get("weights") or "").count("+") // 3)
    return max(1, op.input_shapes[0][1 if op.get("batch_first") else 0]), directions


def _width(op: OpSpec) -> int:
    """Return the number of outputs that an operator computes from the same inputs side by side."""
    out = out_shape(op)
    channels = int(op.get("out_channels", out[-1] if out else 1))
    return channels if form_of(op) == "depthwise" else max(1, channels // max(1, groups_of(op)))


def _shape_features(op: OpSpec) -> list[float]:
    """Return features of the shapes and attributes of an operator; absent ones are 0."""
    taken = op.input_shapes[0] if op.input_shapes else ()
    given = out_shape(op)
    is_picture = op.kind.startswith(("conv", "max_pool", "avg_pool", "adaptive", "batch_norm"))
    channels_in, channels_out = _channels(taken, is_picture), _channels(given, is_picture)
    if op.kind.startswith("conv"):
        channels_out = int(op.get("out_channels", channels_in))
    groups = groups_of(op)
    window, stride = (size_of_attribute(op.get(name, 1)) for name in ("kernel_size", "stride"))
    area = math.prod(taken[2:]) if is_picture else math.prod(taken[1:-1])
    side = taken[-1] if len(taken) > 2 else 1
    form = form_of(op)
    sizes = [channels_in, channels_out, area, area / max(1.0, stride), side, window, stride, groups]
    flags = [
        float(len(taken)),
        float(form == "depthwise"),
        float(form == "pointwise"),
        float(op.get("learned") is not None),
        float(len(op.input_shapes)),
        _log(channels_in // max(1, groups)),
        _log(channels_out // max(1, groups)),
        _log(taken[0] if taken else 1),
    ]
    # Groups are computed one after another, unless there is one for every channel.
    apart = groups if form == "grouped" else 1
    wastes = [_waste(size // max(1, apart), lanes) for size in (channels_in, channels_out) for lanes in _LANES]
    return [*map(_log, sizes), *flags, *wastes]


def _layout_features(op: OpSpec) -> list[float]:
    """Return features of the order in which an operator meets memory.

    These are the elements that are next to each other, and those along the dimensions that it works on; dilation; the
    last side of a window; the size of the second input relative to the first; bytes of an element; steps and states of
    a recurrent layer, or the size of a window over channels; and the dimensions that a transposition moves, and the
    size of the last one that it writes.
    """
    taken = op.input_shapes[0] if op.input_shapes else ()
    run, length = run_of(op), length_of(op)
    dilation, kernel = size_of_attribute(op.get("dilation", 1)), op.get("kernel_size", 1)
    last = kernel[-1] if isinstance(kernel, tuple) else kernel
    second = math.prod(op.input_shapes[1]) / max(1, math.prod(taken)) if len(op.input_shapes) > 1 else 0.0
    states = op.get("size", op.get("k", 0))
    if op.kind in _RECURRENT:
        out = out_shape(op)
        states = out[-1] if out else 0
    moved = moved_dims(op)
    return [
        _log(run),
        _log(length),
        _log(dilation),
        _log(float(last)),
        max(-8.0, math.log2(second)) if second > 0 else 1.0,
        math.log2(_ITEM_SIZES.get(op.dtype, 4)),
        _log(math.prod(_steps(op))),
        _log(float(states)) if isinstance(states, int) else 0.0,
        float(len(moved)),
        _log(moved[-1][1]) if moved else 0.0,
    ]


def _channels(shape: Sequence[int], is_picture: bool) -> int:
    if len(shape) < 2:
        return shape[0] if shape else 1
    return shape[1] if is_picture or len(shape) > 3 else shape[-1]


def _waste(size: int, lanes: int) -> float:
    return -(-size // lanes) * lanes / size - 1 if size else 0.0


def _log(value: float) -> float:
    return math.log2(1 + max(0.0, value))
