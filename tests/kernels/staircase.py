# SPDX-License-Identifier: Apache-2.0
"""An invented device whose convolutions compute sixteen channels at a time, and small budgets for it."""

from __future__ import annotations

import math

from nni_latency.kernels import Sampling
from nni_latency.measurement import Protocol
from nni_latency.operators import work_of
from nni_latency.testing import FakeRuntime

# The clock of the tests moves by invented times, the budget by real ones; it must not end anything here.
PROTOCOL = Protocol(n_warmup=0, n_run=1, time_budget=600.0, half_width=0.05, processes=1, outlier=0.0)

SMALL = Sampling(init_sample_num=10, finegrained_sample_num=2, iteration=0)


def seconds_of(op):
    """Return what an operator takes: convolutions in steps of sixteen output channels."""
    found = work_of(op)[0]
    if op.kind != "conv2d":
        return 1e-6 + 3e-10 * (found.inputs + found.outputs)
    channels = op["out_channels"]
    computing = 2e-11 * found.flops * math.ceil(channels / 16) * 16 / channels
    return 3e-6 + max(computing, 4e-10 * (found.inputs + found.params))


def invented(**options):
    """Make the device."""
    return FakeRuntime(seconds_of, **options)


def time_of(kind, kernel):
    """Return what a kernel takes there."""
    return sum(map(seconds_of, kind.ops(kernel)))
