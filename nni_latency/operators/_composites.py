"""Blocks, each taken apart into the operators that it runs."""

from __future__ import annotations

from collections.abc import Callable

from nni_latency.operators._features import learned_shapes, weights_of
from nni_latency.operators._op_key import parse_op_keys
from nni_latency.operators._op_spec import OpSpec, Shape


def parts_of(op: OpSpec) -> list[OpSpec]:
    """Take a block apart into the operators that it runs; any other operator is its only part.

    Blocks are the kinds that the spaces of this package describe themselves by, and modules of somebody's own that call
    several functions: those are listed in the attribute ``calls``.

    Examples
    --------
    >>> block = OpSpec.of("conv_block", [(1, 3, 8, 8)], out_channels=16, kernel_size=3, stride=2, relu=True)
    >>> [part.kind for part in parts_of(block)]
    ['conv2d', 'batch_norm', 'relu']
    """
    calls = op.get("calls")
    if isinstance(calls, str):
        return [part for call in parse_op_keys(calls) for part in parts_of(call)]
    return COMPOSITES[op.kind](op) if op.kind in COMPOSITES else [op]


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
    """Take apart the block of MobileNetV3: no first convolution without expansion, optional squeeze and excitation."""
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


def _multi_head_attention(op: OpSpec) -> list[OpSpec]:
    """Describe the projections, attention, the mean of the heads if it is asked for, and the last projection.

    Query, key and value come with the tokens first: (tokens, batch, channels).
    """
    query, key, value = op.input_shapes[:3]
    width, heads = (int(op.get(name)) for name in ("embed_dim_to_check", "num_heads"))
    bias = any(len(shape) == 1 for shape in weights_of(op))
    batch = query[1] if len(query) == 3 else 1
    packed = query == key == value and not op.get("use_separate_proj_weight")
    inner = [(query, 3 * width)] if packed else [(query, width), (key, width), (value, width)]
    parts = [OpSpec.of("linear", [shape], dtype=op.dtype, out_features=out, bias=bias) for shape, out in inner]
    for place, own in enumerate(learned_shapes(op)[: len(parts)]):
        if own is not None:
            parts[place] = parts[place].replace(learned="x".join(map(str, own)))
    asked, known = ((batch, heads, shape[0], width // heads) for shape in (query, key))
    parts.append(OpSpec.of("scaled_dot_product_attention", [asked, known, known], dtype=op.dtype))
    if op.get("need_weights"):
        scores = (batch, heads, query[0], key[0])
        parts.append(OpSpec.of("mean", [scores], dtype=op.dtype, dim=1, out=(batch, query[0], key[0])))
    last = (query[0], batch, width)
    return [*parts, OpSpec.of("linear", [last], dtype=op.dtype, out_features=width, bias=bias)]


#: Blocks, each taken apart into the operators that it runs.
COMPOSITES: dict[str, Callable[[OpSpec], list[OpSpec]]] = {
    "conv_block": _conv_block,
    "inverted_residual": _inverted_residual,
    "expanded_conv": _expanded_conv,
    "classification_head": _classification_head,
    "multi_head_attention_forward": _multi_head_attention,
}


def _strided(size: int, stride: int) -> int:
    """Return the output size of a 'same'-padded window: the input size over the stride, rounded up."""
    return -(-size // stride)
