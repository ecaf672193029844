# SPDX-License-Identifier: Apache-2.0
"""What goes wrong on a device while a table is built there: nothing is lost, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from numpy_runtime import conv_plan, device_runtime, script

from nni_latency.devices import Connection, DeviceError, PythonConnection, _agent
from nni_latency.measurement import Protocol
from nni_latency.tables import build_table

_SHAPE = (1, 4, 8, 8)

_NOBODY = 65534

# Passes on what a program prints, with garbage after so many pieces of it.
_GARBLE = """\
import os, subprocess, sys
process = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE)
count = 0
while data := os.read(process.stdout.fileno(), 2**16):
    os.write(1, data)
    count += 1
    if count == int(sys.argv[1]):
        os.write(1, b"\\xfeSegmentation fault\\n" * 100)
"""


def _protocol(rounds):
    return Protocol(n_run=3, rounds=rounds, processes=1, half_width=0.0, time_budget=600.0, timeout=60.0)


class _Remembered(PythonConnection):
    """A connection whose processes are remembered."""

    def __init__(self, address):
        super().__init__(str(address))
        self.processes = []

    def start(self, command):
        """Start a program."""
        self.processes.append(super().start(command))
        return self.processes[-1]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Make the temporary folder of the device."""
    made = tmp_path / "device"
    made.mkdir()
    monkeypatch.setenv("TMPDIR", str(made))
    return made


def _assert_nothing_is_left(folder, connection):
    limit = time.monotonic() + 60
    while list(folder.iterdir()) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not list(folder.iterdir())
    assert all(process.poll() is not None for process in connection.processes)


def test_garbage_between_answers_costs_no_round(tmp_path, folder):
    (tmp_path / "garble.py").write_text(_GARBLE)
    first = f'mkdir "{tmp_path}/first" 2>/dev/null && exec PYTHON "{tmp_path}/garble.py" 12 PYTHON "$@"'
    connection = _Remembered(script(tmp_path, f'{first}\nexec PYTHON "$@"'))
    runtime = device_runtime(connection)
    table = build_table(conv_plan(_SHAPE), runtime, _protocol(4), tmp_path / "t.json", store=tmp_path / "db.sqlite")
    runtime.close()
    assert (table.rounds, table.coverage) == (4, 1)
    assert len(connection.processes) > 1
    _assert_nothing_is_left(folder, connection)


def _entries(table):
    return {(layer.name, name): entry.value for layer in table.layers for name, entry in layer.entries.items()}


def _built(tmp_path, name, rounds, on_progress=lambda _state, _connection: None):
    connection = _Remembered(sys.executable)
    runtime = device_runtime(connection)
    where = {"out": tmp_path / f"{name}.json", "store": tmp_path / f"{name}.sqlite"}
    table = build_table(
        conv_plan(_SHAPE), runtime, _protocol(rounds), on_progress=lambda state: on_progress(state, connection), **where
    )
    runtime.close()
    return table, connection


@pytest.mark.slow
def test_device_that_becomes_three_times_slower_keeps_its_entries(tmp_path, folder, monkeypatch):
    slow = tmp_path / "slow"
    monkeypatch.setenv("NUMPY_ADAPTER_SLOW", str(slow))
    usual = _entries(_built(tmp_path, "usual", 12)[0])

    def slow_down(state, _connection):
        if state.rounds == 8:
            slow.touch()

    table, connection = _built(tmp_path, "slow", 12, slow_down)
    assert slow.exists()
    assert table.rounds == 12
    assert {key: value / usual[key] for key, value in _entries(table).items()} == pytest.approx(
        dict.fromkeys(usual, 1.0), rel=0.3
    )
    _assert_nothing_is_left(folder, connection)


def _stop_now_and_then(connection, ended, stops):
    while not ended.wait(0.1):
        for number, pause in ((signal.SIGSTOP, 0.2), (signal.SIGCONT, 0.0)):
            process = connection.processes[-1]
            # It may end at this moment.
            with contextlib.suppress(ProcessLookupError):
                if process.poll() is None:
                    os.killpg(process.pid, number)
            time.sleep(pause)
        stops.append(time.monotonic())


@pytest.mark.slow
def test_device_that_stops_now_and_then_keeps_its_entries(tmp_path, folder):
    usual = _entries(_built(tmp_path, "usual", 12)[0])
    ended, stops, stoppers = threading.Event(), [], []

    def begin(state, connection):
        if state.rounds >= 4 and not stoppers:
            stoppers.append(threading.Thread(target=_stop_now_and_then, args=(connection, ended, stops)))
            stoppers[0].start()

    try:
        table, connection = _built(tmp_path, "stopped", 30, begin)
    finally:
        ended.set()
        for stopper in stoppers:
            stopper.join()
    assert len(stops) >= 3
    assert table.rounds == 30
    assert {key: value / usual[key] for key, value in _entries(table).items()} == pytest.approx(
        dict.fromkeys(usual, 1.0), rel=0.3
    )
    _assert_nothing_is_left(folder, connection)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_of_the_device_waits(monkeypatch):
    python = shutil.which("python3", path="/usr/bin:/bin")
    if python is None:
        pytest.skip("needs a Python that every user may run")
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        Path(folder).chmod(0o1777)
        monkeypatch.setattr(Connection, "lock_folders", (folder,))
        other = subprocess.Popen(
            [python, "-u", "-c", _agent.BOOTSTRAP, python, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
            user=_NOBODY,
            group=_NOBODY,
            extra_groups=[],
            env={"PATH": os.environ["PATH"]},
        )
        source = Path(_agent.__file__).read_bytes()
        asked = _agent.pack({"do": "lock", "folders": [folder], "id": 1, "timeout": 30.0})
        other.stdin.write(len(source).to_bytes(8, "big") + source + asked)
        other.stdin.flush()
        frames = _agent.Frames(greeted=True)
        while (frame := frames.next() if frames.greeting is None else None) is None:
            data = os.read(other.stdout.fileno(), 2**16)
            assert data, "the agent has ended"
            frames.feed(data)
        assert frame[0]["taken"]
        monkeypatch.setenv("TMPDIR", folder)
        waits = []
        runtime = device_runtime(on_wait=waits.append)
        runtime.place.session.patience = 2.0
        with pytest.raises(DeviceError, match=r"Another process has measured on .*\. Try again when it has ended\."):
            runtime.benches().open(_protocol(1)).__enter__()
        assert len(waits) == 1
        # Its folder is let be.
        assert other.poll() is None
        assert len(list(Path(folder).iterdir())) == 2
        other.stdin.close()
        other.wait(60)
        other.stdout.close()
        with runtime.benches().open(_protocol(1)):
            pass
        runtime.close()
        assert not list(Path(folder).iterdir())
