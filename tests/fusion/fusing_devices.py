# SPDX-License-Identifier: Apache-2.0
"""Invented devices that make kernels, and small probes."""

from __future__ import annotations

from nni_latency.fusion import parse_probes
from nni_latency.measurement import Protocol
from nni_latency.operators import FusionRule, FusionRules
from nni_latency.platforms import Platform
from nni_latency.testing import FakeRuntime

PLATFORM = Platform("fake-device", "fake")

#: What the device runs as one kernel.
TRUE = FusionRules(
    PLATFORM,
    tuple(
        FusionRule(kinds, True, folds=kinds[-1] == "batch_norm")
        for kinds in (("conv2d", "batch_norm"), ("conv2d", "relu"), ("conv2d", "add"), ("conv2d", "add", "relu"))
    ),
)

PROBES = parse_probes(
    "conv2d+batch_norm,conv2d+relu,conv2d+add,conv2d+add+relu,add+relu,conv2d+sigmoid,linear+relu,batch_norm+relu"
)

#: The clock of the tests moves by invented times, the budget by real ones; it must not end anything here.
PROTOCOL = Protocol(n_warmup=0, rounds=30, time_budget=600.0, processes=1)

#: What the device adds to every run [s].
CONSTANT = 5e-4

_SECONDS = {"conv2d": 4e-4, "linear": 3e-4, "batch_norm": 1.1e-4, "add": 1.2e-4}


def seconds_of(op):
    """Return the time of an operator; one on a single number takes none."""
    return 0.0 if op.input_shapes[0] == (1, 1, 1, 1) else _SECONDS.get(op.kind, 1e-4)


def fusing(**options):
    """Make a runtime that makes kernels, and adds a constant to every run."""
    return FakeRuntime(seconds_of, platform=PLATFORM, rules=TRUE, noise=lambda: CONSTANT, **options)


class Telling(FakeRuntime):
    """A runtime that says itself which kernels it makes."""

    def __init__(self, kernels):
        super().__init__(seconds_of, platform=PLATFORM)
        self._kernels = kernels

    def fused_operators(self, subject, inputs):
        """Return what the test says."""
        return self._kernels(subject)
