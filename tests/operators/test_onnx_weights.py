# SPDX-License-Identifier: Apache-2.0
"""ONNX files without weights: small, as good for tracing, and able to run with random ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from nni_latency.datasets import given_files
from nni_latency.errors import InvalidValueError
from nni_latency.operators import OnnxBuild, export_onnx, onnx_inputs, onnx_network, read_onnx, without_weights

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")


class Network(nn.Module):
    """Words and a scale, in layers whose weights are of different use."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.layers = nn.Sequential(nn.Conv1d(8, 16, 3, padding=1), nn.BatchNorm1d(16), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(16 * 6, 40)

    def forward(self, words, scale):
        return self.head(self.layers(self.words(words).transpose(1, 2))) * scale


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Save a network with its weights and without."""
    folder = tmp_path_factory.mktemp("onnx")
    model = export_onnx(Network().eval(), [torch.zeros(1, 6, dtype=torch.int64), torch.ones(1, 40)]).model
    onnx.save(model, folder / "whole.onnx")
    onnx.save(without_weights(model), folder / "light.onnx")
    return folder / "whole.onnx", folder / "light.onnx"


def test_file_without_weights_is_small_and_has_the_same_operators(files):
    whole, light = files
    assert light.stat().st_size < 4000 < 10000 < whole.stat().st_size
    assert read_onnx(light) == read_onnx(whole)


def test_leaving_weights_out_does_not_change_the_model():
    model = export_onnx(nn.Linear(30, 40).eval(), [torch.zeros(1, 30)]).model
    size = model.ByteSize()
    without_weights(model)
    assert model.ByteSize() == size


@pytest.mark.parametrize("place", [0, 1])
def test_network_of_a_file_can_be_run(files, place):
    from onnx.reference import ReferenceEvaluator

    network = onnx_network(files[place])
    inputs = [np.arange(6).reshape(1, 6), np.ones((1, 40), np.float32)]
    (found,) = ReferenceEvaluator(network.model).run(None, network.feed(inputs))
    assert found.shape == (1, 40)
    assert np.isfinite(found).all()
    assert found.std() > 0
    assert network.n_labels == len(network.model.graph.node)
    assert [network.label_of([node.name]) for node in network.model.graph.node] == list(range(network.n_labels))


def test_layers_that_share_what_is_made_up_get_values_of_their_own(tmp_path):
    """OpenVINO adds a bias that layers share in a node of its own."""
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Identity", ["bias"], ["again"]),
        helper.make_node("Conv", ["taken", "first", "bias"], ["middle"]),
        helper.make_node("Conv", ["middle", "second", "again"], ["made"]),
    ]
    random = np.random.default_rng(0)
    shapes = {"bias": (64,), "first": (64, 4, 1, 1), "second": (64, 64, 1, 1)}
    weights = [numpy_helper.from_array(random.normal(size=size).astype("f"), name) for name, size in shapes.items()]
    given, out = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, channels, 8, 8))
        for name, channels in (("taken", 4), ("made", 64))
    )
    graph = helper.make_graph(nodes, "net", [given], [out], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "whole.onnx")
    onnx.save(without_weights(model), tmp_path / "light.onnx")

    light = onnx_network(tmp_path / "light.onnx")
    values = {item.name: numpy_helper.to_array(item) for item in light.model.graph.initializer}
    assert [node.op_type for node in light.model.graph.node] == ["Conv", "Conv"]
    assert [light.label_of([node.name]) for node in light.model.graph.node] == [1, 2]
    assert light.n_labels == 3 == read_onnx(tmp_path / "light.onnx").n_calls
    first, second = (values[node.input[2]] for node in light.model.graph.node)
    assert second.shape == (64,)
    assert (first != second).any()
    # What the file says of its weights is left as it is.
    assert len(onnx_network(tmp_path / "whole.onnx").model.graph.node) == 3


def test_layers_that_share_slopes_get_slopes_of_their_own_where_weights_are_missing(tmp_path):
    """OpenVINO computes a PReLU that shares its slopes apart from the convolution before it."""
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Identity", ["slopes"], ["again"]),
        helper.make_node("Identity", ["again"], ["once more"]),
        helper.make_node("Conv", ["taken", "weights"], ["first"]),
        *(
            helper.make_node("PRelu", [source, slopes], [result])
            for source, slopes, result in (
                ("first", "slopes", "second"),
                ("second", "once more", "third"),
                ("third", "slopes", "made"),
            )
        ),
    ]
    weights = [
        numpy_helper.from_array(np.full(size, 0.25, "f"), name)
        for name, size in (("slopes", (8, 1, 1)), ("weights", (8, 8, 1, 1)))
    ]
    given, out = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 8, 4, 4)) for name in ("taken", "made"))
    graph = helper.make_graph(nodes, "net", [given], [out], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(without_weights(model), tmp_path / "light.onnx")
    light = onnx_network(tmp_path / "light.onnx").model
    onnx.checker.check_model(light)
    values = {item.name: numpy_helper.to_array(item) for item in light.graph.initializer}
    assert [node.op_type for node in light.graph.node] == ["Conv", "PRelu", "PRelu", "PRelu"]
    slopes = [node.input[1] for node in light.graph.node[1:]]
    assert len(set(slopes)) == 3
    assert all((values[name] == 0.25).all() for name in slopes)
    onnx.save(model, tmp_path / "whole.onnx")
    assert len(onnx_network(tmp_path / "whole.onnx").model.graph.node) == 6


def test_numbers_of_another_count_in_the_names_of_a_file_are_not_taken_for_its_own(tmp_path):
    """Runtimes name what they make of a node by its results: ONNX Runtime a normalisation without a convolution."""
    model = export_onnx(nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()).eval(), [torch.zeros(1, 4, 2, 2)]).model
    *_, norm, activation = model.graph.node
    norm.output[0] = activation.input[0] = "/call77/odd"
    onnx.save(model, tmp_path / "numbered.onnx")
    network = onnx_network(tmp_path / "numbered.onnx")
    *_, norm, activation = (node.output[0] for node in network.model.graph.node)
    for ending in ("", "_nchwc", "_bn_nchwc"):
        found = [network.label_of([name + ending]) for name in (norm, activation)]
        assert found == [network.n_labels - 2, network.n_labels - 1]


def test_network_with_branches_can_be_run(tmp_path):
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    def branch(kind):
        made = helper.make_tensor_value_info(kind, TensorProto.FLOAT, (2,))
        return helper.make_graph([helper.make_node(kind, ["doubled"], [kind])], kind, [], [made])

    nodes = [
        helper.make_node("Add", ["taken", "taken"], ["doubled"]),
        helper.make_node("ReduceSum", ["taken"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["whether"], to=TensorProto.BOOL),
        helper.make_node("If", ["whether"], ["made"], then_branch=branch("Neg"), else_branch=branch("Abs")),
    ]
    given, out = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (2,)) for name in ("taken", "made"))
    model = helper.make_model(
        helper.make_graph(nodes, "net", [given], [out]), opset_imports=[helper.make_opsetid("", 17)]
    )
    onnx.save(model, tmp_path / "branches.onnx")
    network = onnx_network(tmp_path / "branches.onnx")
    (found,) = ReferenceEvaluator(network.model).run(None, network.feed([np.array([1, 2], np.float32)]))
    assert found.tolist() == [-2, -4]
    # The results of a branch need no type in a file, and get none that is incomplete.
    for item in nodes[3].attribute:
        item.g.output[0].ClearField("type")
    model.graph.node[3].CopyFrom(nodes[3])
    onnx.save(model, tmp_path / "branches.onnx")
    larger = onnx_network(tmp_path / "branches.onnx", 4).model
    assert [item.g.output[0].HasField("type") for item in larger.graph.node[3].attribute] == [False, False]


@pytest.mark.parametrize("is_function", [False, True])
def test_weights_of_branches_are_left_out_and_made_up(tmp_path, is_function):
    from onnx import TensorProto, helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    def branch(name):
        weight = numpy_helper.from_array(np.full((32, 16), 1, np.float32), name)
        made = helper.make_tensor_value_info(f"{name}_made", TensorProto.FLOAT, (1, 16))
        return helper.make_graph([helper.make_node("MatMul", ["taken", name], [made.name])], name, [], [made], [weight])

    nodes = [
        helper.make_node("ReduceSum", ["taken"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["whether"], to=TensorProto.BOOL),
        helper.make_node("If", ["whether"], ["made"], then_branch=branch("one"), else_branch=branch("other")),
    ]
    given = helper.make_tensor_value_info("taken", TensorProto.FLOAT, (1, 32))
    out = helper.make_tensor_value_info("made", TensorProto.FLOAT, (1, 16))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Choosing", ["whether", "taken"], ["made"], nodes[2:], opsets[:1])
    call = helper.make_node("Choosing", ["whether", "taken"], ["made"], domain="own")
    graph = helper.make_graph([*nodes[:2], call] if is_function else nodes, "net", [given], [out])
    functions = [function] if is_function else []
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)
    light = without_weights(model)
    assert light.ByteSize() < model.ByteSize() - 2 * 32 * 16 * 4 + 200
    onnx.save(light, tmp_path / "light.onnx")
    onnx.save(model, tmp_path / "whole.onnx")
    assert read_onnx(tmp_path / "light.onnx") == read_onnx(tmp_path / "whole.onnx")
    network = onnx_network(tmp_path / "light.onnx")
    (found,) = ReferenceEvaluator(network.model).run(None, network.feed([np.ones((1, 32), np.float32)]))
    assert np.isfinite(found).all()
    assert found.std() > 0
    if not is_function:
        # Shapes in branches are for the batch of the file.
        branches = [item.g for item in onnx_network(tmp_path / "light.onnx", 4).model.graph.node[2].attribute]
        assert not any(item.output[0].type.tensor_type.HasField("shape") for item in branches)
        (file,) = given_files([tmp_path / "light.onnx"])
        assert file.weights == 2 * 32 * 16
        light.graph.node[2].attribute[0].g.initializer[0].dims[:] = [2**30, 2**30]
        onnx.save(light, tmp_path / "light.onnx")
        with pytest.raises(InvalidValueError, match=r"has tensors of more than 2\^40 numbers: \w+\.$"):
            onnx_network(tmp_path / "light.onnx")


def test_a_build_carries_its_file_to_where_there_is_none(files, tmp_path):
    path = tmp_path / "moved.onnx"
    path.write_bytes(files[0].read_bytes())
    build = OnnxBuild(str(path))
    carried = build.carried()
    path.unlink()
    inputs = [torch.zeros(1, 6, dtype=torch.int64), torch.ones(1, 40)]
    assert len(carried().model.graph.node) == len(OnnxBuild(str(files[0]), None, inputs)().model.graph.node)
    with pytest.raises(InvalidValueError, match=r"Cannot read '.*moved\.onnx': No such file"):
        build.carried()


def test_weights_that_are_there_stay(files):
    before = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(files[0]).graph.initializer}
    for tensor in onnx_network(files[0]).model.graph.initializer:
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), before[tensor.name])


def test_inputs_are_in_the_order_of_the_file(files):
    first, second = onnx_inputs(files[0]).args
    assert (first.shape, first.dtype) == ((1, 6), torch.int64)
    assert (second.shape, second.dtype) == ((1, 40), torch.float32)


def test_open_input_is_named(tmp_path):
    model = export_onnx(nn.ReLU().eval(), [torch.zeros(1, 3, 4)]).model
    model.graph.input[0].type.tensor_type.shape.dim[2].ClearField("dim_value")
    onnx.save(model, tmp_path / "open.onnx")
    with pytest.raises(InvalidValueError, match=r"has the open shape 1x3x\?\. Give example inputs"):
        onnx_inputs(tmp_path / "open.onnx")
    assert onnx_inputs(tmp_path / "open.onnx", example_inputs=torch.zeros(1, 3, 9)).args[0].shape == (1, 3, 9)


def test_whole_numbers_in_another_file_cannot_be_made_up(tmp_path):
    model = export_onnx(nn.Linear(30, 40).eval(), [torch.zeros(1, 30)]).model
    tensor = model.graph.initializer[0]
    tensor.data_type = onnx.TensorProto.INT64
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../secret")
    (tmp_path / "odd.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(InvalidValueError, match=r"has no values in the file\. It holds whole numbers"):
        onnx_network(tmp_path / "odd.onnx")


_SHARED = Path(__file__).parents[3] / "shared" / "data" / "onnx" / "resnet18-v1-7-no-weight.onnx"


@pytest.mark.skipif(not _SHARED.is_file(), reason="the shared data are not beside the checkout")
def test_published_file_without_weights_is_filled():
    """NNLQP's own way: the weights are listed, among the inputs too, and have no values anywhere."""
    network = onnx_network(_SHARED)
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in network.model.graph.initializer}
    assert sum(values.size for values in weights.values()) > 11e6
    assert all(np.isfinite(values).all() for values in weights.values())
    assert list(network.feed([np.zeros((1, 3, 224, 224), np.float32)])) == ["input0"]
