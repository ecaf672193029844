"""Families of operators: which of them run through the same code."""

from __future__ import annotations

import math

from nni_latency.operators._op_spec import OpSpec

_GROUPS = {
    "matrix product": ("linear", "matmul", "bmm", "mm", "addmm", "baddbmm", "einsum", "bilinear"),
    "attention": ("scaled_dot_product_attention", "multi_head_attention", "multi_head_attention_forward"),
    "normalisation": ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "local_response_norm"),
    "softmax": ("softmax", "log_softmax", "softmin"),
    "reduction": ("mean", "sum", "amax", "amin", "var", "std", "norm", "argmax", "argmin", "global_average_pool"),
    "lookup": ("index", "index_select", "embedding", "embedding_bag", "gather", "take_along_dim"),
    "movement": ("cat", "stack", "copy", "pad", "channel_shuffle", "pixel_shuffle", "pixel_unshuffle", "roll", "flip"),
}

_GROUP_OF = {kind: group for group, kinds in _GROUPS.items() for kind in kinds}


def form_of(op: OpSpec) -> str | None:
    """Name the form of a convolution: depthwise, grouped, pointwise or dense; None for any other operator."""
    groups, window = op.get("groups", 1 if op.kind.startswith("conv") else None), op.get("kernel_size")
    if not isinstance(groups, int) or window is None:
        return None
    if groups > 1:
        return "depthwise" if groups == op.input_shapes[0][1] else "grouped"
    return "pointwise" if size_of_attribute(window) == 1 else "dense"


def family_of(op: OpSpec) -> str:
    """Name the family of an operator: its kind, and for convolutions the form, which decides what code they run.

    Examples
    --------
    >>> family_of(OpSpec.of("conv2d", [(1, 8, 4, 4)], out_channels=8, kernel_size=3, stride=1, groups=8))
    'conv2d depthwise'
    """
    # A block that begins with a convolution, and names no groups, is a family of its own.
    form = form_of(op) if isinstance(op.get("groups"), int) else None
    return op.kind if form is None else f"{op.kind} {form}"


def group_of(op: OpSpec) -> str:
    """Name the group of families that an operator belongs to: work of one group has the same efficiency.

    Examples
    --------
    >>> group_of(OpSpec.of("conv2d", [(1, 8, 4, 4)], out_channels=8, kernel_size=3, stride=1, groups=8))
    'depthwise convolution'
    """
    if op.kind.startswith("conv_transpose"):
        return "transposed convolution"
    if op.kind.startswith("conv"):
        return f"{form_of(op)} convolution"
    if "pool" in op.kind and op.kind != "global_average_pool":
        if op.kind.startswith("adaptive"):
            return "reduction"
        return "max pooling" if op.kind.startswith("max") else "average pooling"
    return _GROUP_OF.get(op.kind, "elementwise")


def size_of_attribute(value: object) -> float:
    """Return the product of an attribute that is several numbers, or the one number that it is."""
    return math.prod(value) if isinstance(value, tuple) else float(value)  # type: ignore[arg-type]
