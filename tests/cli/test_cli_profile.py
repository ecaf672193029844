# SPDX-License-Identifier: Apache-2.0
"""``profile`` on the command line, without measuring."""

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
    printed = run("profile", f"{net}:Net", "--input", "3,33,33", "--kwargs", '{"width": 16}').stdout
    assert "stem" in printed
    assert "multiply-adds" in printed
    assert "shares are of the FLOPs" in " ".join(printed.split())


def test_json_adds_up(run, net, acts):
    options = [f"{net}:Net", "--input", "3,33,33", "--batch-size", 4, "--estimator", f"acts:{acts}"]
    found = json.loads(run("profile", *options, "--format", "json").stdout)
    assert found["batch_size"] == 4
    assert sum(block["flops"] for block in found["blocks"]) == found["flops"]
    assert sum(block["latency_s"] for block in found["blocks"]) == pytest.approx(found["latency_s"])
    assert found["acts"] == 4 * 8 * 16 * 16
    assert "latency" in run("profile", *options).stdout


@pytest.mark.slow
def test_published_networks_have_a_name(run):
    found = json.loads(run("profile", "fbnet@fbnet-a", "--format", "json").stdout)
    assert round(found["macs"] / 1e6) == 250
    shown = run("profile", "fbnet@fbnet-a", "--top", 3).stdout
    assert "more" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Name a network to profile, such as resnet18 or net.py:Net."),
        (["net.py:Nope", "--input", "3,4,4"], "has no class 'Nope'. It has: Net, Needy"),
        (["none.py:Net", "--input", "3,4,4"], "There is no file 'none.py'"),
        (["net.py:Needy", "--input", "3,4,4"], "--kwargs"),
        (["net.py:Net", "--input", "3,9,9", "--kwargs", '{"depth": 2}'], "It takes: width"),
        (["net.py:Net", "--input", "3,9,9", "--kwargs", "{"], "JSON"),
        (["net.py:NotANetwork", "--input", "3,9,9"], "must make a torch.nn.Module"),
        (["net.py:Net", "--input", "4,9,9"], "do not fit Net"),
        (["net.py:Net", "--input", "three"], "must be sizes >= 1 separated by commas"),
        (["net.py:Net"], "--input 3,224,224"),
        (["resnet9000"], "Unknown network 'resnet9000'. Available: resnet"),
        (["fbnet@fbnet-a", "-e", "none.json"], "none.json"),
        (["resnet18", "--meter", "constant:15"], "--meter has no effect here: without --measure nothing is measured."),
        (["resnet18", "--measure", "-e", "acts:x"], "--estimator has no effect here: --measure times operators."),
        (["--from", "a.json", "--measure"], "--measure has no effect here: --from reports on what was measured."),
        (["resnet18", "--from", "a.json"], "--from reports on what was measured: omit NET."),
    ],
)
@pytest.mark.usefixtures("net")
def test_mistakes_are_told_in_a_sentence(fails, arguments, message):
    assert message in fails("profile", *arguments)


def test_several_networks_are_a_row_each(run, net, acts):
    words = ["profile", f"{net}:Net", "squeezenet", "--input", "3,33,33"]
    first, second = json.loads(run(*words, "--format", "json").stdout)["networks"]
    assert (first["network"], second["network"]) == (f"{net}:Net", "squeezenet")
    assert first["flops"] < second["flops"]
    assert "blocks" not in first
    assert "latency" in run(*words, "-e", f"acts:{acts}").stdout


def test_an_onnx_file_is_taken_apart(run, fails):
    onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4])
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 4])
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [value], [out])), "net.onnx")
    assert json.loads(run("profile", "net.onnx", "--batch-size", 3, "--format", "json").stdout)["flops"] == 12
    assert "has the shape 1x4: it takes 2 sizes or, without the batch, 1. Got 1x3x4x5" in fails(
        "profile", "net.onnx", "--input", "3,4,5"
    )
    assert "--kwargs is for a class" in fails("profile", "net.onnx", "--kwargs", '{"a": 1}')
    assert "cannot be timed one by one" in fails("profile", "net.onnx", "--measure")
    assert "Cannot read the ONNX file" in fails("profile", "none.onnx")
