"""LiteRT: networks converted in another Python, run with XNNPACK."""

from __future__ import annotations

import importlib
import os
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from nni_latency.errors import BusyError, InvalidValueError, MeasurementError, MissingDependencyError
from nni_latency.estimators import MeasuredNetworkEstimator
from nni_latency.files import locked
from nni_latency.measurement import LocalBench, Protocol, Subject
from nni_latency.operators import capture_operators, export_onnx
from nni_latency.tables import MeasurePlan, PlanCandidate, PlanLayer, SpaceReference, build_table
from nni_latency.testing import check_plugin, check_runtime

pytest.importorskip("ai_edge_litert")
_FOLDER = str(Path(__file__).parents[1] / "plugins" / "nni_latency_litert")
if _FOLDER not in sys.path:
    # Workers find it there too: they take over the path of this process.
    sys.path.append(_FOLDER)

environment = importlib.import_module("nni_latency_litert._environment")
plugin = importlib.import_module("nni_latency_litert.plugin")
find_fallbacks = importlib.import_module("nni_latency_litert._runtime").find_fallbacks
shared_converter = importlib.import_module("nni_latency_litert._conversion").shared_converter
LiteRt = plugin.LiteRt

_NAMED = os.environ.get(environment.PYTHON_VARIABLE)


def _converts(test):
    """Mark a test that converts networks: it needs another Python, and some seconds."""
    absent = pytest.mark.skipif(not _NAMED, reason=f"{environment.PYTHON_VARIABLE} is not set: make converter")
    return pytest.mark.slow(absent(test))


@pytest.fixture(autouse=True)
def _forgetting():
    environment.converter_python.cache_clear()
    yield
    environment.converter_python.cache_clear()


@pytest.fixture(scope="module", autouse=True)
def _ending():
    yield
    if _NAMED:
        shared_converter(Path(_NAMED)).stop()


class Block(nn.Module):
    """A convolution with what is fused into it, and a sum."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.project = nn.Conv2d(8, 8, 1)

    def forward(self, inputs):
        return inputs + self.project(nn.functional.hardswish(self.norm(self.conv(inputs))))


class TwoInputs(nn.Module):
    """Tokens and a mask, and two results."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)

    def forward(self, words, mask):
        found = self.embed(words) * mask.unsqueeze(-1)
        return found.mean(1), found.softmax(-1)


class Sorted(nn.Module):
    """What XNNPACK does not take, behind what it does."""

    def forward(self, inputs):
        return torch.cumsum(torch.relu(inputs), 1)


class Singular(nn.Module):
    """An operator without a counterpart."""

    def forward(self, inputs):
        return torch.linalg.svdvals(inputs)


class Chance(nn.Module):
    """Other results every time."""

    def forward(self, inputs):
        return inputs * torch.rand(inputs.shape)


def test_plugin_keeps_the_contract():
    check_plugin(plugin)


@_converts
def test_runtime_keeps_the_contract():
    check_runtime(LiteRt())


@_converts
@pytest.mark.parametrize("batch", [1, 2])
def test_runtime_computes_what_torch_computes(batch):
    runtime, block, shape = LiteRt(threads=2), Block().eval(), (batch, 8, 10, 10)
    with runtime.session():
        inputs = runtime.inputs(shape)
        stage = runtime.prepare(Subject.of_module(block, shape), inputs)
        found = stage(inputs)
        assert runtime.fallbacks(stage, inputs) == ()
    torch.testing.assert_close(torch.from_numpy(found), block(torch.from_numpy(inputs)), rtol=1e-4, atol=1e-4)


@_converts
def test_runtime_takes_several_inputs_of_any_dtype():
    runtime = LiteRt()
    subject = Subject.of_module(TwoInputs().eval(), (torch.ones(2, 5, dtype=torch.int64), {"mask": torch.ones(2, 5)}))
    with runtime.session():
        inputs = runtime.inputs(subject.inputs)
        results = runtime.prepare(subject, inputs)(inputs)
    assert [item.shape for item in results] == [(2, 8), (2, 5, 8)]


@_converts
def test_what_xnnpack_does_not_take_is_named():
    runtime = LiteRt()
    with runtime.session():
        inputs = runtime.inputs((1, 8))
        stage = runtime.prepare(Subject("sorted", Sorted, (1, 8)), inputs)
        (found,) = runtime.fallbacks(stage, inputs)
    assert found.ran == "outside of XNNPACK"
    assert [kind for kind, _ in found.operators] == ["CUMSUM"]


@_converts
def test_conversions_share_a_process_that_is_started_again_when_it_dies():
    converter = shared_converter(environment.converter_python().path)
    program = torch.export.export(nn.ReLU().eval(), (torch.zeros(1, 4),))
    converter.convert(program)
    process = converter._process
    converter.convert(program)
    assert converter._process is process
    process.kill()
    with pytest.raises(MeasurementError, match=r"died of the network"):
        converter.convert(program)
    assert converter.convert(program)


@_converts
@pytest.mark.parametrize(("module", "shape"), [(Singular, (1, 4, 4)), (Chance, (1, 64))])
def test_network_that_cannot_be_converted_or_is_wrong_is_a_failure(module, shape):
    words = r"svd" if module is Singular else r"something else than torch|cannot convert"
    with LocalBench(LiteRt(), Protocol()) as bench, pytest.raises(MeasurementError, match=words):
        bench.admit(Subject("odd", module, shape))


@_converts
def test_onnx_file_is_refused_in_one_sentence(tmp_path):
    path = tmp_path / "block.onnx"
    path.write_bytes(export_onnx(Block().eval(), [torch.zeros(1, 8, 6, 6)]).model.SerializeToString())
    estimator = MeasuredNetworkEstimator(runtime=LiteRt(), protocol=Protocol(rounds=2, processes=1), store="memory")
    with pytest.raises(MeasurementError, match=r"takes modules of torch and no ONNX files"):
        estimator.estimate(path)


@_converts
def test_table_is_solved_from_whole_networks(tmp_path):
    make = [partial(nn.Conv2d, 8, 8, size, padding=size // 2) for size in (1, 7)]
    ops = [capture_operators(build(), torch.zeros(1, 8, 16, 16))[0][1] for build in make]
    candidates = {f"k{size}": PlanCandidate(op, build) for size, op, build in zip((1, 7), ops, make, strict=True)}
    layers = tuple(PlanLayer(f"layer{index}", candidates) for index in range(2))
    plan = MeasurePlan(SpaceReference("convolutions", {}), (1, 8, 16, 16), layers)
    protocol = Protocol(rounds=2, processes=1, n_warmup=0, time_budget=600)
    table = build_table(plan, LiteRt(), protocol, tmp_path / "t.json", store="memory")
    assert table.coverage == 1
    assert table.platform.runtime == "litert"
    assert {"runtime.version", "runtime.converter"} <= set(table.platform.facts)


def test_only_fp32_is_computed():
    with pytest.raises(InvalidValueError, match=r"computes in fp32. Got the precision 'int8'"):
        LiteRt(precision="int8")


def test_nodes_that_run_are_found_from_the_results_backwards():
    """A delegate takes two of three nodes; that of another part of the file does not matter."""

    def node(name, inputs, outputs):
        return {"op_name": name, "inputs": inputs, "outputs": outputs}

    nodes = [node("RELU", [0], [1]), node("CUMSUM", [1], [2]), node("ADD", [2, 2], [3])]
    first, last = node("DELEGATE", [0], [1]), node("DELEGATE", [2], [3])
    (found,) = find_fallbacks([*nodes, first, last], [3])
    assert str(found) == "1 of 3 nodes ran outside of XNNPACK: CUMSUM"
    assert find_fallbacks([nodes[0], first], [1]) == ()
    (alone,) = find_fallbacks(nodes, [3])
    assert alone.count == 3


def test_python_without_the_converter_is_refused(monkeypatch):
    for name in (sys.executable, "/nowhere/python"):
        environment.converter_python.cache_clear()
        monkeypatch.setenv(environment.PYTHON_VARIABLE, name)
        with pytest.raises(
            InvalidValueError, match=r"must name a Python with the packages litert-torch and torch\. Got"
        ):
            environment.converter_python()


def test_two_processes_do_not_make_the_environment_at_once(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "_LONGEST", 0.0)
    with (
        locked(tmp_path / ".env.lock", "making it"),
        pytest.raises(BusyError, match=r"is making the environment that converts networks for LiteRT"),
    ):
        environment._own(tmp_path / "env")


@pytest.mark.slow
@pytest.mark.installs
def test_environment_that_cannot_be_made_is_one_sentence_and_never_used(monkeypatch, tmp_path, capsys):
    folder = tmp_path / "env"
    folder.mkdir()
    (folder / "half").touch()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for _ in range(2):
        with pytest.raises(
            MissingDependencyError, match=r"could not be made: No matching distribution.*LITERT_PYTHON\.$"
        ):
            environment._own(folder)
    assert not (folder / "half").exists()
    assert not (folder / "complete.json").exists()
    assert "about 2 GB" in capsys.readouterr().err
