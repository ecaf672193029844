# SPDX-License-Identifier: Apache-2.0
"""The smallest FBNet space, and tables of it."""

from __future__ import annotations

import json
import os
import random
import signal

import torch
from torch import nn

from nni_latency.database import open_store
from nni_latency.imports import quiet_nni
from nni_latency.tables import LookupTable

with quiet_nni():
    from nni.nas.nn.pytorch import LayerChoice, ModelSpace

#: Arguments of the space, and the same as options of a space and of a network.
TINY = {"num_classes": 10, "input_size": 32, "width": 0.25, "depth": 0.25}
TINY_OPTIONS = ["--input-size", "32", "--space-args", "num_classes=10,width=0.25,depth=0.25"]
TINY_KWARGS = ["--kwargs", json.dumps(TINY)]


def make_table(space, *, leave_out=(), seed=0, **options):
    """Make a table of invented numbers for a space of FBNet."""
    draw = random.Random(seed)
    plan = space.measure_plan()
    latencies = {
        layer.name: {
            choice: draw.uniform(1e-4, 1e-3) for choice in layer.candidates if (layer.name, choice) not in leave_out
        }
        for layer in plan.layers
    }
    return LookupTable.from_latencies(space, latencies, **options)


class Broken(nn.Module):
    """A layer that its device does not have."""

    def forward(self, inputs):
        raise RuntimeError("no such kernel")


class Failing(ModelSpace):
    """A space, one of whose two networks fails to run."""

    def __init__(self):
        super().__init__()
        self.layer = LayerChoice({"broken": Broken(), "plain": nn.Identity()}, label="layer")

    def forward(self, inputs):
        return self.layer(inputs)

    def example_inputs(self):
        return torch.zeros(1, 3, 8, 8)


def stored_rounds():
    """Count the rounds of the only campaign in the user's database."""
    (stored,) = open_store().campaigns()
    return len({record.round for record in stored.records})


class Crash(nn.Module):
    """A layer that takes the process with it."""

    def forward(self, inputs):
        os.kill(os.getpid(), signal.SIGSEGV)


class Crashing(ModelSpace):
    """A space whose every network crashes."""

    def __init__(self):
        super().__init__()
        self.layer = LayerChoice({"crash": Crash(), "also": Crash()}, label="layer")

    def forward(self, inputs):
        return self.layer(inputs)
