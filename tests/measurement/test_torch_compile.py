# SPDX-License-Identifier: Apache-2.0
"""torch.compile computes what eager torch does, compiles each network on its own, and keeps nothing."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from compiled_runtimes import (
    check_agrees_with_eager,
    check_frees_what_it_froze,
    check_lets_go_of_weights,
    make_block,
    make_network,
    outputs_of,
)
from prepared import prepare
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import config as inductor
from torch._inductor.codecache import PyCodeCache

from nni_latency.errors import MeasurementError
from nni_latency.measurement import LocalBench, Protocol, Subject
from nni_latency.measurement.runtimes import TorchCompile

_compiler = pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="no C++ compiler here")


@_compiler
@pytest.mark.parametrize(
    ("build", "shape", "precision", "channels_last", "tolerance"),
    [
        (make_block, (2, 16, 8, 8), "fp32", False, 1e-5),
        (make_block, (2, 16, 8, 8), "bf16", True, 5e-2),
        pytest.param(make_block, (2, 16, 8, 8), "fp16", False, 1e-2, marks=pytest.mark.slow),
        pytest.param(make_network, (1, 3, 32, 32), "fp32", True, 1e-5, marks=pytest.mark.slow),
    ],
)
def test_torch_compile_agrees_with_eager(build, shape, precision, channels_last, tolerance):
    check_agrees_with_eager(TorchCompile(precision=precision, channels_last=channels_last), build, shape, tolerance)


@_compiler
def test_torch_compile_makes_constants_of_the_weights():
    """The answer does not change with the module's weights, and batch normalisation is gone into the convolution."""
    runtime = TorchCompile()
    with runtime.session():
        module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
        stage, inputs = prepare(runtime, module, (1, 3, 4, 4))
        before = stage(inputs)
        module[0].weight.zero_()
        assert torch.equal(stage(inputs), before)


@pytest.mark.slow
@_compiler
def test_torch_compile_compiles_every_module_on_its_own():
    """More modules of one class than torch compiles by default; none is compiled again, whatever becomes of others."""

    class Scale(nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor = nn.Parameter(torch.full((4,), float(factor)))

        def forward(self, inputs):
            inputs = inputs * self.factor
            # Splits the graph, so that torch also compiles functions that all modules share.
            torch._dynamo.graph_break()
            return inputs + self.factor

    runtime = TorchCompile()
    with runtime.session(), torch._dynamo.config.patch(cache_size_limit=1):
        inputs = runtime.inputs((1, 4))
        counters.clear()
        stages = [prepare(runtime, Scale(factor), (1, 4))[0] for factor in (1, 2)]
        for factor, stage in enumerate(stages, start=1):
            torch.testing.assert_close(stage(inputs), inputs * factor + factor)
        assert counters["stats"]["unique_graphs"] == 2 * len(stages)
        compiled = counters["frames"]["ok"]
        del stages[0], stage
        gc.collect()
        for stage in stages:
            stage(inputs)
    assert counters["frames"]["ok"] == compiled


@pytest.mark.slow
@_compiler
def test_torch_compile_lets_go_of_weights():
    listed, loaded = len(PyCodeCache.modules), set(sys.modules)
    check_lets_go_of_weights(TorchCompile())
    assert len(PyCodeCache.modules) == listed
    assert not [name for name in set(sys.modules) - loaded if "compile_tasks." in name]


@pytest.mark.slow
@_compiler
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of a process is read on Linux")
def test_torch_compile_frees_what_it_froze():
    check_frees_what_it_froze(TorchCompile())


@_compiler
def test_torch_compile_puts_settings_back():
    outputs_of(TorchCompile(), nn.ReLU, (1, 3))
    assert not inductor.freezing
    assert torch._dynamo.config.cache_size_limit < 1000


def test_torch_compile_names_the_compiler_that_it_lacks(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MeasurementError, match=r"needs the C\+\+ compiler '.+' on the CPU, .* install it"):
        prepare(TorchCompile(), nn.ReLU(), (1, 3))


def test_torch_compile_without_a_compiler_ends_a_measurement():
    complaint = pytest.raises(MeasurementError, match=r"the C\+\+ compiler 'no-such-compiler'")
    bench = LocalBench(TorchCompile(), Protocol())
    with complaint, inductor.patch({"cpp.cxx": (None, "no-such-compiler")}), bench:
        bench.admit(Subject.of_module(nn.ReLU(), (1, 3)))
    assert not torch.is_inference_mode_enabled(), "the session is closed"
