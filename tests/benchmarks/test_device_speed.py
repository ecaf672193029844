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

#: One way [s], and what delays both ways as ssh's ProxyCommand.
_DELAY = 0.01
_RELAY = f"""
import os, queue, socket, sys, threading, time
server = socket.create_connection((sys.argv[1], int(sys.argv[2])))
server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def relay(read, write):
    waiting = queue.Queue()
    def deliver():
        while True:
            moment, data = waiting.get()
            time.sleep(max(0.0, moment - time.monotonic()))
            if not data:
                os._exit(0)
            write(data)
    threading.Thread(target=deliver).start()
    data = b"x"
    while data:
        data = read()
        waiting.put((time.monotonic() + {_DELAY}, data))
def print_all(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
threading.Thread(target=relay, args=(lambda: os.read(0, 2**16), server.sendall)).start()
relay(lambda: server.recv(2**16), print_all)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[SshServer]:
    with running_ssh_server() as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{made.binaries}:{os.environ['PATH']}")
        yield made


def _delay(server: SshServer) -> None:
    (server.folder / "relay.py").write_text(_RELAY)
    with (server.folder / "ssh_config").open("a") as file:
        file.write(f"\n    ProxyCommand {sys.executable} -SE {server.folder}/relay.py %h %p\n")


def _measured(connection: Connection) -> tuple[float, float]:
    """Return the shortest round trip [s], and the share of the budget that is not spent on the device."""
    sys.path.append(str(_PLUGIN))
    plugin = importlib.import_module("nni_latency_onnxruntime")
    connection.python = sys.executable
    runtime = DeviceRuntime(lambda place: plugin.OnnxRuntime(place=place), connection)
    session, there = runtime.place.session, []
    ask_all = session.ask_all

    def noted(pieces: Sequence[Mapping[str, Any]], timeout: float) -> Iterator[Any]:
        for answer in ask_all(pieces, timeout):
            there.append(answer.values.get("duration"))
            yield answer

    session.ask_all = noted  # type: ignore[method-assign]
    trips = []
    for _ in range(5):
        begin = time.perf_counter()
        session.conditions()
        trips.append(time.perf_counter() - begin)
    schedule = LayerSchedule(FBNetSpace(preset="cifar10", depth=0.25).measure_plan(), _PROTOCOL)
    with MemoryStore().campaign(CampaignHeader("layers", {}, runtime.platform, _PROTOCOL)) as log:
        Campaign(schedule, runtime.benches(), log).run()
    runtime.close()
    spent = sum(record.duration for record in log.records)
    visits = [seconds for seconds in there if seconds is not None][-len(log.records) :]
    assert schedule.rounds == _PROTOCOL.rounds
    return min(trips), 1 - sum(visits) / spent


def test_connection_costs_little_of_a_budget(server: SshServer) -> None:
    pytest.importorskip("onnxruntime")
    found = {}
    for name in ("another Python", "SSH", "SSH, 20 ms"):
        if name == "SSH, 20 ms":
            _delay(server)
        is_here = name == "another Python"
        with PythonConnection(sys.executable) if is_here else SshConnection(server.address) as connection:
            found[name] = _measured(connection)
        trip, share = found[name]
        sys.stdout.write(f"\n{name}: round trip {1e3 * trip:.1f} ms, {100 * share:.1f} % of the budget elsewhere\n")
    assert found["SSH, 20 ms"][0] >= 2 * _DELAY
    cost = found["SSH, 20 ms"][1] - found["another Python"][1]
    sys.stdout.write(f"The round trip of 20 ms costs {100 * cost:.1f} % of the budget.\n")
    assert cost <= _MOST
