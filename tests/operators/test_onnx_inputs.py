# SPDX-License-Identifier: Apache-2.0
"""Inputs of ONNX files: what a file leaves open, what is given, and what a batch is."""

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from onnx_files import INT64, constant, save, value

from nni_latency.analysis import ModelAnalysis
from nni_latency.errors import InvalidValueError
from nni_latency.operators import InputShape, count_graph, onnx_inputs, read_onnx


def _lstm(path, steps, batch):
    """Write a recurrent layer of 8 numbers whose state has 4: taken and returned."""
    weights = [constant("w", np.zeros((1, 16, 8))), constant("r", np.zeros((1, 16, 4)))]
    inputs = [value("x", steps, batch, 8), value("h", 1, batch, 4), value("c", 1, batch, 4)]
    names = ["all", "h_next", "c_next"]
    node = helper.make_node("LSTM", ["x", "w", "r", "", "", "h", "c"], names, hidden_size=4)
    outputs = [value("all", steps, 1, batch, 4), value("h_next", 1, batch, 4), value("c_next", 1, batch, 4)]
    return save(path, [node], inputs, outputs, weights)


def _one(path, kind, sizes, out, weights=(), left=False, **attributes):
    names = [item.name for item in weights]
    node = helper.make_node(kind, [*names, "x"] if left else ["x", *names], ["y"], **attributes)
    return save(path, [node], [value("x", *sizes)], [value("y", *out)], weights)


def _state_first(path, batch):
    """Write a network that takes a batch of rows, and a state whose batch is the second size."""
    nodes = [
        helper.make_node("Unsqueeze", ["x", "first"], ["step"]),
        helper.make_node("LSTM", ["step", "w", "r", "", "", "h"], ["all", "h_next"], hidden_size=4),
        helper.make_node("Squeeze", ["h_next", "first"], ["y"]),
    ]
    weights = [
        constant("w", np.zeros((1, 16, 8))),
        constant("r", np.zeros((1, 16, 4))),
        constant("first", [0], "int64"),
    ]
    inputs, outputs = (
        [value("x", batch, 8), value("h", 1, batch, 4)],
        [value("y", batch, 4), value("h_next", 1, batch, 4)],
    )
    return save(path, nodes, inputs, outputs, weights)


def test_a_fixed_size_stays_without_a_batch_size(tmp_path):
    steps = _lstm(tmp_path / "lstm.onnx", 20, 1)
    assert read_onnx(steps).inputs[0] == (20, 1, 8)
    assert ModelAnalysis(steps).features.macs == count_graph(read_onnx(steps)).features.macs == 20 * 4 * 4 * (8 + 4)
    rows = _one(tmp_path / "gemm.onnx", "Gemm", (10, 8), (10, 4), [constant("w", np.zeros((8, 4)))])
    assert ModelAnalysis(rows).features.macs == 10 * 8 * 4
    assert ModelAnalysis(rows, batch_size=3).features.macs == 3 * 8 * 4


@pytest.mark.parametrize(
    ("kind", "sizes", "out", "weights", "reason"),
    [
        ("Transpose", (10, 8), (8, 10), (), "does not arrive as the first size of the outputs"),
        ("MatMul", (10, 8), (5, 8), (constant("w", np.zeros((5, 10))),), "the node 'y'.*MatMul"),
        ("Reshape", (1, 8, 4), (1, 32), (constant("s", [1, -1], "int64"),), "does not arrive"),
        ("ReduceSum", (10, 8), (), (), "does not arrive"),
    ],
)
def test_a_first_size_that_is_no_batch_is_not_set(tmp_path, kind, sizes, out, weights, reason):
    options = {"keepdims": 0} if kind == "ReduceSum" else {}
    path = _one(tmp_path / "net.onnx", kind, sizes, out, weights, kind == "MatMul", **options)
    assert read_onnx(path, sizes[0]).inputs == (sizes,)
    with pytest.raises(
        InvalidValueError, match=f"'x' of '.*net.onnx' is {sizes[0]}, and it is not a batch.* 3: .*{reason}"
    ):
        read_onnx(path, 3)


def test_the_steps_of_a_sequence_are_no_batch(tmp_path):
    sequence = _lstm(tmp_path / "lstm.onnx", 20, 3)
    with pytest.raises(InvalidValueError, match=r"is 20, and it is not a batch .* a recurrent layer takes its steps"):
        read_onnx(sequence, 8)
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["pairs"]),
        helper.make_node("MatMul", ["pairs", "x"], ["y"]),
    ]
    attention = save(tmp_path / "attention.onnx", nodes, [value("x", 6, 8)], [value("y", 6, 8)])
    with pytest.raises(InvalidValueError, match=r"is 6, and it is not a batch .* a node compares all of it"):
        read_onnx(attention, 4)
    # Seven steps, which are also the first number that is tried for a batch, of rows that are one.
    nodes = [
        helper.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
        helper.make_node("LSTM", ["steps", "w", "r"], ["", "last"], hidden_size=4),
        helper.make_node("Squeeze", ["last", "first"], ["y"]),
    ]
    weights = [
        constant("w", np.zeros((1, 16, 8))),
        constant("r", np.zeros((1, 16, 4))),
        constant("first", [0], "int64"),
    ]
    path = save(tmp_path / "rows.onnx", nodes, [value("x", 3, 7, 8)], [value("y", 3, 4)], weights)
    assert read_onnx(path, 5).inputs == ((5, 7, 8),)


def test_every_input_with_the_batch_gets_it_and_a_state_in_its_place(tmp_path):
    both = save(
        tmp_path / "add.onnx",
        [helper.make_node("Add", ["a", "b"], ["y"]), helper.make_node("MatMul", ["y", "w"], ["z"])],
        [value("a", 2, 8), value("b", 2, 8), value("w", 8, 5)],
        [value("z", 2, 5)],
    )
    assert read_onnx(both, 6).inputs == ((6, 8), (6, 8), (8, 5))
    recurrent = read_onnx(_state_first(tmp_path / "state.onnx", 1), 6)
    assert (recurrent.inputs, recurrent.outputs) == (((6, 8), (1, 6, 4)), ((6, 4), (1, 6, 4)))


def test_open_sizes_of_one_name_are_equal(tmp_path):
    path = _state_first(tmp_path / "state.onnx", "batch")
    assert read_onnx(path).inputs == ((1, 8), (1, 1, 4))
    assert read_onnx(path, 6).inputs == ((6, 8), (1, 6, 4))
    assert read_onnx(path, example_inputs=[InputShape.parse("6,8")]).inputs == ((6, 8), (1, 6, 4))
    assert read_onnx(path, example_inputs=torch.zeros(6, 8)).inputs == ((6, 8), (1, 6, 4))


def test_shapes_are_given_with_the_batch_or_without(tmp_path):
    nodes = [helper.make_node("Identity", [name], [f"{name}_next"]) for name in ("x", "state", "rate")]
    inputs = [value("x", None, 3, None), value("rate", kind=INT64), value("state", 2, None, 128)]
    path = save(tmp_path / "net.onnx", nodes, inputs, [value("x_next", None, None, None)])

    def shapes(*texts, batch_size=None):
        return read_onnx(path, batch_size, [InputShape.parse(text) for text in texts]).inputs

    assert shapes("3,9", "state=2,1,128") == ((1, 3, 9), (), (2, 1, 128))
    assert shapes("3,9", "state=2,N,128", batch_size=4) == ((4, 3, 9), (), (2, 4, 128))
    assert shapes("4,3,9", "state=5,128", "rate=:int64") == ((4, 3, 9), (), (2, 5, 128))
    for texts, batch_size, message in (
        (
            ("3,9", "state=3,1,128"),
            None,
            "The input 'state' of '.*net.onnx' has the shape 2x.x128, in which the file fixes 2",
        ),
        (("4,3,9", "state=2,4,128"), 8, "'x' of .* is given as 4x3x9, and the batch size as 8"),
        (("3,9",), None, r"open: 'state' 2x\?x128"),
        (("3,9", "state=1"), None, "it takes 3 sizes or, without the batch, 2"),
        (("3,9", "state=2,1,128", "rate=:float32"), None, "'rate' of .* has the element type int64. Got float32"),
        (("3,9", "rates=1"), None, "are x, rate, state. Got rates"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            shapes(*texts, batch_size=batch_size)


def test_a_shape_of_torch_that_contradicts_the_file_is_refused(tmp_path):
    path = _one(tmp_path / "net.onnx", "Relu", (2, 8), (2, 8))
    with pytest.raises(InvalidValueError, match=r"'x' of '.*net.onnx' has the shape 2x8, in which the file fixes 2"):
        read_onnx(path, example_inputs=torch.zeros(1, 8))
    assert read_onnx(path, 5).inputs == ((5, 8),)


@pytest.mark.parametrize("size", [-1, 0])
def test_open_sizes_of_old_files_are_open(tmp_path, size):
    path = _one(tmp_path / "net.onnx", "Relu", (size, 3, size), (size, 3, size))
    assert read_onnx(path, 2, [InputShape.parse("3,9")]).inputs == ((2, 3, 9),)
    with pytest.raises(InvalidValueError, match=r"are open: 'x' 1x3x\?"):
        read_onnx(path)


def test_an_input_without_a_shape_takes_what_is_given(tmp_path):
    path = _one(tmp_path / "net.onnx", "Relu", (1, 3), (1, 3))
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    assert read_onnx(path, example_inputs=[InputShape.parse("2,9")]).inputs == ((2, 9),)
    with pytest.raises(InvalidValueError, match="are open: 'x' without a shape"):
        read_onnx(path)


@pytest.mark.parametrize("text", ["", "3,x", "0", "-1,3", "3:nonsense", "=3", "a=b=3", "3,", "9" * 5000])
def test_an_input_of_another_form_is_refused(text):
    with pytest.raises(InvalidValueError, match="An input must be sizes >= 1"):
        InputShape.parse(text)


def test_inputs_that_are_no_tensors_are_named(tmp_path):
    sequence = helper.make_tensor_sequence_value_info("pieces", onnx.TensorProto.FLOAT, [1, 4])
    tensor = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [1, 4])
    perhaps = helper.make_value_info("perhaps", helper.make_optional_type_proto(tensor))
    node = helper.make_node("ConcatFromSequence", ["pieces"], ["y"], axis=0)
    save(tmp_path / "pieces.onnx", [node], [sequence, perhaps], [value("y", 2, 4)])
    with pytest.raises(
        InvalidValueError, match=r"must be tensors\. It takes 'pieces' \(sequence\), 'perhaps' \(optional\)"
    ):
        read_onnx(tmp_path / "pieces.onnx")


@pytest.mark.parametrize("kind", [onnx.TensorProto.STRING, onnx.TensorProto.FLOAT8E4M3FN])
def test_an_input_that_torch_cannot_hold_is_read_and_not_made(tmp_path, kind):
    path = save(
        tmp_path / "words.onnx",
        [helper.make_node("Reshape", ["x", "shape"], ["y"]), helper.make_node("Transpose", ["y"], ["z"])],
        [value("x", 2, 6, kind=kind)],
        [value("z", 4, 3, kind=kind)],
        [constant("shape", [3, 4], "int64")],
    )
    assert read_onnx(path).inputs == ((2, 6),)
    name = onnx.TensorProto.DataType.Name(kind).lower()
    with pytest.raises(InvalidValueError, match=rf"The input 'x' of '.*words\.onnx' holds elements of the type {name}"):
        onnx_inputs(path)


def test_results_beyond_any_memory_are_refused(tmp_path):
    nodes = [helper.make_node("ConstantOfShape", ["size"], ["large"]), helper.make_node("Add", ["large", "x"], ["y"])]
    path = save(tmp_path / "net.onnx", nodes, [value("x", 1)], [value("y", None)], [constant("size", [2**62], "int64")])
    with pytest.raises(InvalidValueError, match=rf"a tensor of {2**62}, and 2\^40 numbers are the most that are read"):
        read_onnx(path)


def test_results_of_sizes_below_zero_are_refused(tmp_path):
    path = _one(tmp_path / "net.onnx", "MaxPool", (1, 1, 2, 2), (1, 1, 1, 1), kernel_shape=[5, 5])
    with pytest.raises(InvalidValueError, match=r"would return a tensor of 1x1x-2x-2, with a size below 0"):
        read_onnx(path)
