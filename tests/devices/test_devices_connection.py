# SPDX-License-Identifier: Apache-2.0
"""Connections pass the contract suite: a Python of this machine, and connections of plugins."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nni_latency.devices import Connection, DeviceError, PythonConnection
from nni_latency.errors import InvalidValueError, PluginError, UnknownNameError
from nni_latency.loading import load_connection
from nni_latency.plugins import load_registry
from nni_latency.testing import check_connection


@pytest.fixture
def here():
    with PythonConnection(sys.executable) as connection:
        yield connection


def test_python_of_this_machine_keeps_the_contract(here):
    check_connection(here)


def test_contract_finds_a_connection_that_lets_a_shell_interpret_words(tmp_path):
    class Loose(PythonConnection):
        folder = str(tmp_path)

        def start(self, command):
            return super().start(["sh", "-c", " ".join(command)])

    with pytest.raises((AssertionError, DeviceError)):
        check_connection(Loose(sys.executable))


def test_contract_finds_a_connection_whose_codes_are_lost():
    class Careless(PythonConnection):
        def start(self, command):
            return super().start(["sh", "-c", '"$@"; exit 0', "sh", *command])

    with pytest.raises(AssertionError, match=r"exit code must be returned\. Got 0 instead of 1"):
        check_connection(Careless(sys.executable))


def test_output_that_is_cut_off_is_a_lost_connection():
    class Cut(PythonConnection):
        def start(self, command):
            # The exit code may arrive, and the connection be lost before the rest of the output does.
            return super().start(["sh", "-c", '"$@" | head -c 10; exit 0', "sh", *command])

    with pytest.raises(DeviceError, match=r"^The connection to python:\S+ was lost\. Check that the device has power"):
        Cut(sys.executable).run(["cat"], data=b"0123456789abcdef")


def test_output_of_what_a_program_leaves_behind_belongs_to_it(here):
    assert here.run(["sh", "-c", "echo first; (sleep 0.2; echo second) & exit 0"]).out == b"first\nsecond\n"


def test_folder_of_an_environment_means_its_python(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    connection = PythonConnection(str(tmp_path))
    assert connection.python == str(tmp_path / "bin" / "python")
    assert connection.run([connection.python, "-c", "print(6 * 7)"]).out == b"42\n"


@pytest.mark.parametrize("address", ["", "/no/such/python", "."])
def test_address_that_is_no_python_is_refused(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InvalidValueError, match=rf"^A device 'python:PATH' must name .*Got 'python:{re.escape(address)}'"
    ):
        PythonConnection(address)


def test_name_with_a_null_is_one_sentence(here):
    with pytest.raises(DeviceError, match=r"^python:.* cannot run 'a\\x00b': embedded null byte\.$"):
        here.start(["a\0b"])


def test_modules_of_this_python_do_not_reach_another_one(here, tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong module')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert here.run([here.python, "-c", "import json; print(json.dumps(1))"]).out.strip() == b"1"


def test_command_that_fails_is_one_sentence(here):
    with pytest.raises(DeviceError, match=r"^python:.* cannot list it: ls: .*No such file or directory\.$"):
        here.check(["ls", "/no/such/folder"], "list it")


def test_program_that_reads_nothing_of_its_input_is_not_waited_for(here):
    begin = time.monotonic()
    assert here.run(["true"], data=bytes(10_000_000)).code == 0
    assert time.monotonic() - begin < 30


def test_file_on_a_full_disk_is_one_sentence_and_leaves_nothing(here, tmp_path):
    limited = _Limited(sys.executable)
    path = tmp_path / "file"
    with pytest.raises(DeviceError, match=rf"cannot write '{path}': .*(File too large|No space left)"):
        limited.send(bytes(200_000), str(path))
    assert list(tmp_path.iterdir()) == []


class _Limited(PythonConnection):
    """A device whose files have 100 kB at most."""

    def start(self, command):
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, preexec_fn=limit)


@pytest.mark.skipif(not os.path.ismount("/dev/shm") or os.geteuid() != 0, reason="mounting needs root")
def test_file_on_a_small_disk_is_one_sentence_and_leaves_nothing(here, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "none", disk], capture_output=True, timeout=30)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(DeviceError, match=r"cannot write '.*/disk/file': .*No space left on device"):
            here.send(bytes(500_000), str(disk / "file"))
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True, timeout=30)


def test_old_file_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(DeviceError):
        _Limited(sys.executable).send(bytes(200_000), str(path))
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize(
    ("begin", "count"),
    [
        pytest.param("", 0, id="input is taken"),
        pytest.param("", 1_000_000, id="input is left"),
        pytest.param("exec <&-; ", 1_000_000, id="input is closed"),
    ],
)
def test_program_ends_when_this_machine_crashes(tmp_path, begin, count):
    number = tmp_path / "number"
    program = f"{begin}echo $$ > '{number}'; exec sleep 600"
    script = f"""
        import sys
        from nni_latency.devices import PythonConnection

        PythonConnection(sys.executable).run(["sh", "-c", {program!r}], data=bytes({count}), timeout=600)
    """
    client = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)])
    try:
        _wait_until(lambda: number.exists() and number.read_text().endswith("\n"))
        _wait_until(lambda: _runs(int(number.read_text())))
    finally:
        client.kill()
        client.wait()
    _wait_until(lambda: not _runs(int(number.read_text())))


@pytest.mark.parametrize("data", [b"", b"1"])
def test_program_ends_whose_connection_is_lost_before_it_begins(tmp_path, data):
    class Gone(PythonConnection):
        def start(self, command):
            process = super().start(command)
            process.stdin.close()
            return process

    waiting = tmp_path / "waiting"
    os.mkfifo(waiting)
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda _: Gone(sys.executable).run(["cat", str(waiting)], data=data), range(16))
        assert {done.code for done in found} == {143}
    _wait_until(lambda: not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(waiting) in _text(path)])


@pytest.mark.parametrize("shell", ["bash", "busybox", "mksh"])
def test_other_shells_keep_the_contract(here, tmp_path, monkeypatch, shell):
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"needs {shell}")
    (tmp_path / "sh").symlink_to(found)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    done = here.run(["sh", "-c", "echo out; echo err >&2"], data=b"left")
    assert (done.code, done.out, done.err.strip(b"\n")) == (0, b"out\n", b"err")
    check_connection(here)


def _runs(process):
    return _text(Path(f"/proc/{process}/cmdline")).startswith("sleep\0")


def _text(path):
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _wait_until(condition, limit=60.0):
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


# Names ------------------------------------------------------------------------------------------------------------


def test_connections_of_the_package_are_registered():
    assert set(load_registry().connections) >= {"ssh", "adb", "python"}


def test_connection_is_loaded_by_name():
    connection = load_connection(f"python:{sys.executable}")
    assert isinstance(connection, PythonConnection)
    assert connection.description == f"python:{sys.executable}"


@pytest.mark.parametrize("source", ["", "pi", "telnet:pi", ":", "cpu", "cuda:0"])
def test_source_that_is_no_device_is_one_sentence(source):
    expected = rf"^There is no device '{source}'\. A device is ssh:USER@HOST, adb, .*devices\.toml': none so far\.$"
    with pytest.raises(UnknownNameError, match=expected):
        load_connection(source)


def test_connection_of_a_plugin_that_answers_something_else_is_named():
    class Odd(Connection):
        description = "odd:1"

        def start(self, command):
            return 5

        def failure(self, code, err):
            return 7

    connection = Odd().adopt("theirs", "odd")
    with pytest.raises(PluginError, match=r"plugin 'theirs' must return a subprocess\.Popen with pipes from 'start'"):
        connection.run(["true"])
    with pytest.raises(PluginError, match=r"plugin 'theirs' must return None or a sentence from 'failure'\. Got 7"):
        connection.failure(1, b"")


def test_connection_of_a_plugin_without_a_description_is_named():
    class Bare(Connection):
        def start(self, command):
            raise NotImplementedError

    with pytest.raises(PluginError, match=r"connection 'odd' of the plugin 'theirs' must have .*'description'"):
        Bare().adopt("theirs", "odd")


def test_connection_in_forty_lines_keeps_the_contract(tmp_path):
    """A new kind of connection is `start` alone: here, programs run in a folder with another home."""

    class Elsewhere(Connection):
        description, folder = "elsewhere", str(tmp_path)

        def start(self, command):
            pipe = subprocess.PIPE
            environment = {**os.environ, "HOME": str(tmp_path)}
            return subprocess.Popen(
                command[:1] and [shutil.which("env"), *command],
                cwd=tmp_path,
                env=environment,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                start_new_session=True,
            )

    check_connection(Elsewhere())


def test_temporary_folder_is_made_where_files_can_be_written(here, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", f"{tmp_path}/absent")
    monkeypatch.setattr(here, "folder", str(tmp_path))
    assert here.make_folder().startswith(f"{tmp_path}/nni_latency.")
    monkeypatch.setattr(here, "folder", f"{tmp_path}/absent")
    made = here.make_folder()
    here.remove_folder(made)
    assert made.startswith("/tmp/nni_latency.")
