"""`KernelType`: a kind of kernel, which configurations it has, and how a module of one is built."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from nni_latency.errors import InvalidValueError, PluginError
from nni_latency.hook_checks import Check, PluginCall, plugin_origin
from nni_latency.kernels._kernel import Kernel
from nni_latency.kernels._layers import Shapes, Sizes, build_chain, chain_operators
from nni_latency.operators import Features, OpSpec, capture_operators, count_operators

#: What one kernel may hold at most: elements that it reads and writes, multiply-adds, and parameters.
MOST_ELEMENTS, MOST_MACS, MOST_PARAMS = 2**25, 4 * 10**9, 2**27

#: By what a size shrinks at a time until a kernel fits.
_SHRINK = 0.8

#: Sizes that say what a kernel does, and are not shrunk.
_FORMS = ("KERNEL_SIZE", "STRIDES", "POOL_STRIDES", "GROUPS", "SCALE", "HEADS")


@dataclass(frozen=True)
class Domain:
    """Which values a size may have. Immutable.

    Parameters
    ----------
    low, high : int
        Least and largest.
    usual : tuple of int, default=()
        What random sampling draws from; by default all values, small ones as often as large ones on a logarithmic
        scale.

    Examples
    --------
    >>> Domain(1, 512).snap(600), Domain(1, 512).snap(3.4)
    (512, 3)
    """

    low: int
    high: int
    usual: tuple[int, ...] = ()

    def snap(self, value: float) -> int:
        """Return the nearest value that is allowed."""
        return int(min(max(round(value), self.low), self.high))

    def draw(self, generator: np.random.Generator) -> int:
        """Draw a value; of a size that may be absent, half of the time none."""
        if not self.low and generator.random() < 0.5:
            return 0
        if self.usual:
            return int(generator.choice(self.usual))
        least = max(1, self.low)
        return self.snap(least * (self.high / least) ** generator.random())


def _are_shapes(answer: Any) -> bool:
    return isinstance(answer, (list, tuple)) and all(
        isinstance(shape, (list, tuple)) and all(isinstance(size, int) and size > 0 for size in shape)
        for shape in answer
    )


#: What the functions of a type must return.
_ANSWERS: Mapping[str, Check] = {
    "input_shapes": ("shapes of the inputs, each a tuple of whole numbers", _are_shapes),
    "build": ("a module", lambda answer: isinstance(answer, nn.Module)),
    "operators": (
        "a tuple of OpSpec",
        lambda answer: isinstance(answer, tuple) and all(isinstance(item, OpSpec) for item in answer),
    ),
}


@dataclass(frozen=True)
class KernelType:
    """A kind of kernel. Immutable; it reaches worker processes by cloudpickle.

    A type of one's own gives `build`. The operators follow from tracing it.

    Parameters
    ----------
    name : str
        The `Kernel.kind`.
    domains : mapping of str to Domain
        The sizes that make a configuration.
    input_shapes : callable
        Takes a configuration, and returns the shapes of the inputs, batch first.
    build : callable, optional
        Takes a configuration, and makes the module.
    layers : tuple of str, default=()
        In place of `build`: layers of the catalogue that run one after another.
    operators : callable, optional
        Takes shapes of the inputs and a configuration, and returns the operators of what `build` makes.
    group : str, optional
        Kinds of one group share a predictor. By default the name.
    multiples : mapping of str to int or str
        Sizes that must be a multiple of a number, or of another size.
    known : tuple of mapping
        Configurations that occur in networks; sampling begins around them. By default those of the group in the prior.

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
        """Return the type that a plugin made with its functions guarded: their errors name the plugin.

        Parameters
        ----------
        owner, name : str
            The plugin, and what it registered.

        Raises
        ------
        PluginError
            If it has another name, its sizes are no `Domain`, or its functions cannot be called.
        """
        origin = plugin_origin("kernel", owner, name)
        if self.name != name:
            raise PluginError(f"The {origin} must be a KernelType of the name {name!r}. Got {self.name!r}.")
        sizes = self.domains
        if not isinstance(sizes, Mapping) or not all(isinstance(domain, Domain) for domain in sizes.values()):
            raise PluginError(f"The 'domains' of the {origin} must be a mapping of names to Domain. Got {sizes!r}.")
        functions = {name: function for name in _ANSWERS if (function := getattr(self, name)) is not None}
        for name, function in functions.items():
            if not callable(function):
                raise PluginError(f"The {name!r} of the {origin} must be a function. Got {function!r}.")
        guarded: dict[str, Any] = {
            name: PluginCall(origin, name, function, _ANSWERS[name]) for name, function in functions.items()
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
        """Count what a kernel computes."""
        return count_operators(self.ops(kernel)).features

    def features(self, kernel: Kernel) -> dict[str, int]:
        """Return what nn-Meter's predictors see: the configuration, FLOPs (two a multiply-add) and parameters."""
        work = self.work(kernel)
        return {**{name: kernel[name] for name in self.domains}, "FLOPS": work.flops, "PARAMS": work.params}

    def check(self, kernel: Kernel, *, to_measure: bool = True) -> Kernel:
        """Return the kernel if it is one of this type.

        Parameters
        ----------
        kernel : Kernel
            Any.
        to_measure : bool, default=True
            Whether it is to be measured, and must not be too large for that. Larger ones are only predicted.

        Raises
        ------
        InvalidValueError
            If a size is missing, unknown or out of its range, or the kernel is too large.
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
        """Return the kernel next to any numbers: in range, a multiple where that must be, and not too large.

        Parameters
        ----------
        sizes : mapping of str to float
            Numbers by name; what is missing is least, and what the type does not have is left out.
        share : float, default=1.0
            How large it may be, as a share of the elements, multiply-adds and parameters that a kernel has at most.
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
        """Yield the sizes with one of them smaller, that first which is largest over its least."""
        shrinkable = [name for name in self.domains if name not in _FORMS]
        for name in sorted(shrinkable, key=lambda name: -found[name] / max(1, self.domains[name].low)):
            yield self._aligned({**found, name: self.domains[name].snap(math.floor(found[name] * _SHRINK))})

    def _aligned(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Make multiples of what must be, downwards, and enlarge an input that is smaller than its window."""
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
        """Whether a window of even size, which is not 'same'-padded, finds its input large enough."""
        window = sizes.get("KERNEL_SIZE", 1)
        return window % 2 == 1 or sizes.get(_side_of(sizes), window) >= window

    def _fits(self, kernel: Kernel, share: float = 1.0) -> bool:
        work = self.work(kernel)
        amounts = (work.inputs + work.outputs, work.macs, work.params)
        most = (MOST_ELEMENTS, MOST_MACS, MOST_PARAMS)
        return all(amount <= share * limit for amount, limit in zip(amounts, most, strict=True))


def _side_of(sizes: Mapping[str, int]) -> str:
    """Name the size over which a window moves."""
    return "LENGTH" if "LENGTH" in sizes else "HW"


@functools.lru_cache(maxsize=4096)
def _traced(kind: Any, kernel: Kernel) -> tuple[OpSpec, ...]:
    with torch.device("meta"):
        module, inputs = kind.module(kernel), tuple(torch.empty(shape) for shape in kind.shapes(kernel))
    return tuple(op for _, op in capture_operators(module, inputs, by="graph"))


def is_sound(kernel: Kernel, types: Mapping[str, KernelType], *, to_measure: bool = True) -> bool:
    """Whether a kernel is of a kind that is known, and `KernelType.check` has nothing against it."""
    if kernel.kind not in types:
        return False
    try:
        types[kernel.kind].check(kernel, to_measure=to_measure)
    except InvalidValueError:
        return False
    return True
