# SPDX-License-Identifier: Apache-2.0
"""`ToolRuntime`: networks made here and run by a benchmark binary on a device, and its benches."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nni_latency.devices._connection import DeviceError
from nni_latency.devices._device_runtime import DeviceRuntime, platform_facts
from nni_latency.devices._forecast import Size, size_with_weights
from nni_latency.devices._tool import FILES, Form
from nni_latency.devices._tool_bench import ToolBenches
from nni_latency.devices._tool_device import ToolDevice
from nni_latency.devices._tool_network import ToolNetwork
from nni_latency.devices._tool_onnxruntime_perf_test import events_of
from nni_latency.devices._waiting import Cooling
from nni_latency.errors import MeasurementError
from nni_latency.imports import require
from nni_latency.measurement import Benches, CandidateError, Limits, Meter, Subject
from nni_latency.measurement.runtimes import (
    Arrays,
    CompiledNetwork,
    ExportedRuntime,
    MakePlace,
    Place,
    Placed,
    ProfileCost,
    ProfiledNetwork,
    ProfiledRun,
    ProfiledRuntime,
)
from nni_latency.platforms import RUNTIME_FACT, Conditions, Platform, device_slug


class ToolRuntime(DeviceRuntime):
    """A runtime of a device without Python, measured by a benchmark binary.

    Networks are exported here and sent once by content. The tool reports no results, so none are checked, and large
    weights are random numbers that compress well.

    Parameters
    ----------
    device : ToolDevice
        The tool on the device.
    make : callable, optional
        Makes the runtime of a plugin, given what makes its `Place`, for a tool whose runtime's plugin prepares networks
        and reads its profiles.

    Raises
    ------
    DeviceError
        If the device cannot be reached, or cannot run the tool.
    """

    weights_note, request = "with random weights", 0.0

    # A device's runtime without an agent: nothing of its making is shared.
    def __init__(self, device: ToolDevice, make: Callable[[MakePlace], Any] | None = None) -> None:
        self.device, self.connection = device, device.connection
        self.inner: ExportedRuntime = (
            make(lambda _module, _settings: _ToolPlace(device)) if make is not None else _exporting(device)
        )
        self.cooling = Cooling(device.connection, self._heat, device.on_wait)
        self.name = device.tool.runtime
        self.supports_layer_timing, self.divides = self.inner.supports_layer_timing, self.inner.divides
        self.sees_calls, self.takes_onnx = self.inner.sees_calls, self.inner.takes_onnx
        self.least_runs = self.inner.least_runs

    @cached_property
    def platform(self) -> Platform:
        """The platform of the device."""
        facts = platform_facts(self.device.known.facts(on_gpu=self.device.tool.on_gpu))
        cores = ",".join(map(str, self.device.cores))
        if cores:
            facts["cpu_affinity"] = cores
        # The cores of a phone differ, so the cores that were chosen are part of the platform.
        own = {"tool": self.device.tool.name, "version": self.device.version, "cores": cores, **self.inner.identity}
        facts |= {f"{RUNTIME_FACT}{name}": value for name, value in own.items() if value}
        return Platform(device_slug(facts), self.name, self.device.precision, self.device.threads, facts)

    @property
    def sent(self) -> int:
        """Bytes sent to the device."""
        return self.device.sent

    def size_of(self, subject: Subject, built: Any) -> Size:
        """Estimate what a subject takes when it is sent, given what it builds."""
        return size_with_weights(subject, built, self.device.weigh, self.device.beside)

    def benches(self, meters: Sequence[Meter] = (), limits: Limits | None = None) -> Benches:
        """Return the benches of the device.

        Raises
        ------
        MeasurementError
            If there is a meter: it would read this machine.
        """
        _ = super().benches(meters, limits)
        return ToolBenches(self)

    def _lock(self) -> None:
        if self.device.lock is not None:
            self.device.lock.take()

    def _unlock(self) -> None:
        if self.device.lock is not None:
            self.device.lock.give_back()

    def conditions(self) -> Conditions:
        """Say what the device is like at this moment."""
        return self.device.known.conditions()

    def _heat(self) -> Mapping[str, Any]:
        try:
            return self.device.known.heat()
        except DeviceError:
            # It is lost, and the next start of the tool waits until it is back.
            return {"cpu_hot": False}

    def speeds(self) -> dict[str, float]:
        """Raise `MeasurementError`: a benchmark binary multiplies no matrices on demand."""
        raise MeasurementError(
            f"{self.device.tool.name} runs networks alone, and cannot measure how many operations "
            f"{self.connection.description} computes per second. Take a runtime with Python there, such as onnxruntime."
        )

    def close(self) -> None:
        """Remove what was sent to the device; it is sent again when it is needed."""
        self.device.close()


class _Compiled(ProfiledNetwork):
    """A network that a tool runs."""

    def __init__(self, network: ToolNetwork) -> None:
        self.network = network

    def run(self, inputs: Arrays) -> Sequence[NDArray[Any]]:
        self.network.times(1)
        return []

    def settled(self, inputs: Arrays, runs: int) -> Sequence[NDArray[Any]]:
        # Every start settles anew.
        return []

    def times(self, inputs: Arrays, runs: int) -> list[float] | None:
        return self.network.times(runs)

    def profile(self, make_inputs: Callable[[], Arrays], runs: int) -> list[ProfiledRun]:
        return self.network.measured(runs)[1]


class _Exporting(ExportedRuntime):
    """Exports networks in the form that a tool takes, and leaves everything else to it."""

    def __init__(self, device: ToolDevice) -> None:
        # Before, for the base holds the precision against them.
        self.name, self.precisions = device.tool.runtime, device.tool.precisions
        super().__init__(threads=device.threads, precision=device.precision)
        self.tool_device, self.form = device, device.tool.form
        self.takes_onnx = self.form != "tflite"

    @property
    def version(self) -> str:
        return self.tool_device.version or ""

    @property
    def identity(self) -> dict[str, Any]:
        """Version of what converts networks for LiteRT, which is looked for before anything is measured."""
        return {"converter": _litert().converter_version()} if self.form == "tflite" else {}

    def _export(self, module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> Any:
        if self.form == "tflite":
            return torch.export.export(module, tuple(tensors), strict=False)
        return super()._export(module, tensors)

    def _compile(self, network: Any, inputs: Arrays) -> CompiledNetwork:
        shapes = [array.shape for array in inputs]
        files = _WRITERS[self.form](network, inputs)
        is_tflite = self.form == "tflite"
        weights = _litert().weights_of(files[FILES["tflite"][0]]) if is_tflite else network.weights()
        return _Compiled(self.tool_device.load(files, shapes, weights))

    def _check(self, found: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]], *, values: bool) -> None:
        """Do nothing: a tool reports no results."""


class _ProfiledExporting(_Exporting, ProfiledRuntime):
    """Exports networks for a tool that reports the times of their nodes."""

    @cached_property
    def profile_cost(self) -> ProfileCost:
        return ProfileCost() if self.tool_device.tool.counts_always else super().profile_cost


def _exporting(device: ToolDevice) -> ExportedRuntime:
    return _ProfiledExporting(device) if device.tool.gives_layers else _Exporting(device)


def _onnx_files(network: Any, inputs: Arrays) -> dict[str, bytes]:
    return {FILES["onnx"][0]: network.serialised()}


def _tflite_files(network: Any, inputs: Arrays) -> dict[str, bytes]:
    if not isinstance(network, torch.export.ExportedProgram):
        raise MeasurementError("This tool takes modules of torch and no ONNX files. Give the module.")
    if all(node.op in ("placeholder", "output") for node in network.graph.nodes):
        raise CandidateError("it has no operators, and LiteRT converts no such network")
    return {FILES["tflite"][0]: _litert().convert(network)}


def _litert() -> Any:
    return require("nni_latency_litert", "Networks for LiteRT", "./plugins/nni_latency_litert")


def _ncnn_files(network: Any, inputs: Arrays) -> dict[str, bytes]:
    if any(array.shape[:1] != (1,) for array in inputs):
        raise MeasurementError("ncnn runs batches of one. Take a batch size of 1.")
    plugin = require("nni_latency_ncnn", "Networks for ncnn", "./plugins/nni_latency_ncnn")
    with tempfile.TemporaryDirectory() as folder:
        paths = plugin.convert(network, inputs, Path(folder))
        return {name: path.read_bytes() for name, path in zip(FILES["ncnn"], paths, strict=True)}


_WRITERS: Mapping[Form, Callable[[Any, Arrays], dict[str, bytes]]] = {
    "onnx": _onnx_files,
    "tflite": _tflite_files,
    "ncnn": _ncnn_files,
}


class _ToolPlace(Place):
    """Where the plugin of ONNX Runtime runs networks: a tool on a device instead of an adapter."""

    def __init__(self, device: ToolDevice) -> None:
        self._device = device

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"version": self._device.version or "", "providers": ["CPUExecutionProvider"]}

    def load(self, data: bytes, weights: Iterable[NDArray[Any]] = ()) -> Placed:
        onnx = require("onnx", "Networks for ONNX Runtime", "onnx")
        graph = onnx.ModelProto.FromString(data).graph
        shapes = [_shape_of(item) for item in graph.input]
        network = self._device.load({FILES["onnx"][0]: data}, shapes, weights)
        return _ToolPlaced(network, [_shape_of(item) for item in graph.output])


def _shape_of(value: Any) -> tuple[int, ...]:
    return tuple(axis.dim_value for axis in value.type.tensor_type.shape.dim)


class _ToolPlaced(Placed):
    """A network that ``onnxruntime_perf_test`` runs, with its profile as the adapter of ONNX Runtime returns it."""

    keeps_weights = False

    def __init__(self, network: ToolNetwork, results: Sequence[tuple[int, ...]]) -> None:
        self.network, self._results = network, results

    def run(self, arrays: Arrays) -> Sequence[NDArray[Any]]:
        self.network.times(1)
        return self.settled(arrays, 1)

    def settled(self, arrays: Arrays, runs: int) -> Sequence[NDArray[Any]]:
        # Every start settles anew, and no results are reported.
        return [np.broadcast_to(np.zeros((), np.float32), shape) for shape in self._results]

    def times(self, arrays: Arrays, runs: int) -> list[float] | None:
        return self.network.times(runs)

    def profile(self, feed: Callable[[], Arrays], runs: int) -> Mapping[str, Any]:
        _, written = self.network.written(runs, with_layers=True)
        try:
            return profile_of(events_of(written), runs)
        except (MeasurementError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise CandidateError(f"{self.network.device.tool.name} ended, but {error}") from error

    def call(self, method: str) -> Any:
        return self.network.first.get("optimised.onnx", b"")


def profile_of(events: Sequence[Mapping[str, Any]], runs: int) -> dict[str, Any]:
    """Return what is read of a profile of ONNX Runtime, in the form in which its adapter returns one.

    Parameters
    ----------
    events : sequence of dict
        Events of the profile.
    runs : int
        The last runs, which count.
    """
    spans = sorted((event["ts"], event["dur"]) for event in events if event["name"] == "model_run")[-runs:]
    kernels = sorted(
        (event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")),
        key=lambda event: event["ts"],
    )
    places: dict[tuple[str, str, str, str], int] = {}
    found = []
    for begin, duration in spans:
        own = [event for event in kernels if begin <= event["ts"] < begin + duration]
        nodes = [places.setdefault(_node(event), len(places)) for event in own]
        found.append(
            {
                "nodes": nodes,
                "begin": [event["ts"] for event in own],
                "took": [event["dur"] for event in own],
                "seconds": 1e-6 * duration,
            }
        )
    return {"nodes": [list(node) for node in places], "runs": found}


def _node(event: Mapping[str, Any]) -> tuple[str, str, str, str]:
    args = event["args"]
    types = [kind for item in args.get("input_type_shape", [])[:1] for kind in item]
    return event["name"].removesuffix("_kernel_time"), args["op_name"], args["provider"], types[0] if types else ""
