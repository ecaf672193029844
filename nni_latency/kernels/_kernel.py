# SPDX-License-Identifier: Apache-2.0
"""`Kernel`: fused operators that a runtime executes as one; and the names of kernels that are measured by default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nni_latency.errors import InvalidValueError, check_ints
from nni_latency.units import whole_number

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_KEY = re.compile(r"(?P<kind>\w+)\((?P<configuration>(?:[A-Za-z_]\w*=\d+(?:,(?!\)))?)*)\)")

#: The kernels of nn-Meter's builder.
NN_METER_KERNELS: tuple[str, ...] = (
    *("conv_bn_relu", "conv_bn_relu6", "conv_bn", "conv_relu", "conv_relu6", "conv_hswish", "conv_block"),
    *("conv_bn_hswish", "dwconv_bn", "dwconv_relu", "dwconv_relu6", "dwconv_bn_relu", "dwconv_bn_relu6"),
    *("dwconv_block", "dwconv_bn_hswish", "maxpool_block", "avgpool_block", "fc_block", "concat_block"),
    *("split_block", "channel_shuffle", "se_block", "globalavgpool_block", "bn_relu", "bn_block", "hswish_block"),
    *("relu_block", "add_relu", "add_block"),
)

#: Kernels measured by default: those of nn-Meter's builder, and others that current networks need.
USUAL_KERNELS: tuple[str, ...] = (
    *NN_METER_KERNELS,
    *("conv_silu", "conv_bn_silu", "dwconv_bn_silu", "gconv_block", "gconv_bn", "gconv_bn_relu", "gconv_relu"),
    *("convtranspose_block", "convtranspose_bn_relu", "conv1d_block", "conv1d_relu", "conv1d_bn_relu"),
    *("fc_relu", "linear_block", "linear_relu", "linear_gelu", "silu_block", "gelu_block", "relu6_block"),
    *(
        "sigmoid_block",
        "hsigmoid_block",
        "mul_block",
        "scale_block",
        "layernorm_block",
        "softmax_block",
        "matmul_block",
    ),
    *("attention_block", "resize_block", "mean_block"),
)


@dataclass(frozen=True)
class Kernel:
    """Operators that a runtime executes as one. Immutable and hashable; equal kernels cost the same on one platform.

    Parameters
    ----------
    kind : str
        Kind of the kernel, such as ``conv_bn_relu``.
    configuration : tuple of (str, int)
        Its sizes, with nn-Meter's names, sorted by name. Use `Kernel.of` to pass keywords.

    Raises
    ------
    InvalidValueError
        If kind or names are not identifiers, the names are not sorted, or a size is not an integer >= 0.

    Examples
    --------
    >>> kernel = Kernel.of("conv_bn_relu", HW=56, CIN=64, COUT=128, KERNEL_SIZE=3, STRIDES=1)
    >>> kernel.key, kernel["CIN"]
    ('conv_bn_relu(CIN=64,COUT=128,HW=56,KERNEL_SIZE=3,STRIDES=1)', 64)
    >>> Kernel.parse(kernel.key) == kernel
    True
    """

    kind: str
    configuration: tuple[tuple[str, int], ...] = ()
    _sizes: Mapping[str, int] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        names = [name for name, _ in self.configuration]
        if names != sorted(set(names)) or not all(map(_NAME.fullmatch, (self.kind, *names))):
            raise InvalidValueError(
                "A Kernel must have a kind and names that are identifiers, the names sorted, each once. "
                f"Got {self.kind!r} with {names}."
            )
        object.__setattr__(self, "_sizes", dict(self.configuration))
        check_ints("a Kernel", self._sizes, **dict.fromkeys(names, 0))

    @classmethod
    def of(cls, kind: str, /, **configuration: int) -> Kernel:
        """Construct a kernel from keywords."""
        return cls(kind, tuple(sorted(configuration.items())))

    @classmethod
    def parse(cls, key: str) -> Kernel:
        """Parse the key of a kernel.

        Raises
        ------
        InvalidValueError
            If the key is malformed.
        """
        match = _KEY.fullmatch(key)
        pairs = (pair.partition("=") for pair in match["configuration"].split(",") if pair) if match else ()
        sizes = [(name, size) for name, _, text in pairs if (size := whole_number(text)) is not None]
        if match is None or len(sizes) != match["configuration"].count("="):
            raise InvalidValueError(
                "The key of a kernel must look like 'relu_block(CIN=64,HW=56)', with sizes of up to 18 digits. "
                f"Got {key[:80]!r}."
            )
        return cls(match["kind"], tuple(sizes))

    def __getitem__(self, name: str) -> int:
        """Return one size; raise `KeyError` if the kernel has none of that name."""
        return self._sizes[name]

    @property
    def sizes(self) -> dict[str, int]:
        """The configuration as a dictionary."""
        return dict(self._sizes)

    @property
    def key(self) -> str:
        """Readable key, equal in every process and on every machine."""
        return f"{self.kind}({','.join(f'{name}={size}' for name, size in self.configuration)})"

    def replace(self, **sizes: int) -> Kernel:
        """Return the same kernel with some sizes changed."""
        return Kernel.of(self.kind, **{**self._sizes, **sizes})

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for a file."""
        return {"kind": self.kind, "configuration": self.sizes}
