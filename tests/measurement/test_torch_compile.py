"""torch.compile computes what eager torch does, compiles each network on its own, and keeps nothing."""

from __future__ import annotations

import gc
import os
import random
import shutil
import sys
import weakref
from pathlib import Path

import pytest
import torch
from memory_in_use import memory_in_use
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import config as inductor
from torch._inductor.codecache import PyCodeCache

from nni_latency.errors import MeasurementError
from nni_latency.measurement import Protocol, measure_network
from nni_latency.measurement.runtimes import TorchCompile, TorchEager
from nni_latency.spaces import FBNetSpace, choices_of
from nni_latency.spaces._fbnet_blocks import InvertedResidual

_compiler = pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="no C++ compiler here")


def _block():
    return InvertedResidual(16, 16, kernel_size=5, stride=1, expansion=3, groups=2)


def _network():
    space = FBNetSpace(num_classes=10, input_size=32, width=0.5, depth=0.25)
    chooser = random.Random(0)
    return space.freeze({label: chooser.choice(choices) for label, choices in choices_of(space).items()})


def _run(runtime, build, shape):
    torch.manual_seed(0)
    with runtime.session():
        return runtime.load(build())(runtime.inputs(shape))


@_compiler
@pytest.mark.parametrize(
    ("build", "shape", "precision", "channels_last", "tolerance"),
    [
        (_block, (2, 16, 8, 8), "fp32", False, 1e-5),
        (_block, (2, 16, 8, 8), "bf16", True, 5e-2),
        (_block, (2, 16, 8, 8), "fp16", False, 1e-2),
        (_network, (1, 3, 32, 32), "fp32", True, 1e-5),
    ],
)
def test_torch_compile_agrees_with_eager(build, shape, precision, channels_last, tolerance):
    expected = _run(TorchEager(precision=precision), build, shape)
    outputs = _run(TorchCompile(precision=precision, channels_last=channels_last), build, shape)
    assert outputs.dtype == expected.dtype
    assert (outputs - expected).abs().max() <= tolerance * expected.abs().max()


@_compiler
def test_torch_compile_makes_constants_of_the_weights():
    """The answer does not change with the module's weights, and batch normalisation is gone into the convolution."""
    runtime = TorchCompile()
    with runtime.session():
        module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
        stage, inputs = runtime.load(module), runtime.inputs((1, 3, 4, 4))
        before = stage(inputs)
        module[0].weight.zero_()
        assert torch.equal(stage(inputs), before)


@_compiler
def test_torch_compile_compiles_every_module_on_its_own():
    """More modules of one class than torch compiles by itself; none is compiled again, whatever becomes of others."""

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
        stages = [runtime.load(Scale(factor)) for factor in range(1, 4)]
        for factor, stage in enumerate(stages, start=1):
            torch.testing.assert_close(stage(inputs), inputs * factor + factor)
        assert counters["stats"]["unique_graphs"] == 2 * len(stages)
        compiled = counters["frames"]["ok"]
        del stages[0], stage
        gc.collect()
        for stage in stages:
            stage(inputs)
    assert counters["frames"]["ok"] == compiled


@_compiler
def test_torch_compile_lets_go_of_weights():
    runtime = TorchCompile()
    with runtime.session():
        module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
        gone = weakref.ref(module)
        listed, loaded = len(PyCodeCache.modules), set(sys.modules)
        stage = runtime.load(module)
        stage(runtime.inputs((1, 3, 4, 4)))
        del module, stage
        gc.collect()
    assert gone() is None
    assert len(PyCodeCache.modules) == listed
    assert not [name for name in set(sys.modules) - loaded if "compile_tasks." in name]


@_compiler
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of a process is read on Linux")
def test_torch_compile_frees_what_it_froze():
    runtime = TorchCompile()
    with runtime.session():
        inputs = runtime.inputs((1, 1024))
        for visit in range(6):
            # 40 MiB of weights.
            runtime.load(nn.Linear(1024, 10 * 1024))(inputs)
            if visit == 0:
                before = memory_in_use()
    assert memory_in_use() - before < 100 * 2**20


@_compiler
def test_torch_compile_puts_settings_back():
    _run(TorchCompile(), nn.ReLU, (1, 3))
    assert not inductor.freezing
    assert torch._dynamo.config.cache_size_limit < 1000


def test_torch_compile_names_the_compiler_that_it_lacks(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MeasurementError, match=r"needs the C\+\+ compiler '.+' on the CPU, .* install it"):
        TorchCompile().load(nn.ReLU())


def test_torch_compile_without_a_compiler_ends_a_measurement():
    complaint = pytest.raises(MeasurementError, match=r"the C\+\+ compiler 'no-such-compiler'")
    with inductor.patch({"cpp.cxx": (None, "no-such-compiler")}), complaint:
        measure_network(nn.ReLU(), (1, 3), TorchCompile(), Protocol())
