# SPDX-License-Identifier: Apache-2.0
"""The fake clock and the fake runtime."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement import Subject, time_chain
from nni_latency.operators import OpSpec
from nni_latency.platforms import Platform
from nni_latency.spaces import FBNetBlock
from nni_latency.testing import FakeClock, FakeModule, FakeRuntime, fake_plan


def test_clock_stands_still():
    clock = FakeClock(now=3.0)
    assert clock.intervals([clock.mark(), clock.mark()]) == [0.0]


def test_clock_moves_by_what_it_is_advanced():
    clock = FakeClock()
    clock.advance(0.5)
    assert clock.mark() == 0.5


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_clock_does_not_run_backwards(seconds):
    with pytest.raises(InvalidValueError, match=r"'seconds' that a FakeClock advances must be >= 0"):
        FakeClock().advance(seconds)


def _prepare(runtime, module):
    return runtime.prepare(Subject("module", lambda: module), runtime.inputs((1,)))


def test_runtime_takes_the_time_of_every_operator():
    runtime = FakeRuntime({"relu()@1x3:float32": 0.5})
    stage = _prepare(runtime, nn.Sequential(nn.ReLU(), nn.ReLU()))
    assert time_chain([stage, stage], runtime.inputs((1, 3)), runtime.clock) == [1.0, 1.0]


def test_runtime_hands_on_true_shapes():
    runtime = FakeRuntime(lambda _op: 1.0)
    block = _prepare(runtime, FBNetBlock(8, 12, 3, 2, 6))
    assert block(runtime.inputs((2, 8, 9, 9))).shape == (2, 12, 5, 5)


def test_runtime_costs_a_block_by_the_shape_of_its_input():
    runtime = FakeRuntime(lambda op: float(op.input_shapes[0][0]))
    stage = _prepare(runtime, nn.ReLU())
    for batch in (1, 4, 1):
        stage(runtime.inputs((batch, 2)))
    assert runtime.clock.now == 6.0


def test_runtime_adds_noise_to_every_run():
    noise = iter([0.25, 0.5])
    runtime = FakeRuntime(lambda _op: 1.0, noise=lambda: next(noise))
    stage = _prepare(runtime, nn.ReLU())
    inputs = runtime.inputs((1,))
    assert [time_chain([stage], inputs, runtime.clock)[0] for _ in range(2)] == [1.25, 1.5]


def test_runtime_names_an_operator_without_a_latency():
    runtime = FakeRuntime({})
    with pytest.raises(MeasurementError, match=r"no latency for the operator relu\(\)@1x3:float32"):
        _prepare(runtime, nn.ReLU())(runtime.inputs((1, 3)))


def test_runtime_says_what_it_is_told_to_be():
    assert FakeRuntime({}).platform.id == "fake-device.fake.fp32.t1"
    assert FakeRuntime({}, platform=Platform("pi")).platform.device == "pi"


def test_runtime_counts_its_sessions():
    runtime = FakeRuntime({})
    with runtime.session():
        assert runtime.sessions == 1


def test_fake_module_is_what_it_claims():
    op = OpSpec.of("identity", [(1, 4)], choice="x")
    module = FakeModule(op)
    assert module.op_spec((9, 9)) == op
    assert module(torch.ones(2)).tolist() == [1.0, 1.0]


def test_fake_plan_has_an_operator_for_every_candidate():
    plan, latencies = fake_plan({"a": {"x": 1.0}, "b": {"x": 2.0, "y": 3.0}}, fixed=["a"], width=2)
    assert plan.sizes == (1, 2)
    assert [latencies[layer.candidates["x"].op.op_key] for layer in plan.layers] == [1.0, 2.0]
    assert [layer.searched for layer in plan.layers] == [False, True]
    assert str(plan.space) == "fake(width=2)"
