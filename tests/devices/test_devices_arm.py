# SPDX-License-Identifier: Apache-2.0
"""Another processor: a Python for ARM that this machine runs by emulation, as another Python and over SSH."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest
import torch
from emulated_arm import BOARD, UnavailableError, make_arm_python
from ssh_server import SSHD, running_ssh_server
from torch import nn

from nni_latency.devices import DeviceError, DeviceRuntime, PythonConnection, SshConnection
from nni_latency.errors import MeasurementError
from nni_latency.measurement import (
    Campaign,
    CampaignHeader,
    MemoryStore,
    NetworkSchedule,
    Protocol,
    Subject,
)
from nni_latency.operators import capture_operators
from nni_latency.tables import LookupTable, MeasurePlan, PlanCandidate, PlanLayer, SpaceReference, build_table

pytestmark = pytest.mark.slow

_PLUGINS = Path(__file__).parents[2] / "plugins"

_CLASSES = {"onnxruntime": ("OnnxRuntime", "1.20.1"), "ncnn": ("Ncnn", "1.0.20261020")}

_SHAPE = (1, 3, 8, 8)

_QUICK = Protocol(n_run=2, rounds=3, processes=1, half_width=0.0, time_budget=600.0, timeout=120.0)


@pytest.fixture(scope="session")
def arm():
    """Return the folder of the environment."""
    try:
        return make_arm_python()
    except UnavailableError as error:
        pytest.skip(str(error))


def _conv(size=3):
    return nn.Sequential(nn.Conv2d(3, 3, size, padding=size // 2), nn.ReLU(), nn.Conv2d(3, 3, 1))


def _runtime(name, connection, on_wait=lambda _sentence: None):
    pytest.importorskip(name)
    pytest.importorskip("onnx")
    if str(_PLUGINS / f"nni_latency_{name}") not in sys.path:
        sys.path.append(str(_PLUGINS / f"nni_latency_{name}"))
    kind = getattr(importlib.import_module(f"nni_latency_{name}"), _CLASSES[name][0])
    return DeviceRuntime(lambda place: kind(place=place), connection, on_wait)


@pytest.mark.parametrize("name", _CLASSES)
def test_networks_run_on_another_processor(name, arm):
    runtime = _runtime(name, PythonConnection(str(arm)))
    facts = runtime.platform.facts
    assert runtime.platform.id == f"raspberry-pi-4-model-b-rev-1-4.{name}.fp32.t1"
    assert (facts["machine"], facts["device_name"]) == ("aarch64", BOARD)
    assert facts["cpu_signature"] == "0x41-0xd08-3"
    assert facts["runtime.version"] == _CLASSES[name][1]
    assert "virtualised" not in facts
    assert runtime.conditions().virtualised is None
    # So few weights are sent, and what is computed with them is compared with torch.
    subjects = [Subject(f"k{size}", partial(_conv, size), _SHAPE, "network") for size in (1, 3)]
    with MemoryStore().campaign(CampaignHeader("networks", {}, runtime.platform, _QUICK)) as log:
        Campaign(NetworkSchedule(subjects, _QUICK), runtime.benches(), log).run()
        assert not log.failures
        assert {key for record in log.records for key in record.subjects} == {"k1", "k3"}
        assert all(min(record.whole) > 0 and record.reference > 0 for record in log.records)
    runtime.close()


def _plan():
    layers = [
        PlanLayer(
            f"layer{index}",
            {
                f"k{size}": PlanCandidate(
                    capture_operators(nn.Conv2d(3, 3, size, padding=size // 2), torch.zeros(_SHAPE))[0][1],
                    partial(_conv, size),
                )
                for size in (1, 3)
            },
        )
        for index in range(2)
    ]
    return MeasurePlan(SpaceReference("convolutions", {}), _SHAPE, tuple(layers))


@pytest.mark.skipif(not SSHD.exists() or shutil.which("ssh") is None, reason="needs openssh-server and openssh-client")
def test_table_is_resumed_on_another_processor(arm, tmp_path, monkeypatch):
    where = {"out": tmp_path / "t.json", "store": tmp_path / "db.sqlite"}

    def lose(runtime, server, state):
        if state.rounds == 1:
            runtime.place.session.patience = 0.0
            server.forget_host()
            server.cut()

    with (
        running_ssh_server() as server,
        # The lock of a device has the name of its folder, and a socket's path must be short.
        tempfile.TemporaryDirectory(prefix="t") as folder,
        SshConnection(server.address) as connection,
    ):
        monkeypatch.setenv("PATH", f"{server.binaries}:{os.environ['PATH']}")
        connection.python, connection.folder = str(arm / "bin" / "python"), folder
        runtime = _runtime("onnxruntime", connection)
        with pytest.raises(MeasurementError, match=r"Run the same command again to resume\.$"):
            build_table(_plan(), runtime, _QUICK, on_progress=partial(lose, runtime, server), **where)
        server.know_host()
        # The agent that was cut off may hold the lock for a moment.
        runtime.place.session.patience = 600.0
        begun = []
        table = build_table(_plan(), runtime, _QUICK, on_start=begun.append, **where)
        runtime.close()
        assert not list(Path(folder).iterdir())
    assert begun == [1]
    assert (table.rounds, table.coverage) == (3, 1)
    found = LookupTable.load(where["out"])
    assert found.platform.facts["machine"] == "aarch64"
    assert all(0 < entry.value < 10 for layer in found.layers for entry in layer.entries.values())


def test_runtime_that_is_absent_is_named_for_its_processor(arm):
    python = arm / "bin" / "bare"
    message = rf"Python 3\.\d+\.\d+, aarch64\) cannot load 'numpy' .*: {python} -m pip install numpy onnxruntime$"
    with pytest.raises(DeviceError, match=message):
        _runtime("onnxruntime", PythonConnection(str(python)))
