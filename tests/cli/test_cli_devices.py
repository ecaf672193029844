# SPDX-License-Identifier: Apache-2.0
"""``nni-latency devices``, on environments of this machine as devices."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
from importlib import metadata

import pytest
from adb_program import Adb
from documented import check_printed, shown
from ssh_server import SSHD, running_ssh_server

from nni_latency.devices import (
    AdbConnection,
    DeviceError,
    PythonConnection,
    check_device,
    check_devices,
    devices_file,
)
from nni_latency.errors import InvalidValueError


@pytest.fixture(autouse=True)
def _own_configuration(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def _write(**devices):
    """Write devices.toml: a connection each, or a mapping of settings."""
    tables = [
        f"[{name}]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
        for name, settings in devices.items()
    ]
    devices_file().parent.mkdir(parents=True)
    devices_file().write_text("\n".join(tables))


def _program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def bare(tmp_path):
    """Make a Python without any packages."""
    return _program(tmp_path / "bare", f'exec {sys.executable} -S "$@"')


def _connection(**settings):
    return {"connection": f"python:{sys.executable}", **settings}


def test_file_and_a_line_of_it_are_named_where_there_is_no_device(run):
    shown = run("devices").stdout
    assert str(devices_file()) in shown
    assert 'pi = "ssh:pi@raspberrypi"' in shown


def test_all_devices_of_the_file_are_checked(run, bare, tmp_path, monkeypatch):
    core = max(os.sched_getaffinity(0))
    _write(
        here=_connection(cores=str(core)),
        bare=_connection(python=bare),
        wrong=_connection(cores="9000"),
        lost=_connection(python="/no/such/python"),
        gone={"connection": "python:/no/such/python"},
    )
    found = run("devices", "--format", "json", code=1)
    by_name = {item["name"]: item for item in json.loads(found.stdout)}
    remarks = {
        name: " ".join(f"{remark['condition']} {remark['advice']}" for remark in item["remarks"])
        for name, item in by_name.items()
    }
    assert list(by_name) == ["here", "bare", "wrong", "lost", "gone"]
    here = by_name["here"]
    assert here["reached"] and here["facts"]["python"] == sys.version.split()[0]
    assert here["packages"]["numpy"] == metadata.version("numpy")
    assert 0 < here["clock_resolution_s"] < 2e-6
    assert "cores" not in remarks["here"]
    assert by_name["bare"]["packages"] == {}
    assert "There is no runtime in" in remarks["bare"]
    assert "-m pip install numpy onnxruntime" in remarks["bare"]
    assert "There is no core 9000" in remarks["wrong"]
    assert "There is no Python '/no/such/python'. Correct 'python' of the device, or measure" in remarks["lost"]
    assert by_name["lost"]["reached"] and by_name["lost"]["facts"]["cpu_count"] > 0
    assert not by_name["gone"]["reached"] and "'python:PATH' must name a Python" in by_name["gone"]["failure"]
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("devices", code=1)
    # Paths are not folded.
    lines = [line.replace(str(tmp_path), "") for line in shown.stdout.splitlines()]
    assert all(len(line) <= 80 for line in lines), lines
    assert "\ngone:" in shown.stdout and "not reached" in shown.stdout


def test_one_device_is_checked_by_name_or_by_connection(run):
    _write(here=_connection(), gone={"connection": "python:/no/such/python"})
    rows = list(csv.DictReader(io.StringIO(run("devices", "here", "--format", "csv").stdout)))
    assert [row["name"] for row in rows] == ["here"]
    device = f"python:{sys.executable}"
    (found,) = json.loads(run("devices", device, "--format", "json").stdout)
    assert found["name"] == found["device"] == device


def test_documents_show_the_columns_that_are_printed(run, monkeypatch):
    """What stands in them, and what to do, differ between machines and times."""
    _write(here=_connection())
    monkeypatch.setenv("COLUMNS", "80")
    for text in (run("devices", "here").stdout, *shown("devices", "here")):
        check_printed("device processor software now check here ... Python ...", text)


def test_name_that_the_file_does_not_have_is_a_mistake(fails):
    assert "There is no device 'jetson'. A device is ssh:USER@HOST" in fails("devices", "jetson")


def test_device_of_another_python_is_explained(tmp_path):
    old = _program(tmp_path / "old", 'echo "this is Python 2.7.18" >&2; exit 1')
    (remark, *_) = _checked(old).remarks
    assert str(remark).startswith(f"{old!r} is too old: this is Python 2.7.18. Install Python 3.8 or later, or measure")
    broken = _program(tmp_path / "broken", "exit 3")
    (remark, *_) = _checked(broken).remarks
    assert str(remark).startswith(f"{broken!r} does not run: it ended with code 3. Check that it is a Python 3.8")
    with pytest.raises(DeviceError, match="Check that it is a Python"):
        _checked(_program(tmp_path / "cat", "cat"))


def _checked(python):
    connection = PythonConnection(sys.executable)
    connection.python = python
    return check_device(connection)


def test_phone_without_python_is_read_by_its_shell(tmp_path, monkeypatch):
    adb = Adb(tmp_path / "adb")
    adb.install()
    adb.connect(A1B2="device")
    monkeypatch.setenv("PATH", f"{adb.folder}:{os.environ['PATH']}")
    with AdbConnection("A1B2") as phone:
        phone.python = "python9"
        found = check_device(phone)
    assert str(found.remarks[0]) == "There is no Python 'python9'. Measure with a benchmark binary, such as benchncnn."
    assert found.facts["cpu_count"] > 0 and found.conditions.load is not None


@pytest.mark.slow
@pytest.mark.skipif(not SSHD.exists() or shutil.which("ssh") is None, reason="needs openssh-server and openssh-client")
def test_devices_are_reached_by_ssh(run, monkeypatch):
    with running_ssh_server() as server:
        monkeypatch.setenv("PATH", f"{server.binaries}:{os.environ['PATH']}")
        connection = f"ssh:{server.address}"
        _write(pi={"connection": connection, "python": sys.executable}, gone={"connection": "ssh:pi@127.0.0.1:1"})
        (pi, gone) = json.loads(run("devices", "--format", "json", code=1).stdout)
        assert (pi["device"], pi["facts"]["python"]) == (connection, sys.version.split()[0])
        assert "refuses connections at the port 1" in gone["failure"]
        run("devices", "pi")


@pytest.mark.slow
def test_device_that_hangs_does_not_hold_up_the_others(tmp_path):
    over = tmp_path / "over"
    hanging = PythonConnection(_program(tmp_path / "hanging", f"until [ -e {over} ]; do sleep 0.2; done"))

    def absent():
        raise InvalidValueError("There is no such device.")

    devices = {"hanging": lambda: hanging, "here": lambda: PythonConnection(sys.executable), "absent": absent}
    # The hanging one is still waited for when the others have answered.
    answers = check_devices(devices, patience=300.0)
    found = dict([next(answers), next(answers)])
    assert found["absent"].failure == "There is no such device."
    assert found["here"].packages, found
    ((name, given_up),) = check_devices({"hanging": devices["hanging"]}, patience=1.0)
    assert (name, "within 1 s" in given_up.failure) == ("hanging", True), given_up
    over.touch()
