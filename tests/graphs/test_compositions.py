# SPDX-License-Identifier: Apache-2.0
"""Functions that a file writes out are one operator to the predictor, as they are to runtimes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nni_latency.graphs import MeasuredNetwork, block_families
from nni_latency.graphs._compositions import compose
from nni_latency.graphs._encoding import encode_graph
from nni_latency.graphs._examples import Measurements
from nni_latency.operators import Graph, OpSpec, TracedOperator, read_onnx
from nni_latency.platforms import Platform

onnx = pytest.importorskip("onnx")

SHAPE = (1, 6, 32)

Write = Callable[["_Net", str], str]


class _Net:
    """Nodes of an ONNX network, written one by one."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def __call__(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, value: float | np.ndarray) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(onnx.numpy_helper.from_array(np.asarray(value, dtype=np.float32), name))
        return name


def _save(path: Path, write: Write) -> Path:
    """Write a network that computes something between a matrix product and a negation."""
    net = _Net()
    given = net("MatMul", "data", net.constant(np.eye(SHAPE[-1])))
    last = net("Neg", write(net, given))
    net.nodes[-1].output[0] = "made"
    assert last != "made"
    ends = [onnx.helper.make_tensor_value_info(name, 1, SHAPE) for name in ("data", "made")]
    graph = onnx.helper.make_graph(net.nodes, "net", ends[:1], ends[1:], net.weights)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def _silu(net: _Net, data: str) -> str:
    return net("Mul", data, net("Sigmoid", data))


def _gelu(net: _Net, data: str) -> str:
    inner = net("Add", net("Erf", net("Div", data, net.constant(2**0.5))), net.constant(1))
    return net("Mul", net("Mul", data, inner), net.constant(0.5))


def _gelu_halved_first(net: _Net, data: str) -> str:
    inner = net("Add", net("Erf", net("Div", data, net.constant(2**0.5))), net.constant(1))
    return net("Mul", net("Mul", data, net.constant(0.5)), inner)


def _gelu_by_tanh(net: _Net, data: str) -> str:
    cube = net("Mul", net("Pow", data, net.constant(3)), net.constant(0.044715))
    inner = net("Tanh", net("Mul", net("Add", data, cube), net.constant(0.7978845608)))
    return net("Mul", net("Mul", data, net.constant(0.5)), net("Add", inner, net.constant(1)))


def _gelu_halved_late(net: _Net, data: str) -> str:
    """Write GELU as newer exports of torch do."""
    inner = net("Add", net("Erf", net("Div", data, net.constant(2**0.5))), net.constant(1))
    return net("Mul", data, net("Mul", net.constant(0.5), inner))


def _gelu_by_tanh_halved_late(net: _Net, data: str) -> str:
    cube = net("Mul", net("Pow", data, net.constant(3)), net.constant(0.044715))
    inner = net("Tanh", net("Mul", net("Add", data, cube), net.constant(0.7978845608)))
    return net("Mul", data, net("Mul", net.constant(0.5), net("Add", inner, net.constant(1))))


def _layer_norm(net: _Net, data: str) -> str:
    centred = net("Sub", data, net("ReduceMean", data, axes=[-1]))
    variance = net("ReduceMean", net("Pow", centred, net.constant(2)), axes=[-1])
    scaled = net("Div", centred, net("Sqrt", net("Add", variance, net.constant(1e-5))))
    return net("Add", net("Mul", scaled, net.constant(np.ones(SHAPE[-1]))), net.constant(np.ones(SHAPE[-1])))


def _rms_norm(net: _Net, data: str) -> str:
    root = net("Sqrt", net("Add", _mean_square(net, data), net.constant(1e-6)))
    return net("Mul", net("Div", data, root), net.constant(np.ones(SHAPE[-1])))


def _rms_norm_by_reciprocal(net: _Net, data: str) -> str:
    root = net("Sqrt", net("Add", _mean_square(net, data), net.constant(1e-6)))
    scaled = net("Mul", data, net("Div", net.constant(1), root))
    return net("Mul", scaled, net.constant(np.ones(SHAPE[-1])))


def _mean_square(net: _Net, data: str) -> str:
    return net("ReduceMean", net("Pow", data, net.constant(2)), axes=[-1])


FORMS: dict[Write, str] = {
    _silu: "silu",
    _gelu: "gelu",
    _gelu_halved_first: "gelu",
    _gelu_by_tanh: "gelu",
    _layer_norm: "layer_norm",
    _rms_norm: "rms_norm",
    _rms_norm_by_reciprocal: "rms_norm",
}


@pytest.fixture(params=FORMS, ids=lambda write: write.__name__.strip("_"))
def write(request: pytest.FixtureRequest) -> Write:
    """Return each of the forms."""
    found: Write = request.param
    return found


def test_a_function_is_one_operator(write: Write, tmp_path: Path) -> None:
    graph = read_onnx(_save(tmp_path / "net.onnx", write))
    operators, owners = compose(graph)
    kinds = Counter(item.op.kind for item in operators)
    assert kinds == {"linear": 1, FORMS[write]: 1, "neg": 1, "merged": len(graph.operators) - 3}
    last = next(number for number, item in enumerate(operators) if item.op.kind == FORMS[write])
    assert operators[last].sources == (0,)
    assert operators[last].op.input_shapes == (SHAPE,)
    assert set(owners) == {0, last, len(operators) - 1}


def _optimised(path: Path) -> list[str]:
    """Return the operators that ONNX Runtime computes."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.optimized_model_filepath = str(path.with_suffix(".optimised.onnx"))
    options.log_severity_level = 4
    runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]


def test_runtimes_compute_it_as_one(write: Write, tmp_path: Path) -> None:
    """The forms are those that ONNX Runtime recognises; a product before a normalisation may be part of it."""
    assert len(_optimised(_save(tmp_path / "net.onnx", write))) == 3


@pytest.mark.parametrize("write", [_gelu_halved_late, _gelu_by_tanh_halved_late])
def test_a_form_that_runtimes_do_not_know_remains_several_operators(write: Write, tmp_path: Path) -> None:
    path = _save(tmp_path / "net.onnx", write)
    assert {"Erf", "Tanh"} & set(_optimised(path))
    graph = read_onnx(path)
    operators, owners = compose(graph)
    assert (operators, owners) == (list(graph.operators), list(range(len(graph.operators))))


def test_half_of_a_sum_that_is_given_may_be_part_of_a_function(tmp_path: Path) -> None:
    path = _save(tmp_path / "net.onnx", lambda net, data: _gelu_halved_first(net, net("Add", data, net.constant(1))))
    assert "gelu" in {item.op.kind for item in compose(read_onnx(path))[0]}


def test_it_costs_what_the_operator_costs(tmp_path: Path) -> None:
    """The predictor sees no difference between a function that is written out and its operator."""
    written = read_onnx(_save(tmp_path / "written.onnx", _gelu))
    encoded = encode_graph(written)
    places = [number for number, owner in enumerate(encoded.owners) if number == owner]
    first, last = (written.operators[place] for place in (places[0], places[-1]))
    gelu = TracedOperator("gelu", OpSpec.of("gelu", [SHAPE]), (0,))
    other = encode_graph(Graph((first, gelu, TracedOperator("neg", last.op, (1,))), 3, outputs=written.outputs))
    for name in ("features", "terms", "groups", "kinds"):
        assert np.array_equal(getattr(encoded, name)[places], getattr(other, name)), name
    merged = [number for number, owner in enumerate(encoded.owners) if number != owner]
    assert not encoded.terms[merged].any()


def test_kernels_of_one_function_are_one(tmp_path: Path) -> None:
    """A runtime that computes a function operator by operator is learned from with the sum of their times."""
    graph = read_onnx(_save(tmp_path / "net.onnx", _gelu))
    parts = tuple(((number,), 1e-5 * (number + 1)) for number in range(len(graph.operators)))
    whole = sum(seconds for _, seconds in parts)
    network = MeasuredNetwork("net", graph, whole, Platform("board", "torch"), "family", parts=parts)
    (kernels,) = Measurements.of([network]).examples.parts
    seconds = {part.operators: part.seconds for part in kernels}
    assert sorted(part.operators for part in kernels) == [(0,), (5,), (6,)]
    assert sum(seconds.values()) == pytest.approx(whole)
    assert seconds[5,] == pytest.approx(whole - parts[0][1] - parts[-1][1])


def test_a_result_that_others_read_is_not_within_a_function(tmp_path: Path) -> None:
    def write(net: _Net, data: str) -> str:
        inner = net("Sigmoid", data)
        return net("Sub", net("Mul", data, inner), inner)

    operators, owners = compose(read_onnx(_save(tmp_path / "net.onnx", write)))
    assert "silu" not in {item.op.kind for item in operators}
    assert owners == list(range(len(operators)))


def test_a_mean_over_other_dimensions_is_no_layer_norm(tmp_path: Path) -> None:
    def write(net: _Net, data: str) -> str:
        root = net("Sqrt", net("ReduceMean", net("Pow", data, net.constant(2)), axes=[1]))
        return net("Div", data, net("Add", root, net.constant(1e-6)))

    operators, _ = compose(read_onnx(_save(tmp_path / "net.onnx", write)))
    assert "rms_norm" not in {item.op.kind for item in operators}


@pytest.mark.parametrize("family", ["blocks-task", "blocks-token", "blocks-streaming"])
def test_what_is_merged_belongs_to_an_operator_that_is_not(family: str, tmp_path: Path) -> None:
    merged = 0
    for seed in range(12):
        path = tmp_path / f"{seed}.onnx"
        onnx.save(block_families()[family].onnx(seed), path)
        graph = read_onnx(path)
        operators, owners = compose(graph)
        assert len(operators) == len(owners) == len(graph.operators)
        for number, (item, owner) in enumerate(zip(operators, owners, strict=True)):
            assert (item.op.kind == "merged") == (owner != number)
            assert owners[owner] == owner
            assert not any(operators[source].op.kind == "merged" for source in item.sources)
            merged += owner != number
    assert merged


def test_written_out_gelu_of_random_blocks_is_recognised(tmp_path: Path) -> None:
    """ONNX Runtime compares the constant of GELU; with one that is rounded further it computes five operators."""
    path, found = tmp_path / "net.onnx", 0
    for seed in range(80):
        model = block_families()["blocks-staged"].onnx(seed)
        producers = {name: node.op_type for node in model.graph.node for name in node.output}
        written = [node for node in model.graph.node if node.op_type == "Erf" and producers.get(node.input[0]) == "Div"]
        if written:
            onnx.save(model, path)
            left = Counter(_optimised(path))
            assert left["Gelu"] + left["BiasGelu"] >= len(written)
            found += 1
        if found == 2:
            break
    assert found == 2
