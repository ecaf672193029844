# SPDX-License-Identifier: Apache-2.0
"""`kernel_of`: the kernel that fused operators form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from nni_latency.kernels._catalogue import MOST_CHANNELS, kernel_name
from nni_latency.kernels._kernel import Kernel
from nni_latency.kernels._layers import ACTIVATIONS
from nni_latency.operators import OpSpec, form_of, given_shapes

#: Kinds of operators without effect at inference.
_NOTHING = ("identity", "dropout")

_ACTIVATIONS = {**{kind: name for name, kind in ACTIVATIONS.items()}, "hard_swish": "hswish"}

#: Names of bounds in the attributes of a clamped activation.
_BOUNDS = (("min_val", "max_val"), ("min", "max"), ("arg0", "arg1"))

_GATES = ("sigmoid", "hardsigmoid")


def kernel_of(ops: Sequence[OpSpec]) -> Kernel | None:
    """Identify the kernel that fused operators form.

    Parameters
    ----------
    ops : sequence of OpSpec
        The operators of one kernel in order, as returned by `nni_latency.operators.trace`.

    Returns
    -------
    Kernel or None
        None if they form no kernel of the catalogue. A non-square image counts as the square one with as many pixels.

    Examples
    --------
    >>> sizes = {"out_channels": 8, "kernel_size": 3, "stride": 2, "groups": 1, "bias": True}
    >>> kernel_of([OpSpec.of("conv2d", [(1, 3, 32, 32)], **sizes), OpSpec.of("relu", [(1, 8, 16, 16)])]).key
    'conv_relu(CIN=3,COUT=8,HW=32,KERNEL_SIZE=3,STRIDES=2)'
    """
    parts = [op for op in ops if op.kind not in _NOTHING]
    if not parts:
        return None
    first, *rest = parts
    found = _squeeze_excite(parts) or _chain(first, rest)
    if found is None:
        return None
    kind, sizes = found
    batch = next((shape[0] for shape in first.input_shapes if shape), 1)
    # Kernel types have batch size 1; the additional size marks other kernels as out of range of their type.
    extra = {"BATCH": batch} if batch > 1 else {}
    return Kernel.of(kind, **sizes, **extra)


Found = tuple[str, dict[str, int]]


def _chain(first: OpSpec, rest: Sequence[OpSpec]) -> Found | None:
    """Return the kernel of an operator with others fused to its output."""
    ends = [_end_of(op) for op in rest]
    bn = bool(ends) and ends[0] == "bn"
    activations = ends[bn:]
    if len(activations) > 1 or any(end in (None, "bn") for end in activations):
        return None
    activation = str(activations[0]) if activations else ""
    based = _based(first)
    if based is not None:
        base, sizes = based
        # A leading normalisation is the base.
        return (kernel_name(base, bn=bn, activation=activation), sizes)
    return None if rest else _single(first)


def _end_of(op: OpSpec) -> str | None:
    """Return the suffix for an operator after the first: bn or an activation."""
    return "bn" if op.kind == "batch_norm" else activation_of(op)


def activation_of(op: OpSpec) -> str | None:
    """Return the name of an activation in kernels; None for any other operator."""
    if op.kind in ("hardtanh", "clamp", "clip"):
        bounds = [op.get(name) for pair in _BOUNDS for name in pair if op.get(name) is not None]
        # The node of an ONNX file does not contain its bounds.
        return "relu6" if bounds in ([], [0, 6]) else None
    return _ACTIVATIONS.get(op.kind)


def _based(op: OpSpec) -> Found | None:
    """Return the base of a kernel and its sizes."""
    maker = _BASES.get(op.kind)
    return maker(op) if maker is not None else None


def _square(value: Any) -> int | None:
    """Return the size of a window that is equal in all directions; None for others."""
    return value if isinstance(value, int) else None


def _side(shape: Sequence[int]) -> int:
    """Return the side of the square image with as many pixels."""
    return max(1, round(math.sqrt(math.prod(shape[2:]))))


def _convolution(op: OpSpec) -> Found | None:
    window, stride = _square(op.get("kernel_size")), _square(op.get("stride"))
    shape = op.input_shapes[0]
    if window is None or stride is None or op.get("dilation") is not None or len(shape) != int(op.kind[-2]) + 2:
        return None
    sizes = {"CIN": shape[1], "KERNEL_SIZE": window, "STRIDES": stride}
    if op.kind == "conv1d":
        return ("conv1d", {**sizes, "LENGTH": shape[2], "COUT": op["out_channels"]}) if op["groups"] == 1 else None
    sizes["HW"] = _effective_side(op, window, stride)
    form = form_of(op)
    if form == "depthwise" and op["out_channels"] == shape[1]:
        return "dwconv", sizes
    sizes["COUT"] = op["out_channels"]
    return ("gconv", {**sizes, "GROUPS": op["groups"]}) if op["groups"] > 1 else ("conv", sizes)


def _effective_side(op: OpSpec, window: int, stride: int) -> int:
    """Return the side of the input; without 'same' padding, the side that gives an output of the same size."""
    side, padding = _side(op.input_shapes[0]), op.get("padding")
    if not isinstance(padding, int) or padding == (window - 1) // 2:
        return side
    out = (side + 2 * padding - window) // stride + 1
    return max(1, min(side, out * stride))


def _transposed(op: OpSpec) -> Found | None:
    window, stride = _square(op.get("kernel_size")), _square(op.get("stride"))
    if window is None or stride is None or stride < 2 or op.get("dilation", 1) != 1 or op.get("groups", 1) != 1:
        return None
    shape = op.input_shapes[0]
    sizes = {"HW": _side(shape), "CIN": shape[1], "COUT": op["out_channels"]}
    return "convtranspose", {**sizes, "KERNEL_SIZE": window, "STRIDES": stride}


def _linear(op: OpSpec) -> Found:
    *rows, width = op.input_shapes[0]
    sizes = {"CIN": width, "COUT": op["out_features"]}
    count = math.prod(rows[1:])
    return ("fc", sizes) if count == 1 else ("linear", {**sizes, "TOKENS": count})


def _image_sizes(op: OpSpec) -> dict[str, int]:
    """Return the sizes of an image; tokens count as the image with as many pixels."""
    shape = given_shapes(op)[0]
    if len(shape) == 3:
        return {"HW": max(1, round(math.sqrt(shape[1]))), "CIN": shape[2]}
    if len(shape) < 3:
        return _row_sizes(shape[-1] if shape else 1)
    return {"HW": _side(shape), "CIN": shape[1]}


def _row_sizes(numbers: int) -> dict[str, int]:
    """Return the sizes of an image with as many elements as a vector, of one pixel unless the vector is long."""
    side = math.ceil(math.sqrt(numbers / MOST_CHANNELS))
    return {"HW": side, "CIN": max(1, round(numbers / side**2))}


def _of_two(base: str) -> Callable[[OpSpec], Found | None]:
    """Match arithmetic of two tensors of one shape."""

    def named(op: OpSpec) -> Found | None:
        shapes = given_shapes(op)
        return (base, _image_sizes(op)) if len(shapes) == 2 and shapes[0] == shapes[1] else None

    return named


def _product(op: OpSpec) -> Found | None:
    """Match a product of two tensors of one shape, or of an image and one factor per channel."""
    small, *large = sorted(given_shapes(op), key=math.prod)
    if len(large) == 1 and len(large[0]) == 4 and small == (*large[0][:2], 1, 1) != large[0]:
        return "scale_block", {"HW": _side(large[0]), "CIN": large[0][1]}
    return _of_two("mul_block")(op)


_BASES: dict[str, Callable[[OpSpec], Found | None]] = {
    "conv1d": _convolution,
    "conv2d": _convolution,
    "conv_transpose2d": _transposed,
    "linear": _linear,
    "batch_norm": lambda op: ("bn", _image_sizes(op)),
    "add": _of_two("add"),
}


def _single(op: OpSpec) -> Found | None:
    """Return the kernel of a single operator."""
    activation = activation_of(op)
    if activation == "gelu":
        return "gelu_block", _token_sizes(op)
    if activation is not None:
        return f"{activation}_block", _image_sizes(op)
    maker = _SINGLES.get(op.kind)
    return maker(op) if maker is not None and op.input_shapes and op.input_shapes[0] else None


def _token_sizes(op: OpSpec) -> dict[str, int]:
    """Return the sizes of a sequence; the pixels of an image are tokens."""
    shape = given_shapes(op)[0]
    if len(shape) == 4:
        return {"TOKENS": shape[2] * shape[3], "CIN": shape[1]}
    return {"TOKENS": max(1, math.prod(shape[1:-1])), "CIN": shape[-1]}


def _pooling(op: OpSpec) -> Found | None:
    window, shape = _square(op.get("kernel_size")), op.input_shapes[0]
    stride = _square(op.get("stride", window))
    if window is None or stride is None or op.get("dilation", 1) != 1:
        return None
    return f"{op.kind[:3]}pool_block", {
        "HW": _side(shape),
        "CIN": shape[1],
        "KERNEL_SIZE": window,
        "POOL_STRIDES": stride,
    }


def _adaptive(op: OpSpec) -> Found | None:
    """Match pooling to a given size, by its effective window."""
    shape, out = op.input_shapes[0], op.get("out", op.input_shapes[0])
    sizes = {"HW": _side(shape), "CIN": shape[1]}
    if math.prod(out[2:]) == 1 and "avg" in op.kind:
        return "globalavgpool_block", sizes
    window = max(1, _side(shape) // _side(out))
    return f"{op.kind.split('_')[1]}pool_block", {**sizes, "KERNEL_SIZE": window, "POOL_STRIDES": window}


def _mean(op: OpSpec) -> Found | None:
    """Match a mean over the pixels of an image, or over tokens."""
    shape, over = op.input_shapes[0], op.get("dim")
    if len(shape) == 4 and over in ((2, 3), (-2, -1), (-1, -2)):
        return "globalavgpool_block", {"HW": _side(shape), "CIN": shape[1]}
    return ("mean_block", _token_sizes(op)) if len(shape) == 3 and over in (1, -2) else None


def _concat(op: OpSpec) -> Found | None:
    """Match a concatenation of channels; with more than four inputs, the excess ones count as one."""
    shapes = op.input_shapes
    if op.get("dim", 1) not in (1, -3) or len(shapes) < 2 or len(shapes[0]) != 4:
        return None
    channels = [shape[1] for shape in shapes]
    channels = [*channels[:3], sum(channels[3:])] + [0] * (3 - len(channels))
    return "concat_block", {"HW": _side(shapes[0]), **{f"CIN{place + 1}": channels[place] for place in range(4)}}


def _copy(op: OpSpec) -> Found | None:
    """Match the copy of a channel shuffle, which transposes groups and channels or follows the transposition."""
    shape, out = op.input_shapes[0], op.get("out", ())
    if len(shape) != 5:
        return None
    # An ONNX file has the transposition as an operator, a trace of torch the resulting copy.
    channels = shape[1] * shape[2]
    is_exchange = tuple(out) == (shape[0], shape[2], shape[1], *shape[3:])
    is_copy = tuple(out) == (shape[0], channels, *shape[3:])
    if not (is_exchange and shape[1] == 2) and not (is_copy and shape[2] == 2):
        return None
    return "channel_shuffle", {"HW": _side((shape[0], channels, *shape[3:])), "CIN": channels}


def _halves(kind: str) -> Callable[[OpSpec], Found | None]:
    return lambda op: (kind, {"HW": _side(op.input_shapes[0]), "CIN": op.input_shapes[0][1]})


def _resize(op: OpSpec) -> Found | None:
    shape, out = op.input_shapes[0], op.get("out", ())
    if len(shape) != 4 or len(out) != 4 or out[2] % shape[2] or out[2] == shape[2]:
        return None
    return "resize_block", {"HW": _side(shape), "CIN": shape[1], "SCALE": out[2] // shape[2]}


def _softmax(op: OpSpec) -> Found:
    *rows, columns = op.input_shapes[0]
    heads = rows[1] if len(rows) == 3 else 1
    return "softmax_block", {"HEADS": heads, "ROWS": max(1, math.prod(rows[1:]) // heads), "COLUMNS": columns}


def _matmul(op: OpSpec) -> Found | None:
    if len(op.input_shapes) != 2 or min(map(len, op.input_shapes)) < 2:
        return None
    first, second = op.input_shapes
    heads = max(1, math.prod(first[1:-2]))
    return "matmul_block", {"HEADS": heads, "ROWS": first[-2], "INNER": first[-1], "COLUMNS": second[-1]}


def _attention(op: OpSpec) -> Found | None:
    shape = op.input_shapes[0]
    if len(shape) != 4:
        return None
    return "attention_block", {"HEADS": shape[1], "TOKENS": shape[2], "CHANNELS": shape[3]}


_SINGLES: dict[str, Callable[[OpSpec], Found | None]] = {
    "max_pool2d": _pooling,
    "avg_pool2d": _pooling,
    "adaptive_avg_pool2d": _adaptive,
    "adaptive_max_pool2d": _adaptive,
    "global_average_pool": _halves("globalavgpool_block"),
    "mean": _mean,
    "cat": _concat,
    "copy": _copy,
    "channel_shuffle": _halves("channel_shuffle"),
    "split": _halves("split_block"),
    "chunk": _halves("split_block"),
    "mul": _product,
    "layer_norm": lambda op: ("layernorm_block", _token_sizes(op)),
    "softmax": _softmax,
    "matmul": _matmul,
    "bmm": _matmul,
    "scaled_dot_product_attention": _attention,
    "interpolate": _resize,
}


def _squeeze_excite(ops: Sequence[OpSpec]) -> Found | None:
    """Match squeeze-and-excitation: an average, two pointwise layers, and a product with the input."""
    kinds = [op.kind for op in ops]
    if len(ops) not in (5, 6) or kinds[-1] not in ("mul", "multiply") or (len(ops) == 6 and kinds[-2] not in _GATES):
        return None
    if _adaptive_or_mean(ops[0]) != "globalavgpool_block" or activation_of(ops[2]) is None:
        return None
    if {kinds[1], kinds[3]} - {"conv2d", "linear"}:
        return None
    return "se_block", {"HW": _side(ops[0].input_shapes[0]), "CIN": ops[0].input_shapes[0][1]}


def _adaptive_or_mean(op: OpSpec) -> str | None:
    found = _single(op) if op.kind in ("adaptive_avg_pool2d", "mean", "global_average_pool") else None
    return found[0] if found else None
