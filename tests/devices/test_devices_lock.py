# SPDX-License-Identifier: Apache-2.0
"""The lock of a device: agents and benchmark binaries exclude each other, whatever their temporary folders are."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

import pytest
from numpy_runtime import conv, device_runtime, tool_runtime

from nni_latency.devices import DeviceError, DeviceRuntime, PythonConnection, ToolDevice, ToolRuntime, tool_of
from nni_latency.measurement import Protocol, Subject

pytestmark = pytest.mark.skipif(shutil.which("flock") is None, reason="this machine has no flock")

_PLUGINS = Path(__file__).parents[2] / "plugins"

_QUICK = Protocol(n_run=2, rounds=2, processes=1, half_width=0.0, time_budget=600.0, timeout=60.0)


def _agent(connection, _folder, on_wait):
    return device_runtime(connection, on_wait)


def _connection(folders):
    connection = PythonConnection(sys.executable)
    connection.lock_folders = folders
    return connection


def _measured_in_turn(first, second, waits):
    """Measure with a runtime while another one measures, until it waits for that one."""
    with contextlib.ExitStack() as stack:
        stack.callback(first.close)
        opened = stack.enter_context(contextlib.ExitStack())
        opened.enter_context(first.benches().open(_QUICK))

        def note(sentence):
            waits.append(sentence)
            opened.close()

        runtime = second(note)
        stack.callback(runtime.close)
        with runtime.benches().open(_QUICK) as bench:
            bench.admit(Subject("net", conv, (1, 4, 8, 8), "network"))
            assert min(bench.visit(["net"]).whole) > 0


@pytest.mark.parametrize(
    ("first", "second"), [(_agent, tool_runtime), (tool_runtime, _agent)], ids=["agent first", "binary first"]
)
def test_agent_and_binary_exclude_each_other(tmp_path, monkeypatch, first, second):
    connection, waits = _connection((str(tmp_path),)), []
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folders[0]))
    held = first(connection, tmp_path, waits.append)
    monkeypatch.setenv("TMPDIR", str(folders[1]))
    _measured_in_turn(held, partial(second, connection, tmp_path), waits)
    assert waits == [f"Waiting for python:{sys.executable}: another process measures there"]
    assert not list(folders[0].iterdir()) and not list(folders[1].iterdir())


class _Lingering(PythonConnection):
    """A device on which the program that finds the lock taken ends a while after its output."""

    def start(self, command):
        """Start a program."""
        script = '"$@"; code=$?; exec >&- 2>&-; [ $code != 9 ] || sleep 2; exit $code'
        is_lock = any("flock -n" in word for word in command)
        return super().start(["sh", "-c", script, "sh", *command] if is_lock else command)


def test_lock_that_is_taken_is_waited_for_however_slowly_its_program_ends(tmp_path):
    slow, waits = _Lingering(sys.executable), []
    slow.lock_folders = (str(tmp_path),)
    held = tool_runtime(_connection((str(tmp_path),)), tmp_path)
    _measured_in_turn(held, partial(tool_runtime, slow, tmp_path), waits)
    assert len(waits) == 1


def _onnxruntime(connection, _folder, on_wait):
    sys.path.append(str(_PLUGINS / "nni_latency_onnxruntime"))
    plugin = importlib.import_module("nni_latency_onnxruntime")
    return DeviceRuntime(lambda place: plugin.OnnxRuntime(place=place), connection, on_wait)


def _benchmark_app(connection, _folder, on_wait):
    binary = str(Path(sys.executable).with_name("benchmark_app"))
    return ToolRuntime(ToolDevice(connection, tool_of("benchmark_app"), binary, on_wait=on_wait))


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(_onnxruntime, _benchmark_app), (_benchmark_app, _onnxruntime)])
def test_onnxruntime_and_benchmark_app_exclude_each_other(tmp_path, first, second):
    for package in ("onnxruntime", "openvino"):
        pytest.importorskip(package)
    connection, waits = _connection((str(tmp_path),)), []
    _measured_in_turn(first(connection, tmp_path, waits.append), partial(second, connection, tmp_path), waits)
    assert waits == [f"Waiting for python:{sys.executable}: another process measures there"]


@pytest.mark.parametrize("make", [_agent, tool_runtime])
def test_first_folder_that_can_be_opened_is_locked(tmp_path, make):
    both = [_connection((f"{tmp_path}/absent", str(tmp_path))), _connection((str(tmp_path), "/"))]
    waits = []
    _measured_in_turn(make(both[0], tmp_path, waits.append), partial(make, both[1], tmp_path), waits)
    assert len(waits) == 1


@pytest.mark.parametrize("make", [_agent, tool_runtime])
def test_device_without_such_a_folder_has_no_lock(tmp_path, make):
    connection, waits = _connection((f"{tmp_path}/absent",)), []
    first, second = (make(connection, tmp_path, waits.append) for _ in range(2))
    with first.benches().open(_QUICK), second.benches().open(_QUICK):
        assert waits == []
    first.close()
    second.close()


def test_lock_of_an_agent_that_is_killed_is_free(tmp_path):
    connection, waits = _connection((str(tmp_path),)), []
    first, second = device_runtime(connection, waits.append), device_runtime(connection, waits.append)
    with first.benches().open(_QUICK):
        os.kill(first.place.session._line._process.pid, signal.SIGKILL)
        first.place.session._line._process.wait(60)
        with second.benches().open(_QUICK):
            assert waits == []
    first.close()
    second.close()


def test_lock_of_a_binary_that_was_lost_is_taken_again(tmp_path):
    connection = _connection((str(tmp_path),))
    first, second = tool_runtime(connection, tmp_path), device_runtime(connection)
    second.place.session.patience = 0.0
    with first.benches().open(_QUICK) as bench:
        bench.admit(Subject("net", conv, (1, 4, 8, 8), "network"))
        os.kill(first.device.lock._holder.pid, signal.SIGKILL)
        first.device.lock._holder.wait(60)
        bench.visit(["net"])
        with pytest.raises(DeviceError, match="Another process has measured on python:"):
            second.take()
    second.place.session.patience = 60.0
    second.take()
    first.close()
    second.close()
