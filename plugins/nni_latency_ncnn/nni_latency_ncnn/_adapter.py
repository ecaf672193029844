# SPDX-License-Identifier: Apache-2.0
"""ncnn as an adapter: it runs in this process, or is sent to a device. Imports numpy and ncnn alone; Python 3.8."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from typing import Any, Sequence

import ncnn
import numpy as np

_LENGTH = struct.Struct(">Q")


class Adapter:
    """Loads networks in the form of ncnn: the length of the layers in 8 bytes, the layers, and the weights.

    Parameters
    ----------
    settings : dict
        ``threads`` and ``precision``.
    """

    name = "ncnn"

    def __init__(self, settings: dict[str, Any]) -> None:
        self.threads, self.half = settings["threads"], settings["precision"] == "fp16"

    def facts(self) -> dict[str, Any]:
        """Return its version."""
        return {"version": str(ncnn.__version__)}

    def load(self, data: bytes) -> Any:
        """Load a network; of no bytes, one that returns its inputs, as ncnn has none without layers."""
        return Network(data, self.threads, self.half) if data else Nothing()


class Nothing:
    """A network that returns its inputs."""

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the inputs."""
        return list(arrays)

    def layers(self) -> list[Any]:
        """Return no layers."""
        return []


class Network:
    """A network that ncnn has loaded."""

    def __init__(self, data: bytes, threads: int, half: bool) -> None:
        self._net = ncnn.Net()
        options = self._net.opt
        options.num_threads, options.use_vulkan_compute = threads, False
        options.use_fp16_packed = options.use_fp16_storage = options.use_fp16_arithmetic = half
        options.use_bf16_storage = False
        (length,) = _LENGTH.unpack_from(data)
        folder = tempfile.mkdtemp()
        try:
            param, weights = os.path.join(folder, "network.param"), os.path.join(folder, "network.bin")
            _write(param, data[_LENGTH.size : _LENGTH.size + length])
            _write(weights, data[_LENGTH.size + length :])
            if self._net.load_param(param) or self._net.load_model(weights):
                raise RuntimeError("it refuses what pnnx made")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._inputs, self._outputs = self._net.input_names(), self._net.output_names()

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """Run it once."""
        extractor = self._net.create_extractor()
        for name, array in zip(self._inputs, arrays):
            extractor.input(name, ncnn.Mat(array[0]))
        found = []
        for name in self._outputs:
            failed, result = extractor.extract(name)
            if failed:
                raise RuntimeError("ncnn cannot compute the result %r" % name)
            found.append(np.array(result)[None])
        return found

    def layers(self) -> list[Any]:
        """Return of every layer its kind, and whether it has code for 16 bits on this processor."""
        return [[layer.type, bool(layer.support_fp16_storage)] for layer in self._net.layers()]


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
