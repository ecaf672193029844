# SPDX-License-Identifier: Apache-2.0
"""A runtime for tests whose adapter needs numpy alone: networks are exported, and their nodes have invented times."""

from __future__ import annotations

import json
import sys
import zlib
from functools import partial
from pathlib import Path

import torch
from torch import nn

from nni_latency.devices import DeviceRuntime, PythonConnection, ToolDevice, ToolRuntime, read_tool
from nni_latency.measurement.runtimes import PlacedProfiledNetwork, ProfiledNode, ProfiledRun, ProfiledRuntime
from nni_latency.operators import capture_operators
from nni_latency.tables import MeasurePlan, PlanCandidate, PlanLayer, SpaceReference

#: What a convolution with so many channels does.
MISCHIEF = {61: "crash", 62: "hang", 63: "fail", 65: "print", 66: "refuse", 67: "exit", 68: "garbage"}

#: Time of a node [s], at least.
LEAST = 2e-5

_TOOL = """
name = "npu"
format = "onnx"
command = ["{binary}", "1", "us", "{model}"]

[samples]
pattern = "([0-9]+) us"
unit = "us"
"""


def seconds_of(name):
    """Return the time of a node [s]."""
    return LEAST * (1 + zlib.crc32(name.encode()) % 4)


class NumpyRuntime(ProfiledRuntime):
    """Exports networks, and describes them to the adapter; their weights are sent as well, to be found there."""

    name = "numpy"
    adapter = "numpy_adapter"

    def _compile(self, network, inputs):
        graph = network.model.graph
        channels = {size for tensor in graph.initializer for size in tensor.dims[:1]}
        described = {
            "nodes": [(node.name, seconds_of(node.name)) for node in graph.node],
            "outputs": [[size.dim_value for size in item.type.tensor_type.shape.dim] for item in graph.output],
            "mischief": next((name for count, name in MISCHIEF.items() if count in channels), ""),
        }
        weights = network.weights()
        data = b"".join([*(values.tobytes() for values in weights), json.dumps(described).encode()])
        return _Network(self.place.load(data, weights))


class _Network(PlacedProfiledNetwork):
    answers = ("size",)
    # It computes nothing that could be compared.
    keeps_weights = False

    def read_profile(self, found):
        """Read a profile."""
        assert self.placed.call("size") == len(found["nodes"])
        nodes = [ProfiledNode([name], seconds) for name, seconds in found["nodes"]]
        return [ProfiledRun(nodes, seconds) for seconds in found["seconds"]]


def device_runtime(connection=None, on_wait=lambda _sentence: None, **options):
    """Make the runtime of a device; by default this machine's own Python."""
    return DeviceRuntime(
        lambda place: NumpyRuntime(place=place, **options), connection or PythonConnection(sys.executable), on_wait
    )


def tool_runtime(connection, folder, on_wait=lambda _sentence: None):
    """Make the runtime of a tool that every device has: a program that prints the same time for every network."""
    (folder / "npu.toml").write_text(_TOOL)
    return ToolRuntime(ToolDevice(connection, read_tool(folder / "npu.toml"), "/bin/echo", on_wait=on_wait))


def conv(channels=4, size=3):
    """Make a convolution; its channels may ask for mischief."""
    return nn.Sequential(nn.Conv2d(4, channels, size, padding=size // 2), nn.ReLU(), nn.Conv2d(channels, 4, 1))


def script(folder, text):
    """Write a program that is given as the Python of a device; ``PYTHON`` in it is this one."""
    path = Path(folder) / "python"
    path.write_text(f"#!/bin/sh\n{text.replace('PYTHON', sys.executable)}\n")
    path.chmod(0o755)
    return path


def conv_plan(shape):
    """Plan two layers of two convolutions each."""
    layers = [
        PlanLayer(
            f"layer{index}",
            {
                f"k{size}": PlanCandidate(
                    capture_operators(nn.Conv2d(4, 4, size, padding=size // 2), torch.zeros(shape))[0][1],
                    partial(conv, 4, size),
                )
                for size in (1, 3)
            },
        )
        for index in range(2)
    ]
    return MeasurePlan(SpaceReference("convolutions", {}), shape, tuple(layers))
