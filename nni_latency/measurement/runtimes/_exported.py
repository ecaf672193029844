# SPDX-License-Identifier: Apache-2.0
"""Base of the runtimes that compile whole networks from ONNX."""

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

#: Largest deviation of results from those of torch by precision: norm of the difference over that of the result.
_TOLERANCE = {"fp32": 1e-3, "fp16": 2e-2, "bf16": 5e-2, "int8": 0.3}

#: Runs until the one-time work of a runtime is done.
SETTLING_RUNS = 2


def each_array(value: Any) -> Arrays:
    """Return the input of a stage as a tuple of arrays."""
    return value if isinstance(value, tuple) else (value,)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A network that can be run and, if it is in ONNX, joined to others; and whether it was exported here."""

    network: Any
    compiled: CompiledNetwork
    was_exported: bool = False

    def __call__(self, value: Any) -> Any:
        found = self.compiled.run(each_array(value))
        return found[0] if len(found) == 1 else tuple(found)


class Native:
    """A module that runs in torch before a network."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __call__(self, value: Any) -> Any:
        made = list(tensors_in(self.module(*map(torch.from_numpy, each_array(value)))))
        return made[0].numpy() if len(made) == 1 else tuple(tensor.numpy() for tensor in made)


@dataclasses.dataclass(frozen=True)
class Chained:
    """A network after modules that make its inputs and flush the caches."""

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
    """Independent networks joined to one, which takes a tuple of all their inputs."""


class ExportedRuntime(LocalRuntime):
    """Base of runtimes that compile a network from ONNX or another export, and are timed from the outside.

    A subclass defines `name`, `adapter`, `precisions` and `_compile`, and `_export` if it does not take ONNX.

    Parameters
    ----------
    device : str, default="cpu"
        Device that it runs on.
    threads : int, default=1
        Threads that compute one network.
    precision : str, default="fp32"
        One of `precisions`.
    place : callable, default=Here
        Factory of the `Place` where its adapter runs networks: this process, or a device.

    Raises
    ------
    InvalidValueError
        If it does not support the precision or the device, or the threads are not positive.
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
        """Settings of its adapter."""
        return {"threads": self.threads, "precision": self.precision}

    @cached_property
    def place(self) -> Place:
        """Where its adapter runs networks."""
        return self._make_place(self.adapter, self.settings)

    @property
    def version(self) -> str:
        """Version of the runtime, as reported by the adapter."""
        return str(self.place.facts["version"])

    @property
    def identity(self) -> dict[str, Any]:
        """Further facts that distinguish its platforms, by names without ``runtime.``."""
        return {}

    def _export(self, module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> Any:
        """Export a module to the format that `_compile` takes; overridden by runtimes that do not take ONNX."""
        return export_onnx(module, tensors)

    @abstractmethod
    def _compile(self, network: OnnxNetwork, inputs: Arrays) -> CompiledNetwork:
        """Compile a network for inputs, which also calibrate it if it is quantised.

        Raises
        ------
        MeasurementError
            If it cannot be compiled, or would run in another place or precision than requested.
        """

    def _facts(self) -> Mapping[str, Any]:
        return {f"{RUNTIME_FACT}{name}": value for name, value in {"version": self.version, **self.identity}.items()}

    def _take(self, tensor: torch.Tensor) -> Any:
        try:
            return tensor.numpy()
        except TypeError as error:
            raise InvalidValueError(
                f"The runtime {self.name!r} takes its inputs from NumPy, which has no elements of the type "
                f"{str(tensor.dtype).removeprefix('torch.')}."
            ) from error

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Enter `computing`, like the runtimes of torch; release candidates afterwards."""
        # Read it before the thread is pinned, because it contains the number of processors.
        _ = self.platform
        with computing(self.threads, self._processors):
            try:
                yield
            finally:
                self.forget_candidates()

    def forget_candidates(self) -> None:
        """Release compiled candidates, which are kept for equal ones."""
        self._candidates.clear()

    def prepare(self, subject: Subject, inputs: Any) -> Stage:
        """Build a module, compile it, and compare its results with torch; or compile a network in ONNX.

        Equal candidates are compiled once.
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
            # There are no results of torch for comparison.
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
        """Return those of the compiled network; modules that run in torch before it do not count."""
        if isinstance(stage, Chained):
            return self.fallbacks(stage.prepared, stage.inputs(value))
        return stage.compiled.fallbacks(each_array(value)) if isinstance(stage, Prepared) else ()

    def _warmed_up(self, network: Any, arrays: Arrays) -> Prepared:
        compiled = self._compile(network, arrays)
        compiled.settle(arrays, SETTLING_RUNS)
        return Prepared(network, compiled)

    def _check(self, found: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]], *, values: bool) -> None:
        """Raise `MeasurementError` if results differ from those of torch in their shapes or, if asked, their values."""
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
