"""What one call of a torch function computes: from its name, arguments and result to an `OpSpec`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from nni_latency.operators._op_spec import OpSpec

#: Functions that only look at memory in another way, as long as they return the same memory.
VIEWS = frozenset(
    {
        *("__getitem__", "as_strided", "chunk", "contiguous", "detach", "diagonal", "expand", "expand_as", "flatten"),
        *(
            "movedim",
            "narrow",
            "permute",
            "ravel",
            "reshape",
            "select",
            "split",
            "split_with_sizes",
            "squeeze",
            "swapaxes",
        ),
        *("t", "tensor_split", "to", "transpose", "type_as", "unbind", "unflatten", "unfold", "unsqueeze", "view"),
        *("view_as", "float", "half", "bfloat16", "double", "broadcast_to", "requires_grad_"),
    }
)

#: What does nothing in evaluation mode.
IDLE = frozenset(
    {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "dropout_", "_assert"}
)

#: Functions of one number and one tensor, or of two tensors, number by number.
_ARITHMETIC = {
    "add": "add",
    "radd": "add",
    "iadd": "add",
    "sub": "sub",
    "rsub": "sub",
    "isub": "sub",
    "subtract": "sub",
    "mul": "mul",
    "rmul": "mul",
    "imul": "mul",
    "multiply": "mul",
    "div": "div",
    "true_divide": "div",
    "truediv": "div",
    "rtruediv": "div",
    "itruediv": "div",
    "rdiv": "div",
    "divide": "div",
    "maximum": "maximum",
    "minimum": "minimum",
    "pow": "pow",
    "rpow": "pow",
}

#: Names of the arguments behind the tensors, where a function takes them by position.
_SIGNATURES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("cat", "concat", "concatenate", "stack", "softmax", "log_softmax", "squeeze"), ("dim",)),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "var", "std", "norm"), ("dim", "keepdim")),
    **{
        f"max_pool{n}d": ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
        for n in (1, 2, 3)
    },
    **{
        f"avg_pool{n}d": ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
        for n in (1, 2, 3)
    },
    **{f"adaptive_{how}_pool{n}d": ("output_size",) for n in (1, 2, 3) for how in ("avg", "max")},
    "pad": ("pad", "mode", "value"),
    "layer_norm": ("normalized_shape",),
    "group_norm": ("num_groups",),
    "interpolate": ("size", "scale_factor", "mode", "align_corners"),
}

#: Attributes that do not change what is computed enough to be told apart, or repeat what the shapes say.
_NEEDLESS = frozenset(
    {"_stacklevel", "dtype", "eps", "momentum", "use_input_stats", "training", "out", "memory_format", "approximate"}
)

#: Values of attributes that need not be said.
_USUAL: dict[str, tuple[Any, ...]] = {
    "keepdim": (False,),
    "ceil_mode": (False,),
    "return_indices": (False,),
    "count_include_pad": (True,),
    "divisor_override": (None,),
    "dilation": (1, (1, 1), (1,), (1, 1, 1)),
    "padding": (0, (0, 0), (0,), (0, 0, 0)),
    "inplace": (False,),
    "align_corners": (None, False),
}


def describe_call(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> OpSpec | None:
    """Describe a call of a torch function.

    Parameters
    ----------
    name : str
        Name of the function, such as ``conv2d`` or ``add_``.
    args, kwargs
        What it was called with.
    result : object
        What it returned.

    Returns
    -------
    OpSpec or None
        None where nothing is computed: a view of the same memory, a property, dropout in evaluation mode.

    Examples
    --------
    >>> a = torch.zeros(1, 4, device="meta")
    >>> describe_call("add_", (a, a), {}, a).op_key
    'add(inplace=1)@1x4+1x4:float32'
    >>> describe_call("view", (a, 4), {}, a.view(4)) is None
    True
    """
    outputs = list(tensors_in(result))
    if not outputs or name == "__get__":
        return None
    plain = name.strip("_")
    inputs = list(tensors_in([args, kwargs]))
    if plain in VIEWS or name in VIEWS:
        return None if not inputs or _same_memory(inputs[0], outputs[0]) else _copy(plain, name, inputs, outputs)
    if plain in IDLE:
        return None
    if plain in _DESCRIBED:
        return _DESCRIBED[plain](plain, args, dict(kwargs))
    if plain in _ARITHMETIC:
        return _arithmetic(_ARITHMETIC[plain], name, inputs)
    return _generic(plain, name, args, dict(kwargs), outputs)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of nested lists, tuples and dictionaries, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)


def memory_of(tensor: torch.Tensor) -> int:
    """Return a number that tensors have in common that look at the same memory."""
    return int(tensor.untyped_storage()._cdata)


def dtype_of(tensors: list[torch.Tensor]) -> str:
    """Name the element type of an operator with these inputs: that of the first with a fraction."""
    fractions = [tensor for tensor in tensors if tensor.is_floating_point()] or tensors
    return str(fractions[0].dtype).removeprefix("torch.") if fractions else "float32"


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return memory_of(one) == memory_of(other)


def _copy(plain: str, name: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> OpSpec:
    """Describe what would be a view if the memory were laid out as it needs; an index list gathers."""
    kind = "index" if name == "__getitem__" else "copy"
    return OpSpec.of(kind, [inputs[0].shape], dtype=dtype_of(inputs), out=tuple(outputs[0].shape))


def _arithmetic(kind: str, name: str, inputs: list[torch.Tensor]) -> OpSpec:
    attributes = {"inplace": True} if _in_place(name) else {}
    return OpSpec.of(kind, [tensor.shape for tensor in inputs], dtype=dtype_of(inputs), **attributes)


def _in_place(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or bool(re.fullmatch(r"__i(add|sub|mul|truediv)__", name))


def _generic(
    kind: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[torch.Tensor]
) -> OpSpec:
    """Describe a function that nothing special is known of: shapes of its data and weights, and plain arguments."""
    data = [tensor for tensor in tensors_in([args, kwargs]) if not isinstance(tensor, nn.Parameter)]
    weights: list[torch.Tensor] = [item for item in tensors_in([args, kwargs]) if isinstance(item, nn.Parameter)]
    attributes = _arguments(kind, args, kwargs)
    if _in_place(name):
        attributes["inplace"] = True
    if weights:
        attributes["weights"] = "+".join("x".join(map(str, weight.shape)) for weight in weights)
    shapes = [tensor.shape for tensor in data]
    if [tuple(tensor.shape) for tensor in outputs] != [tuple(shape) for shape in shapes[:1]]:
        attributes["out"] = tuple(outputs[0].shape)
    return OpSpec.of(kind, shapes, dtype=dtype_of(data or weights or outputs), **attributes)


def _arguments(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Name the arguments that are no tensors; those without a name are numbered."""
    plain = [arg for arg in args if not _holds_tensor(arg)]
    names = _SIGNATURES.get(kind, ())
    given = {(names[place] if place < len(names) else f"arg{place}"): value for place, value in enumerate(plain)}
    given |= {name: value for name, value in kwargs.items() if not _holds_tensor(value)}
    return {
        name: _value(value)
        for name, value in given.items()
        if name not in _NEEDLESS and value is not None and value not in _USUAL.get(name, ())
    }


def _holds_tensor(value: Any) -> bool:
    return next(tensors_in(value), None) is not None


def _value(value: Any) -> Any:
    """Turn an argument into what an `OpSpec` holds."""
    if isinstance(value, (list, tuple)) and all(isinstance(item, int) for item in value):
        return one_if_square(tuple(map(int, value))) if value else "none"
    return value if isinstance(value, (bool, int, float, str)) else re.sub(r"\s+", "", str(value))


def one_if_square(sizes: tuple[int, ...]) -> int | tuple[int, ...]:
    """Return one number where all are equal."""
    return sizes[0] if len(set(sizes)) == 1 else sizes


def _bound(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _convolution(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpSpec:
    """Describe a convolution; padding and dilation stand only where the window is not a plain 'same'-padded one."""
    given = _bound(("input", "weight", "bias", "stride", "padding", "dilation", "groups"), args, kwargs)
    data, weight = given["input"], given["weight"]
    window = tuple(weight.shape[2:])
    dilation = _spread(given.get("dilation", 1), len(window))
    attributes: dict[str, Any] = {
        "out_channels": weight.shape[0],
        "kernel_size": one_if_square(window),
        "stride": one_if_square(_spread(given.get("stride", 1), len(window))),
        "groups": given.get("groups", 1),
        "bias": given.get("bias") is not None,
    }
    if set(dilation) != {1}:
        attributes["dilation"] = one_if_square(dilation)
    padding = given.get("padding", 0)
    spans = [gap * (size - 1) for gap, size in zip(dilation, window, strict=True)]
    if padding == "valid":
        padding = 0
    if padding != "same" and [2 * side for side in _spread(padding, len(window))] != spans:
        attributes["padding"] = one_if_square(_spread(padding, len(window)))
    return OpSpec.of(kind, [data.shape], dtype=dtype_of([data]), **attributes)


def _transposed(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpSpec:
    names = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
    given = _bound(names, args, kwargs)
    data, weight = given["input"], given["weight"]
    attributes = {"out_channels": weight.shape[1] * given.get("groups", 1), "bias": given.get("bias") is not None}
    attributes["kernel_size"] = one_if_square(tuple(weight.shape[2:]))
    dimensions = weight.dim() - 2
    for name, usual in (("stride", 1), ("padding", 0), ("output_padding", 0), ("dilation", 1)):
        value = one_if_square(_spread(given.get(name, usual), dimensions))
        if name == "stride" or value != usual:
            attributes[name] = value
    return OpSpec.of(kind, [data.shape], dtype=dtype_of([data]), groups=given.get("groups", 1), **attributes)


def _linear(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpSpec:
    given = _bound(("input", "weight", "bias"), args, kwargs)
    data = given["input"]
    return OpSpec.of(
        kind,
        [data.shape],
        dtype=dtype_of([data]),
        out_features=given["weight"].shape[0],
        bias=given.get("bias") is not None,
    )


def _batch_norm(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpSpec:
    data = args[0] if args else kwargs["input"]
    return OpSpec.of(kind, [data.shape], dtype=dtype_of([data]))


def _spread(value: Any, dimensions: int) -> tuple[int, ...]:
    sizes = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return sizes * dimensions if len(sizes) == 1 else sizes


_DESCRIBED: dict[str, Callable[[str, tuple[Any, ...], dict[str, Any]], OpSpec]] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed),
    "linear": _linear,
    "batch_norm": _batch_norm,
}
