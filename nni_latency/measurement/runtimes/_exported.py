# SPDX-License-Identifier: Apache-2.0
"""What the runtimes share that take a network as ONNX and compile it whole."""

from __future__ import annotations

import contextlib
import dataclasses
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement._record import Fallback
from nni_latency.measurement._subject import Subject
from nni_latency.measurement._timing import Stage
from nni_latency.measurement.runtimes._base import Arrays, CompiledNetwork
from nni_latency.measurement.runtimes._placed import Here, MakePlace, Place
from nni_latency.measurement.runtimes._session import LocalRuntime, check_threads, computing
from nni_latency.measurement.runtimes._torch import Unpacking
from nni_latency.operators import OnnxNetwork, export_onnx, tensors_in
from nni_latency.platforms import OTHER_DEVICES, RUNTIME_FACT
from nni_latency.units import format_percent, number_of

#: How far results may be off from those of torch by precision: the length of the difference over that of the result.
_TOLERANCE = {"fp32": 1e-3, "fp16": 2e-2, "bf16": 5e-2, "int8": 0.3}

#: Runs until what a runtime does once is done.
SETTLING_RUNS = 2


def each_array(value: Any) -> Arrays:
    """Return what a stage takes as the inputs of a network, one or several."""
    return value if isinstance(value, tuple) else (value,)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A network that can be run and, where it is in ONNX, joined to others; and whether it was exported here."""

    network: Any
    compiled: CompiledNetwork
    was_exported: bool = False

    def __call__(self, value: Any) -> Any:
        found = self.compiled.run(each_array(value))
        return found[0] if len(found) == 1 else tuple(found)


class Native:
    """What runs in torch before a network."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, value: Any) -> Any:
        made = list(tensors_in(self.module(*map(torch.from_numpy, each_array(value)))))
        return made[0].numpy() if len(made) == 1 else tuple(tensor.numpy() for tensor in made)


@dataclasses.dataclass(frozen=True)
class Chained:
    """A network behind what makes its inputs and empties the caches."""

    natives: Sequence[Native]
    prepared: Prepared

    def inputs(self, value: Any) -> Any:
        """Make the inputs of the network."""
        for native in self.natives:
            value = native(value)
        return value

    def __call__(self, value: Any) -> Any:
        return self.prepared(self.inputs(value))


@dataclasses.dataclass(frozen=True)
class Parallel(Prepared):
    """Networks side by side in one; they take a tuple of all of their inputs."""


class ExportedRuntime(LocalRuntime):
    """Base of runtimes that compile a network from ONNX or another export, and are timed from the outside.

    A subclass gives `name`, `adapter`, `precisions` and `_compile`, and `_export` if it does not take ONNX.

    Parameters
    ----------
    device : str, default="cpu"
        Where it runs.
    threads : int, default=1
        Threads that compute one network.
    precision : str, default="fp32"
        One of `precisions`.
    place : callable, default=Here
        Makes the `Place` where its adapter runs networks: this process, or a device.

    Raises
    ------
    InvalidValueError
        If the precision is none of them, or the threads are not positive.
    """

    supports_layer_timing = False
    takes_onnx = True

    #: Precisions that it computes in.
    precisions: tuple[str, ...] = ("fp32",)

    #: Devices that it computes on.
    devices: tuple[str, ...] = ("cpu",)

    #: The module that is its adapter, which also runs on devices; empty for a runtime that has none.
    adapter: str = ""

    def __init__(
        self, device: str = "cpu", *, threads: int = 1, precision: str = "fp32", place: MakePlace = Here
    ) -> None:
        if precision not in self.precisions:
            raise InvalidValueError(
                f"The runtime {self.name!r} computes in {', '.join(self.precisions)}. Got the precision {precision!r}."
            )
        if device not in self.devices:
            raise InvalidValueError(
                f"The runtime {self.name!r} runs on {', '.join(self.devices)}. Got {device!r}. {OTHER_DEVICES}"
            )
        self.device, self.threads, self.precision = device, check_threads(threads), precision
        self._candidates: dict[tuple[str, Any], Stage] = {}
        self._make_place = place

    @property
    def settings(self) -> dict[str, Any]:
        """What its adapter is made with."""
        return {"threads": self.threads, "precision": self.precision}

    @cached_property
    def place(self) -> Place:
        """Where its adapter runs networks."""
        return self._make_place(self.adapter, self.settings)

    @property
    def version(self) -> str:
        """Version of the runtime, as the adapter says."""
        return str(self.place.facts["version"])

    @property
    def identity(self) -> dict[str, Any]:
        """Further facts that distinguish its platforms, by names without ``runtime.``."""
        return {}

    def _export(self, module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> Any:
        """Bring a module into the form that `_compile` takes; a runtime that does not come from ONNX overrides it."""
        return export_onnx(module, tensors)

    @abstractmethod
    def _compile(self, network: OnnxNetwork, inputs: Arrays) -> CompiledNetwork:
        """Compile a network for such inputs, which are also what it is calibrated on where it is quantised.

        Raises
        ------
        MeasurementError
            If it cannot be compiled, or would not run where and in the precision that was asked for.
        """

    def _facts(self) -> Mapping[str, Any]:
        return {f"{RUNTIME_FACT}{name}": value for name, value in {"version": self.version, **self.identity}.items()}

    def _take(self, tensor: torch.Tensor) -> Any:
        return tensor.numpy()

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Hold what `computing` sets, as the runtimes of torch do; forget candidates afterwards."""
        # Read before the processors are taken away: it says how many there are.
        _ = self.platform
        with computing(self.threads, self._processors):
            try:
                yield
            finally:
                self.forget_candidates()

    def forget_candidates(self) -> None:
        """Let go of compiled candidates, which are kept for those that compute the same."""
        self._candidates.clear()

    def prepare(self, subject: Subject, inputs: Any) -> Stage:
        """Build a module, compile it, and check what it computes against torch; or compile a network in ONNX.

        Candidates that compute the same are compiled once.
        """
        if subject.kind != "candidate" or not subject.digest:
            return self._prepared(subject, inputs)
        known = subject.digest, subject.inputs
        if known not in self._candidates:
            self._candidates[known] = self._prepared(subject, inputs)
        return self._candidates[known]

    def _prepared(self, subject: Subject, inputs: Any) -> Stage:
        built = subject.build()
        if isinstance(built, OnnxNetwork):
            # There is nothing of torch to hold its results against.
            return self._warmed_up(built, each_array(inputs))
        module = built.eval().requires_grad_(False)
        if getattr(module, "native", False):
            return Native(module)
        if isinstance(inputs, tuple):
            module = Unpacking(module, subject.inputs).eval()
        arrays = each_array(inputs)
        # Outside of inference mode, in which the exporter cannot fold constants.
        with torch.inference_mode(False), torch.no_grad():
            tensors = [torch.from_numpy(array.copy()) for array in arrays]
            expected = tensors_in(module(*(tensor.clone() for tensor in tensors)))
            network = self._export(module, tensors)
        compiled = self._compile(network, arrays)
        found = compiled.settled(arrays, SETTLING_RUNS + 1)
        self._check(found, [item.float().numpy() for item in expected], values=compiled.keeps_weights)
        return Prepared(network, compiled, was_exported=True)

    def fallbacks(self, stage: Stage, value: Any) -> tuple[Fallback, ...]:
        """Ask the compiled network; what runs in torch before it is not of the runtime."""
        if isinstance(stage, Chained):
            return self.fallbacks(stage.prepared, stage.inputs(value))
        return stage.compiled.fallbacks(each_array(value)) if isinstance(stage, Prepared) else ()

    def _warmed_up(self, network: Any, arrays: Arrays) -> Prepared:
        compiled = self._compile(network, arrays)
        compiled.settle(arrays, SETTLING_RUNS)
        return Prepared(network, compiled)

    def _check(self, found: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]], *, values: bool) -> None:
        """Raise `MeasurementError` if a network computes something else than in torch, or only other shapes."""
        if len(found) != len(expected):
            raise MeasurementError(f"{self.name} returns {number_of(len(found), 'result')}, and torch {len(expected)}.")
        for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
            if mine.shape != theirs.shape:
                raise MeasurementError(
                    f"{self.name} returns the shape {mine.shape} for result {number}, and torch {theirs.shape}."
                )
            if not values:
                continue
            off = float(np.linalg.norm(mine.astype(np.float64) - theirs) / max(1e-6, float(np.linalg.norm(theirs))))
            if not off <= _TOLERANCE[self.precision]:
                raise MeasurementError(
                    f"{self.name} computes something else than torch: result {number} is off by "
                    f"{format_percent(off)}, where {format_percent(_TOLERANCE[self.precision])} would be the rounding "
                    f"of {self.precision}."
                )
