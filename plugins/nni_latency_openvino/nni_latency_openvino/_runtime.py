# SPDX-License-Identifier: Apache-2.0
"""`OpenVino`: networks in ONNX, divided into layers and operators by OpenVINO's own profile."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from nni_latency.errors import InvalidValueError
from nni_latency.imports import require
from nni_latency.measurement import Fallback, fallbacks_of
from nni_latency.measurement.runtimes import (
    Arrays,
    Here,
    MakePlace,
    Placed,
    PlacedProfiledNetwork,
    ProfileCost,
    ProfiledNode,
    ProfiledRun,
    ProfiledRuntime,
)
from nni_latency.operators import OnnxNetwork

#: What its runtime model calls the precisions that were asked for.
_ASKED = {"fp32": ("f32",), "bf16": ("bf16",), "int8": ("i8", "u8")}

#: What its runtime model calls floating point numbers. All else counts and addresses.
_FLOATS = ("f64", "f32", "f16", "bf16")

#: Kinds of nodes that compute nothing: they hold, move or convert a tensor.
_IDLE = ("Input", "Output", "Constant", "Const", "Parameter", "Result", "Reorder", "Reshape", "Convert", "MemoryInput")


#: Stands before a network in ONNX.
_NO_LENGTH = bytes(8)


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
    adapter = "nni_latency_openvino._adapter"
    precisions = tuple(_ASKED)

    def __init__(
        self, device: str = "cpu", *, threads: int = 1, precision: str = "fp32", place: MakePlace = Here
    ) -> None:
        super().__init__(device, threads=threads, precision=precision, place=place)
        able = self.place.facts["capabilities"]
        if precision == "bf16" and "BF16" not in able:
            raise InvalidValueError(
                f"OpenVINO does not compute in bf16 on this processor, only in {', '.join(able)}. Take fp32 or int8."
            )
        if precision == "int8":
            require("nncf", "The precision int8 of OpenVINO", "nni_latency_openvino[int8]")

    @cached_property
    def profile_cost(self) -> ProfileCost:
        """Nothing: OpenVINO counts in every run."""
        return ProfileCost()

    def _compile(self, network: OnnxNetwork, inputs: Arrays) -> PlacedProfiledNetwork:
        model = network.serialised()
        data = _quantised(model, network.feed(inputs)) if self.precision == "int8" else _NO_LENGTH + model
        return _Network(self.place.load(data, network.weights()), network, self.precision)


class _Network(PlacedProfiledNetwork):
    """A network that OpenVINO has compiled."""

    answers = ("precisions",)

    def __init__(self, placed: Placed, network: OnnxNetwork, precision: str) -> None:
        super().__init__(placed, network)
        self._precision = precision

    def read_profile(self, found: Mapping[str, Any]) -> list[ProfiledRun]:
        """Read a profile: every node has its share of each run's time."""
        return [
            ProfiledRun(
                [ProfiledNode(names, share * seconds, changes) for names, changes, share in found["nodes"]], seconds
            )
            for seconds in found["seconds"]
        ]

    def fallbacks(self, inputs: Arrays) -> tuple[Fallback, ...]:
        """Say which nodes compute in another precision, by the runtime model."""
        return self._fallbacks

    @cached_property
    def _fallbacks(self) -> tuple[Fallback, ...]:
        return find_fallbacks(self.placed.call("precisions"), self._precision)


def find_fallbacks(nodes: Sequence[Any], precision: str) -> tuple[Fallback, ...]:
    """Say which nodes of a runtime model compute in another precision than was asked for.

    Parameters
    ----------
    nodes : sequence of (str, str)
        Kind and precision of each, as the adapter reports them.
    precision : str
        ``fp32``, ``bf16`` or ``int8``.
    """
    asked = _ASKED[precision]
    return fallbacks_of([(kind, ran) for kind, ran in nodes if kind not in _IDLE and ran in (*_FLOATS, *asked)], asked)


def _quantised(model: bytes, feed: Mapping[str, Any]) -> bytes:
    """Quantise a network with nncf, and return it in the form in which the adapter takes it."""
    openvino = require("openvino", "The precision int8 of OpenVINO", "openvino")
    nncf = require("nncf", "The precision int8 of OpenVINO", "nni_latency_openvino[int8]")
    found = nncf.quantize(openvino.Core().read_model(model), nncf.Dataset([dict(feed)]), subset_size=1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "int8.xml")
        openvino.serialize(found, path)
        layers = path.read_bytes()
        return struct.pack(">Q", len(layers)) + layers + path.with_suffix(".bin").read_bytes()
