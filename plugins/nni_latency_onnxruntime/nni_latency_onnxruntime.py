"""ONNX Runtime as a runtime for nni_latency, divided into layers and operators by its own profile."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

from nni_latency import hookimpl
from nni_latency.errors import InvalidValueError, MeasurementError, first_line
from nni_latency.measurement import Fallback, fallbacks_of
from nni_latency.measurement.runtimes import Arrays, ProfiledNetwork, ProfiledNode, ProfiledRun, ProfiledRuntime
from nni_latency.operators import OnnxNetwork

#: Providers that may be asked for by name.
_NAMED = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}

#: How nodes are named that only change the layout of a tensor.
_OWN = ("ReorderInput", "ReorderOutput")

#: Nodes that quantise, or bring a tensor to another device, and compute nothing.
_CONVERTING = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Cast", "MemcpyToHost", "MemcpyFromHost")

#: Types of inputs in which floating point numbers are computed, as a profile has them.
_FLOATS = {"float": "fp32", "float16": "fp16", "bfloat16": "bf16", "double": "fp64"}

#: Runs whose profile is thrown away: the first ones of a session are slower.
_COLD = 2


class OnnxRuntime(ProfiledRuntime):
    """ONNX Runtime with all of its optimisations.

    Parameters
    ----------
    device : str, default="cpu"
        ``cpu`` or ``cuda``.
    threads : int, default=1
        Threads that compute one network.
    precision : {"fp32", "int8"}, default="fp32"
        What it computes in; ``int8`` quantises the network statically (QDQ) on random data.
    provider : str, optional
        ``cpu``, ``cuda`` or ``tensorrt``; that of the device by default.

    Raises
    ------
    InvalidValueError
        If this installation of ONNX Runtime lacks the provider.

    References
    ----------
    .. [1] https://onnxruntime.ai/docs/performance/tune-performance/profiling-tools.html
    """

    name = "onnxruntime"
    precisions = ("fp32", "int8")
    devices = ("cpu", "cuda")

    def __init__(
        self, device: str = "cpu", *, threads: int = 1, precision: str = "fp32", provider: str | None = None
    ) -> None:
        super().__init__(device, threads=threads, precision=precision)
        provider = provider or device
        if provider not in _NAMED:
            raise InvalidValueError(f"The option 'provider' must be one of {', '.join(_NAMED)}. Got {provider!r}.")
        self.provider = _NAMED[provider]
        there = onnxruntime.get_available_providers()
        if self.provider not in there:
            raise InvalidValueError(
                f"This installation of onnxruntime lacks {self.provider}. It has {', '.join(there)}. "
                "For a GPU, install: pip install onnxruntime-gpu"
            )

    @property
    def version(self) -> str:
        """Version of ONNX Runtime."""
        return str(onnxruntime.__version__)

    @property
    def identity(self) -> dict[str, Any]:
        """Which execution provider was asked for."""
        return {"provider": self.provider}

    def _compile(self, network: OnnxNetwork, inputs: Arrays) -> ProfiledNetwork:
        spelt_out = dataclasses.replace(network, model=_spelt_out(network.model))
        feed = spelt_out.feed(inputs)
        model = _quantised(spelt_out, feed) if self.precision == "int8" else spelt_out.serialised()
        return _Session(spelt_out, model, self.provider, self.threads, self.precision)


class _Session(ProfiledNetwork):
    """A network in a session of ONNX Runtime, and another session for every profile."""

    def __init__(self, network: OnnxNetwork, model: bytes, provider: str, threads: int, precision: str) -> None:
        self._network, self._model, self._provider, self._threads = network, model, provider, threads
        self._precision = precision
        self._fallbacks: tuple[Fallback, ...] | None = None
        self._session = self._open()

    def run(self, inputs: Arrays) -> Sequence[NDArray[Any]]:
        """Run it once."""
        found: list[NDArray[Any]] = self._session.run(None, self._network.feed(inputs))
        return [np.asarray(item) for item in found]

    def profile(self, make_inputs: Callable[[], Arrays], runs: int) -> list[ProfiledRun]:
        """Run it several times in a session of its own that writes a profile."""
        events, took = self._events(make_inputs, _COLD + runs)
        self._fallbacks = find_fallbacks(events, self._provider, self._precision)
        return [
            self._profiled(nodes, seconds)
            for nodes, seconds in zip(_nodes_by_run(events)[-runs:], took[-runs:], strict=True)
        ]

    def _profiled(self, events: Sequence[Mapping[str, Any]], seconds: float) -> ProfiledRun:
        names = [event["name"].removesuffix("_kernel_time") for event in events]
        nodes = [
            ProfiledNode(self._known_names(name), event["dur"] * 1e-6, name.startswith(_OWN))
            for name, event in zip(names, events, strict=True)
        ]
        first, last = events[0], events[-1]
        return ProfiledRun(nodes, seconds, (last["ts"] + last["dur"] - first["ts"]) * 1e-6)

    def fallbacks(self, inputs: Arrays) -> tuple[Fallback, ...]:
        """Say by a profile which nodes another provider ran, or ran in floating point although they were quantised."""
        if self._fallbacks is None:
            alone = self._provider == _NAMED["cpu"] and self._precision == "fp32"
            events = [] if alone else self._events(lambda: inputs, 1)[0]
            self._fallbacks = find_fallbacks(events, self._provider, self._precision)
        return self._fallbacks

    def _events(self, make_inputs: Callable[[], Arrays], runs: int) -> tuple[list[dict[str, Any]], list[float]]:
        """Run it several times in a session of its own; return the profile of that, and what every run took [s]."""
        with tempfile.TemporaryDirectory() as folder:
            session = self._open(Path(folder))
            took = [_timed(session, self._network.feed(make_inputs())) for _ in range(runs)]
            events: list[dict[str, Any]] = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        return events, took

    def _known_names(self, name: str) -> list[str]:
        """Return the name of a node, the tensors that it makes, and the activation that runs in it."""
        if name.startswith(_OWN):
            return [name]
        return [name, *self._results.get(name, ())]

    @cached_property
    def _results(self) -> dict[str, list[str]]:
        """By node of the optimised network, the tensors that it makes, and the activation that it was told to apply.

        A convolution has the name of the activation's tensor; a normalisation that became a convolution has its own.
        """
        with tempfile.TemporaryDirectory() as folder:
            options = self._options()
            options.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
            try:
                self._load(options)
            except MeasurementError:
                # A provider that compiles nodes, such as TensorRT, has none that could be written.
                return {}
            optimised = onnx.load(options.optimized_model_filepath, load_external_data=False)
        return {node.name: [*node.output, *self._activations(node)] for node in optimised.graph.node}

    def _activations(self, optimised: onnx.NodeProto) -> list[str]:
        """Return the activations that take what a node of the optimised network was before, if it applies one."""
        applied = {item.s.decode() for item in optimised.attribute if item.name == "activation"}
        readers = self._readers.get(self._network.origin_of(optimised.name), []) if applied else []
        return [node.name for node in readers if node.op_type in applied]

    @cached_property
    def _readers(self) -> dict[str, list[onnx.NodeProto]]:
        """By node of the network, the nodes that take its results."""
        found: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in self._network.model.graph.node:
            for tensor in node.input:
                found[self._network.origin_of(tensor)].append(node)
        return found

    def _open(self, folder: Path | None = None) -> Any:
        options = self._options()
        if folder is not None:
            options.enable_profiling, options.profile_file_prefix = True, str(folder / "profile")
        return self._load(options)

    def _options(self) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self._threads, 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 3
        # As the session does it for its own thread.
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
        return options

    def _load(self, options: Any) -> Any:
        try:
            return onnxruntime.InferenceSession(self._model, options, providers=[self._provider])
        except Exception as error:  # whatever its C++ code raises
            raise MeasurementError(f"ONNX Runtime cannot load the network: {first_line(error)}") from error


def _timed(session: Any, feed: Mapping[str, NDArray[Any]]) -> float:
    """Run a network once and return what it took [s]."""
    begin = time.perf_counter()
    session.run(None, feed)
    return time.perf_counter() - begin


def _nodes_by_run(events: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Sort the events of a profile into runs: those of nodes, in the order in which they ran."""
    ordered = sorted(events, key=lambda event: event["ts"])
    runs = [event for event in ordered if event["name"] == "model_run"]
    nodes: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for event in ordered:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            number = next(
                (index for index, run in enumerate(runs) if run["ts"] <= event["ts"] < run["ts"] + run["dur"]), None
            )
            if number is not None:
                nodes[number].append(event)
    return [nodes[index] for index in range(len(runs))]


def _spelt_out(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write HardSwish, which ONNX Runtime has no kernel for, as what it makes of it, under names that tell the part."""
    if all(node.op_type != "HardSwish" for node in model.graph.node):
        return model
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type != "HardSwish":
            nodes.append(node)
            continue
        (taken,), (made,) = node.input, node.output
        gate = f"{made}/gate"
        nodes += [
            onnx.helper.make_node("HardSigmoid", [taken], [gate], f"{node.name}/HardSigmoid", alpha=1 / 6, beta=0.5),
            onnx.helper.make_node("Mul", [taken, gate], [made], node.name),
        ]
    found = onnx.ModelProto()
    found.CopyFrom(model)
    del found.graph.node[:]
    found.graph.node.extend(nodes)
    return found


def find_fallbacks(events: Sequence[Mapping[str, Any]], provider: str, precision: str) -> tuple[Fallback, ...]:
    """Say which nodes of a profile another provider ran than was asked for, or ran in floating point instead of int8.

    Parameters
    ----------
    events : sequence of mapping
        A profile of ONNX Runtime.
    provider : str
        The execution provider that was asked for, by its full name.
    precision : str
        ``fp32`` or ``int8``.
    """
    nodes = {
        event["name"]: event["args"]
        for event in events
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")
    }
    computing = [
        args for args in nodes.values() if args["op_name"] not in _CONVERTING and not args["op_name"].startswith(_OWN)
    ]
    found = fallbacks_of([(args["op_name"], args["provider"]) for args in computing], [provider], "on {}")
    if precision == "int8":
        kinds = [(args["op_name"], _computed_in(args)) for args in computing]
        found += fallbacks_of(kinds, ["int8"])
    return found


def _computed_in(args: Mapping[str, Any]) -> str:
    """Return what a node computes in: the type of its data, which is its first input."""
    types = [kind for item in args.get("input_type_shape", [])[:1] for kind in item]
    return _FLOATS.get(types[0], "int8") if types else "int8"


class _OneSample(CalibrationDataReader):
    """Calibrates on what the network runs on."""

    def __init__(self, feed: Mapping[str, NDArray[Any]]) -> None:
        self._left = [feed]

    def get_next(self) -> Any:
        """Return the next sample; None behind the last."""
        return self._left.pop() if self._left else None


def _quantised(network: OnnxNetwork, feed: Mapping[str, NDArray[Any]]) -> bytes:
    """Quantise a network to int8, weights by channel."""
    # It moves the weights of the model that it is given into a file of its own, which is gone afterwards.
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "int8.onnx"
        quantize_static(model, out, _OneSample(feed), quant_format=QuantFormat.QDQ, per_channel=True)
        return out.read_bytes()


@hookimpl
def register_runtimes(register: Any) -> None:
    """Register the runtime."""
    register("onnxruntime", OnnxRuntime)
