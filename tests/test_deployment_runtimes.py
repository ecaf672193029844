# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime and OpenVINO: compiled whole, and divided by their own profiles."""

from __future__ import annotations

import importlib
import itertools
import statistics
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch_networks import Chance, Singular, TwoInputs

from nni_latency.errors import InvalidValueError, MeasurementError, MissingDependencyError
from nni_latency.estimators import GraphEstimator, MeasuredNetworkEstimator, ModuleEstimator, break_down
from nni_latency.measurement import CallMap, CandidateError, LocalBench, Protocol, Subject, cold_chain, compose
from nni_latency.micro_benchmarks import fed_chain
from nni_latency.operators import OnnxBuild, capture_operators, export_onnx, trace, without_weights
from nni_latency.spaces import FBNetSpace
from nni_latency.tables import MeasurePlan, PlanCandidate, PlanLayer, SpaceReference, build_table
from nni_latency.testing import check_plugin, check_runtime

#: As short as it can be.
_QUICK = Protocol(rounds=2, processes=1)

_PLUGINS = Path(__file__).parents[1] / "plugins"

#: By the runtime's package, its plugin and the class in it.
_RUNTIMES = {
    "onnxruntime": ("nni_latency_onnxruntime", "OnnxRuntime"),
    "openvino": ("nni_latency_openvino", "OpenVino"),
    "ncnn": ("nni_latency_ncnn", "Ncnn"),
}

#: Those that say what their nodes took.
_PROFILED = ("onnxruntime", "openvino")


def _module(name):
    pytest.importorskip(name)
    pytest.importorskip("onnx")
    plugin = _RUNTIMES[name][0]
    if str(_PLUGINS / plugin) not in sys.path:
        # Workers find it there too: they take over the path of this process.
        sys.path.append(str(_PLUGINS / plugin))
    return importlib.import_module(plugin)


def _class(name):
    return getattr(_module(name), _RUNTIMES[name][1])


@pytest.fixture(params=list(_RUNTIMES))
def kind(request):
    return _class(request.param)


@pytest.fixture(params=_PROFILED)
def profiled(request):
    return _class(request.param)


class Block(nn.Module):
    """What fuses and what does not: convolution, normalisation, activation, a sum, functional code."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.expand = nn.Conv2d(8, 16, 1)
        self.project = nn.Conv2d(16, 8, 1)

    def forward(self, inputs):
        inner = torch.relu(self.norm(self.conv(inputs)))
        return inputs + self.project(nn.functional.hardswish(self.expand(inner)))


class Normalised(Block):
    """What is rarely computed in less than f32, behind what is."""

    def forward(self, inputs):
        return nn.functional.layer_norm(super().forward(inputs), inputs.shape[-1:]).softmax(-1)


@pytest.mark.parametrize("name", _RUNTIMES)
def test_plugin_keeps_the_contract(name):
    check_plugin(importlib.import_module(f"{_module(name).__name__}.plugin"))


def test_runtime_keeps_the_contract(kind):
    check_runtime(kind())


def test_runtime_computes_what_torch_computes(kind):
    runtime, block = kind(), Block().eval()
    with runtime.session():
        inputs = runtime.inputs((1, 8, 10, 10))
        found = runtime.prepare(Subject.of_module(block, (1, 8, 10, 10)), inputs)(inputs)
    torch.testing.assert_close(torch.from_numpy(found), block(torch.from_numpy(inputs)), rtol=1e-4, atol=1e-4)


def test_runtime_takes_several_inputs_of_any_dtype(profiled):
    runtime = profiled()
    subject = Subject.of_module(TwoInputs().eval(), (torch.zeros(2, 5, dtype=torch.int64), {"mask": torch.ones(2, 5)}))
    with runtime.session():
        inputs = runtime.inputs(subject.inputs)
        results = runtime.prepare(subject, inputs)(inputs)
    assert [item.shape for item in results] == [(2, 8), (2, 5, 8)]


def test_results_are_those_of_the_inputs_of_each_run(kind):
    """An adapter may keep what it was given for the next run."""
    runtime, module = kind(), Block().eval()
    with runtime.session(), torch.inference_mode():
        first = runtime.inputs((1, 8, 16, 16))
        stage = runtime.prepare(Subject.of_module(module, (1, 8, 16, 16)), first)
        for inputs in (first, -first, -first, first):
            torch.testing.assert_close(
                torch.from_numpy(stage(inputs).copy()), module(torch.from_numpy(inputs)), rtol=1e-2, atol=1e-2
            )


def test_inputs_may_be_changed_in_place(profiled):
    """An adapter may read an array where it is, or copy one that is transposed."""
    runtime, module = profiled(), nn.Linear(8, 8).eval()
    with runtime.session(), torch.inference_mode():
        subject = Subject.of_module(module, (8, 8))
        for inputs in (runtime.inputs((8, 8)), runtime.inputs((8, 8)).T):
            stage = runtime.prepare(subject, inputs)
            for _ in range(2):
                found = torch.from_numpy(stage(inputs).copy())
                torch.testing.assert_close(found, module(torch.from_numpy(inputs)), rtol=1e-2, atol=1e-2)
                inputs *= -1


def test_network_may_take_its_own_results(profiled):
    """Equal layers of a chain are one network, and an adapter may return the memory to which it writes."""
    runtime, module = profiled(), nn.Linear(64, 64).eval()
    with runtime.session(), torch.inference_mode():
        inputs = runtime.inputs((64, 64))
        stage = runtime.prepare(Subject.of_module(module, (64, 64)), inputs)
        found = torch.from_numpy(stage(stage(stage(inputs))).copy())
        torch.testing.assert_close(found, module(module(module(torch.from_numpy(inputs)))), rtol=1e-2, atol=1e-2)


def test_run_that_fails_does_not_change_the_next(profiled):
    runtime = profiled()
    subject = Subject.of_module(TwoInputs().eval(), (torch.zeros(2, 5, dtype=torch.int64), {"mask": torch.ones(2, 5)}))
    with runtime.session():
        inputs = runtime.inputs(subject.inputs)
        stage = runtime.prepare(subject, inputs)
        expected = [torch.from_numpy(item.copy()) for item in stage(inputs)]
        with pytest.raises(Exception, match="input"):
            stage((1 - inputs[0], inputs[1][:1]))
        for mine, theirs in zip(stage(inputs), expected, strict=True):
            torch.testing.assert_close(torch.from_numpy(mine), theirs)


def test_openvino_says_why_it_refuses_a_network(tmp_path):
    runtime = _class("openvino")()
    onnx = importlib.import_module("onnx")
    given, returned = (onnx.helper.make_tensor_value_info(name, 1, (2, 3)) for name in ("x", "y"))
    node = onnx.helper.make_node("Odd", ["x"], ["y"], domain="com.example")
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [given], [returned]))
    model.opset_import.add(domain="com.example", version=1)
    onnx.save(model, tmp_path / "odd.onnx")
    with runtime.session():
        inputs = runtime.inputs((2, 3))
        with pytest.raises(
            MeasurementError, match=r"cannot load the network: No conversion rule found.*com\.example\.Odd"
        ):
            runtime.prepare(Subject("odd", OnnxBuild(str(tmp_path / "odd.onnx")), (2, 3)), inputs)


def test_time_of_a_network_is_put_down_to_its_calls(profiled):
    runtime, subject = profiled(), Subject("block", Block, (1, 8, 32, 32))
    with runtime.session():
        inputs = runtime.inputs(subject.inputs)
        stage = runtime.prepare(subject, inputs)
        (run,) = runtime.divide(stage, inputs, 1)
    traced = trace(Block().eval(), torch.zeros(1, 8, 32, 32), by="graph")
    assert len(run) == traced.n_calls
    times = CallMap.of(traced).times([run])[0]
    by_kind = {kind: [] for kind in ("conv2d", "batch_norm", "relu", "hardswish", "add")}
    for item, seconds in zip(traced.operators, times, strict=True):
        by_kind[item.op.kind].append(seconds)
    # What is fused with a convolution, or folded into it, has no separate time.
    assert min(by_kind["conv2d"]) > 1e-6 > max(by_kind["batch_norm"] + by_kind["relu"])


class _Spoken(nn.Module):
    """A little convolution before two recurrent layers, which OpenVINO names by itself."""

    def __init__(self):
        super().__init__()
        self.heard = nn.Conv1d(8, 16, 3, padding=1)
        self.steps, self.more = nn.LSTM(16, 1024), nn.GRU(1024, 1024)
        self.said = nn.Linear(1024, 8)

    def forward(self, sound):
        rows, _ = self.steps(torch.relu(self.heard(sound)).permute(2, 0, 1))
        return self.said(self.more(rows)[0])


def test_time_of_a_recurrent_layer_is_its_own(profiled):
    times = _times_of_operators(profiled(), _Spoken, (1, 8, 20))
    assert min(times["lstm"][0], times["gru"][0]) > 5 * (times["conv1d"][0] + times["linear"][0])


def test_nodes_shorter_than_the_clock_of_a_profile_count(profiled):
    """OpenVINO reports a node of less than a microsecond as one that has not run."""

    def build():
        return nn.Sequential(*(nn.Softmax(1 + place % 2) for place in range(8)))

    times = _times_of_operators(profiled(), build, (1, 4, 4))
    assert min(times["softmax"]) > 1e-7


def _times_of_operators(runtime, build, shape):
    """Return the times of the operators of a network by kind [s]."""
    subject = Subject("network", build, shape)
    with runtime.session():
        inputs = runtime.inputs(subject.inputs)
        network = runtime.prepare(subject, inputs)
        profiles = [runtime.divide(network, inputs, 5) for _ in range(5)]
    # The one in the middle: others are longer by a disturbance, or shorter by what a profile itself is thought to take.
    runs = sorted(profiles, key=lambda runs: sum(map(sum, runs)))[len(profiles) // 2]
    traced = trace(build().eval(), torch.zeros(shape), by="graph")
    found = {}
    for item, seconds in zip(traced.operators, CallMap.of(traced).times([min(runs, key=sum)])[0], strict=True):
        found.setdefault(item.op.kind, []).append(seconds)
    return found


def _choice_of_branches(path):
    """Write a network that computes in the branch of a choice, and a little before it."""
    onnx = importlib.import_module("onnx")
    helper = onnx.helper
    weight = onnx.numpy_helper.from_array(torch.eye(256).numpy(), "weight")

    def branch(kind):
        names = ["taken", *(f"{kind}{number}" for number in range(1, 9))]
        nodes = [helper.make_node("MatMul", [before, "weight"], [after]) for before, after in itertools.pairwise(names)]
        nodes.append(helper.make_node(kind, [names[-1]], [kind]))
        return helper.make_graph(nodes, kind, [], [helper.make_tensor_value_info(kind, 1, (512, 256))])

    nodes = [
        helper.make_node("Relu", ["data"], ["taken"]),
        helper.make_node("ReduceMax", ["taken"], ["largest"], keepdims=0),
        helper.make_node("Cast", ["largest"], ["whether"], to=onnx.TensorProto.BOOL),
        helper.make_node("If", ["whether"], ["made"], then_branch=branch("Neg"), else_branch=branch("Abs")),
    ]
    given, returned = (helper.make_tensor_value_info(name, 1, (512, 256)) for name in ("data", "made"))
    graph = helper.make_graph(nodes, "choice", [given], [returned], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_time_of_a_branch_counts_once(profiled, tmp_path):
    """A runtime may report a choice and the nodes of its branch, whose time is part of it."""
    runtime = profiled()
    subject = Subject("choice", OnnxBuild(str(_choice_of_branches(tmp_path / "net.onnx"))), (512, 256))
    with runtime.session():
        inputs = runtime.inputs(subject.inputs)
        stage = runtime.prepare(subject, inputs)
        runs = stage.compiled.profile(lambda: (inputs,), 20)
        parts = runtime.divide(stage, inputs, 20)
    assert statistics.median(run.inside / run.seconds for run in runs) < 1.1
    assert statistics.median(run[3] / sum(run) for run in parts) > 0.5


def test_time_of_an_activation_without_a_kernel_is_its_own(tmp_path):
    """ONNX Runtime writes Mish out as three nodes, the slowest first, whose names do not tell where they come from."""
    onnx = importlib.import_module("onnx")
    names, shape = ["data", "before", "made", "after"], (1, 64, 64, 64)
    nodes = [
        onnx.helper.make_node(name, [taken], [made], name)
        for name, (taken, made) in zip(("Abs", "Mish", "Neg"), itertools.pairwise(names), strict=True)
    ]
    given, returned = (onnx.helper.make_tensor_value_info(name, 1, shape) for name in ("data", "after"))
    graph = onnx.helper.make_graph(nodes, "activation", [given], [returned])
    path = tmp_path / "net.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8), path)
    runtime, subject = _class("onnxruntime")(), Subject("net", OnnxBuild(str(path)), shape)
    with runtime.session():
        inputs = runtime.inputs(subject.inputs)
        stage = runtime.prepare(subject, inputs)
        (profile,) = stage.compiled.profile(lambda: (inputs,), 1)
        parts = runtime.divide(stage, inputs, 20)
    assert len(profile.nodes) == 5
    before, activation, after = (statistics.median(run[place] for run in parts) for place in range(3))
    assert activation > 2 * (before + after)


class Gated(nn.Module):
    """Activations that run inside of convolutions, and what reads their results and runs separately."""

    def __init__(self):
        super().__init__()
        self.expand, self.gate = nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 1)
        self.project = nn.Conv2d(32, 8, 1)

    def forward(self, inputs):
        wide = torch.relu(self.expand(inputs))
        share = torch.sigmoid(self.gate(nn.functional.adaptive_avg_pool2d(wide, 1)))
        return self.project(wide * share)


def test_what_reads_a_fused_activation_keeps_its_time(profiled):
    runtime, subject = profiled(), Subject("gated", Gated, (1, 32, 56, 56))
    with runtime.session():
        inputs = runtime.inputs(subject.inputs)
        (run,) = runtime.divide(runtime.prepare(subject, inputs), inputs, 1)
    traced = trace(Gated().eval(), torch.zeros(1, 32, 56, 56), by="graph")
    times = CallMap.of(traced).times([run])[0]
    by_kind = {item.op.kind: seconds for item, seconds in zip(traced.operators, times, strict=True)}
    assert max(by_kind["relu"], by_kind["sigmoid"]) < 1e-6 < min(by_kind["adaptive_avg_pool2d"], by_kind["mul"])


def test_fused_operators_are_named(profiled):
    runtime = profiled()
    with runtime.session():
        inputs = runtime.inputs((1, 8, 32, 32))
        kernels = runtime.fused_operators(Subject("block", Block, (1, 8, 32, 32)), inputs)
    groups = [{name.rpartition(".")[2] for name in names} for _, names in kernels]
    assert {"conv2d", "batch_norm", "relu"} in groups
    assert sum(map(len, (names for _, names in kernels))) == 7


class Pooled(nn.Module):
    """A normalisation without a convolution before it, and an activation that another operator reads."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.norm.running_mean.uniform_(0.5, 1.0)
        self.norm.running_var.uniform_(0.5, 1.0)

    def forward(self, inputs):
        pooled = nn.functional.max_pool2d(self.conv(inputs), 2)
        return nn.functional.adaptive_avg_pool2d(self.norm(pooled).relu(), 1) + pooled.mean((2, 3), keepdim=True)


def test_activation_of_a_normalisation_is_told_from_what_reads_it(profiled):
    runtime = profiled()
    # So large that every kernel takes a microsecond: OpenVINO counts whole ones, and a node of 0 us is no kernel.
    shape = (1, 16, 112, 112)
    with runtime.session():
        kernels = runtime.fused_operators(Subject("pooled", Pooled, shape), runtime.inputs(shape))
    groups = [names for _, names in kernels]
    assert ("norm.batch_norm", "relu") in groups
    # The addition of sixteen numbers behind it may take 0 us.
    assert [names[0] for names in groups if "adaptive_avg_pool2d" in names] == ["adaptive_avg_pool2d"]


def test_what_a_network_returns_is_fused_as_if_it_went_on(profiled):
    """ONNX Runtime runs a hard swish separately where a network ends with it, and in the convolution elsewhere."""
    runtime = profiled()
    network = partial(nn.Sequential, nn.Conv2d(32, 32, 1), nn.Hardswish())
    with runtime.session():
        inputs = runtime.inputs((1, 32, 14, 14))
        kernels = runtime.fused_operators(Subject("network", network, (1, 32, 14, 14), "network"), inputs)
    assert [names for _, names in kernels] == [("0.conv2d", "1.hardswish")]


def test_parts_of_a_joined_network_are_told_apart(profiled):
    runtime = profiled()
    wide, narrow = partial(nn.Conv2d, 16, 16, 9, padding=4), partial(nn.Conv2d, 16, 16, 1)
    with runtime.session():
        inputs = runtime.inputs((1, 16, 32, 32))
        stages = [
            runtime.prepare(Subject(name, build, (1, 16, 32, 32)), inputs)
            for name, build in (("a", narrow), ("b", wide), ("c", nn.Identity), ("d", narrow))
        ]
        joined = runtime.join(stages, inputs)
        runs = runtime.divide(joined, inputs, 3)
    assert [len(run) for run in runs] == [4, 4, 4]
    middle = [sorted(part)[1] for part in zip(*runs, strict=True)]
    # The first part also has what is outside of the nodes.
    assert middle[1] > middle[3]


def test_bench_joins_a_chain(profiled):
    with LocalBench(profiled(), Protocol(n_warmup=0, n_run=1)) as bench:
        for name in "ab":
            bench.admit(Subject(name, partial(compose, [Block]), (1, 8, 16, 16), "candidate"))
        visit = bench.visit(("a", "b"))
    assert len(visit.whole) == len(visit.parts) == profiled.least_runs
    assert {len(run) for run in visit.parts} == {2}


def test_operator_is_timed_cold(profiled):
    shape = (1, 64, 28, 28)
    chain = cold_chain("conv", partial(nn.Conv2d, 64, 64, 3, padding=1), [shape])
    with LocalBench(profiled(), Protocol(n_warmup=0, n_run=1)) as bench:
        for subject in chain:
            bench.admit(subject)
        visit = bench.visit([subject.key for subject in chain])
    assert {len(run) for run in visit.parts} == {3}
    # What empties the caches is no part of the operator.
    assert all(run[-1] > 1e-5 for run in visit.parts)
    assert min(run[-1] for run in visit.parts) < min(visit.whole)


def test_kernel_is_timed_behind_its_feeder(profiled):
    chain = fed_chain("conv", partial(nn.Conv2d, 64, 64, 3, padding=1), [(1, 64, 28, 28)], {}, "kernel")
    with LocalBench(profiled(), Protocol(n_warmup=0, n_run=1)) as bench:
        for subject in chain:
            bench.admit(subject)
        visits = [bench.visit([subject.key for subject in chain]) for _ in range(5)]
    # Minima of several visits, because all runs of one may have been interrupted.
    kernel = min(run[-1] for visit in visits for run in visit.parts)
    assert 1e-5 < kernel < min(seconds for visit in visits for seconds in visit.whole)


def test_kernels_are_timed_side_by_side(profiled):
    chain = [
        Subject(f"conv {width}", partial(nn.Conv2d, width, width, 3, padding=1), (1, width, 28, 28), "kernel")
        for width in (8, 128, 16)
    ]
    with LocalBench(profiled(), Protocol(n_warmup=0, n_run=1)) as bench:
        for subject in chain:
            bench.admit(subject)
        visits = [bench.visit([subject.key for subject in chain]) for _ in range(5)]
        alone = bench.visit([chain[1].key])
        bench.begin(chain[0].key)
        for subject in chain:  # each on its own input
            bench.step(subject.key)
    runs = [run for visit in visits for run in visit.parts]
    narrow, wide, _ = (statistics.median(part) for part in zip(*runs, strict=True))
    assert wide > 5 * narrow
    # Minima of several visits, because all runs of one may have been interrupted.
    assert min(map(sum, runs)) < min(seconds for visit in visits for seconds in visit.whole)
    assert {len(run) for run in alone.parts} == {1}
    assert all(len(visit.parts) >= profiled.least_runs for visit in visits)


def test_operator_that_onnx_lacks_is_named(kind):
    with LocalBench(kind(), Protocol()) as bench, pytest.raises((CandidateError, InvalidValueError), match=r"svd"):
        bench.admit(Subject("odd", Singular, (1, 4, 4)))


def test_wrong_result_is_a_failure(profiled):
    with (
        LocalBench(profiled(), Protocol()) as bench,
        pytest.raises(MeasurementError, match=r"something else than torch"),
    ):
        bench.admit(Subject("chance", Chance, (1, 64)))


def test_unknown_precision_is_refused(kind):
    with pytest.raises(InvalidValueError, match=r"computes in fp32.* Got the precision 'fp64'"):
        kind(precision="fp64")


def test_platforms_differ_in_runtime_and_version(kind):
    platform = kind().platform
    assert platform.runtime == kind.name
    assert platform.facts["runtime.version"] == importlib.import_module(kind.name).__version__


@pytest.mark.slow
def test_estimator_measures_operators_inside(profiled):
    estimator = ModuleEstimator(runtime=profiled(), protocol=Protocol(rounds=2, processes=1), store="memory")
    network = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3)).eval()
    assert estimator.estimate(network, torch.zeros(1, 3, 32, 32)).value > 0


@pytest.mark.slow
def test_table_of_layers_is_built(profiled, tmp_path):
    plan = FBNetSpace(num_classes=10, input_size=32, width=0.25, depth=0.1).measure_plan()
    protocol = Protocol(rounds=2, processes=1, n_warmup=0, time_budget=600)
    table = build_table(plan, profiled(), protocol, tmp_path / "t.json", store="memory")
    assert table.coverage == 1
    assert table.platform.runtime == profiled.name


@pytest.mark.parametrize("name", _PROFILED)
@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_lower_precisions_run_and_are_other_platforms(name, precision):
    kind = _class(name)
    if name == "openvino" and precision == "int8":
        pytest.importorskip("nncf")
    if precision not in kind.precisions:
        pytest.skip(f"{name} does not compute in {precision}")
    try:
        runtime = kind(precision=precision)
    except InvalidValueError as error:
        pytest.skip(str(error))
    assert runtime.platform.precision == precision
    with runtime.session():
        inputs = runtime.inputs((1, 8, 16, 16))
        stage = runtime.prepare(Subject("block", Block, (1, 8, 16, 16)), inputs)
        assert stage(inputs).shape == (1, 8, 16, 16)
        assert len(runtime.divide(stage, inputs, 2)) == 2


def _fallbacks(runtime):
    shape = (1, 8, 16, 16)
    with runtime.session():
        inputs = runtime.inputs(shape)
        return runtime.fallbacks(runtime.prepare(Subject("normalised", Normalised, shape), inputs), inputs)


def test_nothing_falls_back_in_fp32(profiled):
    assert _fallbacks(profiled()) == ()


@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_nodes_that_stay_in_fp32_are_named(profiled, precision):
    if precision not in profiled.precisions:
        pytest.skip(f"{profiled.name} does not compute in {precision}")
    try:
        runtime = profiled(precision=precision)
    except (InvalidValueError, MissingDependencyError) as error:
        pytest.skip(str(error))
    (found,) = _fallbacks(runtime)
    kinds = {kind for kind, _ in found.operators}
    assert found.ran in ("in fp32", "in f32")
    assert "Softmax" in kinds or "LayerNormalization" in kinds
    assert 0 < found.count < found.n_nodes


def test_layers_that_ncnn_does_not_compute_in_fp16_are_named():
    (found,) = _fallbacks(_class("ncnn")(precision="fp16"))
    assert found.ran == "in fp32"
    assert "Softmax" in {kind for kind, _ in found.operators}
    assert _fallbacks(_class("ncnn")()) == ()


def test_nodes_that_another_provider_ran_are_named():
    """A profile as a session with CUDA writes it: what CUDA lacks runs on the CPU, between copies."""
    cuda, cpu = "CUDAExecutionProvider", "CPUExecutionProvider"
    kinds = [("Conv", cuda), ("MemcpyToHost", cuda), ("NonZero", cpu), ("MemcpyFromHost", cuda), ("Relu", cuda)]
    nodes = [(f"node{number}", kind, provider, "float") for number, (kind, provider) in enumerate(kinds)]
    find = _module("onnxruntime").find_fallbacks
    assert [str(item) for item in find(nodes, cuda, "fp32")] == [f"1 of 3 nodes ran on {cpu}: NonZero"]
    assert find(nodes[:1], cuda, "fp32") == ()


@pytest.mark.slow
def test_table_says_what_fell_back(tmp_path):
    protocol = Protocol(rounds=2, processes=1, n_warmup=0, time_budget=600)
    runtime = _class("onnxruntime")(precision="int8")
    table = build_table(_conv_plan(nn.Hardswish), runtime, protocol, tmp_path / "t.json", store="memory")
    assert any("nodes ran in fp32: " in remark and "HardSigmoid" in remark for remark in table.remarks), table.remarks


@pytest.fixture
def onnx_file(tmp_path):
    """Save a network without its weights, and return the file and the network."""
    block = Block().eval()
    path = tmp_path / "block.onnx"
    path.write_bytes(without_weights(export_onnx(block, [torch.zeros(1, 8, 20, 20)]).model).SerializeToString())
    return path


@pytest.mark.slow
def test_onnx_file_is_measured_whole(kind, onnx_file):
    estimator = MeasuredNetworkEstimator(runtime=kind(), protocol=_QUICK, store="memory")
    assert 0 < estimator.estimate(onnx_file).value < 1


@pytest.mark.slow
def test_onnx_file_is_measured_node_by_node(profiled, onnx_file):
    """What is fused into a convolution costs next to nothing."""
    found = break_down(GraphEstimator(runtime=profiled(), protocol=_QUICK, store="memory"), onnx_file)
    costs = [(item.op.kind, item.estimate.value) for item in found.operators]
    convolutions = [value for kind, value in costs if kind == "conv2d"]
    assert len(convolutions) == 3
    assert min(convolutions) > 10 * min(value for kind, value in costs if kind != "conv2d")


def test_runtime_of_torch_says_that_it_does_not_take_files(onnx_file):
    with pytest.raises(MeasurementError, match=r"runs modules of torch\. Give the network as a module"):
        MeasuredNetworkEstimator(protocol=_QUICK, store="memory").estimate(onnx_file)


def test_batches_that_ncnn_cannot_run_are_refused():
    with LocalBench(_class("ncnn")(), Protocol()) as bench, pytest.raises(MeasurementError, match=r"--batch-size 1"):
        bench.admit(Subject("block", Block, (2, 8, 10, 10)))


def _conv_plan(*behind):
    """Plan two layers with a narrow and a wide convolution each, and what stands behind it."""
    layers = [
        PlanLayer(
            f"layer{index}",
            {
                f"k{size}": PlanCandidate(
                    capture_operators(nn.Conv2d(8, 8, size, padding=size // 2), torch.zeros(1, 8, 16, 16))[0][1],
                    partial(compose, [partial(nn.Conv2d, 8, 8, size, padding=size // 2), *behind]),
                )
                for size in (1, 7)
            },
        )
        for index in range(2)
    ]
    return MeasurePlan(SpaceReference("convolutions", {}), (1, 8, 16, 16), tuple(layers))


@pytest.mark.slow
def test_table_is_solved_from_whole_networks_of_ncnn(tmp_path):
    protocol = Protocol(rounds=2, processes=1, n_warmup=0, time_budget=600)
    table = build_table(_conv_plan(), _class("ncnn")(), protocol, tmp_path / "t.json", store="memory")
    assert table.coverage == 1
    assert table.platform.runtime == "ncnn"
