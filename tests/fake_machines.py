# SPDX-License-Identifier: Apache-2.0
"""A machine without a clock of its own: ONNX files and modules take what the test says."""

from __future__ import annotations

import functools
import threading

import torch
from nni_latency_service.query import LocalMachines
from torch import nn

from nni_latency.errors import MeasurementError
from nni_latency.operators import OnnxNetwork, export_onnx
from nni_latency.platforms import Platform
from nni_latency.testing import FakeRuntime

HERE = Platform("fake-device", "fake", facts={"runtime.version": "7"})


class OnnxFake(FakeRuntime):
    """A fake runtime that takes ONNX networks, too: a millisecond a node. It counts what it prepares."""

    def __init__(self, platform=HERE, broken=False):
        super().__init__(lambda op: 0.001, platform=platform)
        self.prepared, self.broken = 0, broken
        self._counting = threading.Lock()

    def prepare(self, subject, inputs):
        """Count, and return what moves the clock."""
        with self._counting:
            self.prepared += 1
        if self.broken:
            raise MeasurementError("the device burns")
        built = subject.build()
        if not isinstance(built, OnnxNetwork):
            return super().prepare(subject, inputs)

        def run(value):
            self.clock.advance(0.001 * built.n_labels)
            return value

        return run


def machines(*platforms, broken=False):
    """Return machines of fake runtimes, and the runtimes."""
    runtimes = [OnnxFake(platform, broken) for platform in platforms or (HERE,)]
    return LocalMachines(runtimes), runtimes


def network(channels=4):
    """Return a small network and its input."""
    layers = [nn.Conv2d(3, channels, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 2)]
    return nn.Sequential(*layers).eval(), torch.zeros(1, 3, 8, 8)


@functools.cache
def onnx_bytes(channels=4):
    """Return a small network as the content of an ONNX file with weights."""
    module, inputs = network(channels)
    return export_onnx(module, [inputs]).model.SerializeToString()
