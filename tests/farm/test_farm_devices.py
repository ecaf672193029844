# SPDX-License-Identifier: Apache-2.0
"""Workers of a farm that own another device: this machine by SSH, or another Python of it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path

import nni_latency_farm as farm
import pytest
from farms import wait_until
from numpy_runtime import conv, device_runtime, script
from ssh_server import SSHD, running_ssh_server

from nni_latency.devices import DeviceError, PythonConnection, SshConnection
from nni_latency.errors import InvalidValueError, MeasurementError
from nni_latency.measurement import Campaign, CampaignHeader, MemoryStore, NetworkSchedule, Protocol, Subject
from nni_latency.measurement.meters import ConstantMeter

_SHAPE = (1, 4, 8, 8)


def _subjects():
    return [Subject(f"conv {count}", partial(conv, count), _SHAPE) for count in (4, 8, 12)]


def _runtime(path, kind, address, python, folder, patience=600.0):
    """Make the runtime of a device, in the process of a worker that has this search path."""
    os.environ["PATH"] = path
    connection = kind(address)
    connection.python, connection.folder, connection.lock_folders = python, folder, (folder,)
    runtime = device_runtime(connection)
    runtime.place.session.patience = patience
    return runtime


def _measured(benches, rounds, on_progress=lambda _state: None):
    """Return what a campaign measured."""
    protocol = Protocol(rounds=rounds, time_budget=1e9, half_width=0.0, processes=1)
    first, *others = _subjects()
    plan, store = NetworkSchedule(others, protocol, always=[first]), MemoryStore()
    with store.campaign(CampaignHeader(plan.kind, {}, benches.platform, protocol)) as log:
        Campaign(plan, benches, log, on_progress=on_progress).run()
    (stored,) = store.campaigns()
    return stored


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="t") as made:
        yield made


def test_threads_are_those_that_the_device_has():
    runtime = device_runtime(threads=1 + os.cpu_count())
    try:
        with pytest.raises(InvalidValueError, match=r"and python:\S+ may use \d+\. Give it fewer"):
            farm.join("tcp://127.0.0.1:1", runtime, name="pi")
    finally:
        runtime.close()


def test_meter_of_this_machine_is_refused():
    runtime = device_runtime()
    try:
        with pytest.raises(MeasurementError, match=r"reads this machine, and python:.* is another one"):
            farm.join("tcp://127.0.0.1:1", runtime, name="pi", meters={"constant": ConstantMeter(5)})
    finally:
        runtime.close()


@pytest.mark.slow
@pytest.mark.skipif(not SSHD.exists() or shutil.which("ssh") is None, reason="needs openssh-server and openssh-client")
def test_worker_owns_a_device_and_measures_there(processes, folder, monkeypatch):
    with running_ssh_server() as server:
        monkeypatch.setenv("PATH", f"{server.binaries}:{os.environ['PATH']}")
        make = partial(_runtime, os.environ["PATH"], SshConnection, server.address, sys.executable, folder)
        processes.join("first", make)
        with processes.client() as client:
            processes.wait_for(1, client)
            platform = client.platforms()[0].platform
            assert platform.facts["cpu_count"] == len(os.sched_getaffinity(0))
            assert platform.runtime == "numpy" and "cpu_affinity" in platform.facts
            # Another worker of this machine is refused at once, and any other process by the lock of the device.
            processes.join("second", make)
            wait_until(lambda: processes.workers["second"].exitcode is not None)
            other = make(patience=1.0)
            with pytest.raises(DeviceError, match="Another process has measured on ssh:"):
                other.take()
            other.close()
            cuts = [10, 20]

            def cut(state):
                if cuts and state.rounds >= cuts[0]:
                    del cuts[0]
                    server.cut()

            stored = _measured(client.benches(platform), 40, cut)
            assert not cuts
            assert not stored.failures
            assert len({record.round for record in stored.records}) == 40
            assert [worker.name for worker in client.workers()] == ["first"]
        assert processes.interrupt("first") == 0
        # What the worker held is free.
        other = make(patience=30.0)
        other.take()
        other.close()


@pytest.mark.slow
def test_worker_whose_device_is_lost_waits_in_quarantine_and_the_campaign_is_finished(processes, folder):
    python = script(folder, 'exec PYTHON "$@"')
    make = partial(_runtime, os.environ["PATH"], PythonConnection, sys.executable, str(python), folder, patience=1.0)
    processes.join("pi", make, check_every=1.0)
    with processes.client() as client:
        processes.wait_for(1, client)

        def lose():
            wait_until(lambda: client.workers()[0].jobs > 3)
            hidden = python.rename(python.with_suffix(".hidden"))
            _kill(str(python))
            wait_until(lambda: client.workers()[0].state == "quarantined")
            hidden.rename(python)

        losing = threading.Thread(target=lose)
        losing.start()
        stored = _measured(client.benches(client.platforms()[0].platform), 100)
        losing.join()
        assert not stored.failures
        assert len({record.round for record in stored.records}) == 100
    said = processes.said.read_text()
    assert re.search(r"pi is in quarantine and gets no work: .* did not come back within 1 s \(.*No such file", said), (
        said
    )
    assert "pi measures again" in said


def _kill(python):
    """Kill the agents that were started by a program."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if python in (entry / "cmdline").read_text(errors="replace").split("\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
