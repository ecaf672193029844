# SPDX-License-Identifier: Apache-2.0
"""Android devices by adb: an adb of the tests, whose devices are folders of this machine."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time

import pytest
from adb_program import Adb

from nni_latency.devices import AdbConnection, DeviceError
from nni_latency.errors import InvalidValueError
from nni_latency.loading import load_connection
from nni_latency.testing import check_connection


@pytest.fixture(params=[pytest.param(0, id="older adb", marks=pytest.mark.slow), pytest.param(255, id="newer adb")])
def adb(request, tmp_path, monkeypatch):
    adb = Adb(tmp_path / "platform-tools")
    adb.install(lost=request.param)
    monkeypatch.setenv("PATH", f"{adb.folder}:{os.environ['PATH']}")
    monkeypatch.delenv("ANDROID_SERIAL", raising=False)
    return adb


@pytest.fixture
def phone(adb):
    adb.connect(A1B2="device")
    with AdbConnection("A1B2") as connection:
        yield connection


def _sentence(connection):
    with pytest.raises(DeviceError) as caught:
        connection.run(["true"])
    return str(caught.value)


def test_adb_keeps_the_contract(phone, adb):
    check_connection(phone)
    assert list((adb.folder / "A1B2").iterdir()) == []


@pytest.mark.parametrize("code", [0, 1, 7, 200, 252])
def test_exit_code_of_a_program_is_its_own(phone, code):
    assert phone.run(["sh", "-c", f"exit {code}"]).code == code
    process = phone.start(["sh", "-c", f"exit {code}"])
    process.communicate(timeout=60)
    assert process.returncode == code


@pytest.mark.parametrize("code", [253, 254, 255])
def test_exit_code_that_adb_uses_itself_stays_a_failure_of_the_program(phone, code):
    assert phone.run(["sh", "-c", f"exit {code}"]).code == 253


def test_temporary_folder_is_where_android_allows_one(phone, adb):
    assert AdbConnection().folder == "/data/local/tmp"
    assert phone.make_folder().startswith(f"{adb.folder}/A1B2/nni_latency.")


def test_only_device_needs_no_serial_number(adb):
    adb.connect(A1B2="device")
    with load_connection("adb") as connection:
        assert connection.description == "adb"
        assert connection.run(["echo", "hi"]).out == b"hi\n"


def test_serial_number_chooses_among_several_devices(adb):
    adb.connect(A1B2="device", C3D4="device")
    with load_connection("adb:C3D4") as connection:
        assert connection.make_folder().startswith(f"{adb.folder}/C3D4/")


def test_variable_of_adb_chooses_among_several_devices(adb, monkeypatch):
    adb.connect(A1B2="device", C3D4="device")
    monkeypatch.setenv("ANDROID_SERIAL", "C3D4")
    assert AdbConnection().make_folder().startswith(f"{adb.folder}/C3D4/")


@pytest.mark.parametrize("serial", ["-s", "--help", "a\nb", "a\0", "\x1b"])
def test_serial_number_that_is_none_is_refused(serial):
    with pytest.raises(
        InvalidValueError, match=rf"^A device 'adb:SERIAL' must .*Got {re.escape(repr('adb:' + serial))}\.$"
    ):
        AdbConnection(serial)


# Messages of failures ---------------------------------------------------------------------------------------------


def test_machine_without_adb_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    expected = (
        "There is no program 'adb' on this machine, which reaches Android devices. Install it, on Debian and Ubuntu: "
        "apt install adb"
    )
    assert _sentence(AdbConnection()) == expected
    with pytest.raises(DeviceError, match=r"^There is no program 'adb'"):
        AdbConnection().send(b"x", "/data/local/tmp/x")


def test_no_device_is_one_sentence(adb):
    assert _sentence(AdbConnection()) == (
        "adb cannot be reached: adb finds no device. Connect it by cable, switch on USB debugging in its developer "
        "options, and see that it is listed by: adb devices"
    )


def test_several_devices_are_named(adb):
    adb.connect(A1B2="device", C3D4="offline")
    assert _sentence(AdbConnection()) == "adb may be any of several devices: A1B2, C3D4. Name one: adb:A1B2"


def test_device_that_is_not_there_is_one_sentence(adb):
    adb.connect(A1B2="device")
    assert _sentence(AdbConnection("XY")) == (
        "adb:XY cannot be reached: adb finds no device with that serial number. It finds: A1B2."
    )
    adb.connect()
    assert _sentence(AdbConnection("XY")).endswith("It finds: none.")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("unauthorized", r"does not trust this machine yet\. Unlock its screen and tap 'Allow' where it asks"),
        ("offline", r"is offline: it is listed, but does not answer\. Connect it again, .*: adb kill-server$"),
        (
            "no permissions",
            r"may not be used by this user\. On Linux, install rules .*android-sdk-platform-tools-common",
        ),
        ("old", r"cannot be used: Android 7 or later is needed"),
        ("no server", r"cannot be reached: the server of adb does not start\. Try: adb start-server$"),
    ],
)
def test_state_of_a_device_is_one_sentence(adb, state, expected):
    adb.connect(A1B2=state)
    connection = AdbConnection("A1B2")
    assert re.match(f"^adb:A1B2 {expected}", _sentence(connection))
    for act in (lambda: connection.send(b"x", "/x"), lambda: connection.fetch("/x")):
        with pytest.raises(DeviceError, match=f"^adb:A1B2 {expected}"):
            act()


def test_program_that_prints_what_adb_prints_is_not_taken_for_it(phone):
    done = phone.run(["sh", "-c", "echo 'my error: device offline' >&2; exit 1"])
    assert (done.code, done.reason) == (1, "my error: device offline")


# A cable that is pulled -------------------------------------------------------------------------------------------

_LOST = r"^The connection to adb:A1B2 was lost\. Check the cable, and that the device is awake"


def _unplug_once(adb, file):
    """Pull the cable in a thread, once a program has written a line to a file."""

    def unplug():
        end = time.monotonic() + 60
        while not (file.exists() and file.read_text().endswith("\n")):
            assert time.monotonic() < end
            time.sleep(0.02)
        adb.unplug()

    thread = threading.Thread(target=unplug)
    thread.start()
    return thread


def test_program_whose_cable_is_pulled_is_one_sentence(phone, adb, tmp_path):
    begun = tmp_path / "begun"
    thread = _unplug_once(adb, begun)
    with pytest.raises(DeviceError, match=_LOST):
        phone.run(["sh", "-c", 'echo half; echo half > "$0"; sleep 600', str(begun)])
    thread.join()
    assert "cannot be reached" in _sentence(phone)
    adb.connect(A1B2="device")
    assert phone.run(["echo", "again"]).out == b"again\n"


def test_process_whose_cable_is_pulled_ends(phone, adb):
    process = phone.start(["sh", "-c", "echo here; cat"])
    assert process.stdout.readline() == b"here\n"
    adb.unplug()
    assert process.wait(60) == 255
    _, err = process.communicate(timeout=60)
    assert re.match(_LOST, phone.failure(process.returncode, err))


def test_program_is_ended_by_a_cable_that_is_pulled(phone, adb, tmp_path):
    number = tmp_path / "number"
    thread = _unplug_once(adb, number)
    with pytest.raises(DeviceError, match=_LOST):
        phone.run(["sh", "-c", f"echo $$ > '{number}'; exec sleep 600"])
    thread.join()
    end = time.monotonic() + 60
    while subprocess.run(["kill", "-0", number.read_text().strip()], capture_output=True).returncode == 0:
        assert time.monotonic() < end
        time.sleep(0.05)
