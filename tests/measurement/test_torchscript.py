# SPDX-License-Identifier: Apache-2.0
"""TorchScript computes what eager torch does, and keeps nothing."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from compiled_runtimes import (
    check_agrees_with_eager,
    check_frees_what_it_froze,
    check_lets_go_of_weights,
    make_block,
    make_network,
)
from prepared import prepare
from torch import nn

from nni_latency.measurement import Subject
from nni_latency.measurement.runtimes import TorchScript, settle

# Largest difference, as a share of the largest output.
_TOLERANCE = {"fp32": 1e-5, "bf16": 5e-2, "fp16": 1e-2}


@pytest.mark.slow
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("build", "shape"), [(make_block, (2, 16, 8, 8)), (make_network, (1, 3, 32, 32))])
def test_torchscript_agrees_with_eager(build, shape, precision, channels_last):
    runtime = TorchScript(precision=precision, channels_last=channels_last)
    check_agrees_with_eager(runtime, build, shape, _TOLERANCE[precision])


def test_torchscript_runs_what_was_traced(monkeypatch):
    runtime = TorchScript()
    with runtime.session():
        stage, inputs = prepare(runtime, nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()), (1, 3, 4, 4))
        first = stage(inputs)
        monkeypatch.setattr(nn.Conv2d, "forward", lambda *_: pytest.fail("called from Python"))
        assert torch.equal(stage(inputs), first)


def test_torchscript_takes_several_inputs_by_position_and_name():
    class Mixed(nn.Module):
        def forward(self, first, pair, *, number):
            return first + pair[0] * pair[1] + number

    given = (torch.ones(2), [torch.full((2,), 2.0), torch.full((2,), 3.0)], {"number": torch.tensor(4)})
    subject, runtime = Subject.of_module(Mixed(), given), TorchScript()
    with runtime.session():
        inputs = runtime.inputs(subject.inputs)
        assert torch.equal(runtime.prepare(subject, inputs)(inputs), torch.full((2,), 11.0))


def test_torchscript_lets_go_of_weights():
    check_lets_go_of_weights(TorchScript())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of a process is read on Linux")
def test_torchscript_frees_what_it_froze():
    check_frees_what_it_froze(TorchScript())


def test_torchscript_leaves_no_tracing_behind_after_an_error():
    class Broken(nn.Module):
        def forward(self, inputs):
            raise ValueError("broken on purpose")

    runtime = TorchScript()
    with pytest.raises(ValueError, match=r"broken on purpose"), runtime.session():
        prepare(runtime, Broken(), (1, 3))
    assert not torch.jit.is_tracing()


def test_settling_leaves_the_input_as_it_was():
    inputs = torch.zeros(2)
    ready = settle(lambda *_: lambda tensor: tensor.add_(1), nn.Identity(), (inputs,))
    assert inputs.tolist() == [0, 0]
    ready(inputs)
    assert inputs.tolist() == [1, 1]


def test_settling_silences_what_torch_says_of_torchscript_alone():
    def compile_module(module, example):
        warnings.warn("`torch.jit.trace` is deprecated. Please switch.", DeprecationWarning, stacklevel=1)
        warnings.warn("`torch.nn.fold` is deprecated.", DeprecationWarning, stacklevel=1)
        return module

    with pytest.warns(DeprecationWarning, match=r"torch\.nn\.fold") as seen:
        settle(compile_module, nn.ReLU(), (torch.zeros(1),))
    assert len(seen) == 1
