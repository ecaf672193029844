# SPDX-License-Identifier: Apache-2.0
"""What nodes of ONNX files cost: every case is one that a real file has, with the value that a person works out."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx_files import BOOL, FLOAT16, INT64, UINT8, constant, save, value
from torch import nn

from nni_latency.errors import InvalidValueError
from nni_latency.operators import count_graph, export_onnx, read_onnx, supported_kinds, trace

helper = onnx.helper


def read(tmp_path, nodes, inputs, outputs, weights=(), **options):
    return read_onnx(save(tmp_path / "net.onnx", nodes, inputs, outputs, weights, **options))


def one(tmp_path, kind, inputs, weights=(), n_outputs=1, out=(), domain="", opset=21, names=None, **attributes):
    """Read a network of one node, which takes its inputs and then its weights."""
    names = names or [item.name for item in (*inputs, *weights)]
    node = helper.make_node(
        kind, names, [f"out{n}" for n in range(n_outputs)], name="node", domain=domain, **attributes
    )
    return read(tmp_path, [node], inputs, [value("out0", *out)], weights, opset=opset)


LIGHT = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data" / "light").glob("*.onnx"))


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_networks_of_the_package_onnx_are_read(path):
    """They are of version 3 of the format, in which weights are inputs, too.

    All weights of a size are filled with one number, so that some branches of the Inceptions are equal: runtimes
    execute one of them.
    """
    macs = {
        "light_bvlc_alexnet": 654_560_384,
        "light_densenet121": 2_834_161_664,
        "light_inception_v1": 1_396_592_896,
        "light_inception_v2": 1_881_168_896,
        "light_resnet50": 4_089_184_256,
        "light_shufflenet": 124_664_528,
        "light_squeezenet": 349_151_936,
        "light_vgg19": 19_632_062_464,
        "light_zfnet512": 1_481_727_008,
    }
    counted = count_graph(read_onnx(path))
    assert counted.features.macs == macs[path.stem]
    assert not counted.uncounted


def test_states_whose_shape_is_computed_are_known(tmp_path):
    """Exporters make the first state of a recurrent layer of the batch that Shape finds."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
        helper.make_node("Shape", ["steps"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "one"], ["batch"], axis=0),
        helper.make_node("Unsqueeze", ["batch", "zero"], ["batches"]),
        helper.make_node("Concat", ["first", "batches", "width"], ["shape"], axis=0),
        helper.make_node("ConstantOfShape", ["shape"], ["state"]),
        helper.make_node("GRU", ["steps", "w", "r", "", "", "state"], ["", "last"], hidden_size=4),
    ]
    weights = [
        constant("one", 1, np.int64),
        constant("zero", [0], np.int64),
        constant("first", [1], np.int64),
        constant("width", [4], np.int64),
        constant("w", np.ones((1, 12, 6))),
        constant("r", np.ones((1, 12, 4))),
    ]
    graph = read(tmp_path, nodes, [value("x", 3, 5, 6)], [value("last", 1, 3, 4)], weights)
    assert [item.op.kind for item in graph.operators] == ["copy", "gru"]
    assert count_graph(graph).features.macs == 3 * 5 * 12 * (6 + 4)
    assert graph.remarks == ()


@pytest.mark.parametrize("kind", ["Sum", "Mean", "Max", "Min"])
def test_several_inputs_are_combined_number_by_number(tmp_path, kind):
    inputs = [value(name, 2, 8) for name in "abc"]
    features = count_graph(one(tmp_path, kind, inputs)).features
    assert (features.inputs, features.outputs, features.flops) == (48, 16, 32)


@pytest.mark.parametrize(
    ("pads", "side", "macs"), [([0, 0, 1, 1], 7, 10_584), ([1, 1, 0, 0], 7, 10_584), ([0, 0, 0, 0], 6, 7_776)]
)
def test_padding_of_one_side_counts(tmp_path, pads, side, macs):
    weights = [constant("w", np.ones((8, 3, 3, 3)))]
    graph = one(tmp_path, "Conv", [value("x", 1, 3, 8, 8)], weights, pads=pads)
    assert graph.outputs == ((1, 8, side, side),)
    assert count_graph(graph).features.macs == macs == side**2 * 8 * 27
    assert count_graph(graph).features.acts == 8 * side**2


@pytest.mark.parametrize(
    ("attributes", "sides"),
    [
        ({"auto_pad": "SAME_UPPER", "strides": [2, 2]}, (16, 16)),
        ({"auto_pad": "SAME_LOWER", "strides": [2, 2]}, (16, 16)),
        ({"output_shape": [15, 18], "strides": [2, 2]}, (15, 18)),
        ({"output_shape": [16, 16], "strides": [2, 2]}, (16, 16)),
        ({"pads": [0, 1, 1, 1], "strides": [2, 2]}, (16, 15)),
        ({"pads": [1, 1, 1, 1], "strides": [2, 2], "output_padding": [1, 1]}, (16, 16)),
    ],
)
def test_transposed_convolution_has_the_output_that_the_file_says(tmp_path, attributes, sides):
    weights = [constant("w", np.ones((3, 6, 3, 3)))]
    graph = one(tmp_path, "ConvTranspose", [value("x", 1, 3, 8, 8)], weights, **attributes)
    assert graph.outputs == ((1, 6, *sides),)
    features = count_graph(graph).features
    assert features.acts == 6 * math.prod(sides)
    assert features.macs == 3 * 8 * 8 * 6 * 9


def test_weights_may_stand_on_the_left(tmp_path):
    left = [constant("w", np.ones((16, 20)))]
    for kind, attributes in (("MatMul", {}), ("Gemm", {})):
        graph = one(tmp_path, kind, [value("x", 20, 8)], left, names=["w", "x"], **attributes)
        features = count_graph(graph).features
        assert (features.macs, features.params) == (16 * 20 * 8, 320) == (2560, 320)


def test_factors_of_a_product_may_be_transposed(tmp_path):
    inputs = [value("a", 20, 4), value("b", 8, 20)]
    graph = one(tmp_path, "Gemm", inputs, transA=1, transB=1)
    assert graph.outputs == ((4, 8),)
    assert count_graph(graph).features.macs == 4 * 8 * 20
    graph = one(tmp_path, "Gemm", [value("a", 20, 4)], [constant("w", np.ones((20, 8)))], transA=1)
    assert count_graph(graph).features.macs == 4 * 8 * 20


def test_weights_that_several_nodes_share_count_once(tmp_path):
    nodes = [helper.make_node("Gemm", [f"t{n}", "w", "c"], [f"t{n + 1}"]) for n in range(5)]
    weights = [constant("w", np.ones((16, 16))), constant("c", np.ones(16))]
    features = count_graph(read(tmp_path, nodes, [value("t0", 2, 16)], [value("t5", 2, 16)], weights)).features
    assert (features.macs, features.params) == (5 * 2 * 256, 272)


def test_weights_in_another_form_are_the_same_weights(tmp_path):
    nodes = [
        helper.make_node("Transpose", ["w"], ["turned"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("MatMul", ["y", "turned"], ["z"]),
    ]
    weights = [constant("w", np.ones((16, 16)))]
    assert count_graph(read(tmp_path, nodes, [value("x", 2, 16)], [value("z", 2, 16)], weights)).features.params == 256


def test_embeddings_and_learned_vectors_are_parameters_and_numbers_are_not(tmp_path):
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["words"]),
        helper.make_node("Add", ["words", "places"], ["sum"]),
        helper.make_node("Mul", ["sum", "scale"], ["y"]),
    ]
    weights = [constant("table", np.ones((100, 8))), constant("places", np.ones((5, 8))), constant("scale", 0.5)]
    graph = read(tmp_path, nodes, [value("ids", 1, 5, kind=INT64)], [value("y", 1, 5, 8)], weights)
    assert count_graph(graph).features.params == 840


class _Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.convolution = nn.Conv1d(2, 2, 3, padding=1)

    def forward(self, inputs):
        inputs = self.layer(torch.relu(self.layer(inputs)))
        weight = self.convolution.weight
        weight = (weight - weight.mean((1, 2), keepdim=True)) / (weight.std((1, 2), keepdim=True) + 1e-5)
        return nn.functional.conv1d(inputs, weight, self.convolution.bias, padding=1)


@pytest.mark.parametrize("by", ["module", "graph"])
def test_parameters_of_torch_count_once(by):
    network = _Shared()
    features = count_graph(trace(network, torch.zeros(1, 2, 8), by)).features
    assert features.params == sum(item.numel() for item in network.parameters())
    assert features.macs == 2 * 2 * 64 + 2 * 8 * 2 * 3


def test_shared_layers_count_once_in_their_file(tmp_path):
    path = tmp_path / "net.onnx"
    model = export_onnx(nn.Sequential(layer := nn.Linear(8, 8), nn.ReLU(), layer), [torch.zeros(1, 8)]).model
    path.write_bytes(model.SerializeToString())
    assert count_graph(read_onnx(path)).features.params == 72


GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("is_input", [False, True], ids=["constant", "fed"])
def test_recurrent_layers_cost_what_their_shapes_say(tmp_path, kind, is_input):
    rows = GATES[kind] * 4
    shapes = {"w": (2, rows, 6), "r": (2, rows, 4), "b": (2, 2 * rows)}
    weights = [] if is_input else [constant(name, np.ones(shape)) for name, shape in shapes.items()]
    fed = [value(name, *shape) for name, shape in shapes.items()] if is_input else []
    graph = one(tmp_path, kind, [value("x", 5, 3, 6), *fed], weights, hidden_size=4, direction="bidirectional")
    features = count_graph(graph).features
    assert features.macs == 5 * 3 * 2 * rows * (6 + 4)
    assert features.params == (0 if is_input else sum(math.prod(shape) for shape in shapes.values()))


def test_recurrent_layer_may_leave_outputs_out(tmp_path):
    node = helper.make_node("LSTM", ["x", "w", "r"], ["", "last", "cell"], hidden_size=4)
    weights = [constant("w", np.ones((1, 16, 6))), constant("r", np.ones((1, 16, 4)))]
    graph = read(tmp_path, [node], [value("x", 20, 1, 6)], [value("last", 1, 1, 4)], weights)
    assert count_graph(graph).features.macs == 20 * 16 * 10


@pytest.mark.parametrize("layout", ["file", "turned"])
def test_quantised_recurrent_layer_is_one(tmp_path, layout):
    w, r = ((1, 6, 16), (1, 4, 16)) if layout == "turned" else ((1, 16, 6), (1, 16, 4))
    weights = [constant("w", np.ones(w), np.uint8), constant("r", np.ones(r), np.uint8)]
    node = helper.make_node("DynamicQuantizeLSTM", ["x", "w", "r"], ["y"], domain="com.microsoft", hidden_size=4)
    graph = read(tmp_path, [node], [value("x", 20, 1, 6)], [value("y", 20, 1, 1, 4)], weights)
    assert [item.op.kind for item in graph.operators] == ["lstm"]
    features = count_graph(graph).features
    assert (features.macs, features.params) == (20 * 16 * 10, 160)


def test_integer_products_count(tmp_path):
    weights = [constant("w", np.ones((16, 4)), np.uint8)]
    graph = one(tmp_path, "MatMulInteger", [value("x", 3, 16, kind=UINT8)], weights)
    assert count_graph(graph).features.macs == 3 * 16 * 4
    weights = [constant("w", np.ones((8, 3, 3, 3)), np.uint8)]
    graph = one(tmp_path, "ConvInteger", [value("x", 1, 3, 8, 8, kind=UINT8)], weights)
    assert (graph.operators[0].op.kind, graph.operators[0].op.dtype) == ("conv2d", "uint8")
    assert count_graph(graph).features.macs == 36 * 8 * 27


def test_quantised_layers_count(tmp_path):
    numbers = [constant("s", 0.1), constant("z", 0, np.uint8)]
    weights = [*numbers, constant("w", np.ones((8, 3, 3, 3)), np.uint8), constant("c", np.ones(8), np.int32)]
    names = ["x", "s", "z", "w", "s", "z", "s", "z", "c"]
    graph = one(tmp_path, "QLinearConv", [value("x", 1, 3, 8, 8, kind=UINT8)], weights, names=names, pads=[1] * 4)
    assert graph.operators[0].op["bias"]
    assert graph.outputs == ((1, 8, 8, 8),)
    assert count_graph(graph).features.macs == 64 * 8 * 27
    inputs, names = (
        [value("a", 2, 8, kind=UINT8), value("b", 2, 8, kind=UINT8)],
        ["a", "s", "z", "b", "s", "z", "s", "z"],
    )
    graph = one(tmp_path, "QLinearAdd", inputs, numbers, names=names, domain="com.microsoft", out=(2, 8))
    assert [item.op.kind for item in graph.operators] == ["add"]
    # As ONNX Runtime's quantize_static writes them.
    how = {"names": ["a", "s", "z", "s", "z"], "domain": "com.microsoft"}
    inputs = [value("a", 1, 8, 4, 4, kind=UINT8)]
    graph = one(tmp_path, "QLinearGlobalAveragePool", inputs, numbers, **how, channels_last=0, out=(1, 8, 1, 1))
    assert graph.outputs == ((1, 8, 1, 1),)
    inputs = [value("a", 2, 8, kind=UINT8)]
    graph = one(tmp_path, "QLinearSoftmax", inputs, numbers, **how, axis=-1, opset=17, out=(2, 8))
    assert [item.op.kind for item in graph.operators] == ["softmax"]
    graph = one(tmp_path, "DynamicQuantizeLinear", [value("x", 2, 8)], n_outputs=3)
    assert count_graph(graph).features.flops > 0


def test_attention_counts(tmp_path):
    heads = [value(name, 2, 4, length, 8) for name, length in (("q", 6), ("k", 10), ("v", 10))]
    graph = one(tmp_path, "Attention", heads, opset=23)
    assert count_graph(graph).features.macs == 2 * 4 * 6 * 10 * (8 + 8)
    flat = [value(name, 2, length, 32) for name, length in (("q", 6), ("k", 10), ("v", 10))]
    graph = one(tmp_path, "Attention", flat, opset=23, q_num_heads=4, kv_num_heads=4)
    assert count_graph(graph).features.macs == 2 * 4 * 6 * 10 * (8 + 8)


def test_attention_of_the_runtime_counts(tmp_path):
    weights = [constant("w", np.ones((32, 96))), constant("c", np.ones(96))]
    node = helper.make_node("Attention", ["x", "w", "c"], ["y"], domain="com.microsoft", num_heads=4, name="node")
    follow = helper.make_node("Relu", ["y"], ["z"])
    graph = read(tmp_path, [node, follow], [value("x", 2, 6, 32)], [value("z", 2, 6, 32)], weights)
    features = count_graph(graph).features
    assert features.macs == 2 * 6 * 32 * 96 + 2 * 4 * 6 * 6 * (8 + 8)
    assert features.params == 32 * 96 + 96
    assert graph.remarks == ()


@pytest.mark.parametrize(
    ("kind", "expected"), [("SkipLayerNormalization", "layer_norm"), ("FastGelu", "gelu"), ("FusedMatMul", "linear")]
)
def test_fused_operators_of_the_runtime_are_known(tmp_path, kind, expected):
    shape = {"SkipLayerNormalization": (8,), "FastGelu": (8,), "FusedMatMul": (8, 8)}[kind]
    names = ["x", "x", "w"] if kind == "SkipLayerNormalization" else ["x", "w"]
    node = helper.make_node(kind, names, ["y"], domain="com.microsoft")
    graph = read(tmp_path, [node], [value("x", 2, 6, 8)], [value("y", 2, 6, 8)], [constant("w", np.ones(shape))])
    assert [item.op.kind for item in graph.operators] == [expected]
    assert not count_graph(graph).uncounted


def test_fourier_transforms_have_lengths_of_their_own(tmp_path):
    """STFT of ONNX takes its length from an input, and bears the name of a function of torch that does not."""
    weights = [constant("step", 128, np.int64), constant("window", np.ones(512))]
    graph = one(tmp_path, "STFT", [value("x", 1, 2048, 1)], weights)
    assert graph.operators[0].op["n_fft"] == 512
    assert graph.outputs == ((1, 13, 257, 2),)
    assert count_graph(graph).features.flops == pytest.approx(13 * 512 * (1 + 2.5 * 9))
    graph = one(tmp_path, "DFT", [value("x", 1, 512, 1)], opset=20, names=["x"])
    assert count_graph(graph).features.flops > 0


@pytest.mark.parametrize("size", [(2, 3, 8, 6), (2, 3, 4, 8, 6)])
def test_sampling_grid_has_a_position_for_every_pixel(tmp_path, size):
    """A spatial transformer: the size of the grid is a constant, or the shape of what it samples."""
    sides = size[2:]
    theta, grid = value("theta", 2, len(sides), len(sides) + 1), (2, *sides, len(sides))
    weights = [constant("size", size, np.int64)]
    fixed = one(tmp_path, "AffineGrid", [theta], weights, align_corners=1)
    assert [(item.op.kind, item.op.input_shapes) for item in fixed.operators] == [
        ("affine_grid", ((2, len(sides), len(sides) + 1),))
    ]
    assert (fixed.outputs, fixed.remarks) == ((grid,), ())
    nodes = [
        helper.make_node("Shape", ["x"], ["size"]),
        helper.make_node("AffineGrid", ["theta", "size"], ["grid"]),
        helper.make_node("GridSample", ["x", "grid"], ["y"]),
    ]
    graph = read(tmp_path, nodes, [value("x", *size), theta], [value("y", *size)])
    assert [item.op.get("out", size) for item in graph.operators] == [grid, size]
    assert (graph.outputs, graph.remarks) == ((size,), ())


def test_sampling_grid_is_that_of_torch(tmp_path):
    theta, size = torch.zeros(1, 2, 3), (1, 3, 8, 8)

    class Grid(nn.Module):
        def forward(self, theta):
            return nn.functional.affine_grid(theta, size, align_corners=False)

    weights = [constant("size", size, np.int64)]
    graph = one(tmp_path, "AffineGrid", [value("theta", *theta.shape)], weights)
    assert [item.op for item in graph.operators] == [item.op for item in trace(Grid(), theta).operators]


def test_size_of_a_sampling_grid_that_cannot_be_is_refused(tmp_path):
    weights = [constant("size", [2, 3, 8], np.int64)]
    with pytest.raises(InvalidValueError, match="an operator AffineGrid, is not valid: its size must have 4 or 5 num"):
        one(tmp_path, "AffineGrid", [value("theta", 2, 2, 3)], weights)


def test_sorting_counts(tmp_path):
    graph = one(tmp_path, "Unique", [value("x", 64)])
    assert (graph.operators[0].op.kind, count_graph(graph).features.flops) == ("unique", 64 * 7)


def test_no_operator_of_onnx_is_taken_for_a_function_of_torch():
    """Where a name is that of a kind of ours, the operator is described on purpose."""
    # Private: the tables must hold every kind that shares a name with an operator of ONNX.
    from nni_latency.operators._onnx_kinds import IDLE, LAYERS, PLAIN

    kinds, names = set(supported_kinds()), {item.name for item in onnx.defs.get_all_schemas() if not item.domain}
    # A choice is described where its branches are traversed.
    taken = {name for name in names if name.lower() in kinds} - {*PLAIN, *IDLE, *LAYERS, "If"}
    assert taken == set()
    assert {kind for name, kind in PLAIN.items() if kind not in kinds} == set()


def test_unknown_operator_never_refuses_a_file(tmp_path):
    nodes = [
        helper.make_node("Marvel", ["x", "w"], ["y"], domain="com.example", name="marvel"),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    weights = [constant("w", np.ones((8, 8)))]
    graph = read(tmp_path, nodes, [value("x", 2, 8)], [value("z", "n", "m")], weights)
    assert [(item.op.kind, item.op.input_shapes) for item in graph.operators] == [
        ("marvel", ((2, 8),)),
        ("relu", ((2, 8),)),
    ]
    assert graph.remarks == ("the results of marvel are not known: they are taken for as large as the input",)
    counted = count_graph(graph)
    assert (counted.uncounted, counted.features.params) == (("marvel",), 64)


def test_shapes_that_the_file_tells_are_those_of_an_unknown_operator(tmp_path):
    nodes = [
        helper.make_node("Marvel", ["x"], ["y"], domain="com.example"),
        helper.make_node("MatMul", ["y", "w"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", 2, 8)],
        [value("z", 2, 3)],
        [constant("w", np.ones((50, 3)))],
        value_info=[value("y", 2, 50)],
    )
    path = tmp_path / "net.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.example", 1)]),
        path,
    )
    found = read_onnx(path)
    assert count_graph(found).features.macs == 2 * 50 * 3
    assert found.remarks == ()


def test_sizes_that_depend_on_data_are_the_largest(tmp_path):
    nodes = [
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["kept"], name="nms"),
        helper.make_node("Cast", ["kept"], ["numbers"], to=1),
        helper.make_node("MatMul", ["numbers", "w"], ["y"]),
    ]
    weights = [constant("most", 20, np.int64), constant("w", np.ones((3, 5)))]
    inputs = [value("boxes", 1, 100, 4), value("scores", 1, 2, 100)]
    graph = read(tmp_path, nodes, inputs, [value("y", "n", 5)], weights)
    assert graph.outputs == ((40, 5),)
    assert count_graph(graph).features.macs == 40 * 3 * 5
    assert "depend on data" in graph.remarks[0]


def test_network_without_operators_is_read(tmp_path):
    graph = one(tmp_path, "Flatten", [value("x", 1, 3, 4, 4)])
    assert (graph.operators, graph.outputs) == ((), ((1, 48),))


def test_empty_tensors_are_read(tmp_path):
    nodes = [helper.make_node("Concat", ["past", "x"], ["y"], axis=1), helper.make_node("Relu", ["y"], ["z"])]
    graph = read(tmp_path, nodes, [value("x", 1, 3, 4)], [value("z", 1, 3, 4)], [constant("past", np.ones((1, 0, 4)))])
    assert graph.outputs == ((1, 3, 4),)
    count_graph(graph)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"group": -1}, "'group' must be from 1 up to"),
        ({"group": 2}, "in 2 groups do not fit an input with 3 channels"),
        ({"pads": [2**62] * 4}, "'pads' must be from 0 up to"),
        ({"pads": [-1] * 4}, "'pads' must be from 0 up to"),
        ({"pads": [2**30] * 4}, "would return a tensor of"),
        ({"strides": [0, 1]}, "'strides' must be from 1 up to"),
        ({"dilations": [1, -2]}, "'dilations' must be from 1 up to"),
        ({"group": 1.5}, "'group' must be of the type INT"),
    ],
)
def test_attributes_that_cannot_be_are_refused_by_name(tmp_path, attributes, reason):
    weights = [constant("w", np.ones((8, 3, 3, 3)))]
    with pytest.raises(InvalidValueError, match=rf"node 'node' in .*, an operator Conv, is not valid: .*{reason}"):
        one(tmp_path, "Conv", [value("x", 1, 3, 8, 8)], weights, **attributes)


def test_required_attribute_that_is_missing_is_named(tmp_path):
    with pytest.raises(
        InvalidValueError, match="an operator MaxPool, is not valid: it lacks the attribute 'kernel_shape'"
    ):
        one(tmp_path, "MaxPool", [value("x", 1, 3, 8, 8)])


def test_weights_of_negative_size_are_refused(tmp_path):
    tensor = onnx.TensorProto(name="w", dims=[-1, 3, 3, 3], data_type=1)
    with pytest.raises(InvalidValueError, match=r"has tensors with sizes below 0: w"):
        one(tmp_path, "Conv", [value("x", 1, 3, 8, 8)], [tensor])


def test_bounds_that_are_no_numbers_are_refused_and_infinite_ones_are_none(tmp_path):
    low = constant("low", 0.0)
    op = one(tmp_path, "Clip", [value("x", 1, 8)], [low, constant("high", math.inf)]).operators[0].op
    assert dict(op.attributes) == {"min": 0.0}
    with pytest.raises(InvalidValueError, match="an operator Clip, is not valid: its min is not a number"):
        one(tmp_path, "Clip", [value("x", 1, 8)], [constant("low", math.nan)])
    with pytest.raises(InvalidValueError, match="its attribute 'min' is not a number"):
        one(tmp_path, "Clip", [value("x", 1, 8)], opset=9, min=math.nan)


@pytest.mark.parametrize("model", [b"the content of a file", onnx.ModelProto()], ids=["bytes", "ModelProto"])
def test_a_network_in_memory_is_refused_without_its_content(model):
    with pytest.raises(InvalidValueError, match=r"is read by its path, but this is '(bytes|ModelProto)'\. Save"):
        read_onnx(model)


def test_maxima_with_indices_are_those_of_torch(tmp_path):
    sizes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    for count in (1, 2):
        read = one(tmp_path, "MaxPool", [value("x", 1, 4, 8, 8)], n_outputs=count, **sizes).operators[0].op
        traced = trace(nn.MaxPool2d(2, return_indices=count == 2), torch.rand(1, 4, 8, 8)).operators[0].op
        assert bool(read.get("return_indices")) == bool(traced.get("return_indices")) == (count == 2)


def test_halves_and_doubles_keep_their_type(tmp_path):
    assert one(tmp_path, "Relu", [value("x", 1, 8, kind=FLOAT16)]).operators[0].op.dtype == "float16"
    assert one(tmp_path, "Not", [value("x", 1, 8, kind=BOOL)]).operators[0].op.kind == "logical_not"


@pytest.mark.slow
def test_every_test_of_the_package_onnx_is_read_or_refused_with_a_reason(tmp_path):
    """About two thousand models of an operator or a few; only inputs without shapes, or of no tensors, are refused."""
    from onnx.backend.test import loader
    from onnx.backend.test.case.node import collect_testcases

    with np.errstate(all="ignore"):
        models = {case.name: case.model for case in collect_testcases(None) if case.model is not None}
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        for case in loader.load_model_tests(kind=kind):
            models[case.name] = case.model or onnx.load(Path(case.model_dir) / "model.onnx")
    assert len(models) > 1900
    refused, path = {}, tmp_path / "net.onnx"
    for name, model in models.items():
        path.write_bytes(model.SerializeToString())
        try:
            graph = read_onnx(path)
            assert count_graph(graph).features.flops >= 0
        except InvalidValueError as error:
            refused[name] = str(error)
    reasons = ("Sizes of the inputs", "its inputs must be tensors")
    assert {name: text for name, text in refused.items() if not any(reason in text for reason in reasons)} == {}
    assert len(refused) < 60
