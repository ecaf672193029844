# SPDX-License-Identifier: Apache-2.0
"""LiteRT as a runtime: networks are exported from torch, converted, and run by the interpreter with XNNPACK."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from nni_latency.errors import MeasurementError
from nni_latency.measurement import Fallback, fallbacks_of
from nni_latency.measurement.runtimes import Arrays, CompiledNetwork, ExportedRuntime, PlacedNetwork
from nni_latency.operators import OnnxNetwork
from nni_latency_litert._conversion import convert, converter_version, weights_of

#: What the interpreter calls nodes that XNNPACK runs.
_DELEGATED = "DELEGATE"


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
    adapter = "nni_latency_litert._adapter"

    @property
    def identity(self) -> dict[str, Any]:
        """Version of litert-torch; its environment is made now, before anything is measured, if there is none."""
        return {"converter": converter_version()}

    def _export(self, module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> torch.export.ExportedProgram:
        return torch.export.export(module, tuple(tensors), strict=False)

    def _compile(self, network: OnnxNetwork | torch.export.ExportedProgram, inputs: Arrays) -> CompiledNetwork:
        if isinstance(network, OnnxNetwork):
            raise MeasurementError("The runtime 'litert' takes modules of torch and no ONNX files. Give the module.")
        # TFLite has no network without operators.
        empty = all(node.op in ("placeholder", "output") for node in network.graph.nodes)
        model = b"" if empty else convert(network)
        return _Network(self.place.load(model, [] if empty else weights_of(model)))


class _Network(PlacedNetwork):
    """A network that an interpreter has loaded."""

    answers = ("nodes", "results")

    def fallbacks(self, inputs: Arrays) -> tuple[Fallback, ...]:
        """Return the nodes that XNNPACK did not take; kernels of TFLite run them."""
        return self._fallbacks

    @cached_property
    def _fallbacks(self) -> tuple[Fallback, ...]:
        return find_fallbacks(self.placed.call("nodes"), self.placed.call("results"))


def find_fallbacks(nodes: Sequence[Sequence[Any]], results: Sequence[int]) -> tuple[Fallback, ...]:
    """Say which nodes of an interpreter are not delegated.

    The interpreter keeps the nodes that a delegate has replaced. Those that run are found from the results backwards:
    where a delegate makes a tensor, the node that made it before does not run.

    Parameters
    ----------
    nodes : sequence of (str, sequence of int, sequence of int)
        Kind of each, and the numbers of the tensors that it takes and makes, as the adapter reports them.
    results : sequence of int
        The numbers of the tensors that the network returns.
    """
    makers: dict[int, int] = {}
    for place, (_, _, made) in sorted(enumerate(nodes), key=lambda item: item[1][0] == _DELEGATED):
        makers.update((tensor, place) for tensor in made)
    todo, running = list(results), set[int]()
    while todo:
        maker = makers.get(todo.pop())
        if maker is not None and maker not in running:
            running.add(maker)
            todo += nodes[maker][1]
    known = [
        (kind, "outside of" if place in running else "in")
        for place, (kind, _, _) in enumerate(nodes)
        if kind != _DELEGATED
    ]
    return fallbacks_of(known, ["in"], "{} XNNPACK")
