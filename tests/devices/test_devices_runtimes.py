# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime, OpenVINO, ncnn and LiteRT on a device, which is another process of this machine."""

from __future__ import annotations

import importlib
import os
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from nni_latency.devices import DeviceRuntime, PythonConnection
from nni_latency.errors import InvalidValueError
from nni_latency.measurement import LocalBench, Protocol, Subject, cold_chain
from nni_latency.testing import check_bench, check_runtime

pytestmark = pytest.mark.slow

_PLUGINS = Path(__file__).parents[2] / "plugins"

_CLASSES = {"onnxruntime": "OnnxRuntime", "openvino": "OpenVino", "ncnn": "Ncnn", "litert": "LiteRt"}

_QUICK = Protocol(n_run=5, processes=1)

_SHAPE = (1, 16, 24, 24)


class Wide(nn.Module):
    """Two convolutions that fuse with their activations, with weights that are not sent."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(16, 256, 3, padding=1), nn.Conv2d(256, 16, 3, padding=1)

    def forward(self, inputs):
        return torch.relu(self.second(torch.relu(self.first(inputs))))


class TwoInputs(nn.Module):
    """Tokens and a mask, and two results."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 64)

    def forward(self, words, mask):
        found = self.embed(words) * mask.unsqueeze(-1)
        return found.mean(1), found.softmax(-1)


def _class(name):
    if name == "litert" and not os.environ.get("NNI_LATENCY_LITERT_PYTHON"):
        pytest.skip("NNI_LATENCY_LITERT_PYTHON is not set: make converter")
    pytest.importorskip("ai_edge_litert" if name == "litert" else name)
    pytest.importorskip("onnx")
    plugin = f"nni_latency_{name}"
    if str(_PLUGINS / plugin) not in sys.path:
        sys.path.append(str(_PLUGINS / plugin))
    return getattr(importlib.import_module(plugin), _CLASSES[name])


@pytest.fixture(params=_CLASSES)
def kind(request):
    return _class(request.param)


def _device(kind, **options):
    return DeviceRuntime(lambda place: kind(place=place, **options), PythonConnection(sys.executable))


@pytest.fixture
def runtime(kind):
    made = _device(kind)
    yield made
    made.close()


def _refused():
    raise ValueError("it cannot be built")


def test_runtime_keeps_the_contract(runtime):
    check_runtime(runtime)


def test_bench_keeps_the_contract(runtime):
    subjects = [Subject(key, Wide, _SHAPE, "candidate") for key in ("a", "b")]
    check_bench(runtime.benches().open(_QUICK), subjects, Subject("broken", _refused, _SHAPE, "candidate"))


def test_platform_is_that_of_the_same_runtime_here(kind, runtime):
    here, there = kind().platform, runtime.platform
    assert here.id == there.id
    assert not here.differences(there)


def test_weights_are_not_sent(runtime):
    with runtime.benches().open(_QUICK) as bench:
        before = runtime.place.session._line.sent
        bench.admit(Subject("a", Wide, _SHAPE))
        bench.visit(["a"])
        assert runtime.place.session._line.sent - before < 30_000


def test_parts_take_the_shares_that_they_take_here(kind, runtime):
    if not runtime.divides:
        pytest.skip(f"{kind.name} has no profile")
    subjects = [
        Subject("wide", Wide, _SHAPE, "candidate"),
        Subject("pool", partial(nn.AvgPool2d, 2), _SHAPE, "candidate"),
    ]
    shares = []
    for bench in (LocalBench(kind(), _QUICK), runtime.benches().open(_QUICK)):
        with bench:
            for subject in subjects:
                bench.admit(subject)
            visits = [bench.visit(["wide", "pool"]) for _ in range(5)]
        parts = np.median([run for visit in visits for run in visit.parts], axis=0)
        shares.append(parts[0] / parts.sum())
    assert shares[0] > 0.8
    assert abs(shares[0] - shares[1]) < 0.15, shares


def test_operator_is_measured_cold(runtime):
    if not runtime.divides:
        pytest.skip("it has no profile")
    chain = cold_chain("conv", partial(nn.Conv2d, 16, 16, 3), [_SHAPE])
    with runtime.benches().open(_QUICK) as bench:
        for subject in chain:
            bench.admit(subject)
        visit = bench.visit([subject.key for subject in chain])
    assert all(0 < run[2] < 1 for run in visit.parts)


def test_several_inputs_of_any_dtype(runtime):
    if runtime.name == "ncnn":
        pytest.skip("ncnn takes float inputs alone")
    inputs = (torch.zeros(2, 5, dtype=torch.int64), {"mask": torch.ones(2, 5)})
    with runtime.benches().open(_QUICK) as bench:
        bench.admit(Subject.of_module(TwoInputs().eval(), inputs, "words"))
        assert min(bench.visit(["words"]).whole) > 0


def test_fused_operators_are_named(kind, runtime):
    if not runtime.divides:
        pytest.skip(f"{kind.name} has no profile")
    subject = Subject("a", Wide, _SHAPE)
    found = []
    for where in (kind(), runtime):
        with where.session():
            found.append([operators for _, operators in where.fused_operators(subject, where.inputs(_SHAPE))])
    assert found[0] == found[1]


def test_what_fell_back_is_known_after_a_round_of_visits():
    runtime = _device(_class("ncnn"), precision="fp16")
    with runtime.benches().open(_QUICK) as bench:
        for key in ("a", "b", "c"):
            bench.admit(Subject(key, Wide, _SHAPE))
        found = [item.visit for item in bench.visit_all([(["a"], False), (["b"], False), (["a", "c"], False)])]
    assert all(min(visit.whole) > 0 for visit in found)
    assert len({visit.fallbacks for visit in found}) == 1
    runtime.close()


def test_int8_runs_there():
    runtime = _device(_class("onnxruntime"), precision="int8")
    with runtime.benches().open(_QUICK) as bench:
        bench.admit(Subject("a", Wide, _SHAPE))
        assert min(bench.visit(["a"]).whole) > 0
    runtime.close()


def test_provider_that_a_device_lacks_is_named():
    with pytest.raises(InvalidValueError, match=r"lacks TensorrtExecutionProvider\. It has .*CPUExecutionProvider"):
        _device(_class("onnxruntime"), provider="tensorrt")
