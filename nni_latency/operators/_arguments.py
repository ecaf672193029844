"""The arguments of a call that are no tensors, by their names."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - everybody calls it so

from nni_latency.operators._tensors import tensors_in

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
    "einsum": ("equation",),
    "pad": ("pad", "mode", "value"),
    "layer_norm": ("normalized_shape",),
    "group_norm": ("num_groups",),
    "interpolate": ("size", "scale_factor", "mode", "align_corners"),
}

#: Attributes that do not change what is computed enough to be told apart, or repeat what the shapes say.
_NEEDLESS = frozenset(
    {
        *("_stacklevel", "dtype", "eps", "momentum", "use_input_stats", "training", "train", "out", "memory_format"),
        "approximate",
    }
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

#: What the Python types of arguments may stand for in torch's own notation.
_FITTING: dict[str, tuple[type, ...]] = {
    "Tensor": (torch.Tensor,),
    "int": (int, torch.dtype, torch.layout, torch.memory_format),
    "float": (int, float),
    "number": (bool, int, float, complex),
    "bool": (bool,),
    "str": (str,),
    "Device": (torch.device, str),
}


class _Argument(NamedTuple):
    """One argument that torch's notation of a function names."""

    name: str
    type: str


def plain_arguments(kind: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Name the arguments of a call that are no tensors, as attributes of an `OpSpec`.

    What is given by position gets the name that torch has for it: by the notation of its own operators, whichever of
    them the arguments fit, or by the signature of the Python function. Where neither is known, it is numbered. What
    need not be said is left out.

    Parameters
    ----------
    kind : str
        Name of the function, without underscores around it.
    args, kwargs
        What it was called with.

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
    """Return one number if all are equal."""
    return sizes[0] if len(set(sizes)) == 1 else sizes


def _by_position(kind: str, args: tuple[Any, ...]) -> dict[str, Any]:
    """Name what was given by position."""
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
    """Return the names of what was given by position, and the same with sizes that stand one by one in one tuple."""
    for arguments in _notations(kind):
        packed = _packed(arguments, args)
        if len(packed) <= len(arguments) and all(map(_fits, packed, arguments)):
            return tuple(argument.name for argument in arguments), packed
    names = _python_names(kind)
    return (names, args) if len(args) <= len(names) else ((), args)


@functools.cache
def _notations(kind: str) -> tuple[tuple[_Argument, ...], ...]:
    """Return the positional arguments of every operator of torch that has this name."""
    packet = getattr(torch.ops.aten, kind, None)
    overloads = packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else ()
    schemas = [getattr(packet, name)._schema for name in overloads]
    return tuple(
        tuple(_Argument(item.name, str(item.type)) for item in schema.arguments if not item.kwarg_only)
        for schema in schemas
    )


@functools.cache
def _python_names(kind: str) -> tuple[str, ...]:
    """Return the names of the arguments of a function written in Python; none if there is no such function."""
    function = getattr(F, kind, None) or getattr(torch.functional, kind, None)
    try:
        parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ()
    if any(item.kind in (item.VAR_POSITIONAL, item.VAR_KEYWORD) for item in parameters):
        return ()
    return tuple(item.name for item in parameters)


def _packed(arguments: tuple[_Argument, ...], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Gather sizes given one by one, as methods of tensors take them, if there are too many arguments otherwise."""
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
    """Turn an argument into what an `OpSpec` holds."""
    if isinstance(value, (list, tuple)) and all(isinstance(item, int) for item in value):
        return one_if_square(tuple(map(int, value))) if value else "none"
    if isinstance(value, (bool, int, float, str)):
        return value
    # Where an object lies in memory is no part of what is computed.
    return re.sub(r" at 0x[0-9a-f]+|\s+", "", str(value))
