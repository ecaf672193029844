# SPDX-License-Identifier: Apache-2.0
"""Networks are measured over SSH, on a device that is this machine behind a real server."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest
from numpy_runtime import LEAST, conv, device_runtime
from ssh_server import SSHD, running_ssh_server

from nni_latency.devices import SshConnection
from nni_latency.measurement import (
    Campaign,
    CampaignHeader,
    MemoryStore,
    NetworkSchedule,
    Protocol,
    Subject,
    measure_network,
)

pytestmark = pytest.mark.skipif(
    not SSHD.exists() or shutil.which("ssh") is None, reason="needs openssh-server and openssh-client"
)

_SHAPE = (1, 4, 8, 8)


@pytest.fixture
def server(monkeypatch):
    with running_ssh_server() as server:
        monkeypatch.setenv("PATH", f"{server.binaries}:{os.environ['PATH']}")
        yield server


@pytest.fixture
def device(server):
    with tempfile.TemporaryDirectory(prefix="t") as folder, SshConnection(server.address) as connection:
        connection.python, connection.folder = sys.executable, folder
        yield connection


def _agents(folder):
    """Return the processes of agents that keep their files in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_text(errors="replace")
            except OSError:
                continue
            if folder in words and "sshd" not in words:
                found.append(entry.name)
    return found


def _assert_nothing_is_left(folder):
    limit = time.monotonic() + 60
    while (_agents(folder) or list(Path(folder).iterdir())) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not _agents(folder)
    assert not list(Path(folder).iterdir())


def test_network_is_measured_over_ssh(device):
    runtime = device_runtime(device)
    protocol = Protocol(n_run=3, rounds=2, processes=1, half_width=0.0, time_budget=600.0, timeout=60.0)
    found = measure_network(conv().eval(), _SHAPE, runtime, protocol)
    assert min(found.samples) >= 3 * LEAST
    assert _agents(device.folder)
    runtime.close()
    _assert_nothing_is_left(device.folder)


@pytest.mark.slow
def test_campaign_goes_on_when_the_connection_is_cut(device, server):
    cut_at = []
    runtime = device_runtime(device)
    protocol = Protocol(n_run=3, rounds=12, processes=2, half_width=0.0, time_budget=600.0, timeout=60.0)
    subjects = [Subject(key, partial(conv, 4, size), _SHAPE, "network") for key, size in (("a", 1), ("b", 3))]

    def cut_once(state):
        if state.rounds >= 3 and not cut_at:
            cut_at.append(state.rounds)
            server.cut()

    with MemoryStore().campaign(CampaignHeader("networks", {}, runtime.platform, protocol)) as log:
        Campaign(NetworkSchedule(subjects, protocol), runtime.benches(), log, on_progress=cut_once).run()
        assert cut_at
        assert not log.failures
        assert max(record.round for record in log.records) == protocol.rounds - 1
    runtime.close()
    _assert_nothing_is_left(device.folder)
