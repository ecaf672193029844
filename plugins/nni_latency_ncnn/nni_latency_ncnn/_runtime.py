# SPDX-License-Identifier: Apache-2.0
"""`Ncnn`: networks in ONNX, converted by pnnx."""

from __future__ import annotations

import struct
import subprocess
import tempfile
from functools import cached_property
from pathlib import Path

import numpy as np
import pnnx

from nni_latency.errors import MeasurementError, listed
from nni_latency.measurement import Fallback, fallbacks_of
from nni_latency.measurement.runtimes import Arrays, CompiledNetwork, ExportedRuntime, Placed, PlacedNetwork
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
    adapter = "nni_latency_ncnn._adapter"
    precisions = ("fp32", "fp16")

    def _compile(self, network: OnnxNetwork, inputs: Arrays) -> CompiledNetwork:
        if any(array.shape[:1] != (1,) for array in inputs):
            raise MeasurementError("ncnn runs batches of one. Take --batch-size 1.")
        if any(array.dtype != np.float32 for array in inputs):
            raise MeasurementError("ncnn takes float inputs alone.")
        data = b""
        # ncnn has no network without layers.
        if any(node.op_type != "Identity" for node in network.model.graph.node):
            with tempfile.TemporaryDirectory() as folder:
                param, weights = convert(network, inputs, Path(folder))
                layers = param.read_bytes()
                data = struct.pack(">Q", len(layers)) + layers + weights.read_bytes()
        return _Network(self.place.load(data, network.weights()), half=self.precision == "fp16")


class _Network(PlacedNetwork):
    """A network that ncnn has loaded."""

    def __init__(self, placed: Placed, *, half: bool) -> None:
        super().__init__(placed)
        self._half = half
        self.answers = ("layers",) if half else ()

    @cached_property
    def _layers(self) -> list[tuple[str, bool]]:
        return [(str(kind), bool(able)) for kind, able in self.placed.call("layers")]

    def fallbacks(self, inputs: Arrays) -> tuple[Fallback, ...]:
        """Say which layers have no code for 16 bits on this processor, where 16 bits were asked for."""
        if not self._half:
            return ()
        layers = [(kind, able) for kind, able in self._layers if kind not in _IDLE]
        return fallbacks_of([(kind, "fp16" if able else "fp32") for kind, able in layers], ["fp16"])


def convert(network: OnnxNetwork, inputs: Arrays, folder: Path) -> tuple[Path, Path]:
    """Convert a network with pnnx, for inputs of these shapes.

    Returns
    -------
    tuple of Path
        The file of its layers, and that of its weights.

    Raises
    ------
    MeasurementError
        If pnnx cannot convert it, or ncnn lacks an operator.
    """
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
    _check_layers(param)
    return param, weights


def _check_layers(param: Path) -> None:
    """Raise `MeasurementError` if pnnx left operators that ncnn does not have."""
    kinds = [line.split()[0] for line in param.read_text(encoding="utf-8").splitlines()[2:] if line.strip()]
    lacking = sorted({kind for kind in kinds if "." in kind or "::" in kind})
    if lacking:
        raise MeasurementError(f"ncnn lacks the operators {listed(lacking)}.")
