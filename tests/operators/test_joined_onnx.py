# SPDX-License-Identifier: Apache-2.0
"""Networks in ONNX that were joined to one: one after another, or side by side."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nni_latency.operators import (
    OnnxNetwork,
    add_consumers,
    add_producers,
    export_onnx,
    join_onnx,
    parallel_onnx,
    trace,
)

pytest.importorskip("onnx", reason="the package onnx is not installed")


class _Sum(nn.Module):
    def forward(self, one, other):
        return one + 2 * other


def _run(network, inputs):
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(network.model).run(None, network.feed(inputs))


def _exported(module, tensors):
    return export_onnx(module.eval(), tensors)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (1, 1, 0)])
def test_networks_side_by_side_compute_what_each_computes_alone(order):
    torch.manual_seed(0)
    image = torch.randn(1, 3, 4, 4)
    cases = [
        (nn.Conv2d(3, 2, 1), [image]),
        (_Sum(), [image, image + 1]),
        (nn.Sequential(nn.Flatten(), nn.Linear(48, 5), nn.ReLU()), [image]),
    ]
    chosen = [cases[place] for place in order]
    together = parallel_onnx([_exported(*case) for case in chosen], [len(tensors) for _, tensors in chosen])
    results = _run(together, [tensor.numpy() for _, tensors in chosen for tensor in tensors])
    for (module, tensors), result in zip(chosen, results, strict=True):
        assert result == pytest.approx(module(*tensors).detach().numpy(), abs=1e-5)
    assert together.n_labels == len(order)
    labels = [together.label_of([node.name]) for node in together.model.graph.node]
    assert sorted(set(labels)) == list(range(len(order)))


def test_layer_before_every_input_changes_no_shape_and_has_no_label():
    torch.manual_seed(0)
    image, row, tokens = torch.randn(1, 3, 4, 4), torch.randn(1, 5), torch.randn(1, 2, 5)
    cases = [(nn.Conv2d(3, 2, 1), image), (nn.Linear(5, 2), row), (nn.Linear(5, 2), tokens)]
    together = parallel_onnx([_exported(module, [tensor]) for module, tensor in cases], [1, 1, 1])
    fed = add_producers(together)
    made = [nn.MaxPool2d(3, 1, 1)(image), row.softmax(-1), tokens.softmax(-1)]
    results = _run(fed, [tensor.numpy() for _, tensor in cases])
    for (module, _), tensor, result in zip(cases, made, results, strict=True):
        assert result == pytest.approx(module(tensor).detach().numpy(), abs=1e-5)
    assert [fed.label_of([node.name]) for node in fed.model.graph.node][:3] == [None] * 3
    assert len(together.model.graph.node) == len(fed.model.graph.node) - 3


def test_what_takes_any_layout_is_fed_by_a_convolution():
    """A pooling alone would leave a feature map in the layout of the file."""
    first, second = torch.randn(1, 4, 6, 6), torch.randn(1, 4, 6, 6)
    fed = add_producers(_exported(_Sum(), [first, second]))
    average = nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False)
    nn.init.constant_(average.weight, 1 / 9)
    made = [nn.MaxPool2d(3, 1, 1)(average(tensor)) for tensor in (first, second)]
    (result,) = _run(fed, [first.numpy(), second.numpy()])
    assert result == pytest.approx((made[0] + 2 * made[1]).detach().numpy(), abs=1e-5)
    assert [node.op_type for node in fed.model.graph.node][:4] == ["Conv", "MaxPool"] * 2
    assert {fed.label_of([node.name]) for node in fed.model.graph.node[:4]} == {None}


def test_what_works_on_one_map_in_any_layout_is_read():
    """A result of the whole network would have memory of its own; a sum of two maps and a convolution keep theirs."""
    maps = [torch.randn(1, 4, 6, 6) for _ in range(4)]
    cases = [(nn.ReLU(), maps[:1]), (nn.Conv2d(4, 2, 1), maps[1:2]), (_Sum(), maps[2:])]
    together = parallel_onnx([_exported(module, tensors) for module, tensors in cases], [1, 1, 2])
    read = add_consumers(together)
    results = _run(read, [tensor.numpy() for tensor in maps])
    wanted = [nn.MaxPool2d(3, 1, 1)(maps[0].relu()), cases[1][0](maps[1]), maps[2] + 2 * maps[3]]
    for result, tensor in zip(results, wanted, strict=True):
        assert result == pytest.approx(tensor.detach().numpy(), abs=1e-5)
    assert len(read.model.graph.node) == len(together.model.graph.node) + 1
    assert read.label_of([read.model.graph.node[-1].name]) is None
    whole = _run(add_consumers(together, all_maps=True), [tensor.numpy() for tensor in maps])
    for result, tensor in zip(whole, (maps[0].relu(), *wanted[1:]), strict=True):
        assert result == pytest.approx(nn.MaxPool2d(3, 1, 1)(tensor).detach().numpy(), abs=1e-5)


def test_networks_one_after_another_compute_what_they_compute_in_turn():
    torch.manual_seed(0)
    image = torch.randn(1, 3, 4, 4)
    first, second = nn.Conv2d(3, 2, 1), nn.Sequential(nn.ReLU(), nn.Conv2d(2, 4, 3))
    joined = join_onnx([_exported(first, [image]), _exported(second, [first(image)])])
    assert _run(joined, [image.numpy()])[0] == pytest.approx(second(first(image)).detach().numpy(), abs=1e-5)


def test_weights_that_parts_share_are_no_part_of_what_is_fused():
    from onnx import TensorProto, helper

    # An exporter writes equal weights once, and a node that names them again, with the number of some call.
    nodes = [
        helper.make_node("Identity", ["bias"], ["again"], "call0/Identity"),
        helper.make_node("Softmax", ["input0"], ["first"], "call1/Softmax"),
        helper.make_node("Add", ["first", "input0"], ["sum"], "call2/Add"),
        helper.make_node("LayerNormalization", ["sum", "scale", "again"], ["out"], "call3/LayerNormalization"),
    ]
    given, out = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 4)) for name in ("input0", "out"))
    weights = [helper.make_tensor(name, TensorProto.FLOAT, (4,), [1.0] * 4) for name in ("bias", "scale")]
    network = OnnxNetwork(helper.make_model(helper.make_graph(nodes, "net", [given], [out], weights)), 4)
    # The runtime fused the addition with the normalisation, and names both by the latter.
    main = network.main_labels([["call1/Softmax"], ["call3/LayerNormalization"]])
    assert main == {1: 1, 2: 2, 3: 2}


def test_what_a_node_names_second_ran_in_it():
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Sigmoid())
    network = _exported(module, [torch.zeros(1, 3, 4, 4)])
    conv, relu, pool, sigmoid = (node.name for node in network.model.graph.node)
    assert network.main_labels([[conv, relu], [pool], [sigmoid]]) == {0: 0, 1: 0, 2: 2, 3: 3}
    # By its result, as runtimes name it, too.
    tensor = network.model.graph.node[1].output[0]
    assert network.main_labels([[conv, f"{tensor}_nchwc"], [pool, sigmoid]]) == {0: 0, 1: 0, 2: 2, 3: 2}
    # What has a node of its own is not part of another.
    assert network.main_labels([[conv, relu], [relu], [pool], [sigmoid]]) == {0: 0, 1: 1, 2: 2, 3: 3}
    # Without such names, it seems to run with what takes its result.
    assert network.main_labels([[conv], [pool], [sigmoid]]) == {0: 0, 1: 1, 2: 1, 3: 3}


class _Shuffled(nn.Module):
    """Computes with the sizes of its input in all ways that torch has."""

    def forward(self, inputs):
        batch, channels, height, width = inputs.size()
        split = inputs.reshape(batch * channels // 2, 2, height * width).permute(1, 0, 2)
        first = split.reshape(2, -1, channels // 2, height, width)[0]
        flat = first.reshape(first.shape[0], first.numel() // first.size(0))
        return torch.relu(flat) / (flat.shape[-1] // flat.dim())


def test_what_is_computed_of_sizes_is_neither_a_call_nor_a_node():
    inputs = torch.randn(1, 4, 6, 6)
    network = export_onnx(_Shuffled().eval(), [inputs])
    assert network.n_labels == trace(_Shuffled(), inputs, "graph").n_calls
    kinds = {node.op_type for node in network.model.graph.node}
    assert not kinds & {"Shape", "Mul", "Floor", "Cast"}


def test_weights_are_those_on_whose_values_the_latency_does_not_depend():
    layers = nn.Sequential(nn.Conv2d(3, 300, 3), nn.ReLU(), nn.Conv2d(300, 2, 1, bias=False), nn.Conv2d(2, 2, 1)).eval()
    network = export_onnx(layers, [torch.zeros(1, 3, 8, 8)])
    assert [weight.shape for weight in network.weights()] == [(300, 3, 3, 3), (300,), (2, 300, 1, 1)]


def test_weights_are_kept_where_values_decide_how_much_is_computed():
    class Chosen(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, inputs):
            return torch.nonzero(self.linear(inputs))

    assert export_onnx(Chosen().eval(), [torch.zeros(1, 64)]).weights() == []
