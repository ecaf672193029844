# SPDX-License-Identifier: Apache-2.0
"""Commands that measure on a device, by a runtime whose adapter needs numpy alone."""

from __future__ import annotations

import json
import os
import shutil
import sys
from importlib import metadata
from types import ModuleType

import pytest
from click.testing import CliRunner
from numpy_runtime import NumpyRuntime
from registries import use_registry

from nni_latency import hookimpl
from nni_latency.cli import main
from nni_latency.cli._measuring import DeviceOptions
from nni_latency.platforms import Platform
from nni_latency.plugins import GROUP, collect

_DEVICE = f"python:{sys.executable}"

#: As many rounds as it takes, however long they take where other processes are busy.
_QUICK = ("--protocol", "rounds=2", "--protocol", "processes=1", "--budget", "10min")

#: The runtimes of the tests that run on devices.
_RUNTIMES = "benchmark_app, benchmark_model, benchncnn, numpy, onnxruntime_perf_test, tool, trtexec"

_NETWORK = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3), nn.ReLU())
"""


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run a command, with the runtime ``numpy`` registered; keep what it measures."""

    def register_runtimes(register):
        register("numpy", NumpyRuntime, on_devices=True)

    module = ModuleType("numpy_plugin")
    module.register_runtimes = hookimpl(register_runtimes)
    monkeypatch.setitem(sys.modules, "numpy_plugin", module)
    points = [
        metadata.EntryPoint("builtin", "nni_latency.builtin_plugin", GROUP),
        metadata.EntryPoint("service", "nni_latency_service.plugin", GROUP),
        metadata.EntryPoint("numpy_plugin", "numpy_plugin", GROUP),
    ]
    registry = collect(points)
    use_registry(monkeypatch, registry)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NNI_LATENCY_DATABASE", str(tmp_path / "db.sqlite"))
    (tmp_path / "net.py").write_text(_NETWORK)

    def invoke(*words):
        return CliRunner().invoke(main, [*words])

    return invoke


def _table_of(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_network_is_measured_on_a_device(run):
    words = ("--input", "3,8,8", "--runtime", "numpy", *_QUICK, "--format", "json")
    found = _table_of(run("measure", "net.py:Net", "--device", _DEVICE, *words))
    assert found["platform"]["id"].endswith(".numpy.fp32.t1"), found
    assert found["latency_s"] > 4e-5


def test_what_is_sent_is_said_in_remarks(run):
    words = ("measure", "net.py:Net", "--device", _DEVICE, "--runtime", "numpy", *_QUICK, "--input")
    remarks = run(*words, "3,8,8").stderr
    assert remarks.index(f"Sending 1 network to {_DEVICE}: about ") < remarks.index("Sent ")
    assert "Sen" not in run("--quiet", *words, "3,9,9").stderr


def test_name_of_the_file_of_devices_is_a_device_with_cores(run, monkeypatch, tmp_path):
    core = min(os.sched_getaffinity(0))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "nni_latency").mkdir()
    (tmp_path / "nni_latency" / "devices.toml").write_text(
        f'[board]\nconnection = "{_DEVICE}"\ncores = "{core}"\n[large]\nconnection = "{_DEVICE}"\ncores = "9000"\n'
    )
    words = ("--input", "3,8,8", "--runtime", "numpy", *_QUICK, "--format", "json")
    found = _table_of(run("measure", "net.py:Net", "--device", "board", *words))
    assert found["platform"]["facts"]["cpu_affinity"] == str(core)
    refused = run("measure", "net.py:Net", "--device", "large", *words)
    assert refused.exit_code != 0
    assert "large cannot do what was asked: its cores are " in refused.stderr
    assert ", and 9000 was asked for." in refused.stderr
    assert _DEVICE not in refused.stderr


def test_python_and_cores_of_a_device_are_options_of_its_runtime(run):
    core = min(os.sched_getaffinity(0))
    words = ("measure", "net.py:Net", "--input", "3,8,8", "--runtime", "numpy", *_QUICK, "--format", "json")
    found = _table_of(run(*words, "--device", _DEVICE, "--runtime-option", f"cores={core}"))
    facts = found["platform"]["facts"]
    assert facts["runtime.cores"] == facts["cpu_affinity"] == str(core)
    platform = Platform("device", "numpy", facts=facts)
    assert DeviceOptions(_DEVICE, ()).of(platform).runtime_options == (("cores", str(core)),)
    assert DeviceOptions("cpu", ()).of(platform).runtime_options == ()
    refused = run(*words, "--device", _DEVICE, "--runtime-option", "python=/no/such/python")
    assert refused.exit_code == 2
    assert f"{_DEVICE} cannot run '/no/such/python': No such file or directory." in refused.stderr
    assert "has no option 'python'" in run(*words, "--runtime-option", "python=x").stderr


@pytest.mark.slow
def test_table_is_built_and_validated_on_a_device(run, tmp_path):
    space = ("--space-args", "preset=cifar,width=0.25,depth=0.1")
    built = run(
        "build-lut",
        *space,
        "--device",
        _DEVICE,
        "--runtime",
        "numpy",
        "--out",
        "t.json",
        *_QUICK,
    )
    assert built.exit_code == 0, built.output
    table = json.loads((tmp_path / "t.json").read_text())
    assert table["platform"]["facts"]["runtime.version"] == "1.0"
    validated = run(
        "validate",
        "t.json",
        "--device",
        _DEVICE,
        "--networks",
        "3",
        "--out",
        "v.json",
        *_QUICK,
    )
    assert validated.exit_code == 0, validated.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--device", "python:/no/such/python", "--runtime", "numpy"),
            "Got 'python:/no/such/python', which is not a program",
        ),
        (("--device", _DEVICE, "--runtime", "torch"), "it has no adapter for a device"),
        (("--device", _DEVICE, "--runtime", "torch"), f"These run on devices: {_RUNTIMES}."),
        (("--device", _DEVICE, "--runtime", "onnx"), f"Unknown runtime 'onnx'. Available: {_RUNTIMES}."),
        (("--device", "pi@raspberrypi", "--runtime", "numpy"), "To reach it by SSH, give ssh:pi@raspberrypi"),
        pytest.param(
            ("--device", "ssh:pi@no-such-host.invalid", "--runtime", "numpy"),
            "there is no host 'no-such-host.invalid'",
            marks=pytest.mark.skipif(shutil.which("ssh") is None, reason="needs openssh-client"),
        ),
        (("--device", _DEVICE, "--runtime", "numpy", "--runtime-option", "place=1"), "has no option 'place'"),
    ],
)
def test_what_cannot_be_measured_is_named(run, words, message):
    result = run("measure", "net.py:Net", "--input", "3,8,8", *words)
    assert result.exit_code == 2
    assert message in result.stderr


def test_network_that_is_queried_is_timed_by_the_clock_of_the_device(run):
    words = ("--platform", "numpy", "--measure", "always", "--device", _DEVICE, "--input", "3,8,8", "--budget", "2s")
    found = _table_of(run("query", "net.py:Net", *words, "--format", "json"))
    # A round trip takes longer than the network.
    (answer,) = found["answers"]
    assert 4e-5 < answer["value"] < 1e-3, answer


def test_predictor_of_several_platforms_is_asked_by_platform(run):
    result = run("predict", "net.py:Net", "--input", "3,8,8", "--estimator", "pretrained", "--device", _DEVICE)
    assert result.exit_code == 2
    assert "Name the platform of that device with --platform" in result.stderr


def test_energy_is_not_read_on_a_device(run):
    result = run("build-lut", "--device", _DEVICE, "--runtime", "numpy", "--metric", "energy")
    assert result.exit_code == 2
    assert "Energy and power are read on this machine alone" in result.stderr


@pytest.mark.parametrize("kind", ["module", "graph", "network"])
def test_estimator_that_measures_by_torch_needs_this_machine(run, kind):
    result = run("predict", "net.py:Net", "--input", "3,8,8", "--estimator", f"{kind}:{_DEVICE}")
    assert result.exit_code == 2
    assert "measures in eager torch, which runs on this machine alone" in result.stderr
