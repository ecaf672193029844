# SPDX-License-Identifier: Apache-2.0
"""``nni-latency measure``: classes of one's own, samples of any space, several networks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import TINY_KWARGS

import nni_latency.measurement.runtimes as runtimes
from nni_latency.testing import FakeRuntime

NET = """
import torch
from torch import nn
from beside import double

print("on its way")

class Net(nn.Module):
    def __init__(self, width: int, classes: int = 3):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, padding=1)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(double(self.conv(x)).mean((2, 3)))

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4)

    def forward(self, words, scale):
        return self.table(words) * scale

class Broken(nn.Module):
    def forward(self, x):
        return x.nonsense()

class Failing(nn.Module):
    def __init__(self):
        raise RuntimeError("no such thing")

def make():
    return Net(4)

ready = Net(4)
number = 3
"""

SPACE = """
import nni
from nni.nas.nn.pytorch import LayerChoice, ModelSpace, MutableConv2d
from torch import nn

class Space(ModelSpace):
    def __init__(self, width: int = 8):
        super().__init__()
        self.conv = MutableConv2d(3, nni.choice("width", [width, 2 * width]), 3)
        self.end = LayerChoice([nn.ReLU(), nn.Identity()], label="end")

    def forward(self, x):
        return self.end(self.conv(x))
"""

WIDE = ["net.py:Net", "--kwargs", '{"width": 4}', "--input", "3,8,8"]

#: Powers of two, so that nothing is rounded [s].
TIMES = {"conv2d": 2**-6, "add": 2**-9, "mean": 2**-10, "linear": 2**-8, "relu": 2**-7}


@pytest.fixture(autouse=True)
def _files(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "beside.py").write_text("def double(x):\n    return x + x\n")
    (tmp_path / "space.py").write_text(SPACE)
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    (tmp_path / "opens.py").write_text("open('no_weights')\n")


@pytest.fixture
def made(monkeypatch):
    """Measure invented times; return the runtimes that were made."""
    found = []

    def make(device, **options):
        found.append(FakeRuntime(lambda op: TIMES.get(op.kind, 2**-12), mark=2**-20))
        return found[-1]

    monkeypatch.setattr(runtimes, "TorchEager", make)
    return found


@pytest.fixture
def answer(run, made):
    """Measure; return the JSON."""

    def ask(*arguments, by="module"):
        return json.loads(run("measure", *arguments, "--by", by, "--format", "json").stdout)

    return ask


@pytest.mark.parametrize("by", ["module", "graph", "network"])
def test_class_in_a_file_is_measured(answer, by):
    content = answer(*WIDE, by=by)
    total = sum(TIMES[kind] for kind in ("conv2d", "add", "mean", "linear"))
    assert content["latency_s"] == pytest.approx(total, rel=1e-4)
    assert content["params"] == 4 * 27 + 4 + 4 * 3 + 3
    assert content["macs"] == 4 * 27 * 64 + 12
    names = [layer["name"].partition(".")[0] for layer in content["layers"]]
    assert names == ([] if by == "network" else ["conv", "add", "mean", "head"])


def test_layers_add_up(answer):
    content = answer(*WIDE)
    assert sum(layer["share"] for layer in content["layers"]) == pytest.approx(1.0)
    assert sum(layer["latency_s"] for layer in content["layers"]) == pytest.approx(content["latency_s"])
    assert content["layers"][0]["operator"].startswith("conv2d(")


def test_top_lists_the_costliest_first(answer):
    assert [layer["name"] for layer in answer(*WIDE, "--top", 2)["layers"]] == ["conv", "head"]


def test_table_prints_the_costliest_first_and_counts_the_rest(run, made):
    result = run("measure", *WIDE, "--by", "module", "--top", 2)
    assert result.stdout.index("conv2d(") < result.stdout.index("linear(")
    assert "and 2 more" in result.stdout
    assert "on its way" not in result.stdout
    assert "on its way" in result.stderr


def test_function_of_a_file_makes_a_network(answer):
    assert answer("net.py:make", "--input", "3,8,8")["latency_s"] == answer(*WIDE)["latency_s"]


def test_batch_goes_in_front_of_every_input(answer):
    assert "@5x3x8x8:" in answer(*WIDE, "--batch-size", 5)["layers"][0]["operator"]


def test_several_inputs_of_other_types_and_by_name(answer):
    content = answer("net.py:Words", "--input", "6:int64", "--input", "scale=6,4")
    assert [layer["operator"].partition("@")[2] for layer in content["layers"]] == ["1x6:int64", "1x6x4+1x6x4:float32"]


def test_nothing_is_measured_twice(answer, made):
    first = answer(*WIDE)
    assert answer(*WIDE) == first
    assert [runtime.sessions for runtime in made] == [1, 0]


def test_an_answer_from_the_database_says_so(run, made):
    first, second = (run("measure", *WIDE, "--database", "known.sqlite") for _ in range(2))
    assert first.stdout == second.stdout
    assert "Nothing was measured" not in first.stderr
    assert "Nothing was measured: the database has it." in second.stderr


def test_sample_of_a_space_of_ones_own(answer, tmp_path):
    (tmp_path / "sample.json").write_text('{"width": 16, "end": 0}')
    content = answer("space.py:Space@sample.json", "--input", "3,8,8")
    assert [layer["name"] for layer in content["layers"]] == ["conv", "end"]
    assert content["params"] == 16 * 27 + 16
    again = answer('space.py:Space@{"width": 16, "end": 0}', "--input", "3,8,8")
    assert again["layers"] == content["layers"]


def test_several_networks_are_measured_in_turns(run, made):
    command = ["measure", "net.py:Net", "net.py:make", "--kwargs", '{"width": 8}', "--input", "3,8,8"]
    assert "cannot be made with the arguments {'width': 8}" in run(*command, code=2).stderr
    command = ["measure", "net.py:make", 'space.py:Space@{"width": 8, "end": 0}', "--input", "3,8,8"]
    found = json.loads(run(*command, "--format", "json").stdout)
    assert [row["network"].partition("@")[0] for row in found["networks"]] == ["net.py:make", "space.py:Space"]
    assert [runtime.sessions for runtime in made[1:]] == [1]
    assert "times the fastest" in run(*command).stdout


def test_published_network_is_measured(run, made):
    assert json.loads(run("measure", "squeezenet", "--format", "json").stdout)["latency_s"] > 0


def test_onnx_file_needs_a_runtime_that_reads_it(fails):
    onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 4])
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [value], [out])), "net.onnx")
    said = fails("measure", "net.onnx", "--batch-size", 2, "--database", "none.sqlite")
    assert "does not read ONNX files. Measure 'net.onnx' with one that does, such as --runtime onnxruntime" in said
    assert not Path("none.sqlite").exists()


def test_architecture_of_a_plan_names_its_layers(answer):
    content = answer("fbnet@skip,k3_e1,skip,skip,skip,skip,skip", *TINY_KWARGS)
    assert [layer["name"] for layer in content["layers"]][:3] == ["stem", "layer0", "layer1"]


def test_architecture_of_a_plan_by_its_whole(answer):
    content = answer("fbnet@skip,k3_e1,skip,skip,skip,skip,skip", *TINY_KWARGS, by="network")
    assert content["layers"] == []
    assert content["latency_s"] > 0


def test_table_is_asked_for_the_operators_of_a_class(run, tables):
    result = run("predict", *WIDE, "--estimator", tables["tiny"], code=2)
    assert "The table has no entry for the operator conv2d(" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["absent.py:Net", "--input", "3"], "There is no file 'absent.py'."),
        (["no.such.module:Net", "--input", "3"], "Cannot import 'no.such.module': ModuleNotFoundError"),
        (["broken.py:Net", "--input", "3"], "Cannot import 'broken.py': ModuleNotFoundError: No module named"),
        (["opens.py:Net", "--input", "3"], "Cannot import 'opens.py': FileNotFoundError: [Errno 2] No such file"),
        (["net.py:Absent", "--input", "3"], "'net.py' has no class 'Absent'. It has: Net, Words, Broken, Failing."),
        (
            ["net.py:Net", "--input", "3,8,8"],
            "missing a required argument: 'width'. It takes: width, classes. Give them",
        ),
        (["net.py:Net", "--kwargs", '{"depth": 1}', "--input", "3"], "cannot be made with the arguments {'depth': 1}"),
        (["net.py:Net", "--kwargs", "[", "--input", "3"], "Invalid value for '--kwargs': It must be a JSON object"),
        (["net.py:Failing", "--input", "3"], "cannot be made with {}: RuntimeError: no such thing"),
        (["net.py:number", "--input", "3"], "must be a class or a function that makes a network. Got 'int', an object"),
        (["net.py:ready", "--input", "3"], "must be a class or a function that makes a network. Got 'Net', an object"),
        (["beside.py:double", "--kwargs", '{"x": 1}', "--input", "3"], "must make a torch.nn.Module. Got int"),
        (["net.py:make"], "The network needs the shape of its input"),
        (["net.py:make", "--input", "3,x"], "An input must be sizes >= 1 separated by commas"),
        (["net.py:make", "--input", "3:nonsense"], "An input must be sizes >= 1 separated by commas"),
        (["net.py:make", "--input", "4,8,8"], "The example inputs of shape (1, 4, 8, 8) do not fit Net"),
        (["net.py:Broken", "--input", "4"], "do not fit Broken: 'Tensor' object has no attribute 'nonsense'"),
        (["fbnet"], "'fbnet' is a model space. Name one of its networks as fbnet@ARCHITECTURE, such as fbnet@fbnet-c."),
        (["space.py:Space", "--input", "3,8,8"], "'space.py:Space' is a model space. Name one of its networks as"),
        (["space.py:Space@absent"], "must be the file of a saved sample, or a JSON object"),
        (['space.py:Space@{"width": 16}'], "The sample has no choice for: end."),
        (['space.py:Space@{"width": 8, "end": 0, "x": 1}'], "labels that Space does not have: x."),
        (["space.py:Space@{"], "The architecture is not valid JSON"),
        (['space.py:Space@{"width": 8, "end": 0}'], "Give the input image size"),
        (["operators@relu()@1x8:float32"], "lists operators, whose costs a table knows."),
        (["net.py:make", "--input", "3,8,8", "--runtime", "torchscript"], "the whole network with --by network."),
    ],
)
def test_mistakes_are_told_in_one_sentence(run, made, arguments, complaint):
    result = run("measure", *arguments, "--by", "module", code=2)
    _, _, sentence = result.stderr.partition("Error: ")
    assert complaint in sentence
    assert sentence.count("\n") == 1
    assert result.stdout == ""
    assert all(runtime.sessions == 0 for runtime in made)


@pytest.mark.slow
def test_class_of_a_file_reaches_the_worker_process(run):
    few = ("--protocol", "rounds=3", "--protocol", "processes=1")
    result = run("measure", *WIDE, "--by", "graph", *few, "--format", "json")
    content = json.loads(result.stdout)
    assert 0 < content["low_s"] <= content["latency_s"] <= content["high_s"]
    assert len(content["layers"]) == 4
