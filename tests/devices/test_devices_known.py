# SPDX-License-Identifier: Apache-2.0
"""The file that gives devices names."""

from __future__ import annotations

import sys

import pytest

from nni_latency.devices import KnownDevice, SshConnection, devices_file, read_devices
from nni_latency.errors import FileFormatError, InvalidValueError, UnknownNameError
from nni_latency.loading import connection_of, load_connection, load_runtime

_FILE = """
pi = "ssh:pi@raspberrypi"

[jetson]
connection = "ssh:nano@10.0.0.7:2222"
python = "/home/nano/venv/bin/python"
cores = "0-3,5"
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def write(content):
        devices_file().parent.mkdir(parents=True, exist_ok=True)
        devices_file().write_bytes(content if isinstance(content, bytes) else content.encode())

    return write


def test_device_is_a_text_or_a_table(written):
    written(_FILE)
    assert dict(read_devices()) == {
        "pi": KnownDevice(connection="ssh:pi@raspberrypi"),
        "jetson": KnownDevice(
            connection="ssh:nano@10.0.0.7:2222",
            python="/home/nano/venv/bin/python",
            cores=(0, 1, 2, 3, 5),
        ),
    }


def test_other_file_may_be_read(tmp_path):
    (tmp_path / "lab.toml").write_text('phone = "adb"\n')
    assert read_devices(tmp_path / "lab.toml")["phone"].connection == "adb"


def test_no_file_means_no_devices(written):
    assert dict(read_devices()) == {}


def test_file_is_where_the_configuration_of_the_user_is(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert devices_file() == tmp_path / "nni_latency" / "devices.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert devices_file() == tmp_path / ".config" / "nni_latency" / "devices.toml"


def test_name_is_a_device(written):
    written(_FILE)
    connection = load_connection("jetson")
    assert isinstance(connection, SshConnection)
    assert (connection.description, connection.reached_as) == ("jetson", "ssh:nano@10.0.0.7:2222")
    assert connection.python == "/home/nano/venv/bin/python"
    assert connection.cores == (0, 1, 2, 3, 5)
    assert (load_connection("pi").python, load_connection("pi").cores) == ("python3", ())


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1", "telnet:pi", "other"])
def test_device_of_this_machine_or_of_no_connection_has_none(written, device):
    written(_FILE)
    assert connection_of(device) is None


@pytest.mark.parametrize(
    ("device", "reached_as"),
    [("pi", "ssh:pi@raspberrypi"), ("jetson", "ssh:nano@10.0.0.7:2222"), ("adb", ""), ("ssh:board", "")],
)
def test_device_with_a_connection_is_named_as_the_user_names_it(written, device, reached_as):
    written(_FILE)
    connection = connection_of(device)
    assert (connection.description, connection.reached_as) == (device, reached_as)


@pytest.mark.parametrize("device", ["pi@raspberrypi", "pi@192.168.0.7:2222"])
@pytest.mark.parametrize("find", [connection_of, load_connection])
def test_user_and_host_alone_are_not_a_device(written, device, find):
    written(_FILE)
    expected = rf"^There is no device '{device}'\. To reach it by SSH, give ssh:{device}$"
    with pytest.raises(UnknownNameError, match=expected):
        find(device)


def test_file_of_devices_is_not_read_for_devices_of_this_machine(written):
    written("pi = \n")
    assert connection_of("cpu") is None
    with pytest.raises(FileFormatError, match=r"is not TOML"):
        connection_of("pi")


def test_unknown_device_names_those_of_this_machine_and_how_others_are_written(written):
    expected = r"^Unknown device 'pie'\. Available: cpu.*\. For another device, give ssh:USER@HOST, adb, "
    with pytest.raises(UnknownNameError, match=expected):
        load_runtime("torch", "pie")


def test_name_that_is_not_in_the_file_lists_those_that_are(written):
    written(_FILE)
    with pytest.raises(UnknownNameError, match=r"^There is no device 'pie'\. .*devices\.toml': pi, jetson\.$"):
        load_connection("pie")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("pi = \n", r"is not TOML: Invalid value \(at line 1, column 6\)\. A device is a line such as pi = \"ssh:"),
        ("pi = ssh:pi@x\n", r"is not TOML: Invalid value \(at line 1, column 6\)\."),
        ('pi = "a"\npi = "b"\n', r"is not TOML: Cannot overwrite a value \(at line 2, column 9\)"),
        ("pi = 5\n", r"is not valid: pi must be a connection such as \"ssh:pi@raspberrypi\", or a table\. Got 5\.$"),
        ("pi = []\n", r"is not valid: pi must be a connection such as .*Got \[\]\.$"),
        ("[pi]\n", r"is not valid: pi\.connection is missing: how the device is reached"),
        ('[pi]\nconnection = ""\n', r"is not valid: pi\.connection must have 1 or more characters"),
        ("[pi]\nconnection = 5\n", r"is not valid: pi\.connection must be text\. Got '5'\.$"),
        ('pi = ""\n', r"is not valid: pi\.connection must have 1 or more characters"),
        (
            '[pi]\nconnection = "adb"\npyhton = "x"\n',
            r"is not valid: pi\.pyhton: there is no such setting\. A device has connection, python, cores\.$",
        ),
        (
            '[pi]\nconnection = "adb"\ncores = "0;reboot"\n',
            r"is not valid: pi\.cores must be numbers and ranges such as \"0-3\" or \"4,6\"\. Got '0;reboot'\.$",
        ),
        ('[pi]\nconnection = "adb"\ncores = "3-1"\n', r"is not valid: pi\.cores must be numbers and ranges such as"),
        ('[pi]\nconnection = "adb"\ncores = 3\n', r"is not valid: pi\.cores must be numbers and ranges .*Got 3\.$"),
        ('"ssh:x" = "adb"\n', r"is not valid: 'ssh:x' cannot be the name of a device: letters, digits"),
        ('"a b" = "adb"\n', r"is not valid: 'a b' cannot be the name of a device"),
        ('cpu = "adb"\n', r"is not valid: 'cpu' cannot be the name of a device"),
        ('"" = "adb"\n', r"is not valid: '' cannot be the name of a device"),
        (b"\xff\xfe", r"^Cannot read the list of devices '.*devices\.toml': it is not text\.$"),
    ],
)
def test_file_that_is_not_one_is_one_sentence(written, content, expected):
    written(content)
    with pytest.raises(FileFormatError, match=expected) as caught:
        read_devices()
    assert str(devices_file()) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_folder_in_place_of_the_file_is_one_sentence(written):
    devices_file().mkdir(parents=True)
    with pytest.raises(FileFormatError, match=r"^Cannot read the list of devices '.*': Is a directory\.$"):
        read_devices()


@pytest.mark.parametrize("connection", ["jetson", "telnet:pi", "ssh", "pi"])
def test_device_that_names_no_connection_is_one_sentence(written, connection):
    written(f'pi = "{connection}"\njetson = "adb"\n')
    with pytest.raises(InvalidValueError, match=r"devices\.toml': .*(must have a connection such as|must name a user)"):
        load_connection("pi")


def test_address_that_is_none_is_named_with_its_file(written):
    written('pi = "ssh:-oProxyCommand=reboot"\n')
    with pytest.raises(InvalidValueError, match=r"^In '.*devices\.toml': A device 'ssh:USER@HOST\[:PORT\]' must name"):
        load_connection("pi")


def test_python_of_the_file_is_never_interpreted_by_a_shell(written, tmp_path):
    odd = tmp_path / "a; touch $(echo here) `echo there` python"
    odd.symlink_to(sys.executable)
    written(f"[here]\nconnection = 'python:{sys.executable}'\npython = '{odd}'\n")
    with load_connection("here") as connection:
        assert connection.run([connection.python, "-c", "print(6 * 7)"]).out == b"42\n"
    assert {path.name for path in tmp_path.iterdir()} == {odd.name, "config"}
