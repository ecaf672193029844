# SPDX-License-Identifier: Apache-2.0
"""What commands say of networks that take no time, or of which something is assumed."""

import json

import pytest

from nni_latency.plugins import load_registry

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
pytest.importorskip("safetensors", reason="the package safetensors is not installed")

REMARK = "the network computes in float16: it is answered as one in fp32"


def _save(name, node, shape, out, kind=1, weights=()):
    value, result = (onnx.helper.make_tensor_value_info(*item) for item in (("x", kind, shape), ("y", kind, out)))
    nodes = node if isinstance(node, list) else [node]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [value], [result], weights)), name)


@pytest.fixture
def flat():
    """Write a network that only looks at memory in another way, and one that computes."""
    _save("flat.onnx", onnx.helper.make_node("Flatten", ["x"], ["y"]), [1, 3, 4], [1, 12])
    _save("relu.onnx", onnx.helper.make_node("Relu", ["x"], ["y"]), [1, 3, 4], [1, 3, 4])
    return "flat.onnx"


@pytest.fixture
def half():
    """Write a convolution in half precision."""
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT16, [4, 3, 3, 3], [0.0] * 108)
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"])
    _save("half.onnx", node, [1, 3, 8, 8], [1, 4, 6, 6], onnx.TensorProto.FLOAT16, [weight])
    return "half.onnx"


@pytest.fixture
def selected():
    """Write a network that returns as many numbers as the data say."""
    nodes = [onnx.helper.make_node("NonZero", ["x"], ["z"]), onnx.helper.make_node("Neg", ["z"], ["y"])]
    _save("selected.onnx", nodes, [3, 4], [2, "n"])
    return "selected.onnx"


@pytest.mark.parametrize(
    "command",
    [
        ["predict", "flat.onnx"],
        ["predict", "relu.onnx", "flat.onnx"],
        ["query", "flat.onnx", "--database", "records.sqlite"],
        ["profile", "flat.onnx"],
        ["predict", "flat.onnx", "--latency-estimator", "graph-network:pretrained,epyc-25-1-1.onnxruntime.fp32.t1"],
    ],
)
def test_a_network_without_operators_takes_no_time(fails, flat, command):
    assert fails(*command) == f"{flat!r} has no operators: nothing in it takes time."


def test_answers_for_a_network_in_half_precision_say_so(run, half):
    found = json.loads(run("predict", half, "--platform", "onnxruntime.fp32", "--format", "json").stdout)["platforms"]
    assert found
    assert all(REMARK in row["missing"] for row in found)
    platform = found[0]["platform"]
    estimated = run("predict", half, "--latency-estimator", f"graph-network:pretrained,{platform}", "--format", "json")
    assert REMARK in json.loads(estimated.stdout)["remarks"]
    assert estimated.stderr.count(REMARK[1:]) == 1
    asked = [
        "query",
        half,
        "--platform",
        platform,
        "--measure",
        "never",
        "--database",
        "records.sqlite",
        "--format",
        "json",
    ]
    (answer,) = json.loads(run(*asked).stdout)["answers"]
    assert answer["missing"].count(REMARK) == 1


def test_what_is_assumed_of_a_file_is_said(run, selected):
    assumed = "the results of z depend on data"
    analysed = run("profile", selected, "--format", "json")
    (remark,) = json.loads(analysed.stdout)["remarks"]
    assert assumed in remark
    assert assumed in analysed.stderr
    where = "graph-network:pretrained,epyc-25-1-1.onnxruntime.fp32.t1"
    estimated = run("predict", selected, "--latency-estimator", where, "--format", "json")
    assert json.loads(estimated.stdout)["remarks"] == [remark]
    assert assumed in estimated.stderr


def test_a_runtime_that_is_not_installed_is_named(fails, flat):
    registered = load_registry().runtimes
    names = [name for name in ("openvino", "onnxruntime") if name not in registered]
    if not names:
        pytest.skip("all runtimes that the predictor knows are installed")
    asked = ["query", "relu.onnx", "--database", "records.sqlite", "--platform", names[0]]
    message = fails(*asked)
    assert f"{names[0]!r} cannot be measured on this machine: Unknown runtime {names[0]!r}." in message
    assert f"pip install ./plugins/nni_latency_{names[0]}" in message
    assert "Name the platform whose prediction or record you want: " in message


@pytest.mark.parametrize("command", [["predict", "-e", "pretrained", "--platform", "onnxruntime.fp32"], ["profile"]])
def test_of_several_networks_the_assumed_one_is_named(run, flat, selected, command):
    said = run(*command, selected, "relu.onnx").stderr
    assert f"{selected}: the sizes of the results of z depend on data" in said
    assert "The sizes of the results of z depend on data" in run(*command, selected).stderr
