# SPDX-License-Identifier: Apache-2.0
"""`TensorRt`: networks in ONNX, divided into layers and operators by the profile of TensorRT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nni_latency.devices import tensorrt_node
from nni_latency.errors import InvalidValueError, MissingDependencyError
from nni_latency.measurement.runtimes import (
    Arrays,
    Here,
    MakePlace,
    PlacedProfiledNetwork,
    ProfiledRun,
    ProfiledRuntime,
)
from nni_latency.operators import OnnxNetwork


class TensorRt(ProfiledRuntime):
    """TensorRT on a GPU of NVIDIA.

    A run includes the copies of inputs to the GPU and of results from it.

    Parameters
    ----------
    device : str, default="cuda"
        ``cuda``; ``cpu`` stands for another device, which `place` reaches.
    threads : int, default=1
        Threads of the processor.
    precision : {"fp32", "fp16"}, default="fp32"
        ``fp32`` computes without TF32; ``fp16`` lets TensorRT choose 16 bits where that is faster, up to TensorRT 10.

    Raises
    ------
    InvalidValueError
        If there is no GPU, or the precision cannot be chosen.
    MissingDependencyError
        If TensorRT or the CUDA runtime library is not installed on this machine.

    References
    ----------
    .. [1] https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/python-api/index.html
    """

    name = "tensorrt"
    adapter = "nni_latency_tensorrt._adapter"
    precisions = ("fp32", "fp16")
    devices = ("cpu", "cuda")

    def __init__(
        self, device: str = "cuda", *, threads: int = 1, precision: str = "fp32", place: MakePlace = Here
    ) -> None:
        super().__init__(device, threads=threads, precision=precision, place=place)
        if device == "cpu" and place is Here:
            raise InvalidValueError(
                "The runtime 'tensorrt' runs on a GPU. Take --device cuda, or a device such as ssh:me@jetson."
            )
        try:
            facts = self.place.facts
        except ImportError as error:
            raise MissingDependencyError(
                f"The runtime 'tensorrt' needs TensorRT and the CUDA runtime library on this machine ({error}). "
                "Install them: pip install tensorrt"
            ) from error
        except OSError as error:
            raise InvalidValueError(f"TensorRT finds no GPU on this machine ({error}). Take another device.") from error
        if precision not in facts["precisions"]:
            raise InvalidValueError(
                f"TensorRT {facts['version']} cannot be switched to {precision}: since TensorRT 11, the types in a "
                "network decide. Take fp32."
            )

    def _compile(self, network: OnnxNetwork, inputs: Arrays) -> PlacedProfiledNetwork:
        return _Network(self.place.load(network.serialised(), network.weights()), network)


class _Network(PlacedProfiledNetwork):
    """A network that TensorRT has built."""

    def read_profile(self, found: Mapping[str, Any]) -> list[ProfiledRun]:
        """Read a profile: layers with the names of the operators in them."""
        return [
            ProfiledRun([tensorrt_node(name, seconds) for name, seconds in run["layers"]], run["seconds"])
            for run in found["runs"]
        ]
