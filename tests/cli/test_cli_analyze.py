"""``analyze`` on the command line."""

from __future__ import annotations

import json

import pytest

from nni_latency.estimators import ActsEstimator
from nni_latency.micro_benchmarks import draw_blocks

NET = """
from torch import nn


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2)
        self.head = nn.Linear(width, 10)

    def forward(self, inputs):
        return self.head(self.stem(inputs).mean((2, 3)))


class Needy(nn.Module):
    def __init__(self, width):
        super().__init__()


class NotANetwork:
    pass
"""


@pytest.fixture
def net(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    return "net.py"


@pytest.fixture(scope="module")
def acts(tmp_path_factory):
    """Save a fit of an invented device."""
    modules = [(block.build(), block.input_shape(1)) for block in draw_blocks(14)]
    totals = [sum(weight.numel() for weight in module.parameters()) * 1e-9 + 1e-4 for module, _ in modules]
    return ActsEstimator().fit(modules, totals).save(tmp_path_factory.mktemp("acts") / "fit.json")


def test_table_lists_blocks_and_totals(run, net):
    printed = run("analyze", "--file", net, "--model", "Net", "--input", "3,33,33", "--kwargs", '{"width": 16}').stdout
    assert "stem" in printed
    assert "multiply-adds" in printed
    assert "shares are of the FLOPs" in " ".join(printed.split())


def test_json_adds_up(run, net, acts):
    options = [
        "--file",
        net,
        "--model",
        "Net",
        "--input",
        "3,33,33",
        "--batch",
        4,
        "--latency-estimator",
        f"acts:{acts}",
    ]
    found = json.loads(run("analyze", *options, "--json").stdout)
    assert found["batch_size"] == 4
    assert sum(block["flops"] for block in found["blocks"]) == found["flops"]
    assert sum(block["latency_s"] for block in found["blocks"]) == pytest.approx(found["latency_s"])
    assert found["acts"] == 4 * 8 * 16 * 16
    assert "latency" in run("analyze", *options).stdout


@pytest.mark.slow
def test_built_in_networks_have_a_name(run):
    found = json.loads(run("analyze", "--model", "fbnet-a", "--json").stdout)
    assert round(found["macs"] / 1e6) == 250
    shown = run("analyze", "--model", "fbnet-a", "--top", 3).stdout
    assert "more" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--file", "net.py", "--model", "Nope", "--input", "3,4,4"], "has no class 'Nope'. It has: Net, Needy"),
        (["--file", "none.py", "--model", "Net", "--input", "3,4,4"], "There is no file 'none.py'"),
        (["--file", "net.py", "--model", "Needy", "--input", "3,4,4"], "--kwargs"),
        (["--file", "net.py", "--model", "Net", "--input", "3,9,9", "--kwargs", '{"depth": 2}'], "It takes: width"),
        (["--file", "net.py", "--model", "Net", "--input", "3,9,9", "--kwargs", "{"], "JSON"),
        (["--file", "net.py", "--model", "NotANetwork", "--input", "3,9,9"], "must make a torch.nn.Module"),
        (["--file", "net.py", "--model", "Net", "--input", "4,9,9"], "do not fit Net"),
        (["--file", "net.py", "--model", "Net", "--input", "three"], "must be sizes >= 1 separated by commas"),
        (["--file", "net.py", "--model", "Net"], "--input 3,224,224"),
        (["--file", "net.txt", "--model", "Net", "--input", "3,9,9"], "--file must be a Python file"),
        (["--model", "resnet9000"], "Unknown network 'resnet9000'. Available: fbnet-a"),
        (["--model", "fbnet-a", "--kwargs", '{"width": 2}'], "--kwargs is for a class of your own"),
        (["--model", "fbnet-a", "--latency-estimator", "none.json"], "none.json"),
    ],
)
@pytest.mark.usefixtures("net")
def test_mistakes_are_told_in_a_sentence(fails, arguments, message):
    assert message in fails("analyze", *arguments)


def test_an_onnx_file_is_taken_apart(run, fails):
    onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4])
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 4])
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [value], [out])), "net.onnx")
    assert json.loads(run("analyze", "--model", "net.onnx", "--batch", 3, "--json").stdout)["flops"] == 12
    assert "has the shape 1x4: it takes 2 sizes or, without the batch, 1. Got 1x3x4x5" in fails(
        "analyze", "--model", "net.onnx", "--input", "3,4,5"
    )
    assert "omit --file and --kwargs" in fails("analyze", "--model", "net.onnx", "--kwargs", "{}", "--file", "x.py")
    assert "Cannot read the ONNX file" in fails("analyze", "--model", "none.onnx")
