# SPDX-License-Identifier: Apache-2.0
"""`ProfiledRuntime`: how the times of nodes become those of parts and of kernels."""

from __future__ import annotations

import math
from functools import cached_property

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from nni_latency.errors import InvalidValueError
from nni_latency.measurement import Subject
from nni_latency.measurement.runtimes import ProfileCost, ProfiledNetwork, ProfiledNode, ProfiledRun, ProfiledRuntime
from nni_latency.micro_benchmarks import fed_chain
from nni_latency.operators import Inputs, freeze_inputs
from nni_latency.testing import FakeClock

pytest.importorskip("onnx", reason="the package onnx is not installed")

#: What a convolution takes by its profile, and bringing its input or result into another layout [s].
_REORDER, _COMPUTE = 3e-4, 5e-4


class _Network(ProfiledNetwork):
    """Computes in torch, on a clock that is put forward."""

    def __init__(self, runtime, network):
        from onnx.reference import ReferenceEvaluator

        self.runtime, self.network = runtime, network
        self._evaluator = ReferenceEvaluator(network.model)

    def run(self, inputs):
        self.runtime.clock.advance(self.runtime.takes)
        return self._evaluator.run(None, self.network.feed(inputs))

    def profile(self, make_inputs, runs):
        made = [node.name for node in self.network.model.graph.node if "call" in node.name]
        inner = [ProfiledNode([name], _COMPUTE / len(made) + self.runtime.cost) for name in made]
        around = ProfiledNode(["reorder"], _REORDER + self.runtime.cost, changes_layout=True)
        nodes = [around, *inner, around]
        outside = self.runtime.takes - 2 * _REORDER - _COMPUTE
        span = math.fsum(node.seconds for node in nodes) + self.runtime.gap * len(nodes)
        run = ProfiledRun(nodes, outside + span, span).scaled(self.runtime.slowness)
        return [run for _ in range(runs) if make_inputs()]


class _Runtime(ProfiledRuntime):
    name, version = "fake", "1"
    #: What a whole network takes, and what a profile adds to every node and between two of them [s].
    takes, cost, gap = 2 * _REORDER + _COMPUTE, 0.0, 0.0
    #: How many times longer everything takes while a profile is taken.
    slowness = 1.0

    @cached_property
    def clock(self):
        return FakeClock()

    def _compile(self, network, inputs):
        return _Network(self, network)


def _convolution():
    return nn.Conv2d(4, 4, 1)


class _Sum(nn.Module):
    def forward(self, one, other):
        return one + other


def _divided(runtime, chain):
    with runtime.session():
        stages = [runtime.prepare(subject, runtime.inputs(subject.inputs)) for subject in chain]
        inputs = runtime.inputs(chain[0].inputs)
        return runtime.divide(runtime.join(stages, inputs), inputs, 3)


@pytest.mark.slow
def test_kernel_finds_its_input_in_the_layout_that_it_wants():
    chain = fed_chain("conv", _convolution, [(1, 4, 6, 6)], {"ops": []}, "kernel")
    for run in _divided(_Runtime(), chain):
        assert run[-1] == pytest.approx(_COMPUTE)


@pytest.mark.slow
def test_kernels_side_by_side_take_what_their_own_nodes_take():
    runtime = _Runtime()
    runtime.cost = 2e-5
    builds = {"one": _convolution, "two": lambda: nn.Sequential(_convolution(), nn.ReLU()), "sum": _Sum}
    image = torch.empty(1, 4, 6, 6, device="meta")
    inputs = {"sum": Inputs((image, image))}
    with runtime.session():
        subjects = [Subject(key, build, inputs.get(key, (1, 4, 6, 6)), "kernel") for key, build in builds.items()]
        values = [runtime.inputs(subject.inputs) for subject in subjects]
        stages = [runtime.prepare(subject, value) for subject, value in zip(subjects, values, strict=True)]
        together, value = runtime.join_parallel(stages, values)
        results = together(value)
        for stage, own, result in zip(stages, values, results, strict=True):
            assert result.shape == stage(own).shape
        runs = runtime.divide(together, value, 3)
    assert len(runs) >= 3
    for run in runs:
        # Of four nodes the second kernel has two; what brings tensors into another layout is no part of any.
        assert run == pytest.approx([_COMPUTE / 4, _COMPUTE / 2, _COMPUTE / 4], rel=0.3)
        assert run[1] == pytest.approx(2 * run[0])


@pytest.mark.slow
def test_network_takes_what_it_takes_to_change_the_layout():
    chain = [Subject(name, _convolution, (1, 4, 6, 6), "block") for name in ("first", "second")]
    for run in _divided(_Runtime(), chain):
        assert sum(run) == pytest.approx(_Runtime.takes)


@pytest.mark.slow
def test_what_a_profile_costs_is_taken_off_every_node():
    runtime = _Runtime()
    runtime.cost = 2e-5
    chain = fed_chain("conv", _convolution, [(1, 4, 6, 6)], {"ops": []}, "kernel")
    for run in _divided(runtime, chain):
        assert run[-1] == pytest.approx(_COMPUTE)


@pytest.mark.slow
def test_parts_add_up_to_the_network_without_a_profile_though_the_machine_changes_its_speed():
    runtime = _Runtime()
    runtime.cost, runtime.gap = 2e-5, 1e-5
    runtime.takes += 4e-4
    chain = [Subject(name, _convolution, (1, 4, 6, 6), "block") for name in ("first", "second")]
    with runtime.session():
        assert runtime.profile_cost.inside == pytest.approx(2e-5)
    runtime.slowness = 1.3
    for first, second in _divided(runtime, chain):
        assert first + second == pytest.approx(runtime.takes)
        # What lies outside is slower by as much as the nodes are, and is not taken for a part of the first layer.
        assert first - second == pytest.approx(4e-4, rel=0.2)


def test_what_runs_lack_belongs_to_all_nodes_alike():
    nodes = [ProfiledNode(["large"], 1e-3), ProfiledNode(["small"], 1e-5)]
    (run,) = ProfileCost(2e-6).brought_to(1.116e-3, [ProfiledRun(nodes, 1.11e-3)])
    assert [node.seconds for node in run.nodes] == pytest.approx([1.003e-3, 1.3e-5])
    assert run.outside == pytest.approx(1e-4)


def test_what_no_profile_costs_is_the_speed_of_the_machine():
    nodes = [ProfiledNode(["large"], 1e-3), ProfiledNode(["small"], 1e-5)]
    (run,) = ProfileCost(2e-6).brought_to(2.036e-3, [ProfiledRun(nodes, 1.01e-3)])
    assert [node.seconds for node in run.nodes] == pytest.approx([2.008e-3, 2.8e-5])


@given(
    st.lists(st.floats(1e-7, 1e-2), min_size=1, max_size=20),
    st.floats(0, 1e-3),
    st.floats(1e-6, 1.0),
    st.floats(0, 1e-5),
)
def test_runs_take_what_the_network_takes(seconds, outside, whole, inside):
    nodes = [ProfiledNode([str(place)], value) for place, value in enumerate(seconds)]
    runs = [ProfiledRun(nodes, math.fsum(seconds) + outside) for _ in range(3)]
    for run in ProfileCost(inside).brought_to(whole, runs):
        assert run.seconds == pytest.approx(whole)
        assert run.inside + run.outside == pytest.approx(whole)
        assert all(node.seconds > 0 for node in run.nodes)


@pytest.mark.slow
def test_what_lies_outside_of_nodes_belongs_to_the_first_part():
    runtime = _Runtime()
    runtime.takes += 4e-4
    chain = [
        Subject("nothing", nn.Identity, (1, 4, 6, 6), "block"),
        Subject("rest", lambda: nn.Sequential(_convolution(), nn.ReLU()), (1, 4, 6, 6), "block"),
    ]
    for first, rest in _divided(runtime, chain):
        assert first == pytest.approx(4e-4 + _REORDER)
        assert rest == pytest.approx(_COMPUTE + _REORDER)


@pytest.mark.slow
def test_calls_do_not_take_what_lies_outside_of_nodes():
    runtime = _Runtime()
    runtime.takes += 4e-4
    with runtime.session():
        subject = Subject("net", _convolution, (1, 4, 6, 6), "network")
        value = runtime.inputs(subject.inputs)
        assert sum(runtime.time_calls(runtime.prepare(subject, value), value)) == pytest.approx(_COMPUTE + 2 * _REORDER)


@pytest.mark.slow
def test_a_profile_that_costs_more_in_large_networks_makes_no_first_layer_slower():
    runtime = _Runtime()
    runtime.cost, runtime.gap = 2e-5, 1e-5
    chain = [Subject(name, _convolution, (1, 4, 6, 6), "block") for name in ("first", "second")]
    with runtime.session():
        assert runtime.profile_cost.inside == pytest.approx(2e-5)
    runtime.gap = 1e-3
    for first, second in _divided(runtime, chain):
        assert first == pytest.approx(second, rel=0.01)


def test_a_runtime_needs_a_number_of_threads_in_range():
    with pytest.raises(ValueError, match=r"must be from 1 to 1024\. Got 0"):
        _Runtime(threads=0)
    assert torch.get_num_threads() > 0


def test_inputs_that_numpy_does_not_hold_are_refused():
    like = freeze_inputs(torch.zeros(2, 3, dtype=torch.bfloat16))
    with pytest.raises(InvalidValueError, match=r"'fake' takes its inputs from NumPy, which has no .* bfloat16"):
        _Runtime().inputs(like)
