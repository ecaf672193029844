# SPDX-License-Identifier: Apache-2.0
"""Feature functions by operator kind, decomposition of blocks, and operators that cannot be counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace

from nni_latency.errors import InvalidValueError, LatencyError, reason_of
from nni_latency.operators._feature_kinds import CONVOLUTIONS, ELEMENTWISE, PRODUCTS
from nni_latency.operators._features import (
    FeatureFunction,
    Features,
    elements_of,
    learned_shapes,
    make_features,
    outputs_of,
    size_of,
    weights_of,
)
from nni_latency.operators._graph import Graph
from nni_latency.operators._op_spec import OpSpec, Shape, parse_op_keys

_FEATURES: dict[str, FeatureFunction] = {**CONVOLUTIONS, **PRODUCTS, **ELEMENTWISE}

#: Precisions of platforms by element type of networks.
_PRECISIONS = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}

#: Minimum share of a network's work of an element type that counts.
_ENOUGH = 0.1


@dataclass(frozen=True)
class Counted:
    """Total work of several operators.

    Parameters
    ----------
    features : Features
        Sum over the operators.
    uncounted : tuple of str
        Distinct kinds without a feature function: only the elements and bytes that they read and write are counted,
        from their shapes.
    """

    features: Features
    uncounted: tuple[str, ...] = ()


def features_of(op: OpSpec) -> Features:
    """Count the features of an operator.

    Parameters
    ----------
    op : OpSpec
        The operator or block.

    Returns
    -------
    Features
        Counts for the whole batch. For a kind without a feature function, only elements and bytes read and written,
        from the shapes; `work_of` also returns whether that is the case.

    Raises
    ------
    InvalidValueError
        If the kind is known and its shapes or attributes are invalid.

    Examples
    --------
    >>> features_of(OpSpec.of("linear", [(1, 1504)], out_features=10, bias=True)).macs
    15040
    >>> features_of(OpSpec.of("mystery", [(2, 3), (4,)], out=(5, 6))).memory
    160
    """
    return sum(map(_count, _parts(op)), Features())


def work_of(op: OpSpec) -> tuple[Features, bool]:
    """Count the work of any operator.

    Returns
    -------
    features : Features
        Operations and data movement; for operators that cannot be counted, only the elements and bytes read and
        written, from the shapes.
    counted : bool
        Whether feature functions exist for the operator and all its parts.

    Examples
    --------
    >>> features, counted = work_of(OpSpec.of("mystery", [(2, 3), (4,)], out=(5, 6)))
    >>> features.inputs, features.outputs, counted
    (10, 30, False)
    """
    counted = count_operators([op])
    return counted.features, not counted.uncounted


def count_operators(ops: Iterable[OpSpec]) -> Counted:
    """Count operators in total, and list the kinds that cannot be counted.

    Examples
    --------
    >>> counted = count_operators([OpSpec.of("relu", [(1, 4)]), OpSpec.of("strange", [(1, 4)])])
    >>> counted.features.flops, counted.features.outputs, counted.uncounted
    (4, 8, ('strange',))
    """
    total = Features()
    uncounted: dict[str, None] = {}
    for op in ops:
        try:
            parts = _parts(op)
        except InvalidValueError:
            parts = [op]
        for part in parts:
            features, counted = _count_anyway(part)
            total += features
            if not counted:
                uncounted[part.kind] = None
    return Counted(total, tuple(uncounted))


def count_graph(graph: Graph) -> Counted:
    """Count the operators of a network in total; shared parameters are counted once.

    Parameters
    ----------
    graph : Graph
        Graph as returned by `nni_latency.operators.trace` and `read_onnx`. If it does not identify shared parameters,
        they are counted at every use.

    Examples
    --------
    >>> from nni_latency.operators import TracedOperator
    >>> linear = OpSpec.of("linear", [(1, 4)], out_features=4)
    >>> twice = TracedOperator("a", linear, parameters=16), TracedOperator("a", linear, (0,), parameters=0)
    >>> found = count_graph(Graph(twice, 2)).features
    >>> found.macs, found.params
    (32, 16)
    """
    counted = count_operators(item.op for item in graph.operators)
    once = [item.parameters for item in graph.operators if item.parameters is not None]
    if len(once) < len(graph.operators):
        return counted
    return replace(counted, features=replace(counted.features, params=sum(once)))


def supported_kinds() -> list[str]:
    """List the operator kinds that have a feature function."""
    return sorted({*_FEATURES, *COMPOSITES})


def _parts(op: OpSpec) -> list[OpSpec]:
    """Decompose a block, or raise `InvalidValueError`."""
    with _fitting(op):
        return parts_of(op)


def _count(op: OpSpec) -> Features:
    """Count an operator without parts, or raise `InvalidValueError`."""
    if op.kind not in _FEATURES:
        return _moved(op)
    with _fitting(op):
        return _FEATURES[op.kind](op)


def _count_anyway(op: OpSpec) -> tuple[Features, bool]:
    """Count an operator without parts, from its shapes if its kind is unknown."""
    try:
        return _count(op), op.kind in _FEATURES
    except InvalidValueError:
        return _moved(op), False


@contextmanager
def _fitting(op: OpSpec) -> Iterator[None]:
    """Add the operator to errors about its attributes."""
    try:
        yield
    except LatencyError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise InvalidValueError(
            f"The shapes and attributes of {op.op_key} do not fit its kind: {reason_of(error)}"
        ) from error


def _moved(op: OpSpec) -> Features:
    """Count reads and writes, which follow from the shapes."""
    try:
        return make_features(op, outputs_of(op))
    except (InvalidValueError, TypeError, ValueError, AttributeError):
        # Attributes other than shapes of weights or outputs.
        elements = elements_of(op)
        return Features(memory=2 * size_of(op) * elements, inputs=elements, outputs=elements)


def parts_of(op: OpSpec) -> list[OpSpec]:
    """Decompose a block into its operators; any other operator is its only part.

    Blocks are the kinds used by the spaces of this package, and user modules that call several functions, which are
    listed in the attribute ``calls``.

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
    """Describe convolution, normalisation and, optionally, activation."""
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
    """Decompose the block of MobileNetV3: no first convolution without expansion, optional squeeze and excitation."""
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
    """Describe the projections, attention, the optional mean of the heads, and the last projection.

    Query, key and value have the tokens first: (tokens, batch, channels).
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


#: Decomposition of each block into its operators.
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


def require_operators(operators: Sized, name: str) -> None:
    """Raise `InvalidValueError` if a network has no operators, such as one that only reshapes."""
    if not len(operators):
        raise InvalidValueError(f"{name!r} has no operators: nothing in it takes time.")


def precision_remarks(ops: Iterable[OpSpec], precision: str) -> tuple[str, ...]:
    """Return a remark if a network computes in other element types than a platform.

    Parameters
    ----------
    ops : iterable of OpSpec
        Operators of the network.
    precision : str
        Precision of the platform. For fp32, a network in single precision is expected; for others, the runtime converts
        it.

    Returns
    -------
    tuple of str
        At most one remark, without a full stop.

    Examples
    --------
    >>> half = OpSpec.of("linear", [(1, 8)], dtype="float16", out_features=8, bias=False)
    >>> precision_remarks([half], "fp32"), precision_remarks([half], "fp16")
    (('the network computes in float16: it is answered as one in fp32',), ())
    """
    known = list(ops)
    if {_PRECISIONS.get(op.dtype, "fp32") for op in known} <= {precision, "fp32"}:
        return ()
    work: Counter[str] = Counter()
    for op in known:
        features, _ = work_of(op)
        work[op.dtype] += features.flops + features.inputs + features.outputs + features.params
    other = [
        dtype
        for dtype, amount in work.items()
        if dtype in _PRECISIONS
        and _PRECISIONS[dtype] not in (precision, "fp32")
        and amount >= _ENOUGH * sum(work.values())
    ]
    if not other:
        return ()
    return (f"the network computes in {' and '.join(sorted(other))}: it is answered as one in {precision}",)
