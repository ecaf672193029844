# SPDX-License-Identifier: Apache-2.0
"""Conversion of a call of a torch function (name, arguments and result) to an `OpSpec`."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - everybody calls it so

from nni_latency.operators._inputs import (
    Learned,
    dtype_of,
    is_parameter,
    learned_attribute,
    memory_of,
    packed_weights,
    tensors_in,
)
from nni_latency.operators._op_spec import OpSpec

#: Functions that return views, as long as the memory is the same.
VIEWS = frozenset(
    {
        *("__getitem__", "as_strided", "chunk", "contiguous", "detach", "diagonal", "expand", "expand_as", "flatten"),
        *("movedim", "narrow", "permute", "ravel", "reshape", "select", "split", "split_with_sizes", "squeeze"),
        *("swapaxes", "t", "tensor_split", "to", "transpose", "type_as", "unbind", "unflatten", "unfold", "unsqueeze"),
        *("view", "view_as", "broadcast_to", "requires_grad_"),
        *("float", "half", "bfloat16", "double", "long", "int", "short", "char", "byte", "bool"),
    }
)

#: Functions without effect in evaluation mode.
IDLE = frozenset(
    {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "dropout_", "_assert"}
)

#: Elementwise functions of a number and a tensor, or of two tensors.
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

#: Functions of layers, and the number of tensors before their weights.
_LAYERS: dict[str, int] = {
    **dict.fromkeys(
        ("layer_norm", "group_norm", "instance_norm", "rms_norm", "prelu", "embedding", "embedding_bag"), 1
    ),
    **dict.fromkeys(("bilinear", "gru", "rnn_tanh", "rnn_relu", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), 2),
    **dict.fromkeys(("lstm", "lstm_cell", "multi_head_attention_forward"), 3),
}

#: Names of the positional arguments after the tensors.
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
    "einsum": ("equation",),
    "pad": ("pad", "mode", "value"),
    "layer_norm": ("normalized_shape",),
    "group_norm": ("num_groups",),
    "interpolate": ("size", "scale_factor", "mode", "align_corners"),
}

#: Attributes that hardly affect the computation, or are implied by the shapes.
_NEEDLESS = frozenset(
    {
        *("_stacklevel", "dtype", "eps", "momentum", "use_input_stats", "training", "train", "out", "memory_format"),
        "approximate",
    }
)

#: Default values of attributes, which are omitted.
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

#: Types in torch's schemas that each Python type may match.
_FITTING: dict[str, tuple[type, ...]] = {
    "Tensor": (torch.Tensor,),
    "int": (int, torch.dtype, torch.layout, torch.memory_format),
    "float": (int, float),
    "number": (bool, int, float, complex),
    "bool": (bool,),
    "str": (str,),
    "Device": (torch.device, str),
}


def describe_call(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any, learned: Learned = is_parameter
) -> OpSpec | None:
    """Describe a call of a torch function.

    Parameters
    ----------
    name : str
        Name of the function, such as ``conv2d`` or ``add_``.
    args, kwargs
        Arguments of the call.
    result : object
        Result of the call.
    learned : callable, optional
        Returns whether a tensor is a parameter. Parameters of layers are attributes of the operator; those of other
        functions are inputs, marked by the attribute ``learned``.

    Returns
    -------
    OpSpec or None
        None if nothing is computed: a view of the same memory, a property, dropout in evaluation mode.

    Examples
    --------
    >>> a = torch.zeros(1, 4, device="meta")
    >>> describe_call("add_", (a, a), {}, a).op_key
    'add(inplace=1)@1x4+1x4:float32'
    >>> describe_call("view", (a, 4), {}, a.view(4)) is None
    True
    >>> scale = torch.nn.Parameter(a[0])
    >>> describe_call("mul", (a, scale), {}, a * scale).op_key
    'mul(learned="+4")@1x4+4:float32'
    """
    outputs = list(tensors_in(result))
    if not outputs or name == "__get__":
        return None
    # The name of a kind is part of the operator's key.
    name = re.sub(r"[\s()@]+", "_", name).removesuffix("_with_indices")
    plain = name.strip("_")
    packed = packed_weights([args, kwargs])
    if packed:
        return _quantised(plain, args, kwargs, outputs, packed)
    inputs = list(tensors_in([args, kwargs]))
    if plain in VIEWS or name in VIEWS:
        same = not inputs or memory_of(inputs[0]) == memory_of(outputs[0])
        return None if same else _copy(name, inputs[:1], outputs, learned)
    if plain in IDLE:
        return None
    if plain in _DESCRIBED:
        # A function of another library may share the name of a torch function but have other arguments.
        with contextlib.suppress(AttributeError, LookupError, TypeError, ValueError):
            op = _DESCRIBED[plain](plain, args, dict(kwargs))
            return op.replace(**learned_attribute([args[0] if args else kwargs["input"]], learned))
    if plain in _ARITHMETIC:
        return _arithmetic(_ARITHMETIC[plain], name, inputs, learned)
    return _generic(plain, name, args, dict(kwargs), outputs, learned)


def _copy(name: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor], learned: Learned) -> OpSpec:
    """Describe a copy made by a function that usually returns a view; an index list gathers."""
    kind = "index" if name == "__getitem__" else "copy"
    attributes = {"out": tuple(outputs[0].shape), **learned_attribute(inputs, learned)}
    return OpSpec.of(kind, [inputs[0].shape], dtype=dtype_of(inputs), **attributes)


def _arithmetic(kind: str, name: str, inputs: list[torch.Tensor], learned: Learned) -> OpSpec:
    attributes: dict[str, Any] = {"inplace": True} if _in_place(name) else {}
    attributes |= learned_attribute(inputs, learned)
    return OpSpec.of(kind, [tensor.shape for tensor in inputs], dtype=dtype_of(inputs), **attributes)


def _in_place(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or bool(re.fullmatch(r"__i(add|sub|mul|truediv)__", name))


def _generic(
    kind: str,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    outputs: list[torch.Tensor],
    learned: Learned,
) -> OpSpec:
    """Describe any other function by the shapes of its data and weights, and its plain arguments."""
    tensors = list(tensors_in([args, kwargs]))
    before = _LAYERS.get(kind, len(tensors))
    weights = [tensor for tensor in tensors[before:] if learned(tensor)]
    data = [*tensors[:before], *(tensor for tensor in tensors[before:] if not learned(tensor))]
    attributes = plain_arguments(kind, args, kwargs) | learned_attribute(data, learned)
    if _in_place(name):
        attributes["inplace"] = True
    if weights:
        attributes["weights"] = "+".join("x".join(map(str, weight.shape)) for weight in weights)
    shapes = [tensor.shape for tensor in data]
    if [tuple(tensor.shape) for tensor in outputs] != [tuple(shape) for shape in shapes[:1]]:
        attributes["out"] = tuple(outputs[0].shape)
    return OpSpec.of(kind, shapes, dtype=dtype_of(data or outputs), **attributes)


def _quantised(
    plain: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    outputs: list[torch.Tensor],
    packed: Sequence[torch.Tensor],
) -> OpSpec:
    """Describe a quantised layer with packed weights; scales and offsets do not affect its cost."""
    kind = plain if plain.startswith("quantized") else f"quantized_{plain}"
    data = list(tensors_in([args, kwargs]))
    weights = "+".join("x".join(map(str, tensor.shape)) for tensor in packed)
    shapes, out = [tensor.shape for tensor in data], tuple(outputs[0].shape)
    return OpSpec.of(kind, shapes, dtype=dtype_of(data or outputs), out=out, weights=weights)


def _bound(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _convolution(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpSpec:
    """Describe a convolution; padding and dilation are given only if the window is not 'same'-padded."""
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
    """Describe a batch normalisation; `affine` and `bias` are given only if they are missing."""
    # The function of torch itself has the weights before the statistics, that of its functional module behind them.
    statistics = ("running_mean", "running_var")
    names = ("weight", "bias", *statistics) if len(args) > 5 else (*statistics, "weight", "bias")
    given = _bound(("input", *names), args, kwargs)
    attributes: dict[str, Any] = {}
    if given.get("weight") is None:
        attributes["affine"] = False
    elif given.get("bias") is None:
        attributes["bias"] = False
    return OpSpec.of(kind, [given["input"].shape], dtype=dtype_of([given["input"]]), **attributes)


def _spread(value: Any, dimensions: int) -> tuple[int, ...]:
    sizes = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return sizes * dimensions if len(sizes) == 1 else sizes


_DESCRIBED: dict[str, Callable[[str, tuple[Any, ...], dict[str, Any]], OpSpec]] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed),
    "linear": _linear,
    "batch_norm": _batch_norm,
}


class _Argument(NamedTuple):
    """One argument in torch's schema of a function."""

    name: str
    type: str


def plain_arguments(kind: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Name the arguments of a call that are not tensors, as attributes of an `OpSpec`.

    Positional arguments get torch's names: from the operator schema that they match, or from the signature of the
    Python function. Otherwise they are numbered. Default values are omitted.

    Parameters
    ----------
    kind : str
        Name of the function, without surrounding underscores.
    args, kwargs
        Arguments of the call.

    Examples
    --------
    >>> plain_arguments("clamp", (torch.zeros(2), 0, 6), {})
    {'min': 0, 'max': 6}
    >>> plain_arguments("flip", (torch.zeros(2, 2, 2), 0, 2), {})
    {'dims': (0, 2)}
    >>> plain_arguments("unheard_of", (torch.zeros(2), 3), {})
    {'arg0': 3}
    """
    given = _by_position(kind, args) | {name: value for name, value in kwargs.items() if not _holds_tensor(value)}
    return {
        name: _value(value)
        for name, value in given.items()
        if name not in _NEEDLESS and value is not None and value not in _USUAL.get(name, ())
    }


def one_if_square(sizes: tuple[int, ...]) -> int | tuple[int, ...]:
    """Return one number if all sizes are equal."""
    return sizes[0] if len(set(sizes)) == 1 else sizes


def _by_position(kind: str, args: tuple[Any, ...]) -> dict[str, Any]:
    """Name the positional arguments."""
    plain = [place for place, arg in enumerate(args) if not _holds_tensor(arg)]
    known = _SIGNATURES.get(kind, ())
    if len(plain) <= len(known):
        return {name: args[place] for name, place in zip(known, plain, strict=False)}
    names, args = _names(kind, args)
    named: dict[str, Any] = {}
    for count, place in enumerate(item for item in plain if item < len(args)):
        name = known[count] if count < len(known) else names[place] if place < len(names) else f"arg{count}"
        named[name] = args[place]
    return named


def _names(kind: str, args: tuple[Any, ...]) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Return the names of the positional arguments, and the arguments with separate sizes gathered into a tuple."""
    for arguments in _notations(kind):
        packed = _packed(arguments, args)
        if len(packed) <= len(arguments) and all(map(_fits, packed, arguments)):
            return tuple(argument.name for argument in arguments), packed
    names = _python_names(kind)
    return (names, args) if len(args) <= len(names) else ((), args)


@functools.cache
def _notations(kind: str) -> tuple[tuple[_Argument, ...], ...]:
    """Return the positional arguments of all overloads of a torch operator."""
    packet = getattr(torch.ops.aten, kind, None)
    overloads = packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else ()
    schemas = [getattr(packet, name)._schema for name in overloads]
    return tuple(
        tuple(_Argument(item.name, str(item.type)) for item in schema.arguments if not item.kwarg_only)
        for schema in schemas
    )


@functools.cache
def _python_names(kind: str) -> tuple[str, ...]:
    """Return the argument names of a Python function; empty if there is no such function."""
    function = getattr(F, kind, None) or getattr(torch.functional, kind, None)
    try:
        parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ()
    if any(item.kind in (item.VAR_POSITIONAL, item.VAR_KEYWORD) for item in parameters):
        return ()
    return tuple(item.name for item in parameters)


def _packed(arguments: tuple[_Argument, ...], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Gather sizes given as separate arguments, as tensor methods accept them, if there are too many arguments."""
    last = len(arguments) - 1
    if len(args) <= len(arguments) or last < 0 or _bare(arguments[last].type) != "List[int]":
        return args
    sizes = args[last:]
    return (*args[:last], sizes) if all(_is_int(size) for size in sizes) else args


def _fits(value: Any, argument: _Argument) -> bool:
    if value is None:
        return argument.type.startswith("Optional[")
    kind = _bare(argument.type)
    if kind.startswith("List["):
        items = value if isinstance(value, (list, tuple)) else (value,)
        return not isinstance(value, torch.Tensor) and all(_fits(item, _Argument("", kind[5:-1])) for item in items)
    if isinstance(value, bool) and kind in ("int", "float"):
        return False
    return isinstance(value, _FITTING.get(kind, ()))


def _bare(kind: str) -> str:
    return kind[9:-1] if kind.startswith("Optional[") else kind


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _holds_tensor(value: Any) -> bool:
    return next(tensors_in(value), None) is not None


def _value(value: Any) -> Any:
    """Convert an argument to an attribute of an `OpSpec`."""
    if isinstance(value, (list, tuple)) and all(isinstance(item, int) for item in value):
        return one_if_square(tuple(map(int, value))) if value else "none"
    if isinstance(value, (bool, int, float, str)):
        return value
    # The address of an object is not part of the computation.
    return re.sub(r" at 0x[0-9a-f]+|\s+", "", str(value))
