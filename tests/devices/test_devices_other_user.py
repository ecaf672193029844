# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime on a device that is another user of this machine, with nothing but the runtime and numpy."""

from __future__ import annotations

import importlib
import os
import pwd
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest
from numpy_runtime import conv_plan
from ssh_server import SSHD, device_account, running_ssh_server
from torch import nn

from nni_latency.devices import DeviceRuntime, SshConnection, check_device
from nni_latency.errors import MeasurementError
from nni_latency.measurement import Protocol, measure_network
from nni_latency.tables import build_table

pytestmark = pytest.mark.skipif(
    not SSHD.exists() or shutil.which("ssh") is None, reason="needs openssh-server and openssh-client"
)

_QUICK = Protocol(n_run=2, rounds=2, processes=1, half_width=0.0, time_budget=600.0, timeout=60.0)


@pytest.fixture(scope="module")
def account():
    for package in ("onnxruntime", "onnx"):
        pytest.importorskip(package)
    with device_account("numpy", "onnxruntime") as made:
        if made.reason:
            pytest.skip(made.reason)
        yield made


@pytest.fixture(scope="module")
def server(account):
    with running_ssh_server(account=account) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{server.binaries}:{os.environ['PATH']}")
        yield server


@pytest.fixture
def device(account, server):
    with SshConnection(server.address) as connection:
        connection.python, connection.lock_folders = account.python, (str(account.home),)
        yield connection
    account.assert_nothing_is_left()


@pytest.fixture
def runtime(device, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "plugins" / "nni_latency_onnxruntime"))
    kind = importlib.import_module("nni_latency_onnxruntime").OnnxRuntime
    made = DeviceRuntime(lambda place: kind(place=place), device)
    yield made
    made.close()


def test_user_reads_nothing_of_the_tests_and_of_their_user(device, account, monkeypatch):
    monkeypatch.setenv("NNI_LATENCY_OF_THE_TESTS", "1")
    assert device.run(["id", "-u"]).out.decode().strip() == str(account.number) != str(os.geteuid())
    for path in (Path(__file__), Path(__file__).parents[2], pwd.getpwuid(0).pw_dir):
        assert device.run(["ls", str(path)]).code != 0
    assert b"NNI_LATENCY" not in device.run(["env"]).out
    # It is not known outside.
    assert account.name not in {user.pw_name for user in pwd.getpwall()}


def test_python_has_the_runtime_and_numpy_alone(device):
    found = check_device(device)
    assert set(found.packages) == {"numpy", "onnxruntime"}
    assert found.facts["python"] == sys.version.split()[0]
    for module in ("nni", "nni_latency", "onnx", "pip", "torch"):
        assert b"ModuleNotFoundError" in device.run([device.python, "-c", f"import {module}"]).err


def test_network_is_measured(runtime):
    facts = runtime.platform.facts
    assert facts["runtime.version"] == importlib.import_module("onnxruntime").__version__
    assert facts["machine"] == os.uname().machine
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    assert min(measure_network(network, (1, 3, 8, 8), runtime, _QUICK).samples) > 0


@pytest.mark.slow
def test_table_is_resumed_after_a_loss(runtime, server, tmp_path):
    plan = conv_plan((1, 4, 8, 8))
    build = partial(build_table, plan, runtime, _QUICK, tmp_path / "t.json", store=tmp_path / "db.sqlite")

    def lose(state):
        if state.rounds == 1:
            runtime.place.session.patience = 0.0
            server.forget_host()
            server.cut()

    with pytest.raises(MeasurementError, match=r"Run the same command again to resume\.$"):
        build(on_progress=lose)
    server.know_host()
    # The agent that was cut off may hold the lock for a moment.
    runtime.place.session.patience = 600.0
    begun = []
    table = build(on_start=begun.append)
    assert begun == [1]
    assert table.coverage == 1
    assert table.platform.facts["runtime.provider"] == "CPUExecutionProvider"
