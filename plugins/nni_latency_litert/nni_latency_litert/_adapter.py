# SPDX-License-Identifier: Apache-2.0
"""LiteRT as an adapter: it runs in this process, or is sent to a device. Imports numpy and LiteRT alone; Python 3.8.

Where only ``tflite_runtime`` is installed, the package of LiteRT before it was renamed, that one runs networks.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from typing import Any, Sequence

import numpy as np

if importlib.util.find_spec("ai_edge_litert") is None and importlib.util.find_spec("tflite_runtime") is not None:
    for module in ("", ".interpreter"):
        sys.modules["ai_edge_litert" + module] = importlib.import_module("tflite_runtime" + module)

import ai_edge_litert
from ai_edge_litert.interpreter import Interpreter

_NUMBER = re.compile(r"(\d+)$")


class Adapter:
    """Loads networks as files of TFLite hold them.

    Parameters
    ----------
    settings : dict
        ``threads``.
    """

    name = "LiteRT"

    def __init__(self, settings: dict[str, Any]) -> None:
        self.threads = settings["threads"]

    def facts(self) -> dict[str, Any]:
        """Return its version, which begins with ``tflite`` where the older package is installed."""
        old = "tflite " if ai_edge_litert.__name__ == "tflite_runtime" else ""
        return {"version": old + str(ai_edge_litert.__version__)}

    def load(self, data: bytes) -> Any:
        """Load a network; of no bytes, one that returns its inputs, as TFLite has none without operators."""
        return Network(data, self.threads) if data else Nothing()


class Nothing:
    """A network that returns its inputs."""

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the inputs."""
        return list(arrays)

    def nodes(self) -> list[Any]:
        """Return no nodes."""
        return []

    def results(self) -> list[int]:
        """Return no tensors."""
        return []


class Network:
    """A network that an interpreter has loaded."""

    def __init__(self, data: bytes, threads: int) -> None:
        self._interpreter = Interpreter(model_content=data, num_threads=threads)
        self._interpreter.allocate_tensors()
        runner = self._interpreter.get_signature_runner()
        self._inputs = [
            (place, details["index"], details["dtype"]) for place, details in _numbered(runner.get_input_details())
        ]
        self._outputs = [int(details["index"]) for _, details in _numbered(runner.get_output_details())]

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """Run it once."""
        for place, index, kind in self._inputs:
            self._interpreter.set_tensor(index, arrays[place].astype(kind, copy=False))
        self._interpreter.invoke()
        return [np.asarray(self._interpreter.get_tensor(index)) for index in self._outputs]

    def nodes(self) -> list[Any]:
        """Return of every node its kind, and the numbers of the tensors that it takes and makes."""
        return [
            [node["op_name"], *([int(tensor) for tensor in node[side]] for side in ("inputs", "outputs"))]
            for node in self._interpreter._get_ops_details()
        ]

    def results(self) -> list[int]:
        """Return the numbers of the tensors that the network returns."""
        return self._outputs


def _numbered(details: dict[str, Any]) -> list[tuple[int, Any]]:
    """Sort the inputs or outputs of a signature by the number at the end of their names."""
    found = ((_NUMBER.search(name), value) for name, value in details.items())
    return sorted(((int(match.group()), value) for match, value in found if match), key=lambda item: item[0])
