# SPDX-License-Identifier: Apache-2.0
"""ONNX files: the same counts as the networks that they were made of."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from known_networks import KNOWN
from torch import nn

from nni_latency.analysis import ModelAnalysis
from nni_latency.errors import InvalidValueError, MissingDependencyError
from nni_latency.operators import capture_operators, count_operators, read_onnx, trace

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")

_SHARED = Path(__file__).parents[3] / "shared" / "data" / "onnx" / "resnet18-v1-7-no-weight.onnx"


def _export(network, inputs, path, **options):
    with warnings.catch_warnings():
        # The exporter that needs no further package is on its way out.
        warnings.simplefilter("ignore")
        torch.onnx.export(network.eval(), inputs, str(path), dynamo=False, opset_version=17, **options)
    return path


class _Mixed(nn.Module):
    """Convolutions of several kinds, products, pooling and arithmetic."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, 2, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 5, padding=2, groups=8)
        self.up = nn.ConvTranspose2d(8, 4, 3, 2, padding=1, output_padding=1)
        self.pool = nn.AvgPool2d(2)
        self.head = nn.Linear(4, 6)

    def forward(self, inputs):
        inner = nn.functional.silu(self.depthwise(self.first(inputs)))
        pooled = self.pool(self.up(inner)).mean((2, 3))
        return self.head(pooled) @ torch.ones(6, 2) + 1


@pytest.mark.parametrize("name", ["squeezenet", "mobilenet_v3_large"])
def test_known_networks_count_as_in_torch(name, tmp_path):
    network = KNOWN[name][0]()
    path = _export(network, torch.zeros(1, 3, 64, 64), tmp_path / "net.onnx")
    found = count_operators(item.op for item in read_onnx(path).operators)
    traced = count_operators(
        op for _, op in capture_operators(network, torch.empty(1, 3, 64, 64, device="meta"), by="graph")
    )
    for count in ("macs", "acts", "inp"):
        assert getattr(found.features, count) == getattr(traced.features, count)
    assert not found.uncounted


def test_mixed_operators_count_as_in_torch(tmp_path):
    path = _export(_Mixed(), torch.zeros(2, 3, 16, 16), tmp_path / "net.onnx")
    found = count_operators(item.op for item in read_onnx(path).operators).features
    traced = count_operators(
        op for _, op in capture_operators(_Mixed(), torch.zeros(2, 3, 16, 16), by="graph")
    ).features
    assert (found.macs, found.acts, found.inp) == (traced.macs, traced.acts, traced.inp)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_count_as_in_torch(kind, tmp_path):
    layer = kind(6, 4)
    path = _export(layer, torch.zeros(5, 1, 6), tmp_path / "net.onnx")
    found = count_operators(item.op for item in read_onnx(path).operators).features
    traced = count_operators(op for _, op in capture_operators(layer, torch.zeros(5, 1, 6), by="graph")).features
    assert (found.macs, found.params) == (traced.macs, traced.params)


class _Shortcut(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1)

    def forward(self, inputs):
        first = torch.relu(self.first(inputs))
        return torch.relu(self.second(first.reshape(inputs.shape)) + first).flatten(1)


def test_edges_are_those_of_torch(tmp_path):
    network, inputs = _Shortcut(), torch.zeros(1, 3, 8, 8)
    expected = trace(network, inputs, by="graph")
    found = read_onnx(_export(network, inputs, tmp_path / "net.onnx"))
    assert [(item.op.kind, item.sources) for item in found.operators] == [
        (item.op.kind, item.sources) for item in expected.operators
    ]
    assert found.outputs == expected.outputs


class _Doubled(nn.Module):
    """Reads one tensor twice."""

    def forward(self, inputs):
        made = inputs.softmax(-1)
        return torch.cat([made, made], 1)


@pytest.mark.parametrize(("network", "shape"), [(_Doubled(), (1, 8)), (_Shortcut(), (1, 3, 8, 8))])
def test_neighbours_are_those_of_torch(network, shape, tmp_path):
    inputs = torch.zeros(shape)
    found = read_onnx(_export(network, inputs, tmp_path / "net.onnx"))
    assert found.neighbours == trace(network, inputs, by="graph").neighbours


def test_an_open_batch_is_one_or_what_is_asked_for(tmp_path):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    path = _export(
        network, torch.zeros(1, 3, 8, 8), tmp_path / "net.onnx", input_names=["x"], dynamic_axes={"x": {0: "n"}}
    )
    one, four = (read_onnx(path, batch).operators[0].op.input_shapes[0][0] for batch in (None, 4))
    assert (one, four) == (1, 4)


@pytest.mark.skipif(not _SHARED.is_file(), reason="the shared data are not beside the checkout")
def test_a_file_without_weights_is_read():
    counted = count_operators(item.op for item in read_onnx(_SHARED).operators)
    assert counted.features.macs == 1_814_073_344
    assert counted.features.params == 11_689_512
    assert not counted.uncounted


def test_analysis_takes_a_file_apart(tmp_path):
    path = _export(_Mixed(), torch.zeros(1, 3, 16, 16), tmp_path / "net.onnx")
    analysis = ModelAnalysis(path, batch_size=2)
    assert [block.kind for block in analysis.blocks] == ["conv2d", "conv2d", "conv_transpose2d", "linear", "linear"]
    assert analysis.features.acts == 2 * (8 * 8 * 8 * 2 + 4 * 16 * 16)
    assert sum(block.share for block in analysis.blocks) == pytest.approx(1)


def test_what_is_no_file_of_onnx_is_refused(tmp_path):
    with pytest.raises(InvalidValueError, match="Cannot read the ONNX file"):
        read_onnx(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("this is not a graph")
    with pytest.raises(InvalidValueError, match="is not an ONNX file that can be read"):
        read_onnx(tmp_path / "text.onnx")
    for path in (tmp_path, Path("/dev/zero")):
        with pytest.raises(InvalidValueError, match=f"Cannot read the ONNX file '{path}': it is not a regular file"):
            read_onnx(path)


def test_open_sizes_are_refused(tmp_path):
    path = _export(
        nn.Conv2d(3, 4, 3),
        torch.zeros(1, 3, 8, 8),
        tmp_path / "net.onnx",
        input_names=["x"],
        dynamic_axes={"x": {2: "height"}},
    )
    with pytest.raises(InvalidValueError, match=r"Sizes of the inputs of .* are open: 'x' 1x3xheightx8\. Give"):
        read_onnx(path)


def test_without_the_package_the_remedy_is_told(monkeypatch, tmp_path):
    def missing(name, *_):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(MissingDependencyError, match=r"pip install 'onnx'"):
        read_onnx(tmp_path / "net.onnx")


def test_a_strange_node_is_listed(tmp_path):
    node = onnx.helper.make_node("Det", ["x"], ["y"], name="strange")
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3, 3])
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [value], [out]))
    onnx.save(model, str(tmp_path / "net.onnx"))
    (item,) = read_onnx(tmp_path / "net.onnx").operators
    assert item.name == "strange"
    assert count_operators([item.op]).uncounted == ("det",)
