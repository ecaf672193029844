"""Feature functions: a table from operator kind to a small pure function of its `OpSpec`.

Multiply-adds and FLOPs are two numbers here and never share a name: a multiply-add is two floating-point operations,
and normalisation, activation, addition and pooling are floating-point operations without any multiply-add.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass

from nni_latency.errors import UnknownNameError
from nni_latency.operators._op_spec import OpSpec, Shape

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


@dataclass(frozen=True)
class Features:
    """What an operator computes, counted without running it.

    Parameters
    ----------
    macs : int
        Multiply-adds of convolutions and matrix products (what papers often print as "FLOPs").
    flops : int
        Floating-point operations: two a multiply-add, plus those of all other operators.
    acts : int
        ACTS: output elements of the convolutions.
    inp : int
        INP: input elements of the convolutions.
    params : int
        Parameters.
    memory : int
        Bytes read and written once: inputs, outputs and parameters [byte].
    inputs, outputs : int
        Input and output elements of every operator, convolution or not.
    """

    macs: int = 0
    flops: int = 0
    acts: int = 0
    inp: int = 0
    params: int = 0
    memory: int = 0
    inputs: int = 0
    outputs: int = 0

    def __add__(self, other: Features) -> Features:
        """Add feature by feature."""
        return Features(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


FeatureFunction = Callable[[OpSpec], Features]


def features_of(op: OpSpec) -> Features:
    """Count the features of an operator.

    Parameters
    ----------
    op : OpSpec
        The operator or block.

    Returns
    -------
    Features
        Counts for the whole batch.

    Raises
    ------
    UnknownNameError
        If the kind has no feature function: never a silent zero.

    Examples
    --------
    >>> features_of(OpSpec.of("linear", [(1, 1504)], out_features=10, bias=True)).macs
    15040
    """
    if op.kind in _COMPOSITES:
        return sum(map(features_of, parts_of(op)), Features())
    if op.kind not in _FEATURES:
        raise UnknownNameError.of("operator kind", op.kind, supported_kinds())
    return _FEATURES[op.kind](op)


def parts_of(op: OpSpec) -> list[OpSpec]:
    """Take a block apart into the operators that it runs; any other operator is its own only part.

    Examples
    --------
    >>> block = OpSpec.of("conv_block", [(1, 3, 8, 8)], out_channels=16, kernel_size=3, stride=2, relu=True)
    >>> [part.kind for part in parts_of(block)]
    ['conv2d', 'batch_norm', 'relu']
    """
    return _COMPOSITES[op.kind](op) if op.kind in _COMPOSITES else [op]


def supported_kinds() -> list[str]:
    """List the operator kinds that have a feature function."""
    return sorted({*_FEATURES, *_COMPOSITES})


def _conv2d(op: OpSpec) -> Features:
    batch, channels, height, width = op.input_shapes[0]
    window = math.prod(_pair(op["kernel_size"])) * (channels // op["groups"])
    out = op["out_channels"]
    outputs = batch * out * math.prod(_convolved((height, width), op))
    weights = out * window
    macs = outputs * window
    inputs = math.prod(op.input_shapes[0])
    params = weights + out * bool(op.get("bias"))
    flops = 2 * macs + outputs * bool(op.get("bias"))
    return Features(macs, flops, outputs, inputs, params, _size(op) * (inputs + outputs + params), inputs, outputs)


def _linear(op: OpSpec) -> Features:
    *rows, features = op.input_shapes[0]
    out = op["out_features"]
    outputs = math.prod(rows) * out
    params = features * out + out * bool(op["bias"])
    macs = outputs * features
    inputs = math.prod(op.input_shapes[0])
    return Features(
        macs=macs,
        flops=2 * macs + outputs * bool(op["bias"]),
        params=params,
        memory=_size(op) * (inputs + outputs + params),
        inputs=inputs,
        outputs=outputs,
    )


def _batch_norm(op: OpSpec) -> Features:
    elements, channels = math.prod(op.input_shapes[0]), op.input_shapes[0][1]
    # In inference the statistics fold into one scale and one shift.
    memory = _size(op) * (2 * elements + 4 * channels)
    return Features(flops=2 * elements, params=2 * channels, memory=memory, inputs=elements, outputs=elements)


def _elementwise(op: OpSpec) -> Features:
    inputs = sum(math.prod(shape) for shape in op.input_shapes)
    outputs = math.prod(op.input_shapes[0])
    return Features(flops=outputs, memory=_size(op) * (inputs + outputs), inputs=inputs, outputs=outputs)


def _rearrange(op: OpSpec) -> Features:
    elements = math.prod(op.input_shapes[0])
    return Features(memory=_size(op) * 2 * elements, inputs=elements, outputs=elements)


def _global_average_pool(op: OpSpec) -> Features:
    elements = math.prod(op.input_shapes[0])
    outputs = math.prod(op.input_shapes[0][:2])
    return Features(flops=elements, memory=_size(op) * (elements + outputs), inputs=elements, outputs=outputs)


def _nothing(op: OpSpec) -> Features:
    return Features()


_FEATURES: dict[str, FeatureFunction] = {
    "conv2d": _conv2d,
    "linear": _linear,
    "batch_norm": _batch_norm,
    "relu": _elementwise,
    "add": _elementwise,
    "multiply": _elementwise,
    "channel_shuffle": _rearrange,
    "global_average_pool": _global_average_pool,
    "identity": _nothing,
}


def _conv_bn_parts(
    op: OpSpec, shape: Shape, out: int, *, kernel: int = 1, stride: int = 1, groups: int = 1, relu: bool = True
) -> list[OpSpec]:
    """Describe convolution, normalisation and, if asked for, activation."""
    batch, _, height, width = shape
    after = (batch, out, _strided(height, stride), _strided(width, stride))
    parts = [
        OpSpec.of(
            "conv2d", [shape], dtype=op.dtype, out_channels=out, kernel_size=kernel, stride=stride, groups=groups
        ),
        OpSpec.of("batch_norm", [after], dtype=op.dtype),
    ]
    return [*parts, OpSpec.of("relu", [after], dtype=op.dtype)] if relu else parts


def _conv_block(op: OpSpec) -> list[OpSpec]:
    return _conv_bn_parts(
        op,
        op.input_shapes[0],
        op["out_channels"],
        kernel=op["kernel_size"],
        stride=op["stride"],
        relu=bool(op["relu"]),
    )


def _inverted_residual(op: OpSpec) -> list[OpSpec]:
    shape = op.input_shapes[0]
    batch, channels, height, width = shape
    middle, out, stride, groups = channels * op["expansion"], op["out_channels"], op["stride"], op["groups"]
    wide, narrow = (batch, middle, height, width), (batch, middle, _strided(height, stride), _strided(width, stride))
    final = (batch, out, *narrow[2:])
    parts = _conv_bn_parts(op, shape, middle, groups=groups)
    parts += [OpSpec.of("channel_shuffle", [wide], dtype=op.dtype)] if groups > 1 else []
    parts += _conv_bn_parts(op, wide, middle, kernel=op["kernel_size"], stride=stride, groups=middle)
    parts += _conv_bn_parts(op, narrow, out, groups=groups, relu=False)
    parts += [OpSpec.of("channel_shuffle", [final], dtype=op.dtype)] if groups > 1 else []
    parts += [OpSpec.of("add", [final, final], dtype=op.dtype)] if stride == 1 and channels == out else []
    return parts


def _expanded_conv(op: OpSpec) -> list[OpSpec]:
    """Take apart the block of MobileNetV3: no first convolution without widening, perhaps squeeze and excitation."""
    shape = op.input_shapes[0]
    batch, channels, height, width = shape
    middle, stride = op["channels"], op["stride"]
    inner = (batch, middle, _strided(height, stride), _strided(width, stride))
    final = (batch, op["out_channels"], *inner[2:])
    parts = _conv_bn_parts(op, shape, middle) if middle != channels else []
    parts += _conv_bn_parts(
        op, (batch, middle, height, width), middle, kernel=op["kernel_size"], stride=stride, groups=middle
    )
    parts += _squeeze_and_excite(op, inner) if op["squeeze_excite"] else []
    parts += _conv_bn_parts(op, inner, op["out_channels"], relu=False)
    return [*parts, OpSpec.of("add", [final, final], dtype=op.dtype)] if op["residual"] else parts


def _squeeze_and_excite(op: OpSpec, shape: Shape) -> list[OpSpec]:
    """Describe the gate of arXiv:1905.02244: average, two 1x1 convolutions with a quarter of the channels between."""
    batch, channels = shape[:2]
    quarter, small = max(8, (channels // 4 + 4) // 8 * 8), (batch, channels, 1, 1)
    quarter += 8 * (quarter < 0.9 * (channels // 4))
    narrow = (batch, quarter, 1, 1)
    options = {"kernel_size": 1, "stride": 1, "groups": 1, "bias": True}
    return [
        OpSpec.of("global_average_pool", [shape], dtype=op.dtype),
        OpSpec.of("conv2d", [small], dtype=op.dtype, out_channels=quarter, **options),
        OpSpec.of("relu", [narrow], dtype=op.dtype),
        OpSpec.of("conv2d", [narrow], dtype=op.dtype, out_channels=channels, **options),
        OpSpec.of("multiply", [shape, small], dtype=op.dtype),
    ]


def _classification_head(op: OpSpec) -> list[OpSpec]:
    batch, _, height, width = op.input_shapes[0]
    wide = (batch, op["channels"], height, width)
    return [
        *_conv_bn_parts(op, op.input_shapes[0], op["channels"]),
        OpSpec.of("global_average_pool", [wide], dtype=op.dtype),
        OpSpec.of("linear", [wide[:2]], dtype=op.dtype, out_features=op["num_classes"], bias=True),
    ]


#: Blocks, each taken apart into the operators that it runs.
_COMPOSITES: dict[str, Callable[[OpSpec], list[OpSpec]]] = {
    "conv_block": _conv_block,
    "inverted_residual": _inverted_residual,
    "expanded_conv": _expanded_conv,
    "classification_head": _classification_head,
}


def _strided(size: int, stride: int) -> int:
    """Return the output size of a 'same'-padded window: the input size over the stride, rounded up."""
    return -(-size // stride)


def _convolved(sizes: Shape, op: OpSpec) -> list[int]:
    """Return height and width of a convolution's output; without 'padding' the window is 'same'-padded."""
    kernel, stride, dilation = _pair(op["kernel_size"]), _pair(op["stride"]), _pair(op.get("dilation", 1))
    if op.get("padding") is None:
        return [_strided(size, step) for size, step in zip(sizes, stride, strict=True)]
    padding = _pair(op["padding"])
    return [
        (size + 2 * side - gap * (window - 1) - 1) // step + 1
        for size, side, gap, window, step in zip(sizes, padding, dilation, kernel, stride, strict=True)
    ]


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


def _size(op: OpSpec) -> int:
    return _BYTES.get(op.dtype, 4)
