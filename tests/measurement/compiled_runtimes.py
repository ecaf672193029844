# SPDX-License-Identifier: Apache-2.0
"""What is checked of every runtime that makes another program of a module: TorchScript and torch.compile."""

from __future__ import annotations

import gc
import random
import weakref

import torch
from memory_in_use import memory_in_use
from prepared import prepare
from torch import nn

from nni_latency.measurement.runtimes import TorchEager
from nni_latency.spaces import FBNetBlock, FBNetSpace, choices_of


def make_block():
    return FBNetBlock(16, 16, kernel_size=5, stride=1, expansion=3, groups=2)


def make_network():
    space = FBNetSpace(num_classes=10, input_size=32, width=0.5, depth=0.25)
    chooser = random.Random(0)
    return space.freeze({label: chooser.choice(choices) for label, choices in choices_of(space).items()})


def outputs_of(runtime, build, shape, count=1):
    """Build a module with the same weights every time; return what `count` runs of it give."""
    torch.manual_seed(0)
    with runtime.session():
        stage, inputs = prepare(runtime, build(), shape)
        return [stage(inputs) for _ in range(count)]


def check_agrees_with_eager(runtime, build, shape, tolerance):
    """Compare two runs with eager torch's; the tolerance is a share of the largest output."""
    (expected,) = outputs_of(TorchEager(precision=runtime.precision), build, shape)
    for outputs in outputs_of(runtime, build, shape, count=2):
        assert outputs.dtype == expected.dtype
        assert (outputs - expected).abs().max() <= tolerance * expected.abs().max()


def check_lets_go_of_weights(runtime):
    with runtime.session():
        module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
        gone = weakref.ref(module)
        stage, inputs = prepare(runtime, module, (1, 3, 4, 4))
        stage(inputs)
        del module, stage
        gc.collect()
    assert gone() is None


def check_frees_what_it_froze(runtime):
    with runtime.session():
        for visit in range(6):
            # 40 MiB of weights.
            stage, inputs = prepare(runtime, nn.Linear(1024, 10 * 1024), (1, 1024))
            stage(inputs)
            del stage
            if visit == 0:
                before = memory_in_use()
    assert memory_in_use() - before < 100 * 2**20
