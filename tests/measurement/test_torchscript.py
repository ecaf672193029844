"""TorchScript computes what eager torch does, and keeps nothing."""

from __future__ import annotations

import gc
import random
import warnings
import weakref
from pathlib import Path

import pytest
import torch
from memory_in_use import memory_in_use
from torch import nn

from nni_latency.measurement.runtimes import TorchEager, TorchScript
from nni_latency.measurement.runtimes._prepared import PreparedStage
from nni_latency.spaces import FBNetSpace, choices_of
from nni_latency.spaces._fbnet_blocks import InvertedResidual

# Largest difference, as a share of the largest output.
_TOLERANCE = {"fp32": 1e-5, "bf16": 5e-2, "fp16": 1e-2}


def _block():
    return InvertedResidual(16, 16, kernel_size=5, stride=1, expansion=3, groups=2)


def _network():
    space = FBNetSpace(num_classes=10, input_size=32, width=0.5, depth=0.25)
    chooser = random.Random(0)
    return space.freeze({label: chooser.choice(choices) for label, choices in choices_of(space).items()})


def _run(runtime, build, shape):
    torch.manual_seed(0)
    with runtime.session():
        stage, inputs = runtime.load(build()), runtime.inputs(shape)
        return [stage(inputs) for _ in range(2)]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("build", "shape"), [(_block, (2, 16, 8, 8)), (_network, (1, 3, 32, 32))])
def test_torchscript_agrees_with_eager(build, shape, precision, channels_last):
    (expected, _) = _run(TorchEager(precision=precision), build, shape)
    for outputs in _run(TorchScript(precision=precision, channels_last=channels_last), build, shape):
        assert outputs.dtype == expected.dtype
        assert (outputs - expected).abs().max() <= _TOLERANCE[precision] * expected.abs().max()


def test_torchscript_runs_what_was_traced(monkeypatch):
    runtime = TorchScript()
    with runtime.session():
        stage, inputs = runtime.load(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())), runtime.inputs((1, 3, 4, 4))
        first = stage(inputs)
        monkeypatch.setattr(nn.Conv2d, "forward", lambda *_: pytest.fail("called from Python"))
        assert torch.equal(stage(inputs), first)


def test_torchscript_takes_another_shape():
    runtime = TorchScript()
    with runtime.session():
        stage = runtime.load(nn.Flatten())
        assert stage(runtime.inputs((1, 3, 4, 4))).shape == (1, 48)
        assert stage(runtime.inputs((2, 3, 2, 2))).shape == (2, 12)


def test_torchscript_lets_go_of_weights():
    runtime = TorchScript()
    with runtime.session():
        module = nn.Conv2d(3, 4, 1)
        gone = weakref.ref(module)
        stage = runtime.load(module)
        stage(runtime.inputs((1, 3, 4, 4)))
        del module, stage
        gc.collect()
    assert gone() is None


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of a process is read on Linux")
def test_torchscript_frees_what_it_froze():
    runtime = TorchScript()
    with runtime.session():
        inputs = runtime.inputs((1, 1024))
        for visit in range(6):
            # 40 MiB of weights.
            runtime.load(nn.Linear(1024, 10 * 1024))(inputs)
            if visit == 0:
                before = memory_in_use()
    assert memory_in_use() - before < 100 * 2**20


def test_torchscript_leaves_no_tracing_behind_after_an_error():
    class Broken(nn.Module):
        def forward(self, inputs):
            raise ValueError("broken on purpose")

    runtime = TorchScript()
    with pytest.raises(ValueError, match=r"broken on purpose"), runtime.session():
        runtime.load(Broken())(runtime.inputs((1, 3)))
    assert not torch.jit.is_tracing()


def test_prepared_stage_prepares_once_for_each_shape():
    prepared = []

    def prepare(module, example):
        prepared.append(tuple(example.shape))
        return module

    stage = PreparedStage(nn.ReLU(), prepare)
    for shape in [(1, 2), (3,), (1, 2)]:
        stage(torch.zeros(shape))
    assert prepared == [(1, 2), (3,)]


def test_prepared_stage_writes_into_its_input_once():
    stage = PreparedStage(nn.Identity(), lambda *_: lambda inputs: inputs.add_(1))
    inputs = torch.zeros(2)
    stage(inputs)
    assert inputs.tolist() == [1, 1]


def test_prepared_stage_silences_what_torch_says_of_torchscript_alone():
    def prepare(module, example):
        warnings.warn("`torch.jit.trace` is deprecated. Please switch.", DeprecationWarning, stacklevel=1)
        warnings.warn("`torch.nn.fold` is deprecated.", DeprecationWarning, stacklevel=1)
        return module

    with pytest.warns(DeprecationWarning, match=r"torch\.nn\.fold") as seen:
        PreparedStage(nn.ReLU(), prepare)(torch.zeros(1))
    assert len(seen) == 1
