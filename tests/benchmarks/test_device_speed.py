# SPDX-License-Identifier: Apache-2.0
"""What the connection to a device costs of a budget.

Run with: python -m pytest -o addopts="" -s tests/benchmarks/test_device_speed.py

The device is this machine: by another Python, by SSH, and by SSH with a round trip of 20 ms. What a visit takes beyond
its time on the device is preparation here, which all three have, and the connection.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ssh_server import SSHD, SshServer, running_ssh_server

from nni_latency.devices import Connection, DeviceRuntime, PythonConnection, SshConnection
from nni_latency.measurement import Campaign, CampaignHeader, MemoryStore, Protocol
from nni_latency.spaces import FBNetSpace
from nni_latency.tables import LayerSchedule

pytestmark = pytest.mark.skipif(
    not SSHD.exists() or shutil.which("ssh") is None, reason="needs openssh-server and openssh-client"
)

_PLUGIN = Path(__file__).parents[2] / "plugins" / "nni_latency_onnxruntime"

_PROTOCOL = Protocol(rounds=6, processes=1, half_width=0.0, time_budget=600.0)

#: Most of a budget that the connection may cost.
_MOST = 0.10

#: A round trip that is simulated [s].
_ROUND_TRIP = 0.02


@pytest.fixture(scope="module")
def server() -> Iterator[SshServer]:
    with running_ssh_server() as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{made.binaries}:{os.environ['PATH']}")
        yield made


def note_times(runtime: DeviceRuntime) -> list[float]:
    """Return a list that gets the time of every visit on the device [s]."""
    session, there = runtime.place.session, list[float]()
    ask_all = session.ask_all

    def noted(pieces: Sequence[Mapping[str, Any]], timeout: float) -> Iterator[Any]:
        for answer in ask_all(pieces, timeout):
            if "duration" in answer.values:
                there.append(answer.values["duration"])
            yield answer

    session.ask_all = noted  # type: ignore[method-assign]
    return there


def _measured(connection: Connection) -> tuple[float, float]:
    """Return the shortest round trip [s], and the share of the budget that is not spent on the device."""
    sys.path.append(str(_PLUGIN))
    plugin = importlib.import_module("nni_latency_onnxruntime")
    connection.python = sys.executable
    runtime = DeviceRuntime(lambda place: plugin.OnnxRuntime(place=place), connection)
    there, trips = note_times(runtime), []
    for _ in range(5):
        begin = time.perf_counter()
        runtime.place.session.conditions()
        trips.append(time.perf_counter() - begin)
    schedule = LayerSchedule(FBNetSpace(preset="cifar10", depth=0.25).measure_plan(), _PROTOCOL)
    with MemoryStore().campaign(CampaignHeader("layers", {}, runtime.platform, _PROTOCOL)) as log:
        Campaign(schedule, runtime.benches(), log).run()
    runtime.close()
    spent = sum(record.duration for record in log.records)
    assert schedule.rounds == _PROTOCOL.rounds
    return min(trips), 1 - sum(there[-len(log.records) :]) / spent


def test_connection_costs_little_of_a_budget(server: SshServer) -> None:
    pytest.importorskip("onnxruntime")
    found = {}
    for name in ("another Python", "SSH", "SSH, 20 ms"):
        if name == "SSH, 20 ms":
            server.delay(_ROUND_TRIP)
        is_here = name == "another Python"
        with PythonConnection(sys.executable) if is_here else SshConnection(server.address) as connection:
            found[name] = _measured(connection)
        trip, share = found[name]
        sys.stdout.write(f"\n{name}: round trip {1e3 * trip:.1f} ms, {100 * share:.1f} % of the budget elsewhere\n")
    assert found["SSH, 20 ms"][0] >= _ROUND_TRIP
    cost = found["SSH, 20 ms"][1] - found["another Python"][1]
    sys.stdout.write(f"The round trip of 20 ms costs {100 * cost:.1f} % of the budget.\n")
    assert cost <= _MOST
