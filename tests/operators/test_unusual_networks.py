# SPDX-License-Identifier: Apache-2.0
"""Networks with operators of unknown kinds, quantised layers, lazy modules and compiled parts."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - everybody calls it so
from torch import nn

from nni_latency.analysis import ModelAnalysis
from nni_latency.errors import InvalidValueError
from nni_latency.estimators import GraphEstimator
from nni_latency.graphs import graph_of
from nni_latency.measurement import Subject
from nni_latency.operators import (
    OpSpec,
    TracingWarning,
    capture_operators,
    count_operators,
    describe_call,
    export_onnx,
    initialised,
    trace,
)
from nni_latency.testing import FakeRuntime

# Torch is about to drop what networks of users still have.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:.*(quantized tensor|reduce_range).*:UserWarning"
)

_PICTURE = torch.zeros(1, 3, 8, 8)


class _Warp(nn.Module):
    """A spatial transformer."""

    def __init__(self):
        super().__init__()
        self.find = nn.Linear(3, 6)

    def forward(self, inputs):
        turn = self.find(inputs.mean((2, 3))).view(-1, 2, 3)
        return F.grid_sample(inputs, F.affine_grid(turn, list(inputs.shape), align_corners=False), align_corners=False)


def _lazy():
    return nn.Sequential(nn.LazyConv2d(8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))


def _float():
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 4)).eval()


def _dynamically_quantised():
    return torch.ao.quantization.quantize_dynamic(_float(), {nn.Linear}, dtype=torch.qint8)


def test_unknown_kind_adds_what_its_shapes_say_and_is_named():
    counted = count_operators(op for _, op in capture_operators(_Warp(), _PICTURE, "graph"))
    assert counted.uncounted == ("affine_grid",)
    grid = count_operators([OpSpec.of("affine_grid", [(1, 2, 3)], out=(1, 8, 8, 2))]).features
    assert (grid.inputs, grid.outputs, grid.memory, grid.flops) == (6, 128, 4 * 134, 0)
    known = [op for _, op in capture_operators(_Warp(), _PICTURE, "graph") if op.kind != "affine_grid"]
    assert counted.features == count_operators(known).features + grid


def test_analysis_names_the_unknown_kind():
    analysis = ModelAnalysis(_Warp(), (3, 8, 8))
    assert analysis.uncounted == ("affine_grid",)
    assert analysis.features.macs == 18


def test_dynamically_quantised_layers_count_as_their_float_form():
    model = _dynamically_quantised()
    with pytest.warns(TracingWarning, match="was run on the example inputs"):
        found = [op for _, op in capture_operators(model, torch.randn(1, 3, 8, 8))]
    counted = count_operators(found)
    assert found[-1].op_key == 'quantized_linear_dynamic(out=1x4,weights="4x72+4")@1x72:float32'
    expected = count_operators(op for _, op in capture_operators(_float(), _PICTURE)).features
    assert (counted.features.macs, counted.features.flops, counted.features.params) == (
        expected.macs,
        expected.flops,
        expected.params,
    )
    assert not counted.uncounted


def test_quantised_network_is_analysed_without_data():
    with pytest.warns(TracingWarning, match="was run on zeros"):
        analysis = ModelAnalysis(_dynamically_quantised(), (3, 8, 8))
    assert analysis.features.macs == 9 * 8 * 27 + 72 * 4


def test_statically_quantised_layers_count_as_their_float_form():
    quantisation = torch.ao.quantization
    model = nn.Sequential(quantisation.QuantStub(), *_float(), quantisation.DeQuantStub()).eval()
    model.qconfig = quantisation.get_default_qconfig("x86")
    quantisation.prepare(model, inplace=True)
    model(torch.randn(2, 3, 8, 8))
    quantisation.convert(model, inplace=True)
    with pytest.warns(TracingWarning, match="was run on the example inputs"):
        counted = count_operators(op for _, op in capture_operators(model, _PICTURE))
    expected = count_operators(op for _, op in capture_operators(_float(), _PICTURE)).features
    assert not counted.uncounted
    assert (counted.features.macs, counted.features.acts) == (expected.macs, expected.acts)


@pytest.mark.parametrize("name", ["linear", "conv2d", "conv_transpose2d"])
def test_function_of_another_library_with_the_name_of_a_layer_is_described_by_its_shapes(name):
    data = torch.zeros(2, 6, device="meta")
    op = describe_call(name, (data, "fast"), {}, data[:, :3])
    assert (op.kind, op.input_shapes, op["out"]) == (name, ((2, 6),), (2, 3))
    counted = count_operators([op])
    assert counted.uncounted == (name,)
    assert (counted.features.inputs, counted.features.outputs) == (12, 6)


def test_key_of_a_call_does_not_depend_on_where_an_object_lies():
    data = torch.zeros(2, 6, device="meta")
    first, second = (describe_call("odd call of (some) library", (data, object()), {}, data) for _ in range(2))
    assert first == second
    assert first.op_key == 'odd_call_of_some_library(arg0="<objectobject>")@2x6:float32'


def test_lazy_modules_are_counted_and_left_lazy():
    model = _lazy()
    found = [op.op_key for _, op in capture_operators(model, _PICTURE)]
    assert found[-1] == "linear(bias=1,out_features=4)@1x288:float32"
    assert all(map(torch.nn.parameter.is_lazy, model.parameters()))
    assert ModelAnalysis(model, (3, 8, 8)).params == 8 * 27 + 8 + 288 * 4 + 4


def test_initialised_keeps_modes_and_random_numbers():
    model = _lazy()
    model[1].eval()
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    made = initialised(model, _PICTURE)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert [module.training for module in made] == [True, False, True, True]
    assert initialised(made, _PICTURE) is made


def test_lazy_modules_are_measured_with_weights():
    assert Subject.of_module(_lazy(), (1, 3, 8, 8)).build()[3].weight.shape == (4, 288)
    estimator = GraphEstimator(runtime=FakeRuntime(lambda op: 1.0), store="memory")
    assert estimator.estimate(_lazy(), _PICTURE).value == pytest.approx(3.0)


def test_lazy_modules_that_the_inputs_do_not_fit_are_reported():
    with pytest.raises(InvalidValueError, match=r"lazy modules of Sequential cannot be initialised .*Expected 3D"):
        initialised(_lazy(), torch.zeros(3))


def test_compiled_modules_are_named():
    compiled = torch.jit.trace(_float(), _PICTURE)
    with pytest.raises(InvalidValueError, match=r"network TopLevelTracedModule was compiled by torch\.jit\.script or"):
        trace(compiled, _PICTURE)
    with pytest.raises(InvalidValueError, match=r"module '0' was compiled by .* Pass the module that it was compiled"):
        trace(nn.Sequential(copy.copy(compiled)), _PICTURE)


class _ByName(nn.Module):
    """Takes some arguments by name and returns a cache, as language models do."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, *args, **kwargs):
        return self._run(*args, use_cache=False, **kwargs)

    forward.__signature__ = inspect.signature(lambda self, words, mask=None, use_cache=None: None)

    def _run(self, words, mask=None, use_cache=None):
        return {"hidden": self.inner(words), "cache": object()}


def test_export_passes_tensors_alone_and_leaves_the_network_as_it_is():
    model = _ByName().eval()
    network = export_onnx(model, [torch.zeros(2, 4)])
    assert [node.op_type for node in network.model.graph.node] == ["Gemm"]
    assert [item.name for item in network.model.graph.input][:1] == ["input0"]
    assert "forward" not in vars(model)


def test_network_that_cannot_be_exported_has_the_graph_of_its_calls(capfd):
    graph = graph_of(_Warp().eval(), _PICTURE)
    assert [item.op.kind for item in graph.operators] == ["mean", "linear", "affine_grid", "grid_sample"]
    assert capfd.readouterr().out == ""
    with pytest.raises(InvalidValueError, match="Warp cannot be run on these inputs"):
        graph_of(_Warp().eval(), torch.zeros(3))


class _Returning(nn.Module):
    def __init__(self, result):
        super().__init__()
        self.layer, self.result = nn.Linear(4, 4), result

    def forward(self, inputs):
        self.layer(inputs)
        return self.result


@pytest.mark.parametrize("result", [None, "text", 3, (), {}])
def test_network_that_returns_no_tensor_has_the_graph_of_its_calls(result):
    network = _Returning(result).eval()
    assert [item.op.kind for item in graph_of(network, torch.zeros(1, 4)).operators] == ["linear"]
    with pytest.raises(InvalidValueError, match="_Returning has no counterpart in ONNX: it returns no tensor"):
        export_onnx(network, [torch.zeros(1, 4)])


def test_traced_network_without_operators_is_named():
    class Nothing(nn.Module):
        def forward(self, inputs):
            return None

    with pytest.raises(InvalidValueError, match="'Nothing' has no operators"):
        graph_of(Nothing(), torch.zeros(1, 4))
