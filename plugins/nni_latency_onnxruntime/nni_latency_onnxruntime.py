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
from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement.runtimes import Arrays, ProfiledNetwork, ProfiledNode, ProfiledRun, ProfiledRuntime
from nni_latency.operators import OnnxNetwork

#: Providers that may be asked for by name.
_NAMED = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}

#: How nodes are named that only change the layout of a tensor.
_OWN = ("ReorderInput", "ReorderOutput")

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
        return _Session(spelt_out, model, self.provider, self.threads)


class _Session(ProfiledNetwork):
    """A network in a session of ONNX Runtime, and another session for every profile."""

    def __init__(self, network: OnnxNetwork, model: bytes, provider: str, threads: int) -> None:
        self._network, self._model, self._provider, self._threads = network, model, provider, threads
        self._session = self._open()

    def run(self, inputs: Arrays) -> Sequence[NDArray[Any]]:
        """Run it once."""
        found: list[NDArray[Any]] = self._session.run(None, self._network.feed(inputs))
        return [np.asarray(item) for item in found]

    def profile(self, make_inputs: Callable[[], Arrays], runs: int) -> list[ProfiledRun]:
        """Run it several times in a session of its own that writes a profile."""
        with tempfile.TemporaryDirectory() as folder:
            session = self._open(Path(folder))
            took = [_timed(session, self._network.feed(make_inputs())) for _ in range(_COLD + runs)]
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        return [
            ProfiledRun(
                [ProfiledNode(self._known_names(name), taken, name.startswith(_OWN)) for name, taken in nodes], seconds
            )
            for nodes, seconds in zip(_nodes_by_run(events)[-runs:], took[-runs:], strict=True)
        ]

    def _known_names(self, name: str) -> list[str]:
        """Return the name of a node, and the tensors that it makes where the name alone does not tell what it is."""
        if name.startswith(_OWN) or self._network.label_of([name]) is not None:
            return [name]
        return [name, *self._results.get(name, ())]

    @cached_property
    def _results(self) -> dict[str, list[str]]:
        """By node of the optimised network, the tensors that it makes."""
        with tempfile.TemporaryDirectory() as folder:
            options = self._options()
            options.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
            self._load(options)
            optimised = onnx.load(options.optimized_model_filepath, load_external_data=False)
        return {node.name: list(node.output) for node in optimised.graph.node}

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
            raise MeasurementError(f"ONNX Runtime cannot load the network: {str(error).splitlines()[0]}") from error


def _timed(session: Any, feed: Mapping[str, NDArray[Any]]) -> float:
    """Run a network once and return what it took [s]."""
    begin = time.perf_counter()
    session.run(None, feed)
    return time.perf_counter() - begin


def _nodes_by_run(events: Sequence[Mapping[str, Any]]) -> list[list[tuple[str, float]]]:
    """Sort the events of a profile into runs: name and time [s] of every node."""
    ordered = sorted(events, key=lambda event: event["ts"])
    runs = [event for event in ordered if event["name"] == "model_run"]
    nodes: dict[int, list[tuple[str, float]]] = defaultdict(list)
    for event in ordered:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            number = next(
                (index for index, run in enumerate(runs) if run["ts"] <= event["ts"] < run["ts"] + run["dur"]), None
            )
            if number is not None:
                nodes[number].append((event["name"].removesuffix("_kernel_time"), event["dur"] * 1e-6))
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


class _OneSample(CalibrationDataReader):
    """Calibrates on what the network runs on."""

    def __init__(self, feed: Mapping[str, NDArray[Any]]) -> None:
        self._left = [feed]

    def get_next(self) -> Any:
        """Return the next sample; None behind the last."""
        return self._left.pop() if self._left else None


def _quantised(network: OnnxNetwork, feed: Mapping[str, NDArray[Any]]) -> bytes:
    """Quantise a network to int8, weights by channel."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "int8.onnx"
        quantize_static(network.model, out, _OneSample(feed), quant_format=QuantFormat.QDQ, per_channel=True)
        return out.read_bytes()


@hookimpl
def register_runtimes(register: Any) -> None:
    """Register the runtime."""
    register("onnxruntime", OnnxRuntime)
