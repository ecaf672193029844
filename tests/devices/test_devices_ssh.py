# SPDX-License-Identifier: Apache-2.0
"""A real SSH server on the loopback address: guarantees of the connection, and messages of its failures."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import pytest
from ssh_server import SSHD, running_ssh_server

from nni_latency.devices import DeviceError, SshConnection
from nni_latency.errors import InvalidValueError
from nni_latency.loading import load_connection
from nni_latency.testing import check_connection

_SERVED = pytest.mark.skipif(
    not SSHD.exists() or shutil.which("ssh") is None, reason="needs openssh-server and openssh-client"
)


@pytest.fixture(scope="module")
def served():
    with running_ssh_server() as server:
        yield server


@pytest.fixture
def server(served, monkeypatch):
    served.know_host()
    shutil.copy(served.folder / "user.pub", served.folder / "keys")
    monkeypatch.setenv("PATH", f"{served.binaries}:{os.environ['PATH']}")
    return served


@pytest.fixture
def device(server, tmp_path_factory):
    with SshConnection(server.address) as connection:
        connection.folder = str(tmp_path_factory.mktemp("device"))
        yield connection


@pytest.fixture
def place(monkeypatch):
    """Put temporary files into a folder whose name is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def _sentence(connection):
    with connection, pytest.raises(DeviceError) as caught:
        connection.run(["true"])
    return str(caught.value)


# Guarantees -------------------------------------------------------------------------------------------------------


@_SERVED
def test_ssh_keeps_the_contract(device):
    check_connection(device)


@_SERVED
def test_one_connection_carries_all_programs(device, server):
    device.run(["true"])
    before = server.sessions()
    for _ in range(3):
        device.run(["true"])
    assert server.sessions() == before


@_SERVED
def test_program_that_ends_with_255_is_no_lost_connection(device):
    assert [device.run(["sh", "-c", f"exit {code}"]).code for code in (253, 254, 255)] == [253, 254, 254]


@_SERVED
def test_connection_that_was_lost_is_said_although_its_master_still_accepts_clients(device, server, place):
    device.run(["true"])
    (folder,) = place.iterdir()
    process = device.start(["cat"])
    server.cut()
    code, err = process.wait(60), process.stderr.read()
    _wait_until(lambda: not (folder / "s").exists())
    with socket.socket(socket.AF_UNIX) as master:
        master.bind(str(folder / "s"))
        master.listen()
        assert re.match(_LOST, device.failure(code, err))
    process.communicate()


@_SERVED
def test_program_that_crashes_is_told_by_its_signal(device):
    assert device.run(["sh", "-c", "kill -SEGV $$"]).code == 139


@_SERVED
def test_close_leaves_no_process_and_no_folder(server, place):
    connection = SshConnection(server.address)
    connection.run(["true"])
    assert len(list(place.iterdir())) == 1
    process = connection.start(["cat"])
    connection.close()
    assert process.wait(60) == 255
    process.communicate()
    assert list(place.iterdir()) == []
    _wait_until(lambda: not server.sessions())
    # It can be used again.
    assert connection.run(["echo", "again"]).out == b"again\n"
    connection.close()


@_SERVED
def test_connection_that_is_forgotten_leaves_no_process_and_no_folder(server, place):
    script = f"from nni_latency.devices import SshConnection; SshConnection({server.address!r}).run(['true'])"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    assert list(place.iterdir()) == []
    _wait_until(lambda: not server.sessions())


@_SERVED
def test_folder_of_a_process_that_was_killed_is_removed_by_the_next_one(server, place):
    script = f"""
        import os
        from nni_latency.devices import SshConnection

        connection = SshConnection({server.address!r})
        connection.run(["true"])
        os.kill(os.getpid(), 9)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=120)
    (left,) = place.iterdir()
    server.cut()
    _wait_until(lambda: not list(left.iterdir()))
    with SshConnection(server.address) as connection:
        connection.run(["true"])
        assert not left.exists()
    assert list(place.iterdir()) == []


@_SERVED
def test_socket_has_a_short_name_where_temporary_folders_have_long_ones(server, tmp_path, monkeypatch):
    folder = tmp_path / ("long name " * 12)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with SshConnection(server.address) as connection:
        assert connection.run(["echo", "hi"]).out == b"hi\n"
    assert list(folder.iterdir()) == []


@_SERVED
def test_programs_end_on_the_device_when_this_machine_crashes(server, tmp_path, place):
    number = tmp_path / "number"
    script = f"""
        from nni_latency.devices import SshConnection

        connection = SshConnection({server.address!r})
        connection.run(["sh", "-c", "echo $$ > '{number}'; exec sleep 600"], timeout=600)
    """
    client = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)])
    try:
        _wait_until(lambda: number.exists() and number.read_text().endswith("\n"))
    finally:
        client.kill()
        client.wait()
    _wait_until(lambda: not Path(f"/proc/{number.read_text().strip()}").exists())
    server.cut()


@_SERVED
def test_options_of_the_users_configuration_do_not_hinder(server, tmp_path):
    client = server.folder / "ssh_config"
    before = client.read_text()
    options = ("RequestTTY force", "RemoteCommand false", "LocalForward 1 localhost:1", "ControlMaster auto")
    client.write_text(before + "".join(f"    {option}\n" for option in options))
    try:
        with SshConnection(server.address) as connection:
            assert connection.run(["cat"], data=b"\r\n\x03\x04\x00").out == b"\r\n\x03\x04\x00"
    finally:
        client.write_text(before)


@_SERVED
def test_host_of_the_users_configuration_is_reached_by_its_name(server):
    client = server.folder / "ssh_config"
    before = client.read_text()
    user, _, rest = server.address.partition("@")
    client.write_text(f"Host board\n    HostName 127.0.0.1\n    Port {server.port}\n    User {user}\n{before}")
    try:
        with load_connection("ssh:board") as connection:
            assert connection.run(["echo", "hi"]).out == b"hi\n"
    finally:
        client.write_text(before)
    assert rest


@_SERVED
@pytest.mark.parametrize("jump", ["localhost:{port}", "no-such-jump.invalid"])
def test_device_behind_a_jump_host_is_reached(server, jump):
    client = server.folder / "ssh_config"
    before = client.read_text()
    jump = jump.format(port=server.port)
    client.write_text(
        f"Host behind\n    HostName 127.0.0.1\n    Port {server.port}\n    HostKeyAlias [127.0.0.1]:{server.port}\n"
        f"    ProxyJump {jump}\nHost localhost\n    HostKeyAlias [127.0.0.1]:{server.port}\n{before}"
    )
    try:
        with SshConnection("behind") as connection:
            if "invalid" in jump:
                with pytest.raises(DeviceError, match=r"^ssh:behind cannot be reached: there is no host 'no-such-jump"):
                    connection.run(["true"])
            else:
                assert connection.run(["cat"], data=b"hi").out == b"hi"
    finally:
        client.write_text(before)


@_SERVED
def test_connection_that_is_sent_to_another_process_opens_its_own(device):
    device.python = "/opt/python"
    device.run(["true"])
    with pickle.loads(pickle.dumps(device)) as copy:
        assert (copy.description, copy.python) == (device.description, "/opt/python")
        assert copy.run(["echo", "hi"]).out == b"hi\n"
    assert device.run(["echo", "hi"]).out == b"hi\n"


@_SERVED
def test_python_of_a_device_may_have_any_name(device, tmp_path):
    device.python = str(tmp_path / "a; exit 3 $(exit 4) python")
    Path(device.python).symlink_to(sys.executable)
    assert device.run([device.python, "-c", "print(6 * 7)"]).out == b"42\n"


# Messages of failures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "",
        "@host",
        "user@",
        "-oProxyCommand=touch x",
        "user@-oProxyCommand=x",
        "-l@host",
        "user@host name",
        "user@host:0",
        "user@host:65536",
        "user@host:ssh",
        "user@host;true",
        "user@$(true)",
        "us`er@host",
        "user@host\n",
        "user@::1",
        "user@[::1",
        "user@[fe80::1%$(x)]",
        "ssh://user@host",
    ],
)
def test_address_that_is_none_is_refused(address):
    with pytest.raises(
        InvalidValueError,
        match=rf"^A device 'ssh:USER@HOST\[:PORT\]' must .*Got {re.escape(repr('ssh:' + address))}\.$",
    ):
        SshConnection(address)


@pytest.mark.parametrize(
    "address",
    ["pi@raspberrypi", "raspberrypi", "pi@192.168.0.7:2222", "pi@[::1]:22", "a.b@c-d.e_f", "pi@[fe80::1%eth0]"],
)
def test_address_is_described_as_it_was_written(address):
    assert SshConnection(address).description == f"ssh:{address}"


def test_address_of_version_6_is_given_to_ssh_without_brackets(tmp_path, monkeypatch):
    (tmp_path / "ssh").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/words\necho odd >&2\nexit 255\n')
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert _sentence(SshConnection("pi@[::1]:2222")) == (
        "ssh:pi@[::1]:2222 cannot be reached: odd. To see more: ssh -v -p 2222 pi@::1"
    )
    words = (tmp_path / "words").read_text().splitlines()
    assert words[-2:] == ["--", "::1"]
    assert words[words.index("-p") + 1] == "2222"
    assert words[words.index("-l") + 1] == "pi"


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("Connection closed by 10.0.0.7 port 22", "ssh:pi ended the connection before it was open"),
        ("ssh_dispatch_run_fatal: Connection to 10.0.0.7 port 22: Broken pipe", "ssh:pi ended the connection before"),
        ("Connection to pi closed by remote host.", "The connection to ssh:pi was lost."),
        ("client_loop: send disconnect: Broken pipe", "The connection to ssh:pi was lost."),
        ("Failed to connect to new control master", "The connection to ssh:pi was lost."),
    ],
)
def test_connection_that_is_cut_while_it_is_opened_is_one_sentence(tmp_path, monkeypatch, said, sentence):
    (tmp_path / "ssh").write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 255\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert _sentence(SshConnection("pi")).startswith(sentence)


def test_machine_without_ssh_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _sentence(SshConnection("pi@raspberrypi")) == (
        "There is no program 'ssh' on this machine, which reaches ssh:pi@raspberrypi. Install OpenSSH's client, on "
        "Debian and Ubuntu: apt install openssh-client"
    )


@_SERVED
def test_host_that_does_not_exist_is_one_sentence(server):
    assert _sentence(SshConnection("pi@no-such-host.invalid")) == (
        "ssh:pi@no-such-host.invalid cannot be reached: there is no host 'no-such-host.invalid'. Check the name, or "
        "write its address in numbers."
    )


@_SERVED
def test_port_that_is_closed_is_one_sentence(server):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        sentence = _sentence(SshConnection(f"pi@127.0.0.1:{port}"))
    assert sentence.startswith(f"ssh:pi@127.0.0.1:{port} refuses connections at the port {port}. Start the SSH server")


@_SERVED
def test_host_that_does_not_answer_is_one_sentence(server, monkeypatch):
    # What listens there never greets.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setattr(SshConnection, "patience", 1)
        sentence = _sentence(SshConnection(f"pi@127.0.0.1:{port}"))
    assert sentence == (
        f"ssh:pi@127.0.0.1:{port} does not answer. Check that the device is switched on and in the same network, and "
        "that no firewall is between."
    )


@_SERVED
def test_port_of_something_else_is_one_sentence(server):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        thread = threading.Thread(target=lambda: other.accept()[0].close())
        thread.start()
        sentence = _sentence(SshConnection(f"pi@127.0.0.1:{port}"))
        thread.join(30)
    assert sentence.startswith(f"ssh:pi@127.0.0.1:{port} ended the connection before it was open")


@_SERVED
def test_key_that_the_device_does_not_know_is_one_sentence(server):
    shutil.copy(server.folder / "stranger.pub", server.folder / "keys")
    assert _sentence(SshConnection(server.address)) == (
        f"ssh:{server.address} does not accept this machine's keys; passwords are never asked for. Install a key "
        f"there: ssh-copy-id -p {server.port} {server.address.partition(':')[0]}"
    )


@_SERVED
@pytest.mark.skipif(os.geteuid() != 0, reason="a key of another user is made by root")
def test_key_that_others_may_read_is_one_sentence(server):
    (server.folder / "user").chmod(0o644)
    try:
        sentence = _sentence(SshConnection(server.address))
    finally:
        (server.folder / "user").chmod(0o600)
    assert f"other users may read the private key '{server.folder}/user'" in sentence
    assert sentence.endswith(f"chmod 600 {server.folder}/user")


@_SERVED
def test_host_key_that_is_not_known_is_one_sentence(server):
    server.forget_host()
    assert _sentence(SshConnection(server.address)) == (
        f"The host key of ssh:{server.address} is not known to this machine. Connect once by hand, compare the "
        "fingerprint that is shown with the device's, and answer yes: "
        f"ssh -p {server.port} {server.address.partition(':')[0]}"
    )
    assert (server.folder / "known").read_text() == ""


@_SERVED
def test_host_key_that_has_changed_is_one_sentence(server):
    server.know_host("other")
    assert _sentence(SshConnection(server.address)) == (
        f"The host key of ssh:{server.address} has changed since it was last used: either the device was installed "
        "anew, or another machine answers in its place. If it was installed anew, forget the old key: "
        f"ssh-keygen -R '[127.0.0.1]:{server.port}'"
    )


@_SERVED
def test_configuration_that_ssh_does_not_read_is_one_sentence(server):
    client = server.folder / "ssh_config"
    before = client.read_text()
    client.write_text("Nonsense yes\n")
    try:
        sentence = _sentence(SshConnection(server.address))
    finally:
        client.write_text(before)
    assert sentence.startswith(f"ssh:{server.address} cannot be reached: ssh does not accept its configuration: ")
    assert "Bad configuration option: nonsense" in sentence


@_SERVED
def test_shell_that_prints_when_it_starts_is_one_sentence(server):
    connection = SshConnection(server.address)
    welcoming = _forced(server, 'echo "Welcome to the board"; eval "$SSH_ORIGINAL_COMMAND"')
    expected = rf"^The shell of ssh:{server.address} prints 'Welcome to the board' whenever a program"
    with welcoming, connection:
        for _ in range(2):
            with pytest.raises(DeviceError, match=expected):
                connection.run(["true"])


@_SERVED
def test_account_without_a_shell_is_one_sentence(server):
    with _forced(server, "echo This account is currently not available.; exit 1"):
        sentence = _sentence(SshConnection(server.address))
    assert sentence == (
        f"ssh:{server.address} is reached, but runs no programs: This account is currently not available. A device "
        "needs a POSIX shell."
    )


@contextlib.contextmanager
def _forced(server, command):
    """Let the server run one command in place of any other."""
    keys, quoted = server.folder / "keys", command.replace('"', '\\"')
    before = keys.read_text()
    keys.write_text(f'command="{quoted}" {before}')
    try:
        yield
    finally:
        keys.write_text(before)


# A connection that is lost ----------------------------------------------------------------------------------------

_LOST = r"^The connection to ssh:\S+ was lost\. Check that the device has power and network"
_CLOSED = r"^ssh:\S+ ended the connection before it was open"


@contextlib.contextmanager
def _cutting(server, word):
    """Cut the connection once a program runs on the device that has this word."""

    def cut():
        _wait_until(lambda: any(word in _words_of(entry) for entry in Path("/proc").glob("[0-9]*")))
        server.cut()

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _words_of(entry):
    """Return the words of a program; of one that passes them on to another program, none."""
    try:
        words = (entry / "cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []
    return words if words[0] == "cat" else []


@_SERVED
def test_connection_that_is_lost_while_a_file_is_sent_leaves_no_file(device, server, tmp_path):
    device.run(["true"])
    waiting = tmp_path / "waiting"
    os.mkfifo(waiting)
    with _cutting(server, str(waiting)), pytest.raises(DeviceError, match=_LOST):
        # More than can be sent by then.
        device.run(["cat", str(waiting)], data=bytes(10_000_000))
    path = tmp_path / "file"
    script = f"cat > '{path}.slow'"
    process = device.start(["sh", "-c", script])
    process.stdin.write(bytes(100_000))
    server.cut()
    assert process.wait(60) == 255
    with contextlib.suppress(BrokenPipeError):
        process.communicate(timeout=60)
    assert not path.exists()


@_SERVED
def test_file_that_is_cut_off_does_not_appear(device, server, tmp_path):
    path = tmp_path / "file"
    stop = threading.Event()

    def cut():
        # As soon as the first bytes are there.
        while not stop.is_set():
            if any(entry.stat().st_size for entry in tmp_path.iterdir()):
                server.cut()
                return
            time.sleep(0.001)

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        with pytest.raises(DeviceError, match=_LOST):
            device.send(bytes(400_000_000), str(path))
    finally:
        stop.set()
        cutter.join()
    _wait_until(lambda: list(tmp_path.iterdir()) == [])


@_SERVED
def test_file_that_is_cut_off_while_it_is_fetched_is_not_returned(device, server, tmp_path):
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(4_000_000_000)
    device.run(["true"])
    with _cutting(server, str(path)), pytest.raises(DeviceError, match=_LOST):
        device.fetch(str(path))


@_SERVED
def test_process_of_a_lost_connection_ends_and_the_next_one_connects_again(device, server, place):
    process = device.start(["sh", "-c", "echo here; cat; exit 3"])
    assert process.stdout.readline() == b"here\n"
    (folder,) = place.iterdir()
    server.cut()
    process.wait(60)
    _, err = process.communicate(timeout=60)
    assert re.match(_LOST, device.failure(process.returncode, err))
    # The master connection may end a moment later than its programs.
    _wait_until(lambda: not (folder / "s").exists())
    assert device.run(["echo", "again"]).out == b"again\n"
    # As long as there is the folder of its socket.
    device.close()


@_SERVED
@pytest.mark.parametrize(
    ("begin", "data"),
    [
        pytest.param("", b"", id="input is taken"),
        pytest.param("", bytes(1_000_000), id="input is left"),
        pytest.param("exec <&-; ", bytes(1_000_000), id="input is closed"),
    ],
)
def test_program_of_run_ends_on_the_device_when_the_connection_is_lost(device, server, tmp_path, begin, data):
    number = tmp_path / "number"

    def cut():
        _wait_until(lambda: number.exists() and number.read_text().endswith("\n"))
        server.cut()

    cutter = threading.Thread(target=cut)
    cutter.start()
    with pytest.raises(DeviceError, match=_LOST):
        device.run(["sh", "-c", f"{begin}echo $$ > '{number}'; exec sleep 600"], data=data)
    cutter.join()
    _wait_until(lambda: not Path(f"/proc/{number.read_text().strip()}").exists())


@_SERVED
def test_server_that_allows_few_programs_is_one_sentence(monkeypatch):
    with running_ssh_server("MaxSessions 2") as server:
        monkeypatch.setenv("PATH", f"{server.binaries}:{os.environ['PATH']}")
        with SshConnection(server.address) as device:
            processes = [device.start(["sh", "-c", "echo here; cat"]) for _ in range(2)]
            assert [process.stdout.readline() for process in processes] == [b"here\n"] * 2
            with pytest.raises(DeviceError, match=r"^ssh:\S+ runs no more programs at once .*MaxSessions"):
                device.run(["true"])
            for process in processes:
                process.communicate(timeout=60)


@_SERVED
def test_device_that_no_longer_listens_is_one_sentence(monkeypatch):
    with running_ssh_server() as server:
        monkeypatch.setenv("PATH", f"{server.binaries}:{os.environ['PATH']}")
        with SshConnection(server.address) as device:
            device.run(["true"])
            sessions = server.sessions()
            server.process.kill()
            server.process.wait()
            for number in sessions:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            # The first program may still find the connection that is being lost.
            sentences = [_sentence(device) for _ in range(2)]
    assert sentences[-1].startswith(f"ssh:{server.address} refuses connections at the port")


@_SERVED
@pytest.mark.slow
def test_connection_that_is_cut_at_random_moments_loses_and_leaves_nothing(device, server):
    moments, stop = random.Random(0), threading.Event()

    def cut():
        for _ in range(50):
            time.sleep(moments.uniform(0.1, 1.0))
            server.cut()
        stop.set()

    data, folder, sentences = moments.randbytes(300_000), Path(device.folder), []
    cutter = threading.Thread(target=cut)
    cutter.start()
    while not stop.is_set():
        try:
            device.send(data, str(folder / "file"))
            assert device.fetch(str(folder / "file")) == data
            assert device.run(["cat"], data=data).out == data
        except DeviceError as error:
            sentences.append(str(error))
    cutter.join()
    assert sentences
    # It may be cut while it is being opened, too.
    assert all(re.match(f"{_LOST}|{_CLOSED}", sentence) for sentence in sentences), sentences
    _wait_until(lambda: {path.name for path in folder.iterdir()} <= {"file"})


def _wait_until(condition, limit=60.0):
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
