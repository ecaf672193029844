# SPDX-License-Identifier: Apache-2.0
"""`KernelType`: a kind of kernel, with the domain of its configurations and the construction of its modules."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from nni_latency.errors import InvalidValueError, PluginError, is_int
from nni_latency.hook_checks import Check, PluginCall, plugin_origin
from nni_latency.kernels._kernel import Kernel
from nni_latency.kernels._layers import Shapes, Sizes, build_chain, chain_operators
from nni_latency.operators import Features, OpSpec, capture_operators, count_operators

#: Limits of one kernel: elements read and written, multiply-adds, and parameters.
MOST_ELEMENTS, MOST_MACS, MOST_PARAMS = 2**25, 4 * 10**9, 2**27

#: Factor by which a size is reduced repeatedly until a kernel fits.
_SHRINK = 0.8

#: Sizes that determine the algorithm of a kernel, and are never reduced.
_FORMS = ("KERNEL_SIZE", "STRIDES", "POOL_STRIDES", "GROUPS", "SCALE", "HEADS")


@dataclass(frozen=True)
class Domain:
    """Range of a size. Immutable.

    Parameters
    ----------
    low, high : int
        Least and largest value.
    usual : tuple of int, default=()
        Values for random sampling; by default all, uniformly on a logarithmic scale.

    Examples
    --------
    >>> Domain(1, 512).snap(600), Domain(1, 512).snap(3.4)
    (512, 3)
    """

    low: int
    high: int
    usual: tuple[int, ...] = ()

    def snap(self, value: float) -> int:
        """Return the nearest allowed value."""
        return int(min(max(round(value), self.low), self.high))

    def draw(self, generator: np.random.Generator) -> int:
        """Draw a random value; for a size that may be absent, 0 with probability one half."""
        if not self.low and generator.random() < 0.5:
            return 0
        if self.usual:
            return int(generator.choice(self.usual))
        least = max(1, self.low)
        return self.snap(least * (self.high / least) ** generator.random())


def _are_shapes(answer: Any) -> bool:
    return isinstance(answer, (list, tuple)) and all(
        isinstance(shape, (list, tuple)) and all(is_int(size, 1) for size in shape) for shape in answer
    )


#: Required return values of the functions of a type.
_RETURN_CHECKS: Mapping[str, Check] = {
    "input_shapes": ("shapes of the inputs, each a tuple of whole numbers", _are_shapes),
    "build": ("a module", lambda answer: isinstance(answer, nn.Module)),
    "operators": (
        "a tuple of OpSpec",
        lambda answer: isinstance(answer, tuple) and all(isinstance(item, OpSpec) for item in answer),
    ),
}


@dataclass(frozen=True)
class KernelType:
    """A kind of kernel. Immutable; it is sent to worker processes by cloudpickle.

    Custom types define `build`; their operators are traced.

    Parameters
    ----------
    name : str
        The `Kernel.kind`.
    domains : mapping of str to Domain
        Sizes of a configuration, with their ranges.
    input_shapes : callable
        Takes a configuration; returns the shapes of the inputs, batch first.
    build : callable, optional
        Takes a configuration; returns the module.
    layers : tuple of str, default=()
        Layers of the catalogue in sequence, in place of `build`.
    operators : callable, optional
        Takes shapes of the inputs and a configuration; returns the operators of the module from `build`.
    group : str, optional
        Kinds of one group share a predictor. The name by default.
    multiples : mapping of str to int or str
        Sizes that must be multiples of a number, or of another size.
    known : tuple of mapping
        Configurations that occur in networks, around which sampling starts. By default those of the group in the prior.

    Examples
    --------
    >>> from nni_latency.kernels import kernel_types
    >>> relu = kernel_types()["relu_block"]
    >>> relu.snap({"HW": 900, "CIN": 64}).key
    'relu_block(CIN=64,HW=512)'
    """

    name: str
    domains: Mapping[str, Domain] = field(hash=False)
    input_shapes: Callable[[Sizes], Shapes] = field(compare=False)
    build: Callable[[Sizes], nn.Module] | None = field(default=None, compare=False)
    layers: tuple[str, ...] = ()
    operators: Callable[[Shapes, Sizes], tuple[OpSpec, ...]] | None = field(default=None, compare=False)
    group: str = ""
    multiples: Mapping[str, int | str] = field(default_factory=dict, hash=False)
    known: tuple[Mapping[str, int], ...] = field(default=(), hash=False)

    def __post_init__(self) -> None:
        if (self.build is None) == (not self.layers):
            raise InvalidValueError(f"The kernel type {self.name!r} must have either 'build' or 'layers'.")
        if not self.group:
            object.__setattr__(self, "group", self.name)

    def adopt(self, owner: str, name: str) -> KernelType:
        """Guard the functions of a plugin's type, so that their errors name the plugin.

        Parameters
        ----------
        owner, name : str
            The plugin, and the registered name.

        Raises
        ------
        PluginError
            If the type has another name, its sizes are not `Domain` instances, or its functions are not callable.
        """
        origin = plugin_origin("kernel", owner, name)
        if self.name != name:
            raise PluginError(f"The {origin} must be a KernelType of the name {name!r}. Got {self.name!r}.")
        sizes = self.domains
        if not isinstance(sizes, Mapping) or not all(isinstance(domain, Domain) for domain in sizes.values()):
            raise PluginError(f"The 'domains' of the {origin} must be a mapping of names to Domain. Got {sizes!r}.")
        functions = {name: function for name in _RETURN_CHECKS if (function := getattr(self, name)) is not None}
        for name, function in functions.items():
            if not callable(function):
                raise PluginError(f"The {name!r} of the {origin} must be a function. Got {function!r}.")
        guarded: dict[str, Any] = {
            name: PluginCall(origin, name, function, _RETURN_CHECKS[name]) for name, function in functions.items()
        }
        return replace(self, **guarded)

    def module(self, kernel: Kernel) -> nn.Module:
        """Build the module of a kernel, with random weights."""
        sizes = kernel.sizes
        return build_chain(self.ops(kernel)) if self.build is None else self.build(sizes)

    def shapes(self, kernel: Kernel) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of a kernel's inputs, batch first."""
        return tuple(tuple(shape) for shape in self.input_shapes(kernel.sizes))

    def ops(self, kernel: Kernel) -> tuple[OpSpec, ...]:
        """Return the operators of a kernel."""
        shapes, sizes = self.shapes(kernel), kernel.sizes
        if self.layers:
            return chain_operators(self.layers, shapes, sizes)
        if self.operators is not None:
            return self.operators(shapes, sizes)
        return _traced(self, kernel)

    def work(self, kernel: Kernel) -> Features:
        """Count the work of a kernel."""
        return count_operators(self.ops(kernel)).features

    def features(self, kernel: Kernel) -> dict[str, int]:
        """Return nn-Meter's features: the configuration, FLOPs (two per multiply-add) and parameters."""
        work = self.work(kernel)
        return {**{name: kernel[name] for name in self.domains}, "FLOPS": work.flops, "PARAMS": work.params}

    def check(self, kernel: Kernel, *, to_measure: bool = True) -> Kernel:
        """Return the kernel, after validating that it is one of this type.

        Parameters
        ----------
        kernel : Kernel
            Kernel to validate.
        to_measure : bool, default=True
            Whether to check the size limits of measuring as well. Larger kernels can only be predicted.

        Raises
        ------
        InvalidValueError
            If a size is missing, unknown or out of range, or the kernel is too large.
        """
        if kernel.kind != self.name or set(kernel.sizes) != set(self.domains):
            raise InvalidValueError(
                f"A kernel {self.name!r} has the configuration {', '.join(self.domains)}. Got {kernel.key}."
            )
        for name, domain in self.domains.items():
            if not domain.low <= kernel[name] <= domain.high:
                raise InvalidValueError(
                    f"The {name!r} of {self.name!r} must be from {domain.low} to {domain.high}. Got {kernel[name]}."
                )
        for name, of in self.multiples.items():
            if kernel[name] % self._multiple(of, kernel.sizes):
                raise InvalidValueError(f"The {name!r} of {self.name!r} must be a multiple of {of}. Got {kernel.key}.")
        if not self._makes_sense(kernel.sizes):
            raise InvalidValueError(f"The kernel {kernel.key} has no output: its window is larger than its input.")
        if to_measure and not self._fits(kernel):
            raise InvalidValueError(
                f"The kernel {kernel.key} is too large: more than {MOST_ELEMENTS} elements, {MOST_MACS} multiply-adds "
                f"or {MOST_PARAMS} parameters."
            )
        return kernel

    def snap(self, sizes: Mapping[str, float], share: float = 1.0) -> Kernel:
        """Return a valid kernel near the given numbers: in range, with required multiples, and within the size limits.

        Parameters
        ----------
        sizes : mapping of str to float
            Numbers by name; missing ones are set to the least value, unknown ones are ignored.
        share : float, default=1.0
            Factor of the limits of elements, multiply-adds and parameters.
        """
        found = {name: domain.snap(sizes.get(name, domain.low)) for name, domain in self.domains.items()}
        found = self._aligned(found)
        while not self._fits(Kernel.of(self.name, **found), share):
            smaller = next((sizes for sizes in self._shrunk(found) if sizes != found), None)
            if smaller is None:
                break
            found = smaller
        return Kernel.of(self.name, **found)

    def _shrunk(self, found: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """Yield the sizes with one of them reduced, in descending order of the ratio to its least value."""
        shrinkable = [name for name in self.domains if name not in _FORMS]
        for name in sorted(shrinkable, key=lambda name: -found[name] / max(1, self.domains[name].low)):
            yield self._aligned({**found, name: self.domains[name].snap(math.floor(found[name] * _SHRINK))})

    def _aligned(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Round down to required multiples, and enlarge an input that is smaller than its window."""
        found = dict(sizes)
        for name, of in self.multiples.items():
            step = self._multiple(of, found)
            found[name] = max(step, found[name] // step * step)
        if not self._makes_sense(found):
            found[_side_of(found)] = found["KERNEL_SIZE"]
        return found

    @staticmethod
    def _multiple(of: int | str, sizes: Mapping[str, int]) -> int:
        return of if isinstance(of, int) else sizes[of]

    @staticmethod
    def _makes_sense(sizes: Mapping[str, int]) -> bool:
        """Whether the input is large enough for a window of even size, which is not 'same'-padded."""
        window = sizes.get("KERNEL_SIZE", 1)
        return window % 2 == 1 or sizes.get(_side_of(sizes), window) >= window

    def _fits(self, kernel: Kernel, share: float = 1.0) -> bool:
        work = self.work(kernel)
        amounts = (work.inputs + work.outputs, work.macs, work.params)
        most = (MOST_ELEMENTS, MOST_MACS, MOST_PARAMS)
        return all(amount <= share * limit for amount, limit in zip(amounts, most, strict=True))


def _side_of(sizes: Mapping[str, int]) -> str:
    """Return the name of the size over which a window moves."""
    return "LENGTH" if "LENGTH" in sizes else "HW"


@functools.lru_cache(maxsize=4096)
def _traced(kind: Any, kernel: Kernel) -> tuple[OpSpec, ...]:
    with torch.device("meta"):
        module, inputs = kind.module(kernel), tuple(torch.empty(shape) for shape in kind.shapes(kernel))
    return tuple(op for _, op in capture_operators(module, inputs, by="graph"))


def is_sound(kernel: Kernel, types: Mapping[str, KernelType], *, to_measure: bool = True) -> bool:
    """Whether a kernel is of a known kind, and valid by `KernelType.check`."""
    if kernel.kind not in types:
        return False
    try:
        types[kernel.kind].check(kernel, to_measure=to_measure)
    except InvalidValueError:
        return False
    return True
