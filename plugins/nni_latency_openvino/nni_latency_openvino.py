"""OpenVINO as a runtime for nni_latency, divided into layers and operators by its own profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray

from nni_latency import hookimpl
from nni_latency.errors import InvalidValueError, MeasurementError, listed
from nni_latency.imports import require
from nni_latency.measurement.runtimes import Arrays, ProfiledNetwork, ProfiledRuntime
from nni_latency.operators import OnnxNetwork

#: What OpenVINO calls the precisions. It must be told: by itself it computes in bf16 where the processor can. What is
#: quantised to int8 computes the rest in f32.
_HINTS = {"fp32": "f32", "bf16": "bf16", "int8": "f32"}


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

    def _compile(self, network: OnnxNetwork, inputs: Arrays) -> ProfiledNetwork:
        model = openvino.Core().read_model(network.serialised())
        if self.precision == "int8":
            model = _quantised(model, network.feed(inputs))
        return _Compiled(network, model, self.threads, self.precision)


class _Compiled(ProfiledNetwork):
    """A network that OpenVINO has compiled."""

    def __init__(self, network: OnnxNetwork, model: Any, threads: int, precision: str) -> None:
        settings = {
            "INFERENCE_PRECISION_HINT": _HINTS[precision],
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERF_COUNT": True,
            # The session has put the thread where it is to stay.
            "ENABLE_CPU_PINNING": False,
        }
        try:
            compiled = openvino.Core().compile_model(model, "CPU", settings)
        except RuntimeError as error:
            raise MeasurementError(f"OpenVINO cannot compile the network: {str(error).splitlines()[0]}") from error
        self._request, self._network = compiled.create_infer_request(), network
        nodes = compiled.get_runtime_model().get_ordered_ops()
        _check_precision(nodes, precision)
        self._originals = {
            node.get_friendly_name(): [node.get_friendly_name(), *_original_names(node)] for node in nodes
        }

    def run(self, inputs: Arrays) -> Sequence[NDArray[Any]]:
        """Run it once."""
        found = self._request.infer(self._network.feed(inputs), share_inputs=True)
        return [np.asarray(item) for item in found.values()]

    def profile(self, make_inputs: Callable[[], Arrays], runs: int) -> list[list[tuple[Sequence[str], float]]]:
        """Run it several times."""
        found: list[list[tuple[Sequence[str], float]]] = []
        for _ in range(runs):
            self.run(make_inputs())
            found.append(
                [
                    (self._originals.get(item.node_name, [item.node_name]), item.real_time.total_seconds())
                    for item in self._request.profiling_info
                    if item.status == openvino.ProfilingInfo.Status.EXECUTED
                ]
            )
        return found


def _original_names(node: Any) -> list[str]:
    return _info(node, "originalLayersNames").split(",")


def _info(node: Any, name: str) -> str:
    info = node.get_rt_info()
    return str(info[name].value) if name in info else ""


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
