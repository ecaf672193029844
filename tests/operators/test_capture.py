# SPDX-License-Identifier: Apache-2.0
"""Operators of a module tree."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from nni_latency.errors import InvalidValueError
from nni_latency.operators import (
    OpSpec,
    TracingWarning,
    capture_operators,
    features_of,
    freeze_shapes,
    trace,
    trace_both,
)
from nni_latency.spaces import ConvBlock, FBNetBlock


class _Describing(nn.Module):
    """A block with parts that says which operator it is as a whole."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def op_spec(self, *shapes):
        return OpSpec.of("mine", shapes)

    def forward(self, inputs):
        return self.inner(inputs)


class _Sharing(nn.Module):
    """One activation object in two places of the tree."""

    def __init__(self):
        super().__init__()
        activation = nn.ReLU()
        self.one = nn.Sequential(nn.Linear(4, 4), activation)
        self.two = nn.Sequential(nn.Linear(4, 2), activation)

    def forward(self, inputs):
        return self.two(self.one(inputs))


class _TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.both = nn.Bilinear(3, 5, 2)

    def forward(self, one, other):
        return self.both(one, other)


def test_capture_lists_leaves_in_order_of_execution_with_true_shapes():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    names, ops = zip(*capture_operators(model, torch.zeros(2, 3, 9, 9)), strict=True)
    assert names == ("0", "1", "2")
    assert [op.kind for op in ops] == ["conv2d", "batch_norm", "relu"]
    assert ops[0].input_shapes == ((2, 3, 9, 9),)
    assert ops[1].input_shapes == ((2, 8, 5, 5),)


def test_capture_takes_a_block_that_describes_itself_as_one():
    assert capture_operators(nn.Sequential(_Describing()), torch.zeros(1, 4)) == [("0", OpSpec.of("mine", [(1, 4)]))]


def test_capture_takes_the_model_itself_as_one():
    assert [name for name, _ in capture_operators(_Describing(), torch.zeros(1, 4))] == [""]


def test_capture_lists_a_shared_module_once_a_call():
    assert [op.kind for _, op in capture_operators(_Sharing(), torch.zeros(1, 4))] == ["linear", "relu"] * 2


def test_capture_leaves_out_what_does_not_run():
    model = _Describing()
    model.unused = nn.Linear(1, 1)
    assert len(capture_operators(nn.Sequential(model, nn.ReLU()), torch.zeros(1, 4))) == 2


def test_capture_takes_several_inputs():
    ((_, op),) = capture_operators(_TwoInputs(), (torch.zeros(1, 3), torch.zeros(1, 5)))
    assert op == OpSpec.of("bilinear", [(1, 3), (1, 5)], weights="2x3x5+2", out=(1, 2))


def test_capture_changes_neither_model_nor_inputs():
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    capture_operators(model, torch.ones(1, 1, 2, 2))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_capture_says_that_inputs_do_not_fit():
    with pytest.raises(InvalidValueError, match=r"inputs of shape \(1, 4, 8, 8\) do not fit Conv2d"):
        capture_operators(nn.Conv2d(3, 1, 1), torch.zeros(1, 4, 8, 8))


def test_capture_says_that_an_input_is_too_many():
    with pytest.raises(InvalidValueError, match=r"do not fit Conv2d"):
        capture_operators(nn.Conv2d(3, 1, 1), (torch.zeros(1, 3, 8, 8), torch.zeros(1)))


@pytest.mark.parametrize("inputs", [None, "text", (), [1, 2], (torch.zeros(1), None)])
def test_freeze_shapes_refuses_what_is_no_tensor(inputs):
    with pytest.raises(InvalidValueError, match=r"must be a tensor or a tuple of tensors"):
        freeze_shapes(inputs)


def test_freeze_shapes_keeps_shape_and_dtype_alone():
    (frozen,) = freeze_shapes(torch.zeros(2, 3, dtype=torch.int64))
    assert (tuple(frozen.shape), frozen.dtype, frozen.device.type) == ((2, 3), torch.int64, "meta")


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3},
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 5, "stride": 2, "padding": 2},
        {"kernel_size": 4, "stride": 4},
        {"kernel_size": 11, "stride": 4, "padding": 2},
        {"kernel_size": (1, 7), "padding": (0, 3)},
        {"kernel_size": (3, 5), "stride": (1, 2), "padding": (2, 0)},
        {"kernel_size": 3, "dilation": 2},
        {"kernel_size": 3, "padding": "same"},
        {"kernel_size": 3, "padding": "valid", "groups": 3},
    ],
)
@torch.inference_mode()
def test_captured_convolutions_count_what_they_compute(options):
    """Output elements and weights of the real layer give its multiply-adds, whatever its window is."""
    layer = nn.Conv2d(3, 6, **options)
    inputs = torch.zeros(2, 3, 33, 30)
    outputs = layer(inputs)
    ((_, op),) = capture_operators(layer, inputs)
    features = features_of(op)
    assert features.acts == outputs.numel()
    assert features.macs == outputs.numel() * layer.weight[0].numel()
    assert features.params == sum(parameter.numel() for parameter in layer.parameters())


def test_captured_same_convolution_has_the_short_key():
    """Windows that a table's blocks are made of keep the plain form, so that keys stay comparable."""
    ((_, op),) = capture_operators(nn.Conv2d(3, 6, 3, padding=1), torch.zeros(1, 3, 8, 8))
    assert op.op_key == "conv2d(bias=1,groups=1,kernel_size=3,out_channels=6,stride=1)@1x3x8x8:float32"


def test_blocks_of_a_table_describe_themselves():
    model = nn.Sequential(ConvBlock(3, 8), FBNetBlock(8, 8, 3, 1, 6))
    kinds = [op.kind for _, op in capture_operators(model, torch.zeros(1, 3, 8, 8))]
    assert kinds == ["conv_block", "inverted_residual"]


def test_a_cast_is_a_copy_where_it_changes_the_memory():
    class Casts(nn.Module):
        def forward(self, inputs):
            return inputs.float() + inputs.long().int()

    ops = [op for _, op in capture_operators(Casts(), torch.zeros(2, 3), by="graph")]
    assert [op.op_key for op in ops] == [
        "copy(out=2x3)@2x3:float32",
        "copy(out=2x3)@2x3:int64",
        "add()@2x3+2x3:float32",
    ]


class _Mixed(nn.Module):
    """Leaf modules of several calls, functions between modules, a shared module, and a part that describes itself."""

    def __init__(self):
        super().__init__()
        self.cell, self.norm, self.inner = nn.LSTMCell(4, 4), nn.LayerNorm(4), nn.Sequential(_Sharing())
        self.own = _Describing()
        self.scale = nn.Parameter(torch.zeros(2))

    def forward(self, inputs):
        hidden, memory = self.cell(self.own(inputs))
        return self.inner(self.norm(hidden + memory)) * self.scale


def test_a_network_is_traced_both_ways_in_one_pass():
    model, inputs = _Mixed(), torch.zeros(3, 4)
    by_module, by_graph = trace_both(model, inputs)
    assert by_module == trace(model, inputs)
    assert by_graph == trace(model, inputs, by="graph")
    assert [item.name for item in by_module.operators][:3] == ["own", "cell", "add"]
    assert [item.name for item in by_graph.operators][:2] == ["own.inner.linear", "cell.zeros"]


def test_a_network_that_asks_for_data_is_traced_by_modules_once():
    class Asking(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs) if inputs.sum() >= 0 else inputs

    with pytest.warns(TracingWarning, match="Asking cannot be traced without data") as caught:
        by_module, by_graph = trace_both(Asking(4, 4), torch.zeros(1, 4))
    assert len(caught) == 1
    assert by_module == by_graph


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batch_normalisation_is_traced_as_it_is_run(layout):
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()).eval()
    inputs = torch.zeros(2, 3, 6, 6).to(memory_format=layout)
    meta = copy.deepcopy(network).to("meta")
    found = [op for _, op in capture_operators(network, inputs, by="graph")]
    assert [op for _, op in capture_operators(meta, inputs.to("meta"), by="graph")] == found
    assert found[1].op_key == "batch_norm()@2x8x4x4:float32"


def test_batch_normalisation_of_other_channels_is_refused():
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(9))
    with pytest.raises(InvalidValueError, match=r"do not fit Sequential.*9"):
        capture_operators(network, torch.zeros(2, 3, 6, 6), by="graph")


class _Unused(nn.Module):
    """A network with a branch that nothing takes, and an assignment to a part of a tensor."""

    def __init__(self):
        super().__init__()
        self.stem, self.unused, self.behind = nn.Linear(4, 4), nn.Linear(4, 8), nn.Linear(8, 2)
        self.dropout = nn.Dropout()

    def forward(self, inputs):
        features = self.dropout(self.stem(inputs)).view(1, 4)
        self.behind(self.unused(features))
        result = torch.sigmoid(features)
        result[:, :2] = features[:, 2:].exp()
        return {"result": [result]}


def test_operators_that_no_output_depends_on_can_be_left_out():
    for graph in trace_both(_Unused(), torch.zeros(1, 4)):
        assert [item.name for item in graph.operators if "unused" in item.name or "behind" in item.name]
        used = graph.without_unused()
        kinds = [item.op.kind for item in used.operators]
        assert [kinds.count(kind) for kind in ("linear", "sigmoid", "exp")] == [1, 1, 1]
        assert [item.last_call for item in used.operators] == sorted(item.last_call for item in used.operators)
        assert all(source < place for place, item in enumerate(used.operators) for source in item.sources)
        assert used.without_unused() == used


def test_a_network_whose_outputs_are_unknown_or_all_used_is_kept_whole():
    everything = trace(nn.Sequential(nn.Linear(4, 2), nn.ReLU()), torch.zeros(1, 4))
    assert everything.without_unused() is everything

    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, inputs):
            return SimpleNamespace(result=self.layer(inputs))

    graph = trace(Hidden(), torch.zeros(1, 4))
    assert graph.returned is None
    assert len(graph.without_unused().operators) == 1


def test_a_network_that_returns_its_input_needs_no_operator():
    class Passing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, inputs):
            self.layer(inputs)
            return inputs

    for graph in trace_both(Passing(), torch.zeros(1, 4)):
        assert len(graph.operators) == 1
        assert graph.without_unused().operators == ()


def test_a_module_that_changes_its_input_in_place_is_needed_by_what_reads_it():
    class Changing(nn.Module):
        def forward(self, inputs):
            result = torch.exp(inputs)
            inputs.relu_()
            return result

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.changing, self.last = nn.Linear(4, 4), Changing(), nn.Linear(4, 2)

        def forward(self, inputs):
            features = self.stem(inputs)
            self.changing(features)
            return self.last(features)

    graph = trace(Network(), torch.zeros(1, 4)).without_unused()
    assert [item.name for item in graph.operators] == ["stem", "changing", "last"]
