"""OpenVINO as a runtime for nni_latency, divided into layers and operators by its own profile."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray

from nni_latency import hookimpl
from nni_latency.errors import InvalidValueError, MeasurementError, first_line, listed
from nni_latency.imports import require
from nni_latency.measurement import Fallback, fallbacks_of
from nni_latency.measurement.runtimes import (
    Arrays,
    ProfileCost,
    ProfiledNetwork,
    ProfiledNode,
    ProfiledRun,
    ProfiledRuntime,
)
from nni_latency.operators import OnnxNetwork

#: What OpenVINO calls the precisions. It must be told: by itself it computes in bf16 where the processor can. What is
#: quantised to int8 computes the rest in f32.
_HINTS = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}


#: What its runtime model calls the precisions that were asked for.
_ASKED = {"fp32": ("f32",), "bf16": ("bf16",), "int8": ("i8", "u8")}

#: What its runtime model calls floating point numbers. All else counts and addresses.
_FLOATS = ("f64", "f32", "f16", "bf16")

#: Kinds of nodes that compute nothing: they hold, move or convert a tensor.
_IDLE = ("Input", "Output", "Constant", "Const", "Parameter", "Result", "Reorder", "Reshape", "Convert", "MemoryInput")

#: Runs before those that are asked for, as many times as these, from which on the network is compiled anew.
_MOST_BEFORE = 2

#: Runs whose profile is thrown away: the first ones of a network are slower.
_COLD = 2

#: What is cut off a node's time on average [s].
_CUT = 1e-6


class OpenVino(ProfiledRuntime):
    """OpenVINO on the CPU, for the least latency of one network.

    Parameters
    ----------
    device : str, default="cpu"
        ``cpu``.
    threads : int, default=1
        Threads that compute one network.
    precision : {"fp32", "bf16", "int8"}, default="fp32"
        What it is told to compute in; ``int8`` quantises the network with nncf on random data.

    Raises
    ------
    InvalidValueError
        If the processor does not compute in the precision.
    MissingDependencyError
        If int8 is asked for, and nncf is not installed.

    References
    ----------
    .. [1] https://docs.openvino.ai/2026/openvino-workflow/running-inference/inference-devices-and-modes/cpu-device.html
    """

    name = "openvino"
    precisions = tuple(_HINTS)

    def __init__(self, device: str = "cpu", *, threads: int = 1, precision: str = "fp32") -> None:
        super().__init__(device, threads=threads, precision=precision)
        able = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if precision == "bf16" and "BF16" not in able:
            raise InvalidValueError(
                f"OpenVINO does not compute in bf16 on this processor, only in {', '.join(able)}. Take fp32 or int8."
            )
        if precision == "int8":
            require("nncf", "The precision int8 of OpenVINO", "nni_latency_openvino[int8]")

    @property
    def version(self) -> str:
        """Version of OpenVINO."""
        return str(openvino.__version__)

    @cached_property
    def profile_cost(self) -> ProfileCost:
        """Nothing: OpenVINO counts in every run."""
        return ProfileCost()

    def _compile(self, network: OnnxNetwork, inputs: Arrays) -> ProfiledNetwork:
        model = openvino.Core().read_model(network.serialised())
        if self.precision == "int8":
            model = _quantised(model, network.feed(inputs))
        return _Compiled(network, model, self.threads, self.precision)


class _Compiled(ProfiledNetwork):
    """A network that OpenVINO has compiled."""

    def __init__(self, network: OnnxNetwork, model: Any, threads: int, precision: str) -> None:
        self._network, self._model, self._threads, self._precision = network, model, threads, precision
        self._open()

    def run(self, inputs: Arrays) -> Sequence[NDArray[Any]]:
        """Run it once."""
        found = self._request.infer(self._network.feed(inputs), share_inputs=True)
        self._runs += 1
        return [np.asarray(item) for item in found.values()]

    def profile(self, make_inputs: Callable[[], Arrays], runs: int) -> list[ProfiledRun]:
        """Run it several times; every node has its share of each run's time, the same in all.

        OpenVINO says the mean over all runs since the network was compiled, in whole microseconds. The sum of the runs
        asked for is the difference of two such sums, which are the less exact the more runs there were before.
        """
        if self._runs > _MOST_BEFORE * runs:
            self._open()
            for _ in range(_COLD):
                self.run(make_inputs())
        before, took = self._sums(), [self._timed(make_inputs()) for _ in range(runs)]
        sums, whole = self._sums(), math.fsum(took)
        shares = {name: max(0.0, seconds - before.get(name, 0.0)) / whole for name, seconds in sums.items()}
        return [
            ProfiledRun(
                [
                    ProfiledNode(self._originals.get(name, [name]), share * seconds, name in self._reorders)
                    for name, share in shares.items()
                ],
                seconds,
            )
            for seconds in took
        ]

    def fallbacks(self, inputs: Arrays) -> tuple[Fallback, ...]:
        """Say which nodes compute in another precision, by the runtime model."""
        return self._fallbacks

    def _open(self) -> None:
        settings = {
            "INFERENCE_PRECISION_HINT": _HINTS[self._precision],
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": self._threads,
            "NUM_STREAMS": 1,
            "PERF_COUNT": True,
            # The session has put the thread where it is to stay.
            "ENABLE_CPU_PINNING": False,
        }
        try:
            compiled = openvino.Core().compile_model(self._model, "CPU", settings)
        except RuntimeError as error:
            raise MeasurementError(f"OpenVINO cannot compile the network: {first_line(error)}") from error
        self._request, self._runs = compiled.create_infer_request(), 0
        nodes = compiled.get_runtime_model().get_ordered_ops()
        _check_precision(nodes, self._precision)
        self._originals = {
            node.get_friendly_name(): [node.get_friendly_name(), *_original_names(node)] for node in nodes
        }
        self._fallbacks = find_fallbacks(nodes, self._precision)
        self._reorders = {node.get_friendly_name() for node in nodes if _info(node, "layerType") == "Reorder"}

    def _timed(self, inputs: Arrays) -> float:
        begin = time.perf_counter()
        self.run(inputs)
        return time.perf_counter() - begin

    def _sums(self) -> dict[str, float]:
        """Return the time of every node over all runs so far [s], in the order in which they run.

        Each run's time and their mean are cut to whole microseconds, so both are half of one longer on average.
        """
        return {
            item.node_name: self._runs * (item.real_time.total_seconds() + _CUT)
            for item in self._request.profiling_info
            if item.status == openvino.ProfilingInfo.Status.EXECUTED
        }


def _original_names(node: Any) -> list[str]:
    return _info(node, "originalLayersNames").split(",")


def _info(node: Any, name: str) -> str:
    info = node.get_rt_info()
    return str(info[name].value) if name in info else ""


def find_fallbacks(nodes: Sequence[Any], precision: str) -> tuple[Fallback, ...]:
    """Say which nodes of a runtime model compute in another precision than was asked for.

    Parameters
    ----------
    nodes : sequence of openvino.Node
        Those of a runtime model.
    precision : str
        ``fp32``, ``bf16`` or ``int8``.
    """
    known = [(_info(node, "layerType"), _info(node, "runtimePrecision").lower()) for node in nodes]
    asked = _ASKED[precision]
    return fallbacks_of([(kind, ran) for kind, ran in known if kind not in _IDLE and ran in (*_FLOATS, *asked)], asked)


def _check_precision(nodes: Sequence[Any], precision: str) -> None:
    """Raise `MeasurementError` if a node of a network that was to run in fp32 does not."""
    lower = [node.get_friendly_name() for node in nodes if _info(node, "runtimePrecision").lower() in ("bf16", "f16")]
    if lower and precision != "bf16":
        raise MeasurementError(f"OpenVINO computes in less than f32 although it was told f32: {listed(lower)}.")


def _quantised(model: Any, feed: Mapping[str, NDArray[Any]]) -> Any:
    nncf = require("nncf", "The precision int8 of OpenVINO", "nni_latency_openvino[int8]")
    return nncf.quantize(model, nncf.Dataset([feed]), subset_size=1)


@hookimpl
def register_runtimes(register: Any) -> None:
    """Register the runtime."""
    register("openvino", OpenVino)
