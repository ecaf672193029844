# SPDX-License-Identifier: Apache-2.0
"""`OnnxRuntime`: networks in ONNX, divided into layers and operators by the profile of ONNX Runtime."""

from __future__ import annotations

import dataclasses
import tempfile
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from nni_latency.errors import InvalidValueError
from nni_latency.imports import require
from nni_latency.measurement import Fallback, fallbacks_of
from nni_latency.measurement.runtimes import (
    Arrays,
    Here,
    MakePlace,
    Placed,
    PlacedProfiledNetwork,
    ProfiledNode,
    ProfiledRun,
    ProfiledRuntime,
)
from nni_latency.operators import OnnxNetwork

#: Providers that may be asked for by name.
_NAMED = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}

#: How nodes are named that only change the layout of a tensor.
_OWN = ("ReorderInput", "ReorderOutput")

#: Nodes that quantise, or bring a tensor to another device, and compute nothing.
_CONVERTING = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Cast", "MemcpyToHost", "MemcpyFromHost")

#: Nodes that run other nodes.
_OUTER = ("If", "Loop", "Scan")

#: Activations without a kernel: the functions that make the factor of their input, with attributes.
_GATES: dict[str, dict[str, dict[str, Any]]] = {
    "HardSwish": {"HardSigmoid": {"alpha": 1 / 6, "beta": 0.5}},
    "Mish": {"Softplus": {}, "Tanh": {}},
}

#: Types of inputs in which floating point numbers are computed, as a profile has them.
_FLOATS = {"float": "fp32", "float16": "fp16", "bfloat16": "bf16", "double": "fp64"}


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
    adapter = "nni_latency_onnxruntime._adapter"
    precisions = ("fp32", "int8")
    devices = ("cpu", "cuda")

    def __init__(
        self,
        device: str = "cpu",
        *,
        threads: int = 1,
        precision: str = "fp32",
        provider: str | None = None,
        place: MakePlace = Here,
    ) -> None:
        super().__init__(device, threads=threads, precision=precision, place=place)
        provider = provider or device
        if provider not in _NAMED:
            raise InvalidValueError(f"The option 'provider' must be one of {', '.join(_NAMED)}. Got {provider!r}.")
        self.provider = _NAMED[provider]
        there = self.place.facts["providers"]
        if self.provider not in there:
            raise InvalidValueError(
                f"This installation of onnxruntime lacks {self.provider}. It has {', '.join(there)}. "
                "For a GPU, install: pip install onnxruntime-gpu"
            )

    @property
    def settings(self) -> dict[str, Any]:
        """What its adapter is made with."""
        return {**super().settings, "provider": self.provider}

    @property
    def identity(self) -> dict[str, Any]:
        """Which execution provider was asked for."""
        return {"provider": self.provider}

    def _compile(self, network: OnnxNetwork, inputs: Arrays) -> PlacedProfiledNetwork:
        spelt_out = dataclasses.replace(network, model=_spelt_out(network.model))
        model = _quantised(spelt_out, spelt_out.feed(inputs)) if self.precision == "int8" else spelt_out.serialised()
        return _Network(self.place.load(model, spelt_out.weights()), spelt_out, self.provider, self.precision)


class _Network(PlacedProfiledNetwork):
    """A network that ONNX Runtime has loaded."""

    answers = ("optimised",)
    network: OnnxNetwork

    def __init__(self, placed: Placed, network: OnnxNetwork, provider: str, precision: str) -> None:
        super().__init__(placed, network)
        self._provider, self._precision = provider, precision
        self._fallbacks: tuple[Fallback, ...] | None = None

    def read_profile(self, found: Mapping[str, Any]) -> list[ProfiledRun]:
        """Read a profile, and what it reports of nodes that fell back."""
        self._fallbacks = find_fallbacks(found["nodes"], self._provider, self._precision)
        names = [(self._known_names(name), name.startswith(_OWN)) for name, *_ in found["nodes"]]
        inner = self._inner(found["nodes"])
        return [_profiled(run, names, inner) for run in found["runs"]]

    def _inner(self, nodes: Sequence[Sequence[str]]) -> set[int]:
        """Return the places of the nodes of branches and loops, whose time is part of that of their own nodes."""
        if not self._results or all(kind not in _OUTER for _, kind, *_ in nodes):
            return set()
        return {place for place, (name, *_) in enumerate(nodes) if name not in self._results}

    def fallbacks(self, inputs: Arrays) -> tuple[Fallback, ...]:
        """Say by a profile which nodes another provider ran, or ran in floating point although they were quantised."""
        if self._fallbacks is None:
            alone = self._provider == _NAMED["cpu"] and self._precision == "fp32"
            nodes = [] if alone else self.placed.profile(lambda: self.feed(inputs), 1)["nodes"]
            self._fallbacks = find_fallbacks(nodes, self._provider, self._precision)
        return self._fallbacks

    def _known_names(self, name: str) -> list[str]:
        """Return the name of a node, the tensors that it makes, and the activation that runs in it."""
        if name.startswith(_OWN):
            return [name]
        return [name, *self._results.get(name, ())]

    @cached_property
    def _results(self) -> dict[str, list[str]]:
        """By node of the optimised network, the tensors that it makes, and the activation that it was told to apply.

        A convolution has the name of the activation's tensor; a normalisation that became a convolution has its own.
        """
        optimised = onnx.ModelProto.FromString(self.placed.call("optimised"))
        return {node.name: [*node.output, *self._activations(node)] for node in optimised.graph.node}

    def _activations(self, optimised: onnx.NodeProto) -> list[str]:
        """Return the activations that take what a node of the optimised network was before, if it applies one."""
        applied = {item.s.decode() for item in optimised.attribute if item.name == "activation"}
        readers = self._readers.get(self.network.origin_of(optimised.name), []) if applied else []
        return [node.name for node in readers if node.op_type in applied]

    @cached_property
    def _readers(self) -> dict[str, list[onnx.NodeProto]]:
        """By node of the network, the nodes that take its results."""
        found: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in self.network.model.graph.node:
            for tensor in node.input:
                found[self.network.origin_of(tensor)].append(node)
        return found


def _profiled(run: Mapping[str, Any], names: Sequence[tuple[list[str], bool]], inner: Container[int]) -> ProfiledRun:
    """Return one run of a profile, without inner nodes."""
    rows = [row for row in zip(run["nodes"], run["begin"], run["took"], strict=True) if row[0] not in inner]
    nodes = [ProfiledNode(names[place][0], took * 1e-6, names[place][1]) for place, _, took in rows]
    (_, first, _), (_, last, took) = rows[0], rows[-1]
    return ProfiledRun(nodes, run["seconds"], (last + took - first) * 1e-6)


def _spelt_out(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write activations that ONNX Runtime has no kernel for as what it makes of them, under names that tell the part.

    What it writes out itself has names of its own, so that its time would count for the node before.
    """
    if not any(node.op_type in _GATES for node in model.graph.node):
        return model
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type not in _GATES:
            nodes.append(node)
            continue
        (taken,), (made,) = node.input, node.output
        gate = taken
        for kind, attributes in _GATES[node.op_type].items():
            before, gate = gate, f"{made}/{kind}"
            nodes.append(onnx.helper.make_node(kind, [before], [gate], f"{node.name}/{kind}", **attributes))
        nodes.append(onnx.helper.make_node("Mul", [taken, gate], [made], node.name))
    found = onnx.ModelProto()
    found.CopyFrom(model)
    del found.graph.node[:]
    found.graph.node.extend(nodes)
    return found


def find_fallbacks(nodes: Sequence[Sequence[str]], provider: str, precision: str) -> tuple[Fallback, ...]:
    """Say which nodes of a profile another provider ran than was asked for, or ran in floating point instead of int8.

    Parameters
    ----------
    nodes : sequence of (str, str, str, str)
        Name, kind, provider and type of the first input of every node, as the adapter's profile has them.
    provider : str
        The execution provider that was asked for, by its full name.
    precision : str
        ``fp32`` or ``int8``.
    """
    computing = [
        (kind, where, data) for _, kind, where, data in nodes if kind not in _CONVERTING and not kind.startswith(_OWN)
    ]
    found = fallbacks_of([(kind, where) for kind, where, _ in computing], [provider], "on {}")
    if precision == "int8":
        # What a node computes in is the type of its data, which is its first input.
        found += fallbacks_of([(kind, _FLOATS.get(data, "int8")) for kind, _, data in computing], ["int8"])
    return found


def _quantised(network: OnnxNetwork, feed: Mapping[str, NDArray[Any]]) -> bytes:
    """Quantise a network to int8, weights by channel."""
    quantization = require("onnxruntime.quantization", "The precision int8", "onnxruntime")
    left = [feed]

    class OneSample(quantization.CalibrationDataReader):  # type: ignore[name-defined]
        def get_next(self) -> Any:
            return left.pop() if left else None

    # It moves the weights of the model that it is given into a file of its own, which is gone afterwards.
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "int8.onnx"
        how = quantization.QuantFormat.QDQ
        quantization.quantize_static(model, out, OneSample(), quant_format=how, per_channel=True)
        return out.read_bytes()
