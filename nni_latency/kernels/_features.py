"""What predictors see of kernels: nn-Meter's features, and those that say what a machine does with the sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from nni_latency.kernels._kernel import Kernel
from nni_latency.kernels._kernel_type import KernelType
from nni_latency.kernels._layers import ACTIVATIONS
from nni_latency.operators import Features, OpSpec, work_of

Array = NDArray[np.float64]

#: Numbers that a vector unit takes at a time; work is padded to a multiple of one of these.
LANES = (4, 8, 16, 32)

#: Sizes along which vectors and tiles lie, and the area of the output.
_PADDED = ("CIN", "COUT", "AREA", "CHANNELS", "INNER", "COLUMNS", "TOKENS")

#: Sizes by which a runtime chooses how it computes: in ONNX Runtime a depthwise convolution takes as little as a tenth
#: if its channels are a multiple of 4, because it runs in a layout of its own then.
_ALIGNED = ("CIN", "COUT", "CHANNELS", "INNER", "COLUMNS")

#: Activations that cost something even in registers: those with an exponential, and those of several steps.
_COSTLY = (frozenset(("silu", "gelu", "sigmoid")), frozenset(("hswish", "hsigmoid")))

#: Kernels whose features are remembered.
_REMEMBERED = 2**15


class FeatureTable:
    """Makes features of the kernels of one group.

    Parameters
    ----------
    kinds : mapping of str to KernelType
        The types of the group, by name.
    activations : sequence of str, optional
        Activations that features tell apart; by default all that there are.
    """

    def __init__(
        self,
        kinds: Mapping[str, KernelType],
        activations: Sequence[str] = tuple(ACTIVATIONS),
    ) -> None:
        self.kinds, self.activations = dict(kinds), tuple(activations)
        names = dict.fromkeys(name for kind in kinds.values() for name in kind.domains)
        self.names = tuple(names)
        self._known: dict[Kernel, tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]] = {}

    @property
    def plain_names(self) -> tuple[str, ...]:
        """Names of nn-Meter's features."""
        return (*self.names, "FLOPS", "PARAMS")

    def plain(self, kernels: Sequence[Kernel]) -> Array:
        """Return nn-Meter's features, (n_kernels, n_features): configuration, FLOPs and parameters."""
        return np.array([self._described(kernel)[0] for kernel in kernels])

    def terms(self, kernels: Sequence[Kernel]) -> Array:
        """Return what a kernel costs in proportion to, (n_kernels, n_terms); the first is 1."""
        return np.array([self._described(kernel)[1] for kernel in kernels])

    def physical(self, kernels: Sequence[Kernel]) -> Array:
        """Return features that say what a machine does, (n_kernels, n_features)."""
        return np.array([self._described(kernel)[2] for kernel in kernels])

    def _described(self, kernel: Kernel) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
        """Return plain features, terms and physical features; worked out once."""
        found = self._known.get(kernel)
        if found is None:
            found = self._describe(kernel)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[kernel] = found
        return found

    def _describe(self, kernel: Kernel) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
        ops, words = self.kinds[kernel.kind].ops(kernel), set(kernel.kind.split("_"))
        counted = [work_of(op)[0] for op in ops]
        main, whole = max(counted, key=lambda item: item.flops), sum(counted, Features())
        sizes = kernel.sizes
        plain = (*(float(sizes.get(name, 0)) for name in self.names), float(whole.flops), float(whole.params))
        padded = _padded_flops(sizes, ops[0], main.flops)
        # What runs as one reads its first input, and writes its last output.
        moved = float(counted[0].inputs + counted[-1].outputs)
        every = float(sum(item.inputs + item.outputs for item in counted))
        share = 1.0 if "convtranspose" in words else _share_inside(sizes)
        costly = (float(counted[-1].outputs) * bool(words & names) for names in _COSTLY)
        terms = (1.0, float(main.flops), padded, moved, every, float(whole.params), padded * share, *costly)
        flags = tuple(float(name in words) for name in ("bn", *self.activations))
        logs = tuple(math.log2(1 + value) for value in (*terms[1:], whole.flops - main.flops))
        intensity = math.log2(1 + main.flops) - math.log2(1 + moved + whole.params)
        return plain, terms, (*logs, intensity, *flags, *self._shape_features(sizes))

    def _shape_features(self, sizes: Mapping[str, int]) -> tuple[float, ...]:
        named = {name: sizes.get(name, 0) for name in self.names}
        if "HW" in named:
            named |= _area(sizes)
        found = [math.log2(1 + value) for value in named.values()]
        for name in _PADDED:
            if name in named:
                found += [waste(named[name], lanes) for lanes in LANES]
        found += [float(named[name] % lanes == 0) for name in _ALIGNED if name in named for lanes in LANES[:-1]]
        if "KERNEL_SIZE" in named:
            found += [float(named["KERNEL_SIZE"]), float(_stride(sizes))]
        return tuple(found)


def _share_inside(sizes: Mapping[str, int]) -> float:
    """Return which share of the taps of all windows lies inside of a picture, and not in its padding.

    >>> _share_inside({"HW": 2, "KERNEL_SIZE": 5}), round(_share_inside({"LENGTH": 7, "KERNEL_SIZE": 3}), 3)
    (0.16000000000000003, 0.905)
    """
    window, size, stride = sizes.get("KERNEL_SIZE", 1), sizes.get("HW", sizes.get("LENGTH", 0)), _stride(sizes)
    before = (window - 1) // 2
    starts = range(-before, size - before, stride)
    taps = sum(min(start + window, size) - max(start, 0) for start in starts)
    share = taps / (window * len(starts)) if starts else 1.0
    return share**2 if "HW" in sizes else share


def waste(size: int, lanes: int) -> float:
    """Return by which share a size is padded to a multiple of `lanes`.

    >>> waste(17, 16), waste(32, 16)
    (0.8823529411764706, 0.0)
    """
    return -(-size // lanes) * lanes / size - 1 if size else 0.0


def _area(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return side and area of the output of a picture."""
    side = -(-sizes.get("HW", 0) // _stride(sizes))
    return {"SIDE": side, "AREA": side * side}


def _stride(sizes: Mapping[str, int]) -> int:
    return sizes.get("STRIDES", sizes.get("POOL_STRIDES", 1))


def _padded_flops(sizes: Mapping[str, int], op: OpSpec, flops: int) -> float:
    """Return the operations with channels filled up to whole vectors."""
    factor = math.prod(1 + waste(sizes[name], 16) for name in ("COUT",) if name in sizes)
    if op.get("groups", 1) > 1:
        factor = 1 + waste(sizes.get("CIN", 0), 16)
    return flops * factor
