# SPDX-License-Identifier: Apache-2.0
"""TensorRT on a device, by a stand-in for its Python package and for the CUDA runtime library: there is no GPU here."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch_networks import TwoInputs

from nni_latency.devices import DeviceError, DevicePlace, DeviceRuntime, PythonConnection
from nni_latency.errors import InvalidValueError, MeasurementError, MissingDependencyError
from nni_latency.measurement import Protocol, Subject
from nni_latency.operators import capture_operators, export_onnx
from nni_latency.tables import MeasurePlan, PlanCandidate, PlanLayer, SpaceReference, build_table
from nni_latency.testing import check_bench, check_plugin, check_runtime

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

_COMPILER = shutil.which(os.environ.get("CXX", "g++"))

pytestmark = pytest.mark.skipif(_COMPILER is None, reason="needs a C++ compiler")

_FOLDER = str(Path(__file__).parents[1] / "plugins" / "nni_latency_tensorrt")
if _FOLDER not in sys.path:
    sys.path.append(_FOLDER)

plugin = importlib.import_module("nni_latency_tensorrt.plugin")
TensorRt = importlib.import_module("nni_latency_tensorrt").TensorRt

_STAND_IN = Path(__file__).with_name("tensorrt_stand_in")

_QUICK = Protocol(n_run=5, processes=1)

_SHAPE = (1, 16, 24, 24)


class Wide(nn.Module):
    """Two convolutions, with weights that are not sent."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(16, 64, 3, padding=1), nn.Conv2d(64, 16, 3, padding=1)

    def forward(self, inputs):
        return torch.relu(self.second(torch.relu(self.first(inputs))))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cuda")
    command = [_COMPILER, "-shared", "-fPIC", "-o", folder / "libcudart.so", _STAND_IN / "cudart.cpp"]
    subprocess.run(command, check=True, timeout=60)
    return folder


@pytest.fixture(autouse=True)
def _own_device(tmp_path, monkeypatch):
    # The agents of this module have a temporary folder, and with it a device lock, of their own.
    (tmp_path / "t").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))
    monkeypatch.setenv("STAND_IN_BUILDS", str(tmp_path / "builds"))


@pytest.fixture
def python(library, tmp_path):
    path = tmp_path / "python"
    paths = f"PYTHONPATH={_STAND_IN} LD_LIBRARY_PATH={library}"
    path.write_text(f'#!/bin/sh\n{paths} exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return PythonConnection(str(path))


@pytest.fixture
def runtime(python):
    runtime = _device(python)
    yield runtime
    runtime.close()


def _device(connection, **options):
    return DeviceRuntime(lambda place: TensorRt("cpu", place=place, **options), connection)


def test_plugin_keeps_the_contract():
    check_plugin(plugin)


@pytest.mark.slow
def test_runtime_keeps_the_contract(runtime):
    check_runtime(runtime)


@pytest.mark.slow
def test_bench_keeps_the_contract(runtime):
    subjects = [Subject(key, Wide, _SHAPE, "candidate") for key in ("a", "b")]
    check_bench(runtime.benches().open(_QUICK), subjects, Subject("broken", nn.CELU, _SHAPE, "candidate"))


def test_platform_is_the_gpu(runtime):
    platform = runtime.platform
    assert platform.id == "stand-in-gpu.tensorrt.fp32.t1"
    assert platform.facts["device_kind"] == "cuda"
    assert platform.facts["gpu_memory"] == 2**33
    assert platform.facts["cuda"] == "12.6"
    assert platform.facts["runtime.version"] == "10.3.0"
    assert "cpu_signature" not in platform.facts


def test_results_are_those_of_torch(runtime):
    """Of a small network all weights are sent, and its results are compared with torch."""
    inputs = (torch.ones(2, 5, dtype=torch.int64), {"mask": torch.ones(2, 5)})
    with runtime.benches().open(_QUICK) as bench:
        bench.admit(Subject.of_module(TwoInputs().eval(), inputs, "words"))
        assert min(bench.visit(["words"]).whole) > 0


def test_engine_is_built_once_although_the_process_is_started_anew(python, tmp_path):
    data = export_onnx(Wide().eval(), [torch.zeros(_SHAPE)]).serialised()
    place = DevicePlace(python, "nni_latency_tensorrt._adapter", {"threads": 1, "precision": "fp16"})
    inputs = (np.ones(_SHAPE, np.float32),)
    first = place.load(data).run(inputs)
    place.session.renew()
    np.testing.assert_array_equal(place.load(data).run(inputs)[0], first[0])
    assert (tmp_path / "builds").read_text().count("built") == 1
    place.session.close()
    assert not list((tmp_path / "t").iterdir())


@pytest.mark.slow
def test_times_of_layers_are_attributed_to_candidates(runtime, tmp_path):
    make = [partial(nn.Conv2d, 8, 8, size, padding=size // 2) for size in (1, 3)]
    ops = [capture_operators(build(), torch.zeros(1, 8, 16, 16))[0][1] for build in make]
    candidates = {f"k{size}": PlanCandidate(op, build) for size, op, build in zip((1, 3), ops, make, strict=True)}
    plan = MeasurePlan(
        SpaceReference("convolutions", {}),
        (1, 8, 16, 16),
        tuple(PlanLayer(f"layer{index}", candidates) for index in range(2)),
    )
    protocol = Protocol(rounds=2, processes=1, n_run=5, n_warmup=0, half_width=0.0, time_budget=60)
    table = build_table(plan, runtime, protocol, tmp_path / "t.json", store="memory")
    assert table.coverage == 1
    assert table.platform.id == "stand-in-gpu.tensorrt.fp32.t1"


@pytest.mark.parametrize(("module", "words"), [(nn.CELU, "it cannot build an engine: .*no implementation of Celu")])
def test_network_that_cannot_be_built_is_a_failure_with_the_reason(runtime, module, words):
    with runtime.benches().open(_QUICK) as bench, pytest.raises(MeasurementError, match=words):
        bench.admit(Subject("odd", module, _SHAPE))


def test_device_without_a_gpu_is_one_sentence(python, monkeypatch):
    monkeypatch.setenv("STAND_IN_GPUS", "0")
    with pytest.raises(DeviceError, match=r"cudaGetDeviceCount: no CUDA-capable device is detected\.$"):
        _device(python)


def test_device_without_the_package_is_told_how_to_get_it():
    with pytest.raises(DeviceError, match=r"cannot load 'tensorrt' .* -m pip install numpy tensorrt$"):
        _device(PythonConnection(sys.executable))


def test_machine_without_the_package_is_told_how_to_get_it():
    if importlib.util.find_spec("tensorrt"):
        pytest.skip("TensorRT is installed")
    with pytest.raises(MissingDependencyError, match=r"needs TensorRT .*Install them: pip install tensorrt$"):
        TensorRt("cuda")


def test_fp16_is_refused_where_nothing_switches_it_on(python, monkeypatch):
    monkeypatch.setenv("STAND_IN_VERSION", "11.4.0")
    with pytest.raises(InvalidValueError, match=r"^TensorRT 11\.4\.0 cannot be switched to fp16"):
        _device(python, precision="fp16")


def test_older_version_builds_networks_with_an_explicit_batch(python, monkeypatch):
    monkeypatch.setenv("STAND_IN_VERSION", "8.5.2")
    place = DevicePlace(python, "nni_latency_tensorrt._adapter", {"threads": 1, "precision": "fp32"})
    data = export_onnx(nn.ReLU(), [torch.zeros(_SHAPE)]).serialised()
    (found,) = place.load(data).run((np.full(_SHAPE, -1.0, np.float32),))
    assert not found.any()


def test_processor_of_this_machine_is_refused():
    with pytest.raises(InvalidValueError, match=r"'tensorrt' runs on a GPU\. Take --device cuda"):
        TensorRt("cpu")
