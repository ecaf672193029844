"""LiteRT as a runtime: networks are exported from torch, converted, and run by the interpreter with XNNPACK."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import ai_edge_litert
import numpy as np
import torch
from ai_edge_litert.interpreter import Interpreter
from numpy.typing import NDArray

from nni_latency.errors import MeasurementError, first_line
from nni_latency.measurement import Fallback, fallbacks_of
from nni_latency.measurement.runtimes import Arrays, CompiledNetwork, ExportedRuntime
from nni_latency.operators import OnnxNetwork
from nni_latency_litert._conversion import shared_converter
from nni_latency_litert._environment import converter_python

#: What the interpreter calls nodes that XNNPACK runs.
_DELEGATED = "DELEGATE"

_NUMBER = re.compile(r"(\d+)$")


class LiteRt(ExportedRuntime):
    """LiteRT, which was TFLite, on the CPU with the delegate XNNPACK.

    Networks are converted by litert-torch, in another Python: see the README of this plugin.

    Parameters
    ----------
    device : str, default="cpu"
        ``cpu``.
    threads : int, default=1
        Threads that compute one network.
    precision : {"fp32"}, default="fp32"
        What it computes in.

    References
    ----------
    .. [1] https://ai.google.dev/edge/litert
    """

    name = "litert"

    @property
    def version(self) -> str:
        """Version of LiteRT."""
        return str(ai_edge_litert.__version__)

    @property
    def identity(self) -> dict[str, Any]:
        """Version of litert-torch; its environment is made now if there is none, before anything is measured."""
        return {"converter": converter_python().version}

    def _export(self, module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> torch.export.ExportedProgram:
        return torch.export.export(module, tuple(tensors), strict=False)

    def _compile(self, network: OnnxNetwork | torch.export.ExportedProgram, inputs: Arrays) -> CompiledNetwork:
        if isinstance(network, OnnxNetwork):
            raise MeasurementError("The runtime 'litert' takes modules of torch and no ONNX files. Give the module.")
        if all(node.op in ("placeholder", "output") for node in network.graph.nodes):
            return _Nothing()
        return _Net(convert(network), self.threads)


def convert(program: torch.export.ExportedProgram) -> bytes:
    """Convert a network with litert-torch, and return it as a file of TFLite holds it.

    Raises
    ------
    CandidateError
        If it cannot be converted; the message says why.
    MeasurementError
        If litert-torch is not there.
    """
    return shared_converter(converter_python().path).convert(program)


class _Nothing(CompiledNetwork):
    """A network that returns its inputs."""

    def run(self, inputs: Arrays) -> Sequence[NDArray[Any]]:
        """Return the inputs."""
        return inputs


class _Net(CompiledNetwork):
    """A network that an interpreter has loaded."""

    def __init__(self, model: bytes, threads: int) -> None:
        try:
            self._interpreter = Interpreter(model_content=model, num_threads=threads)
            self._interpreter.allocate_tensors()
        except (ValueError, RuntimeError) as error:
            raise MeasurementError(f"LiteRT cannot load the network: {first_line(error)}") from error
        runner = self._interpreter.get_signature_runner()
        self._inputs = [
            (place, details["index"], details["dtype"]) for place, details in _numbered(runner.get_input_details())
        ]
        self._outputs = [details["index"] for _, details in _numbered(runner.get_output_details())]

    def run(self, inputs: Arrays) -> Sequence[NDArray[Any]]:
        """Run it once."""
        for place, index, kind in self._inputs:
            self._interpreter.set_tensor(index, inputs[place].astype(kind, copy=False))
        self._interpreter.invoke()
        return [np.asarray(self._interpreter.get_tensor(index)) for index in self._outputs]

    def fallbacks(self, inputs: Arrays) -> tuple[Fallback, ...]:
        """Say which nodes XNNPACK did not take; kernels of TFLite run them."""
        return self._fallbacks

    @cached_property
    def _fallbacks(self) -> tuple[Fallback, ...]:
        return find_fallbacks(self._interpreter._get_ops_details(), self._outputs)


def find_fallbacks(nodes: Sequence[dict[str, Any]], results: Sequence[int]) -> tuple[Fallback, ...]:
    """Say which nodes of an interpreter are not delegated.

    The interpreter keeps the nodes that a delegate has replaced. Those that run are found from the results backwards:
    where a delegate makes a tensor, the node that made it before does not run.

    Parameters
    ----------
    nodes : sequence of dict
        Each with ``op_name``, ``inputs`` and ``outputs``, the numbers of tensors.
    results : sequence of int
        The numbers of the tensors that the network returns.
    """
    makers: dict[int, int] = {}
    for place, node in sorted(enumerate(nodes), key=lambda item: item[1]["op_name"] == _DELEGATED):
        makers.update((int(tensor), place) for tensor in node["outputs"])
    todo, running = list(results), set[int]()
    while todo:
        maker = makers.get(todo.pop())
        if maker is not None and maker not in running:
            running.add(maker)
            todo += [int(tensor) for tensor in nodes[maker]["inputs"]]
    known = [
        (node["op_name"], "outside of" if place in running else "in")
        for place, node in enumerate(nodes)
        if node["op_name"] != _DELEGATED
    ]
    return fallbacks_of(known, ["in"], "{} XNNPACK")


def _numbered(details: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Sort the inputs or outputs of a signature by the number at the end of their names."""
    numbered = [(int(found[1]), value) for name, value in details.items() if (found := _NUMBER.search(name))]
    return sorted(numbered, key=lambda item: item[0])
