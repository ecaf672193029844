# SPDX-License-Identifier: Apache-2.0
"""The catalogue of all built-in kernel types, by name."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from nni_latency.errors import UnknownNameError
from nni_latency.kernels._kernel import USUAL_KERNELS
from nni_latency.kernels._kernel_type import Domain, KernelType
from nni_latency.kernels._layers import (
    ACTIVATIONS,
    Shapes,
    Sizes,
    Split,
    SqueezeExcite,
    channel_shuffle_operators,
    split_operators,
    squeeze_excite_operators,
)
from nni_latency.operators import ChannelShuffle

#: Most channels of a kernel; a longer vector counts as an image of several pixels.
MOST_CHANNELS = 4096

_HW, _CHANNELS, _ABSENT_CHANNELS = Domain(1, 512), Domain(1, MOST_CHANNELS), Domain(0, MOST_CHANNELS)
_WINDOW, _STEP = Domain(1, 16, (1, 3, 5, 7)), Domain(1, 16, (1, 1, 2))
_TOKENS = Domain(1, 4096)

_CONVOLUTION = {"HW": _HW, "CIN": _CHANNELS, "COUT": _CHANNELS, "KERNEL_SIZE": _WINDOW, "STRIDES": _STEP}
_IMAGE = {"HW": _HW, "CIN": _CHANNELS}
_SEQUENCE = {"TOKENS": _TOKENS, "CIN": _CHANNELS}


def _image(sizes: Sizes) -> Shapes:
    return [(1, sizes["CIN"], sizes["HW"], sizes["HW"])]


def _two_images(sizes: Sizes) -> Shapes:
    return [*_image(sizes), *_image(sizes)]


def _image_and_gate(sizes: Sizes) -> Shapes:
    return [*_image(sizes), (1, sizes["CIN"], 1, 1)]


def _images_to_join(sizes: Sizes) -> Shapes:
    channels = [sizes[f"CIN{place}"] for place in (1, 2, 3, 4)]
    return [(1, count, sizes["HW"], sizes["HW"]) for count in channels if count]


def _sequence(sizes: Sizes) -> Shapes:
    return [(1, sizes["TOKENS"], sizes["CIN"])]


def _factors(sizes: Sizes) -> Shapes:
    heads = sizes["HEADS"]
    return [(1, heads, sizes["ROWS"], sizes["INNER"]), (1, heads, sizes["INNER"], sizes["COLUMNS"])]


def _query_key_value(sizes: Sizes) -> Shapes:
    return [(1, sizes["HEADS"], sizes["TOKENS"], sizes["CHANNELS"])] * 3


#: Kinds with optional normalisation and activation: sizes, input shapes, and sizes that must be multiples.
_BASES: dict[str, tuple[Mapping[str, Domain], Callable[[Sizes], Shapes], Mapping[str, int | str]]] = {
    "conv": (_CONVOLUTION, _image, {}),
    "dwconv": ({"HW": _HW, "CIN": Domain(2, MOST_CHANNELS), "KERNEL_SIZE": _WINDOW, "STRIDES": _STEP}, _image, {}),
    "gconv": (
        {**_CONVOLUTION, "GROUPS": Domain(2, 64, (2, 3, 4, 8, 32))},
        _image,
        {"CIN": "GROUPS", "COUT": "GROUPS"},
    ),
    "convtranspose": (
        {**_CONVOLUTION, "KERNEL_SIZE": Domain(1, 16, (2, 3, 4)), "STRIDES": Domain(2, 8, (2, 2, 4))},
        _image,
        {},
    ),
    "conv1d": (
        {"LENGTH": _TOKENS, **{name: _CONVOLUTION[name] for name in _CONVOLUTION if name != "HW"}},
        lambda sizes: [(1, sizes["CIN"], sizes["LENGTH"])],
        {},
    ),
    "fc": (
        {"CIN": Domain(1, 32768), "COUT": Domain(1, 16384)},
        lambda sizes: [(1, sizes["CIN"])],
        {},
    ),
    "linear": ({"TOKENS": Domain(2, 4096), "CIN": _CHANNELS, "COUT": _CHANNELS}, _sequence, {}),
    "bn": (_IMAGE, _image, {}),
    "add": (_IMAGE, _two_images, {}),
}

_NORMALISED = ("conv", "dwconv", "gconv", "convtranspose", "conv1d")

#: First layer of a base, if its name differs.
_FIRST = {"gconv": "conv", "linear": "fc"}

#: Kinds of a single operator: layer, sizes, input shapes.
_SINGLE: dict[str, tuple[str, Mapping[str, Domain], Callable[[Sizes], Shapes]]] = {
    "relu_block": ("relu", _IMAGE, _image),
    "relu6_block": ("relu6", _IMAGE, _image),
    "hswish_block": ("hswish", _IMAGE, _image),
    "silu_block": ("silu", _IMAGE, _image),
    "sigmoid_block": ("sigmoid", _IMAGE, _image),
    "hsigmoid_block": ("hsigmoid", _IMAGE, _image),
    "mul_block": ("mul", _IMAGE, _two_images),
    "scale_block": ("mul", _IMAGE, _image_and_gate),
    "globalavgpool_block": ("globalavgpool", _IMAGE, _image),
    "gelu_block": ("gelu", _SEQUENCE, _sequence),
    "layernorm_block": ("layernorm", _SEQUENCE, _sequence),
    "mean_block": ("mean", _SEQUENCE, _sequence),
    "resize_block": ("resize", {**_IMAGE, "SCALE": Domain(2, 8, (2, 2, 4))}, _image),
    "softmax_block": (
        "softmax",
        {"HEADS": Domain(1, 64, (1, 3, 4, 8, 12)), "ROWS": _TOKENS, "COLUMNS": _TOKENS},
        lambda sizes: [(1, sizes["HEADS"], sizes["ROWS"], sizes["COLUMNS"])],
    ),
    "matmul_block": (
        "matmul",
        {"HEADS": Domain(1, 64, (1, 3, 4, 8, 12)), "ROWS": _TOKENS, "INNER": _TOKENS, "COLUMNS": _TOKENS},
        _factors,
    ),
    "attention_block": (
        "attention",
        {"HEADS": Domain(1, 64, (3, 4, 6, 8, 12)), "TOKENS": _TOKENS, "CHANNELS": Domain(1, 256, (16, 32, 48, 64))},
        _query_key_value,
    ),
    "concat_block": (
        "concat",
        {"HW": _HW, "CIN1": _CHANNELS, "CIN2": _CHANNELS, "CIN3": _ABSENT_CHANNELS, "CIN4": _ABSENT_CHANNELS},
        _images_to_join,
    ),
}


def kernel_name(base: str, *, bn: bool = False, activation: str = "") -> str:
    """Return the name of the kernel of a base with normalisation and activation.

    >>> kernel_name("conv", bn=True, activation="relu"), kernel_name("fc")
    ('conv_bn_relu', 'fc_block')
    """
    ends = [*(["bn"] if bn else []), *([activation] if activation else [])]
    return "_".join([base, *(ends or ["block"])])


def _fused() -> Iterator[KernelType]:
    """Yield every base with every combination of normalisation and activation."""
    for base, (domains, shapes, multiples) in _BASES.items():
        for bn, activation in itertools.product((False, True), ("", *ACTIVATIONS)):
            if bn and base not in _NORMALISED:
                continue
            layers = (_FIRST.get(base, base), *(["bn"] if bn else []), *([activation] if activation else []))
            yield KernelType(
                kernel_name(base, bn=bn, activation=activation),
                domains,
                shapes,
                layers=layers,
                group=base,
                multiples=multiples,
            )


def _others() -> Iterator[KernelType]:
    for name, (layer, domains, shapes) in _SINGLE.items():
        yield KernelType(name, domains, shapes, layers=(layer,))
    pooling = {
        **_IMAGE,
        "KERNEL_SIZE": Domain(1, 16, (2, 3, 3, 5)),
        "POOL_STRIDES": Domain(1, 16, (1, 2, 2)),
    }
    for how in ("max", "avg"):
        yield KernelType(f"{how}pool_block", pooling, _image, layers=(f"{how}pool",))
    yield KernelType(
        "se_block",
        _IMAGE,
        _image,
        lambda sizes: SqueezeExcite(sizes["CIN"]),
        operators=squeeze_excite_operators,
    )
    halves = {**_IMAGE, "CIN": Domain(4, MOST_CHANNELS)}
    yield KernelType(
        "channel_shuffle",
        halves,
        _image,
        lambda sizes: ChannelShuffle(),
        operators=channel_shuffle_operators,
        multiples={"CIN": 2},
    )
    yield KernelType(
        "split_block",
        halves,
        _image,
        lambda sizes: Split(),
        operators=split_operators,
        multiples={"CIN": 2},
    )


@functools.cache
def kernel_types() -> Mapping[str, KernelType]:
    """Return all built-in kernel types by name.

    Examples
    --------
    >>> list(kernel_types()["dwconv_bn_relu6"].domains)
    ['HW', 'CIN', 'KERNEL_SIZE', 'STRIDES']
    """
    return MappingProxyType({item.name: item for item in (*_fused(), *_others())})


def find_types(names: Iterable[str], types: Mapping[str, KernelType] | None = None) -> tuple[KernelType, ...]:
    """Return kernel types by their names, without duplicates.

    Parameters
    ----------
    names : iterable of str
        Names of types, or names of groups for all usual kinds of one.
    types : mapping of str to KernelType, optional
        Available types; by default the catalogue.

    Raises
    ------
    UnknownNameError
            If a name is unknown.
    """
    known = kernel_types() if types is None else types
    found: dict[str, KernelType] = {}
    for name in names:
        members = [name] if name in known else _members(name, known)
        if not members:
            raise UnknownNameError.of("kernel", name, sorted(known))
        found |= {member: known[member] for member in members}
    return tuple(found.values())


def _members(group: str, known: Mapping[str, KernelType]) -> Sequence[str]:
    return [name for name in USUAL_KERNELS if name in known and known[name].group == group]
