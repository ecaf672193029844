"""ncnn as a runtime for nni_latency, by way of ONNX and pnnx."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ncnn
import numpy as np
import pnnx
from numpy.typing import NDArray

from nni_latency import hookimpl
from nni_latency.errors import MeasurementError, listed
from nni_latency.measurement import Fallback, fallbacks_of
from nni_latency.measurement.runtimes import Arrays, CompiledNetwork, ExportedRuntime
from nni_latency.operators import OnnxNetwork

#: Longest time that a conversion may take [s].
_CONVERSION_TIMEOUT = 120.0

#: Layers that compute nothing: they name, pass on or look at a tensor in another way.
_IDLE = ("Input", "Split", "Noop", "Reshape", "Flatten", "Squeeze", "ExpandDims")


class Ncnn(ExportedRuntime):
    """ncnn on the CPU.

    Parameters
    ----------
    device : str, default="cpu"
        ``cpu``.
    threads : int, default=1
        Threads that compute one network.
    precision : {"fp32", "fp16"}, default="fp32"
        Whether ncnn may store and compute numbers in 16 bits.

    References
    ----------
    .. [1] https://github.com/Tencent/ncnn
    """

    name = "ncnn"
    precisions = ("fp32", "fp16")

    @property
    def version(self) -> str:
        """Version of ncnn."""
        return str(ncnn.__version__)

    def _compile(self, network: OnnxNetwork, inputs: Arrays) -> CompiledNetwork:
        if any(array.shape[:1] != (1,) for array in inputs):
            raise MeasurementError("ncnn runs batches of one. Take --batch-size 1.")
        if any(array.dtype != np.float32 for array in inputs):
            raise MeasurementError("ncnn takes float inputs alone.")
        if all(node.op_type == "Identity" for node in network.model.graph.node):
            # ncnn has no network without layers.
            return _Nothing()
        return _Net(network, inputs, self.threads, half=self.precision == "fp16")


class _Nothing(CompiledNetwork):
    """A network that returns its inputs."""

    def run(self, inputs: Arrays) -> Sequence[NDArray[Any]]:
        """Return the inputs."""
        return inputs


class _Net(CompiledNetwork):
    """A network that ncnn has loaded."""

    def __init__(self, network: OnnxNetwork, inputs: Arrays, threads: int, *, half: bool) -> None:
        self._net = ncnn.Net()
        options = self._net.opt
        options.num_threads, options.use_vulkan_compute = threads, False
        options.use_fp16_packed = options.use_fp16_storage = options.use_fp16_arithmetic = half
        options.use_bf16_storage = False
        with tempfile.TemporaryDirectory() as folder:
            param, weights = _convert(network, inputs, Path(folder))
            _check_layers(param)
            if self._net.load_param(str(param)) or self._net.load_model(str(weights)):
                raise MeasurementError("ncnn cannot load the network that pnnx made.")
        self._half = half
        self._inputs, self._outputs = self._net.input_names(), self._net.output_names()

    def run(self, inputs: Arrays) -> Sequence[NDArray[Any]]:
        """Run it once."""
        extractor = self._net.create_extractor()
        for name, array in zip(self._inputs, inputs, strict=True):
            extractor.input(name, ncnn.Mat(array[0]))
        found = []
        for name in self._outputs:
            failed, result = extractor.extract(name)
            if failed:
                raise MeasurementError(f"ncnn cannot compute the result {name!r}.")
            found.append(np.array(result)[None])
        return found

    def fallbacks(self, inputs: Arrays) -> tuple[Fallback, ...]:
        """Say which layers have no code for 16 bits on this processor, where 16 bits were asked for."""
        if not self._half:
            return ()
        layers = [layer for layer in self._net.layers() if layer.type not in _IDLE]
        return fallbacks_of(
            [(layer.type, "fp16" if layer.support_fp16_storage else "fp32") for layer in layers], ["fp16"]
        )


def _convert(network: OnnxNetwork, inputs: Arrays, folder: Path) -> tuple[Path, Path]:
    """Convert a network with pnnx; return its layers and its weights."""
    source, param, weights = folder / "network.onnx", folder / "network.param", folder / "network.bin"
    source.write_bytes(network.serialised())
    shapes = ",".join(f"[{','.join(map(str, array.shape))}]" for array in inputs)
    command = [
        pnnx.EXEC_PATH,
        str(source),
        f"inputshape={shapes}",
        "fp16=0",
        f"ncnnparam={param}",
        f"ncnnbin={weights}",
    ]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_CONVERSION_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MeasurementError(f"pnnx did not convert the network within {_CONVERSION_TIMEOUT:.0f} s.") from error
    if done.returncode or not (param.is_file() and weights.is_file()):
        last = next(iter(reversed(done.stderr.strip().splitlines())), "it says nothing")
        raise MeasurementError(f"pnnx cannot convert the network: {last}.")
    return param, weights


def _check_layers(param: Path) -> None:
    """Raise `MeasurementError` if pnnx left operators that ncnn does not have."""
    kinds = [line.split()[0] for line in param.read_text(encoding="utf-8").splitlines()[2:] if line.strip()]
    lacking = sorted({kind for kind in kinds if "." in kind or "::" in kind})
    if lacking:
        raise MeasurementError(f"ncnn lacks the operators {listed(lacking)}.")


@hookimpl
def register_runtimes(register: Any) -> None:
    """Register the runtime."""
    register("ncnn", Ncnn)
