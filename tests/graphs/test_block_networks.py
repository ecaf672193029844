# SPDX-License-Identifier: Apache-2.0
"""Networks of random blocks: valid ONNX of every kind of operator, decided by a seed, that is read and runs."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from nni_latency.errors import UnknownNameError
from nni_latency.graphs import block_families, find_families, save_onnx
from nni_latency.operators import read_onnx

FAMILIES = block_families()

#: Seeds that meet every block of a family at least twice.
SEEDS = range(44)


@pytest.fixture(scope="module")
def models() -> dict[str, list[onnx.ModelProto]]:
    return {name: [family.onnx(seed) for seed in SEEDS] for name, family in FAMILIES.items()}


@pytest.mark.parametrize("name", FAMILIES)
def test_networks_are_valid_and_a_seed_decides(name: str, models: dict[str, list[onnx.ModelProto]]) -> None:
    for model in models[name][:8]:
        onnx.checker.check_model(model)
    assert FAMILIES[name].onnx(3).SerializeToString() == models[name][3].SerializeToString()
    assert len({model.SerializeToString() for model in models[name]}) == len(SEEDS)


def test_outputs_need_every_node(models: dict[str, list[onnx.ModelProto]]) -> None:
    for model in itertools.chain.from_iterable(models.values()):
        taken = {name for node in model.graph.node for name in node.input} | {item.name for item in model.graph.output}
        assert all(taken.intersection(node.output) for node in model.graph.node)


def test_some_networks_of_tasks_choose_between_two_equal_branches(models: dict[str, list[onnx.ModelProto]]) -> None:
    """Whichever runs, it takes as long; weights belong to the branches, as exporters write them."""
    choices = [node for model in models["blocks-task"] for node in model.graph.node if node.op_type == "If"]
    assert len(choices) >= 4
    for node in choices:
        one, other = (item.g for item in node.attribute)
        assert [item.op_type for item in one.node] == [item.op_type for item in other.node]
        assert [tuple(item.dims) for item in one.initializer] == [tuple(item.dims) for item in other.initializer]
        assert not {item.name for item in one.initializer} & {item.name for item in other.initializer}


def test_what_networks_of_streams_remember_is_an_input_and_an_output(models: dict[str, list[onnx.ModelProto]]) -> None:
    for model in models["blocks-streaming"]:
        sizes = [
            [tuple(size.dim_value for size in item.type.tensor_type.shape.dim) for item in some]
            for some in (model.graph.input, model.graph.output)
        ]
        (_, *before), (_, *after) = sizes
        assert len(after) >= 1
        volumes = [sum(map(math.prod, shapes)) for shapes in (before, after)]
        if any(len(shape) == 4 for shape in before):  # the keys and values of a decoder, of one more token after a run
            assert volumes[1] > volumes[0]
        else:
            assert volumes[1] == volumes[0]


def test_they_have_the_kinds_of_operators_of_real_networks(models: dict[str, list[onnx.ModelProto]]) -> None:
    kinds = Counter(node.op_type for family in models.values() for model in family for node in model.graph.node)
    assert len(kinds) >= 125
    often = ("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "RNN", "LRN", "Resize", "LayerNormalization")
    often += ("InstanceNormalization", "Softmax", "Transpose", "Concat", "Split", "Slice", "Gather", "ReduceMean")
    often += ("MaxPool", "AveragePool", "PRelu", "HardSwish", "QuantizeLinear", "CumSum", "TopK", "ArgMax", "Where")
    assert {name: kinds[name] for name in often if kinds[name] < 4} == {}


def test_convolutions_have_all_attributes(models: dict[str, list[onnx.ModelProto]]) -> None:
    seen = Counter[str]()
    for model in models["blocks-picture"]:
        for node in model.graph.node:
            if node.op_type == "Conv":
                given = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
                seen["groups"] += given.get("group", 1) > 1
                seen["dilated"] += max(given.get("dilations", [1])) > 1
                seen["oblong"] += len(set(given.get("kernel_shape", [1]))) > 1
                seen["uneven strides"] += len(set(given.get("strides", [1]))) > 1
                pads = given.get("pads", [0] * 4)
                seen["uneven padding"] += pads[:2] != pads[2:]
    assert min(seen.values()) >= 5, seen


@pytest.mark.parametrize("name", FAMILIES)
def test_they_are_read_back_without_their_weights(
    name: str, models: dict[str, list[onnx.ModelProto]], tmp_path: Path
) -> None:
    path = save_onnx(FAMILIES[name], 1, tmp_path / "network.onnx")
    graph = read_onnx(path)
    size = sum(math.prod(tensor.dims) for tensor in models[name][1].graph.initializer)
    assert path.stat().st_size < 100_000 + size / 10
    sizes = [item.dim_value for item in models[name][1].graph.output[0].type.tensor_type.shape.dim]
    assert graph.outputs[0] == tuple(sizes)


@pytest.mark.parametrize("name", ["blocks-picture", "blocks-signal", "blocks-token"])
def test_a_batch_is_the_first_size(name: str) -> None:
    for size in (1, 4):
        (shape,) = (item.type.tensor_type.shape.dim for item in FAMILIES[name].onnx(2, size).graph.input)
        assert shape[0].dim_value == size


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_onnx_runtime_runs_them(name: str, models: dict[str, list[onnx.ModelProto]]) -> None:
    runtime = pytest.importorskip("onnxruntime")
    for model in models[name]:
        session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        results = session.run(None, {item.name: np.zeros(item.shape, np.float32) for item in session.get_inputs()})
        assert results[0].size


def test_families_are_found_by_name() -> None:
    assert [item.name for item in find_families(["blocks"])] == list(FAMILIES)
    assert {item.name for item in find_families(["vgg", "blocks-token"])} == {"vgg", "blocks-token"}
    with pytest.raises(UnknownNameError, match="blocks-tokens"):
        find_families(["blocks-tokens"])
