# SPDX-License-Identifier: Apache-2.0
"""The agent: its frames and contents, what it reads of a device, and what is left of it."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numpy_runtime import device_runtime

from nni_latency.devices import PythonConnection, Session, ShellFacts, _agent, _probe
from nni_latency.platforms import FACTS, Conditions, Platform

_ADAPTER = Path(__file__).parents[1] / "numpy_adapter.py"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Give agents a temporary folder of their own."""
    folder = tmp_path / "device"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def session(temporary):
    """Open a session on this machine's Python, and close it."""
    made = Session(PythonConnection(sys.executable), _ADAPTER, {"threads": 1})
    made.open()
    yield made
    made.close()


def _until(condition, seconds=60.0):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.02)


def test_agent_and_adapters_are_python_3_8():
    plugins = Path(_agent.__file__).parents[2] / "plugins"
    for path in (Path(_agent.__file__), Path(_probe.__file__), *plugins.glob("*/*/_adapter.py")):
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))


@pytest.mark.parametrize("module", [_agent, _probe])
def test_agent_imports_the_standard_library_alone(module):
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name if isinstance(node, ast.Import) else node.module for node in top for alias in node.names}
    assert {name.partition(".")[0] for name in names} <= set(sys.stdlib_module_names), names


def test_frames_come_apart_wherever_they_are_cut():
    data = _agent.pack({"a": 1}, [b"xyz", b""]) + _agent.pack({"b": [2]})
    for size in (1, 3, 7, len(data)):
        frames, found = _agent.Frames(), []
        for at in range(0, len(data), size):
            frames.feed(data[at : at + size])
            while (frame := frames.next()) is not None:
                found.append(frame)
        assert found == [({"a": 1, "blobs": [3, 0]}, [b"xyz", b""]), ({"b": [2], "blobs": []}, [])]


@pytest.mark.parametrize(
    "data",
    [
        (2**60).to_bytes(8, "big"),
        (5).to_bytes(8, "big") + b"hello",
        (2).to_bytes(8, "big") + b"{}",
        (15).to_bytes(8, "big") + b'{"blobs": [-1]}',
        (18).to_bytes(8, "big") + b'{"blobs": ["a"] } ',
        (2).to_bytes(8, "big") + b"[]",
    ],
)
def test_what_is_no_frame_is_refused(data):
    frames = _agent.Frames()
    frames.feed(data)
    with pytest.raises(_agent.FrameError):
        frames.next()


def test_a_frame_that_is_cut_off_is_not_one():
    frames = _agent.Frames()
    data = _agent.pack({"a": 1}, [b"xyz"])
    frames.feed(data[:-1])
    assert frames.next() is None
    frames.feed(data[-1:])
    assert frames.next() == ({"a": 1, "blobs": [3]}, [b"xyz"])


def test_holes_are_filled_with_numbers_of_the_same_spread():
    data = b"head" + bytes(40000) + b"tail"
    content = _agent.shrink(data, [(4, 40000, 7, 0.5)])
    assert len(content) < 200
    found = _agent.expand(content)
    numbers = np.frombuffer(found[4:-4], np.float32)
    assert (found[:4], found[-4:], len(found)) == (b"head", b"tail", len(data))
    assert abs(numbers.std() - 0.5) < 0.02
    assert _agent.expand(content) == found


def test_facts_are_those_of_this_package():
    found = _agent.facts()
    assert set(found) <= {fact.name for fact in FACTS}
    here = Platform.current().facts
    for name in ("device_name", "device_kind", "cpu_signature", "machine", "cache", "virtualised"):
        assert found.get(name) == here.get(name), name


def test_facts_of_a_board_are_read(tmp_path):
    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "proc/device-tree/model").write_text("Raspberry Pi 4 Model B Rev 1.4\0")
    info = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd08\nCPU revision\t: 3\n"
    (tmp_path / "proc/cpuinfo").write_text(info)
    (tmp_path / "proc/meminfo").write_text("MemTotal:        3884344 kB\n")
    found = _agent.facts(f"{tmp_path}/")
    assert found["device_name"] == "Raspberry Pi 4 Model B Rev 1.4"
    assert found["cpu_signature"] == "0x41-0xd08-3"
    assert found["memory"] == 3884344 * 1024


_TEGRA = (
    "# R32 (release), REVISION: 7.1, GCID: 29818004, BOARD: t210ref, EABI: aarch64, DATE: Sat Feb 19 17:05:08 UTC 2022"
)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"etc/nv_tegra_release": _TEGRA, "proc/device-tree/model": "NVIDIA Jetson Nano Developer Kit\0"},
            {"gpu_name": "NVIDIA Jetson Nano Developer Kit", "gpu_driver": "L4T 32.7.1"},
        ),
        ({"sys/class/kgsl/kgsl-3d0/gpu_model": "Adreno640v2\n"}, {"gpu_name": "Adreno640v2"}),
        (
            {"sys/class/misc/mali0/device/gpuinfo": "Mali-G57 5 cores r0p1 0x9091\n"},
            {"gpu_name": "Mali-G57 5 cores r0p1"},
        ),
        ({}, {}),
    ],
    ids=["Jetson", "Adreno", "Mali", "none"],
)
def test_gpu_of_a_board_or_phone_is_read(tmp_path, files, expected):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(content)
    assert _agent.gpu(f"{tmp_path}/") == expected
    assert expected.items() <= _agent.facts(f"{tmp_path}/").items()


@pytest.mark.parametrize(
    ("memory", "known"), [("81559", {"gpu_memory": 81559 * 2**20}), ("[N/A]", {})], ids=["own memory", "shared memory"]
)
def test_gpu_of_nvidia_is_read(tmp_path, monkeypatch, memory, known):
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\necho "NVIDIA H100 80GB HBM3, 550.90.07, {memory}"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    named = {"gpu_name": "NVIDIA H100 80GB HBM3", "gpu_driver": "550.90.07"}
    assert _agent.gpu() == {**named, **known}
    # What the processor computes is not told apart by the memory of a GPU beside it.
    runtime = device_runtime()
    found = runtime.platform
    runtime.close()
    assert named.items() <= found.facts.items()
    assert found.id == Platform.current().id.replace("torch", "numpy")
    assert not any(name.startswith("gpu") for name in found.identity)
    on_gpu = ShellFacts(PythonConnection(sys.executable)).facts(on_gpu=True)
    assert (on_gpu["device_name"], on_gpu.get("gpu_memory")) == ("NVIDIA H100 80GB HBM3", known.get("gpu_memory"))


def test_conditions_are_those_of_this_package(tmp_path):
    found = Conditions.from_dict(_agent.conditions())
    assert set(_agent.conditions()) <= set(vars(found))
    assert found.processors >= 1
    zone, cooling = tmp_path / "sys/class/thermal/thermal_zone0", tmp_path / "sys/class/thermal/cooling_device0"
    zone.mkdir(parents=True)
    cooling.mkdir()
    (zone / "temp").write_text("81500\n")
    (cooling / "type").write_text("thermal-cpufreq-0\n")
    (cooling / "cur_state").write_text("2\n")
    warm = Conditions.from_dict(_agent.conditions(f"{tmp_path}/"))
    assert (warm.cpu_temperature, warm.cpu_slowed) == (81.5, True)


def test_agent_answers_and_leaves_nothing(temporary):
    session = Session(PythonConnection(sys.executable), _ADAPTER, {"threads": 1})
    session.open()
    (folder,) = temporary.iterdir()
    assert folder.name.startswith("nni_latency.agent.")
    assert session.opened["facts"]["version"] == "1.0"
    assert session.conditions()["processors"] >= 1
    session.close()
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_agent_that_is_killed_leaves_nothing(temporary, number):
    process = _started()
    _until(lambda: list(temporary.glob("*/lock")))
    workers = _worker(process)
    process.send_signal(number)
    process.wait(60)
    _until(lambda: not list(temporary.iterdir()))
    _until(lambda: not any(map(_lives, workers)))
    _close(process)


def test_agent_whose_line_ends_leaves_nothing(temporary):
    process = _started()
    _until(lambda: list(temporary.glob("*/lock")))
    process.stdin.close()
    process.wait(60)
    assert not list(temporary.iterdir())
    _close(process)


def test_folder_that_an_agent_left_is_removed_by_the_next(temporary):
    left, others = temporary / "nni_latency.agent.left", temporary / "nni_latency.agent.begun"
    for folder in (left, others):
        folder.mkdir()
    (left / "lock").touch()
    process = _started()
    _until(lambda: not left.exists())
    # It may be about to make its lock.
    assert others.exists()
    process.stdin.close()
    process.wait(60)
    _close(process)


def test_garbage_ends_the_agent_with_a_sentence(temporary):
    process = _started()
    process.stdin.write((2**60).to_bytes(8, "big"))
    _, errors = process.communicate(timeout=60)
    assert b"the line is broken" in errors.splitlines()[-1]
    assert not list(temporary.iterdir())


def _started():
    process = PythonConnection(sys.executable).start([sys.executable, "-u", "-c", _agent.BOOTSTRAP, sys.executable, ""])
    source = Path(_agent.__file__).read_bytes()
    process.stdin.write(len(source).to_bytes(8, "big") + source)
    process.stdin.flush()
    assert process.stdout.read(len(_agent.MAGIC)) == _agent.MAGIC
    return process


def _worker(process):
    """Make an agent start its worker, and return the ids of its children."""
    opening = {"do": "open", "id": 1, "name": "adapter", "settings": {"threads": 1}, "timeout": 30.0}
    process.stdin.write(_agent.pack(opening, [_ADAPTER.read_bytes()]))
    process.stdin.flush()
    frames = _agent.Frames()
    while frames.next() is None:
        frames.feed(os.read(process.stdout.fileno(), 2**16))
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, check=True)
    found = [int(line) for line in listed.stdout.split()]
    assert found
    return found


def _lives(process):
    stat = Path(f"/proc/{process}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _close(process):
    for pipe in (process.stdin, process.stdout, process.stderr):
        pipe.close()


def test_agent_works_where_files_can_be_written(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", f"{tmp_path}/absent")
    connection = PythonConnection(sys.executable)
    connection.folder = str(tmp_path)
    session = Session(connection, _ADAPTER, {"threads": 1})
    session.open()
    assert list(tmp_path.glob("nni_latency.agent.*"))
    session.close()
    assert not list(tmp_path.iterdir())
