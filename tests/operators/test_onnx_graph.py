# SPDX-License-Identifier: Apache-2.0
"""ONNX files as graphs: constants folded, names and order without importance, attributes with; bad files named."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nni_latency.errors import InvalidValueError
from nni_latency.graphs import families, save_onnx
from nni_latency.operators import count_operators, export_onnx, graph_key, onnx_network, read_onnx, trace

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
helper = onnx.helper

FLOAT = onnx.TensorProto.FLOAT


def _value(name, *shape, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, list(shape) or None)


def _save(path, nodes, inputs, outputs, weights=(), opset=17):
    graph = helper.make_graph(list(nodes), "g", inputs, outputs, list(weights))
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("com.example", 1)]
    )
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture(scope="module", params=["squeezenet", "shufflenetv2", "vit", "bert"])
def family(request, tmp_path_factory):
    """Return a family, and its published network as a file."""
    found = families()[request.param]
    return found, save_onnx(found, 0, tmp_path_factory.mktemp("onnx") / "net.onnx")


@pytest.mark.slow
def test_shapes_that_are_computed_are_known(family):
    """Vision transformers compute the shape of their class token from that of their input."""
    found, path = family
    graph = read_onnx(path)
    assert not count_operators(item.op for item in graph.operators).uncounted
    with torch.device("meta"):
        traced = trace(found.network(0), found.example_inputs(), by="graph")
    assert graph.outputs == traced.outputs
    assert graph.inputs == traced.inputs
    works = [count_operators(item.op for item in some.operators).features.macs for some in (graph, traced)]
    assert works[0] == pytest.approx(works[1], rel=0.01)


def _renamed(model, seed):
    """Give every tensor and node another name, and put nodes into another order in which they can run."""
    draw, graph = random.Random(seed), model.graph
    names = {name for node in graph.node for name in (*node.input, *node.output)}
    new = {name: f"t{number}" for number, name in enumerate(draw.sample(sorted(names), len(names)))} | {"": ""}
    for item in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        item.name = new.get(item.name, item.name)
    for node in graph.node:
        node.name = f"n{draw.random()}"
        node.input[:] = [new[name] for name in node.input]
        node.output[:] = [new[name] for name in node.output]
    made = {item.name for item in (*graph.input, *graph.initializer)} | {""}
    left, order = list(graph.node), []
    while left:
        ready = [node for node in left if set(node.input) <= made]
        order.append(draw.choice(ready))
        left.remove(order[-1])
        made |= set(order[-1].output)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in order]
    del graph.node[:]
    graph.node.extend(copies)
    return model


class _Branches(nn.Module):
    """Branches that are alike and branches that are not."""

    def __init__(self):
        super().__init__()
        self.ways = nn.ModuleList(nn.Conv2d(3, size, 3, padding=1) for size in (4, 4, 6))

    def forward(self, inputs):
        first, second, third = (way(inputs) for way in self.ways)
        return torch.cat([torch.relu(first) + second, third.sigmoid(), first * second], 1).softmax(1)


@pytest.fixture(scope="module")
def branches():
    """Return a network of branches as a model."""
    return export_onnx(_Branches().eval(), [torch.zeros(1, 3, 6, 6)]).model


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_names_and_order_in_a_file_do_not_matter(branches, tmp_path_factory, seed):
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    path.write_bytes(branches.SerializeToString())
    expected = graph_key(read_onnx(path))
    copy = onnx.ModelProto.FromString(branches.SerializeToString())
    path.write_bytes(_renamed(copy, seed).SerializeToString())
    assert graph_key(read_onnx(path)) == expected


def test_nodes_in_an_order_in_which_they_cannot_run_are_sorted(tmp_path):
    nodes = [helper.make_node("Relu", ["b"], ["c"]), helper.make_node("Exp", ["a"], ["b"])]
    graph = read_onnx(_save(tmp_path / "net.onnx", nodes, [_value("a", 1, 4)], [_value("c", 1, 4)]))
    assert [(item.op.kind, item.sources, item.last_call) for item in graph.operators] == [
        ("exp", (), 1),
        ("relu", (0,), 0),
    ]
    assert graph.edges == ((0, 1),)


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("MaxPool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        ("Softmax", {"axis": 1}),
        ("LeakyRelu", {"alpha": 0.1}),
        ("Transpose", {"perm": [0, 1, 2, 3]}),
        ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    ],
)
def test_every_attribute_of_a_file_matters(tmp_path, kind, attributes):
    def key(**given):
        node = helper.make_node(kind, ["a"], ["b"], **given)
        return graph_key(read_onnx(_save(tmp_path / "net.onnx", [node], [_value("a", 1, 4, 8, 8)], [_value("b")])))

    other = {
        "pads": [0, 0, 2, 2],
        "axis": 2,
        "alpha": 0.2,
        "perm": [0, 1, 3, 2],
        "count_include_pad": 0,
        "kernel_shape": [3, 3],
    }
    keys = {key(**attributes), *(key(**{**attributes, name: other[name]}) for name in attributes)}
    assert len(keys) == 1 + len([name for name in attributes if attributes[name] != other[name]])
    assert key(**attributes) in keys


def test_types_of_numbers_are_known(tmp_path):
    half = onnx.TensorProto.FLOAT16
    nodes = [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Add", ["n", "n"], ["m"])]
    inputs = [_value("a", 1, 4, kind=half), _value("n", 1, 4, kind=onnx.TensorProto.INT64)]
    outputs = [_value("b", 1, 4, kind=half), _value("m", 1, 4, kind=onnx.TensorProto.INT64)]
    graph = read_onnx(_save(tmp_path / "net.onnx", nodes, inputs, outputs))
    assert [item.op.dtype for item in graph.operators] == ["float16", "int64"]


def test_bounds_of_an_activation_are_known_in_old_and_new_files(tmp_path):
    bounds = [onnx.numpy_helper.from_array(np.float32(value), name) for value, name in ((0, "low"), (6, "high"))]
    new = helper.make_node("Clip", ["a", "low", "high"], ["b"])
    old = helper.make_node("Clip", ["a"], ["b"], min=0.0, max=6.0)
    values = [_value("a", 1, 4)], [_value("b", 1, 4)]
    found = [
        read_onnx(_save(tmp_path / "net.onnx", [node], *values, weights, opset)).operators[0].op
        for node, weights, opset in ((new, bounds, 17), (old, (), 9))
    ]
    assert found[0] == found[1]
    assert (found[0]["min"], found[0]["max"]) == (0.0, 6.0)


@pytest.mark.parametrize("opset", [9, 11, 13, 15, 18, onnx.defs.onnx_opset_version()])
def test_opsets_from_nine_on_are_read(tmp_path, opset):
    weights = [onnx.numpy_helper.from_array(np.ones((8, 3, 3, 3), np.float32), "w")]
    weights.append(onnx.numpy_helper.from_array(np.array([1, -1], np.int64), "shape"))
    weights.append(onnx.numpy_helper.from_array(np.ones((512, 10), np.float32), "head"))
    nodes = [
        helper.make_node("Conv", ["a", "w"], ["b"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Reshape", ["c", "shape"], ["d"]),
        helper.make_node("MatMul", ["d", "head"], ["e"]),
    ]
    path = _save(tmp_path / "net.onnx", nodes, [_value("a", 1, 3, 8, 8)], [_value("e")], weights, opset)
    graph = read_onnx(path)
    assert [item.op.kind for item in graph.operators] == ["conv2d", "relu", "linear"]
    assert graph.outputs == ((1, 10),)


def test_what_does_not_depend_on_inputs_is_no_operator(tmp_path):
    weights = [onnx.numpy_helper.from_array(np.ones((10, 200), np.float32), "w")]
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"]),
        helper.make_node("Mul", ["t", "t"], ["squared"]),
        helper.make_node("MatMul", ["a", "squared"], ["b"]),
    ]
    graph = read_onnx(_save(tmp_path / "net.onnx", nodes, [_value("a", 4, 200)], [_value("b")], weights))
    ((name, op),) = [(item.name, item.op) for item in graph.operators]
    assert (name, op.op_key) == ("b", "linear(bias=0,out_features=10)@4x200:float32")
    assert graph.n_calls == 3


def test_batch_size_is_set_in_all_shapes(tmp_path):
    model = export_onnx(_Branches().eval(), [torch.zeros(1, 3, 6, 6)]).model
    path = tmp_path / "net.onnx"
    path.write_bytes(model.SerializeToString())
    one, four = (read_onnx(path, batch_size) for batch_size in (None, 4))
    assert (one.outputs, four.outputs) == (((1, 14, 6, 6),), ((4, 14, 6, 6),))
    assert all(item.op.input_shapes[0][0] == 4 for item in four.operators)
    assert graph_key(one) != graph_key(four)


def test_weights_in_other_files_are_not_opened(tmp_path):
    tensor = onnx.TensorProto(name="w", dims=[10, 200], data_type=FLOAT, data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="../../etc/passwd")
    nodes = [helper.make_node("Gemm", ["a", "w"], ["b"], transB=1)]
    path = _save(tmp_path / "net.onnx", nodes, [_value("a", 4, 200)], [_value("b")], [tensor])
    assert read_onnx(path).operators[0].op["out_features"] == 10


def test_unknown_operators_are_named(tmp_path):
    node = helper.make_node("Marvel", ["a"], ["b"], name="m", domain="com.example")
    path = _save(tmp_path / "net.onnx", [node], [_value("a", 1, 4)], [_value("b", 1, 7)])
    graph = read_onnx(path)
    assert count_operators(item.op for item in graph.operators).uncounted == ("marvel",)
    following = helper.make_node("Relu", ["b"], ["c"])
    path = _save(tmp_path / "net.onnx", [node, following], [_value("a", 1, 4)], [_value("c", 1, 7)])
    graph = read_onnx(path)
    assert [item.op.input_shapes for item in graph.operators] == [((1, 4),), ((1, 4),)]
    assert graph.remarks == ("the results of m are not known: they are taken for as large as the input",)


def test_node_that_cannot_be_is_named(tmp_path):
    nodes = [helper.make_node("Conv", ["a"], ["b"], name="no weight")]
    path = _save(tmp_path / "net.onnx", nodes, [_value("a", 1, 3, 4, 4)], [_value("b", 1, 3, 4, 4)])
    with pytest.raises(InvalidValueError, match=r"'no weight' in .*net\.onnx', an operator Conv, is not valid"):
        read_onnx(path)


def test_cyclic_graph_is_refused(tmp_path):
    nodes = [helper.make_node("Add", ["a", "c"], ["b"], name="one"), helper.make_node("Relu", ["b"], ["c"], name="two")]
    path = _save(tmp_path / "net.onnx", nodes, [_value("a", 1, 4)], [_value("c", 1, 4)])
    with pytest.raises(InvalidValueError, match="is cyclic: one, two take results of each other"):
        read_onnx(path)


def test_tensor_that_nothing_makes_is_named(tmp_path):
    nodes = [helper.make_node("Add", ["a", "nowhere"], ["b"])]
    path = _save(tmp_path / "net.onnx", nodes, [_value("a", 1, 4)], [_value("b", 1, 4)])
    with pytest.raises(InvalidValueError, match="takes tensors that nothing makes: nowhere"):
        read_onnx(path)


@settings(max_examples=40, deadline=None)
@given(share=st.floats(0, 0.999))
def test_truncated_file_is_refused_or_read_whole(branches, tmp_path_factory, share):
    content = branches.SerializeToString()
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(InvalidValueError):
        read_onnx(path)


@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=60))
def test_what_is_not_onnx_is_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    path.write_bytes(content)
    with pytest.raises(InvalidValueError):
        read_onnx(path)


def test_all_open_sizes_are_named(tmp_path):
    inputs = [_value("a", "n", 3, "height", None), _value("words", "n", "length")]
    nodes = [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Relu", ["words"], ["c"])]
    path = _save(tmp_path / "net.onnx", nodes, inputs, [_value("b"), _value("c")])
    with pytest.raises(InvalidValueError, match=r"open: 'a' 1x3xheightx\?, 'words' 1xlength\. Give the shapes of"):
        read_onnx(path)
    graph = read_onnx(path, example_inputs=[torch.zeros(2, 3, 8, 8), torch.zeros(2, 5)])
    assert graph.inputs == ((2, 3, 8, 8), (2, 5))


def test_limits(tmp_path, monkeypatch):
    path = _save(
        tmp_path / "net.onnx", [helper.make_node("Relu", ["a"], ["b"])], [_value("a", 2**20, 2**21)], [_value("b")]
    )
    with pytest.raises(InvalidValueError, match=r"has tensors of more than 2\^40 numbers: a"):
        read_onnx(path)
    # Private: a file that reaches the limits would be too large.
    module = "nni_latency.operators._onnx_model"
    path = _save(tmp_path / "net.onnx", [helper.make_node("Relu", ["a"], ["b"])], [_value("a", 2, 2)], [_value("b")])
    monkeypatch.setattr(f"{module}._MOST_NODES", 0)
    with pytest.raises(InvalidValueError, match="has 1 node, and 0 are the most that are read"):
        read_onnx(path)
    monkeypatch.setattr(f"{module}._MOST_BYTES", 10)
    with pytest.raises(InvalidValueError, match="2 GiB are the most that can be read"):
        onnx_network(path)


def test_newer_opset_names_the_remedy(tmp_path):
    path = _save(
        tmp_path / "net.onnx", [helper.make_node("Relu", ["a"], ["b"])], [_value("a", 2, 2)], [_value("b")], (), 99
    )
    with pytest.raises(InvalidValueError, match=r"has opset 99, and the package onnx .* pip install --upgrade onnx"):
        read_onnx(path)


def test_deep_network_is_read(tmp_path):
    nodes = [helper.make_node("Relu", [f"t{place}"], [f"t{place + 1}"]) for place in range(3000)]
    graph = read_onnx(_save(tmp_path / "net.onnx", nodes, [_value("t0", 1, 2)], [_value("t3000")]))
    assert len(graph.operators) == 3000
    assert len(graph_key(graph)) == 32


def test_nodes_that_no_output_needs_are_left_out(tmp_path):
    """A branch needs what it takes from the graph around it."""
    unused = [helper.make_node("Exp", ["x"], ["e"], "unused"), helper.make_node("Log", ["e"], ["l"], "behind")]
    weight = helper.make_graph([helper.make_node("Abs", ["n"], ["a"], "inner")], "b", [], [_value("a", 1, 8)])
    choice = helper.make_node("If", ["c"], ["y"], "choice", then_branch=weight, else_branch=weight)
    used = [helper.make_node("Neg", ["x"], ["n"], "used"), choice]
    inputs = [_value("x", 1, 8), _value("c", kind=onnx.TensorProto.BOOL)]
    inputs[1].type.tensor_type.shape.SetInParent()
    graph = read_onnx(_save(tmp_path / "net.onnx", [*unused, *used], inputs, [_value("y", 1, 8)]))
    assert [item.op.kind for item in graph.operators] == ["neg", "abs", "if"]
    assert any("no output needs unused, behind:" in remark for remark in graph.remarks)


def _twice(weights, second=None, **attributes):
    """Return a network with two convolutions of one input, whose results are used in different ways."""
    made = [helper.make_node("ConstantOfShape", [f"s{name}"], [name], value=_tensor("v", [0.02])) for name in weights]
    given = [_tensor(f"s{name}", [16, 8, 1, 1], np.int64) for name in weights]
    if second is not None:
        made, given = [], [_tensor(name, np.full((16, 8, 1, 1), 0.02)) for name in weights]
    one = helper.make_node("Conv", ["x", weights[0]], ["one"])
    two = helper.make_node("Conv", ["x", weights[-1]], ["two"], **attributes)
    ends = [helper.make_node("Relu", ["one"], ["a"]), helper.make_node("Sigmoid", ["two"], ["b"])]
    return [*made, one, two, *ends, helper.make_node("Concat", ["a", "b"], ["y"], axis=1)], given


def _tensor(name, values, dtype=np.float32):
    return onnx.numpy_helper.from_array(np.asarray(values, dtype), name)


@pytest.mark.parametrize(
    ("weights", "second", "attributes", "expected"),
    [
        (["w"], "w", {}, 1),
        (["w", "v"], "v", {}, 2),
        (["w"], "w", {"dilations": [2, 2]}, 2),
        (["w", "v"], None, {}, 1),
    ],
    ids=["one weight", "two weights", "other attributes", "filled weights"],
)
def test_of_equal_nodes_one_is_executed_as_in_onnx_runtime(tmp_path, weights, second, attributes, expected):
    runtime = pytest.importorskip("onnxruntime", reason="the package onnxruntime is not installed")
    nodes, given = _twice(weights, second, **attributes)
    path = _save(tmp_path / "net.onnx", nodes, [_value("x", 1, 8, 6, 6)], [_value("y", 1, 32, 6, 6)], given)
    options = runtime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "run.onnx"), 3
    model = onnx.load(path)
    model.ir_version = 9
    runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    executed = onnx.load(tmp_path / "run.onnx").graph.node
    assert sum("Conv" in item.op_type for item in executed) == expected
    graph = read_onnx(path)
    assert [item.op.kind for item in graph.operators].count("conv2d") == expected
    assert [item.op.kind for item in graph.operators][-3:] == ["relu", "sigmoid", "cat"]
    assert graph.n_calls == len(nodes)


def test_equal_nodes_with_chance_or_in_several_turns_of_a_loop_are_all_executed(tmp_path):
    """Runtimes do not move nodes out of loops, and random numbers differ."""
    random_numbers = [helper.make_node("RandomNormalLike", ["x"], [name]) for name in "pq"]
    turn = helper.make_graph(
        [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Identity", ["going"], ["again"])],
        "turn",
        [_value("i", kind=onnx.TensorProto.INT64), _value("going", kind=onnx.TensorProto.BOOL)],
        [_value("again", kind=onnx.TensorProto.BOOL), _value("e", 2, 3)],
    )
    nodes = [
        *random_numbers,
        helper.make_node("Add", ["p", "q"], ["z"]),
        helper.make_node("Loop", ["turns", ""], ["es"], body=turn),
    ]
    outputs = [_value("z", 2, 3), _value("es", 3, 2, 3)]
    path = _save(tmp_path / "net.onnx", nodes, [_value("x", 2, 3)], outputs, [_tensor("turns", 3, np.int64)])
    kinds = [item.op.kind for item in read_onnx(path).operators]
    assert kinds.count("randomnormallike") == 2
    assert kinds.count("exp") == 3
