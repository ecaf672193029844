# SPDX-License-Identifier: Apache-2.0
"""Tiny convolutions for a real runtime, of which some do not survive."""

from __future__ import annotations

import os
import signal
from functools import partial

from torch import nn

from nni_latency.operators import OpSpec
from nni_latency.tables import MeasurePlan, PlanCandidate, PlanLayer, SpaceReference


class Crashing(nn.Module):
    """Take the process with it."""

    def forward(self, inputs):
        """Crash."""
        os.kill(os.getpid(), signal.SIGSEGV)
        return inputs


class Raising(nn.Module):
    """Raise."""

    def forward(self, inputs):
        """Raise what many a module raises."""
        raise NotImplementedError("no kernel for this\nin this build of torch")


def convolution(channels, kernel_size):
    """Make a convolution that keeps the size."""
    return nn.Conv2d(channels, 4, kernel_size, padding=kernel_size // 2)


def _candidate(build, channels):
    # What it claims to be does not matter here.
    return PlanCandidate(OpSpec.of("relu", [(1, channels, 8, 8)]), build)


def plan_of(**layers):
    """Make a plan of three layers of convolutions and what else is said, ``layer={choice: function}``."""
    columns = {}
    for index, layer in enumerate("abc"):
        channels = 3 if index == 0 else 4
        columns[layer] = {f"k{size}": partial(convolution, channels, size) for size in (1, 3)}
        columns[layer].update(layers.get(layer, {}))
    return MeasurePlan(
        SpaceReference("tiny"),
        (1, 3, 8, 8),
        tuple(
            PlanLayer(layer, {name: _candidate(build, 3 if layer == "a" else 4) for name, build in column.items()})
            for layer, column in columns.items()
        ),
    )
