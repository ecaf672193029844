# SPDX-License-Identifier: Apache-2.0
"""LiteRT: networks converted in another Python, run with XNNPACK."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from ssh_server import SSHD, descendants, running_ssh_server
from torch import nn
from torch_networks import Chance, Singular, TwoInputs

from nni_latency.devices import DeviceError, DevicePlace, DeviceRuntime, PythonConnection, SshConnection
from nni_latency.errors import BusyError, InvalidValueError, MeasurementError, MissingDependencyError
from nni_latency.estimators import MeasuredNetworkEstimator
from nni_latency.files import locked
from nni_latency.measurement import CandidateError, LocalBench, Protocol, Subject
from nni_latency.measurement.runtimes import Here
from nni_latency.operators import capture_operators, export_onnx
from nni_latency.tables import MeasurePlan, PlanCandidate, PlanLayer, SpaceReference, build_table
from nni_latency.testing import check_plugin, check_runtime

pytest.importorskip("ai_edge_litert")
_FOLDER = str(Path(__file__).parents[1] / "plugins" / "nni_latency_litert")
if _FOLDER not in sys.path:
    # Workers find it there too: they take over the path of this process.
    sys.path.append(_FOLDER)

conversion = importlib.import_module("nni_latency_litert._conversion")
environment = importlib.import_module("nni_latency_litert._environment")
plugin = importlib.import_module("nni_latency_litert.plugin")
find_fallbacks = importlib.import_module("nni_latency_litert._runtime").find_fallbacks
LiteRt = importlib.import_module("nni_latency_litert").LiteRt

_NAMED = os.environ.get(environment.PYTHON_VARIABLE)

_ADAPTER = "nni_latency_litert._adapter"

#: A convolution of 8 channels to 32 with its activation, and a cumulative sum, which XNNPACK does not take.
_NETWORK = Path(__file__).with_name("litert_network.tflite")


def _converts(test):
    """Mark a test that converts networks: it needs another Python, and some seconds."""
    absent = pytest.mark.skipif(not _NAMED, reason=f"{environment.PYTHON_VARIABLE} is not set: make converter")
    return pytest.mark.slow(absent(test))


@pytest.fixture(scope="module", autouse=True)
def _own_device(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        # The agents of this module have a temporary folder, and with it a device lock, of their own.
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("device")))
        yield
    if _NAMED:
        conversion.converter().session.close()


class Block(nn.Module):
    """A convolution with what is fused into it, and a sum."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.project = nn.Conv2d(8, 8, 1)

    def forward(self, inputs):
        return inputs + self.project(nn.functional.hardswish(self.norm(self.conv(inputs))))


class Sorted(nn.Module):
    """What XNNPACK does not take, behind what it does."""

    def forward(self, inputs):
        return torch.cumsum(torch.relu(inputs), 1)


def test_plugin_keeps_the_contract():
    check_plugin(plugin)


@_converts
def test_runtime_keeps_the_contract():
    check_runtime(LiteRt())


@_converts
@pytest.mark.parametrize("batch", [1, 2])
def test_runtime_computes_what_torch_computes(batch):
    runtime, block, shape = LiteRt(threads=2), Block().eval(), (batch, 8, 10, 10)
    with runtime.session():
        inputs = runtime.inputs(shape)
        stage = runtime.prepare(Subject.of_module(block, shape), inputs)
        found = stage(inputs)
        assert runtime.fallbacks(stage, inputs) == ()
    torch.testing.assert_close(torch.from_numpy(found), block(torch.from_numpy(inputs)), rtol=1e-4, atol=1e-4)


@_converts
def test_runtime_takes_several_inputs_of_any_dtype():
    runtime = LiteRt()
    subject = Subject.of_module(TwoInputs().eval(), (torch.ones(2, 5, dtype=torch.int64), {"mask": torch.ones(2, 5)}))
    with runtime.session():
        inputs = runtime.inputs(subject.inputs)
        results = runtime.prepare(subject, inputs)(inputs)
    assert [item.shape for item in results] == [(2, 8), (2, 5, 8)]


@_converts
def test_what_xnnpack_does_not_take_is_named():
    runtime = LiteRt()
    with runtime.session():
        inputs = runtime.inputs((1, 8))
        stage = runtime.prepare(Subject("sorted", Sorted, (1, 8)), inputs)
        (found,) = runtime.fallbacks(stage, inputs)
    assert found.ran == "outside of XNNPACK"
    assert [kind for kind, _ in found.operators] == ["CUMSUM"]


@_converts
def test_conversions_share_a_process_that_is_started_again_when_it_dies():
    program = torch.export.export(nn.ReLU().eval(), (torch.zeros(1, 4),))
    conversion.convert(program)
    agent = conversion.converter().session._line._process.pid
    workers = descendants(agent)
    conversion.convert(program)
    assert descendants(agent) == workers
    (worker,) = [number for number in workers if b"-u" in Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")]
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(CandidateError, match=r"^litert-torch cannot convert the network: its process was killed"):
        conversion.convert(program)
    assert conversion.convert(program)
    assert conversion.converter().session._line._process.pid == agent


@_converts
@pytest.mark.parametrize(("module", "shape"), [(Singular, (1, 4, 4)), (Chance, (1, 64))])
def test_network_that_cannot_be_converted_or_is_wrong_is_a_failure(module, shape):
    words = r"svd" if module is Singular else r"something else than torch|cannot convert"
    with LocalBench(LiteRt(), Protocol()) as bench, pytest.raises(MeasurementError, match=words):
        bench.admit(Subject("odd", module, shape))


@_converts
def test_onnx_file_is_refused_in_one_sentence(tmp_path):
    path = tmp_path / "block.onnx"
    path.write_bytes(export_onnx(Block().eval(), [torch.zeros(1, 8, 6, 6)]).model.SerializeToString())
    estimator = MeasuredNetworkEstimator(runtime=LiteRt(), protocol=Protocol(rounds=2, processes=1), store="memory")
    with pytest.raises(MeasurementError, match=r"takes modules of torch and no ONNX files"):
        estimator.estimate(path)


#: One round on few networks.
_ONCE = Protocol(rounds=2, processes=1, n_warmup=0, time_budget=600)


def _plan():
    make = [partial(nn.Conv2d, 8, 8, size, padding=size // 2) for size in (1, 7)]
    ops = [capture_operators(build(), torch.zeros(1, 8, 16, 16))[0][1] for build in make]
    candidates = {f"k{size}": PlanCandidate(op, build) for size, op, build in zip((1, 7), ops, make, strict=True)}
    layers = tuple(PlanLayer(f"layer{index}", candidates) for index in range(2))
    return MeasurePlan(SpaceReference("convolutions", {}), (1, 8, 16, 16), layers)


@_converts
def test_table_is_solved_from_whole_networks(tmp_path):
    table = build_table(_plan(), LiteRt(), _ONCE, tmp_path / "t.json", store="memory")
    assert table.coverage == 1
    assert table.platform.runtime == "litert"
    assert {"runtime.version", "runtime.converter"} <= set(table.platform.facts)


def test_only_fp32_is_computed():
    with pytest.raises(InvalidValueError, match=r"computes in fp32. Got the precision 'int8'"):
        LiteRt(precision="int8")


def test_nodes_that_run_are_found_from_the_results_backwards():
    """A delegate takes two of three nodes; that of another part of the file does not matter."""
    nodes = [["RELU", [0], [1]], ["CUMSUM", [1], [2]], ["ADD", [2, 2], [3]]]
    first, last = ["DELEGATE", [0], [1]], ["DELEGATE", [2], [3]]
    (found,) = find_fallbacks([*nodes, first, last], [3])
    assert str(found) == "1 of 3 nodes ran outside of XNNPACK: CUMSUM"
    assert find_fallbacks([nodes[0], first], [1]) == ()
    (alone,) = find_fallbacks(nodes, [3])
    assert alone.count == 3


def test_python_without_the_converter_is_refused(monkeypatch):
    for name in (sys.executable, "/nowhere/python"):
        monkeypatch.setenv(environment.PYTHON_VARIABLE, name)
        with pytest.raises(
            InvalidValueError, match=r"must name a Python with the packages litert-torch and torch\. Got"
        ):
            # A new one, and not the one of other tests.
            conversion.converter.__wrapped__()


def _here_and_there():
    """Return the places of the adapter in this process and in another one."""
    settings = {"threads": 1}
    return [Here(_ADAPTER, settings), DevicePlace(PythonConnection(sys.executable), _ADAPTER, settings)]


def test_device_computes_what_is_computed_here():
    model, inputs = _NETWORK.read_bytes(), (np.linspace(-1, 1, 8 * 36, dtype=np.float32).reshape(1, 8, 6, 6),)
    here, there = (place.load(model) for place in _here_and_there())
    assert there.keeps_weights
    np.testing.assert_array_equal(here.run(inputs)[0], there.run(inputs)[0])
    assert len(there.times(inputs, 3)) == 3
    fallen = [find_fallbacks(item.call("nodes"), item.call("results")) for item in (here, there)]
    assert fallen[0] == fallen[1]
    assert [kind for kind, _ in fallen[0][0].operators] == ["CUMSUM"]


def test_weights_of_a_network_are_found_in_its_file():
    model = _NETWORK.read_bytes()
    assert [item.shape for item in conversion.weights_of(model)] == [(32, 3, 3, 8)]
    _, place = _here_and_there()
    placed = place.load(model, conversion.weights_of(model))
    assert not placed.keeps_weights
    (found,) = placed.settled((np.ones((1, 8, 6, 6), np.float32),), 1)
    assert found.shape == (1, 32, 6, 6)
    # The numbers of a weight hardly shrink, and here they are all left out.
    assert len(place.session._contents[placed.name]) < len(model) - 8 * 288


def test_network_without_operators_returns_its_inputs():
    for place in _here_and_there():
        placed = place.load(b"")
        np.testing.assert_array_equal(placed.run((np.arange(3.0),))[0], np.arange(3.0))
        assert find_fallbacks(placed.call("nodes"), placed.call("results")) == ()


#: Where numpy and LiteRT are.
_SITE = Path(np.__file__).parents[1]


def _python_with_numpy(folder):
    """Return a Python that has numpy alone, and what else lies in a folder."""
    for item in _SITE.glob("numpy*"):
        (folder / item.name).symlink_to(item)
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} -S "$@"\n')
    path.chmod(0o755)
    return str(path)


#: The modules of this Python's ``ai_edge_litert`` under the name that they had before.
_OLDER = """
import sys
outer = sys.modules.pop("ai_edge_litert")
sys.path.append({site!r})
from ai_edge_litert.interpreter import Interpreter
sys.modules["ai_edge_litert"] = outer
"""


def test_older_package_of_the_runtime_is_taken_where_it_is_the_only_one(tmp_path):
    (tmp_path / "tflite_runtime").mkdir()
    (tmp_path / "tflite_runtime" / "__init__.py").write_text("__version__ = '2.14.0'\n")
    (tmp_path / "tflite_runtime" / "interpreter.py").write_text(_OLDER.format(site=str(_SITE)))
    place = DevicePlace(PythonConnection(_python_with_numpy(tmp_path)), _ADAPTER, {"threads": 1})
    assert place.facts == {"version": "tflite 2.14.0"}
    placed = place.load(_NETWORK.read_bytes())
    assert placed.run((np.ones((1, 8, 6, 6), np.float32),))[0].shape == (1, 32, 6, 6)


def test_device_without_the_runtime_is_told_how_to_get_it(tmp_path):
    place = DevicePlace(PythonConnection(_python_with_numpy(tmp_path)), _ADAPTER, {"threads": 1})
    with pytest.raises(DeviceError, match=r"cannot load 'ai_edge_litert' .* -m pip install numpy ai-edge-litert$"):
        _ = place.facts


@_converts
@pytest.mark.skipif(not SSHD.exists() or shutil.which("ssh") is None, reason="needs openssh-server and openssh-client")
def test_table_is_solved_over_ssh(tmp_path, monkeypatch):
    with running_ssh_server() as server, tempfile.TemporaryDirectory(prefix="t") as folder:
        monkeypatch.setenv("PATH", f"{server.binaries}:{os.environ['PATH']}")
        with SshConnection(server.address) as connection:
            connection.python, connection.folder = sys.executable, folder
            runtime = DeviceRuntime(lambda place: LiteRt(place=place), connection)
            table = build_table(_plan(), runtime, _ONCE, tmp_path / "t.json", store="memory")
            runtime.close()
    assert table.coverage == 1
    assert table.platform.runtime == "litert"


def test_two_processes_do_not_make_the_environment_at_once(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "_LONGEST", 0.0)
    with (
        locked(tmp_path / ".env.lock", "making it"),
        pytest.raises(BusyError, match=r"is making the environment that converts networks for LiteRT"),
    ):
        environment._own(tmp_path / "env")


@pytest.mark.slow
@pytest.mark.installs
def test_environment_that_cannot_be_made_is_one_sentence_and_never_used(monkeypatch, tmp_path, capsys):
    folder = tmp_path / "env"
    folder.mkdir()
    (folder / "half").touch()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for _ in range(2):
        with pytest.raises(
            MissingDependencyError, match=r"could not be made: No matching distribution.*LITERT_PYTHON\.$"
        ):
            environment._own(folder)
    assert not (folder / "half").exists()
    assert not (folder / "complete.json").exists()
    assert "about 2 GB" in capsys.readouterr().err
