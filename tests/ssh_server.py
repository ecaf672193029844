# SPDX-License-Identifier: Apache-2.0
"""An SSH server on the loopback address, with keys of its own, while it runs."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SSHD = Path("/usr/sbin/sshd")

#: An empty folder in which a server of root locks up what it does not trust.
_SEPARATION = Path("/run/sshd")

_CONFIGURATION = """
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host
PidFile none
AuthorizedKeysFile {folder}/keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PermitUserRC no
PrintMotd no
MaxStartups 100
SetEnv BASH_ENV= ENV=
"""

_CLIENT = """
Host *
    IdentityFile {folder}/user
    IdentitiesOnly yes
    IdentityAgent none
    UserKnownHostsFile {folder}/known
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking ask
"""


#: Delays what goes to host and port, and what comes back, by so many seconds each.
_RELAY = """
import os, queue, socket, sys, threading, time
server = socket.create_connection((sys.argv[1], int(sys.argv[2])))
server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
delay = float(sys.argv[3])
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
        waiting.put((time.monotonic() + delay, data))
def print_all(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
threading.Thread(target=relay, args=(lambda: os.read(0, 2**16), server.sendall)).start()
relay(lambda: server.recv(2**16), print_all)
"""


@dataclass(frozen=True)
class SshServer:
    """A server that runs, and a client that knows it.

    Parameters
    ----------
    folder : Path
        Its files: ``host`` and ``user``, the private keys; ``keys``, who may log in; ``known``, the known hosts of the
        client, which is the program ``bin/ssh``.
    port : int
        Where it listens.
    process : subprocess.Popen
        The server itself.
    """

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        """User, host and port."""
        return f"{getpass.getuser()}@127.0.0.1:{self.port}"

    @property
    def binaries(self) -> Path:
        """The folder of the client, to be put in front of ``PATH``."""
        return self.folder / "bin"

    def forget_host(self) -> None:
        """Let the client know no host."""
        (self.folder / "known").write_text("")

    def know_host(self, key: str = "host") -> None:
        """Let the client know the host by a key."""
        public = (self.folder / f"{key}.pub").read_text().split()
        (self.folder / "known").write_text(f"[127.0.0.1]:{self.port} {' '.join(public[:2])}\n")

    def delay(self, round_trip: float) -> None:
        """Let connections that are opened from now on have this round trip [s] at least; 0 for that of the machine."""
        (self.folder / "relay.py").write_text(_RELAY)
        relay = f"{sys.executable} -SE {self.folder}/relay.py %h %p {round_trip / 2}"
        proxy = f"    ProxyCommand {relay}\n" if round_trip else ""
        (self.folder / "ssh_config").write_text(_CLIENT.format(folder=self.folder) + proxy)

    def sessions(self) -> list[int]:
        """Return the processes of the server that serve connections."""
        return [number for number in descendants(self.process.pid) if _name_of(number).startswith("sshd")]

    def cut(self) -> None:
        """Cut all connections, as when a cable is pulled, and let the programs on the device be."""
        for number in self.sessions():
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


@contextlib.contextmanager
def running_ssh_server(*options: str) -> Iterator[SshServer]:
    """Start a server as the user of the tests, with more lines of configuration; no file of the system changes."""
    folder = Path(tempfile.mkdtemp(prefix="nni_latency_ssh"))
    try:
        for key in ("host", "other", "user", "stranger"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", folder / key],
                check=True,
                timeout=60,
            )
        shutil.copy(folder / "user.pub", folder / "keys")
        (folder / "ssh_config").write_text(_CLIENT.format(folder=folder))
        client = shutil.which("ssh")
        (folder / "bin").mkdir()
        (folder / "bin" / "ssh").write_text(f'#!/bin/sh\nexec {client} -F {folder}/ssh_config "$@"\n')
        (folder / "bin" / "ssh").chmod(0o755)
        with _separation(), _running(folder, options) as (port, process):
            server = SshServer(folder, port, process)
            server.know_host()
            yield server
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def _separation() -> Iterator[None]:
    """Make the empty folder that a server of root needs, unless the system has it; the last server removes it."""
    if os.geteuid() != 0:
        yield
        return
    while True:
        # The system's own has another mode.
        _SEPARATION.mkdir(mode=0o711, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(_SEPARATION, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if _SEPARATION.exists():
                break
            os.close(descriptor)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if stat.S_IMODE(os.fstat(descriptor).st_mode) == 0o711:
                _SEPARATION.rmdir()
        os.close(descriptor)


@contextlib.contextmanager
def _running(folder: Path, options: Sequence[str]) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run the server until it is no longer needed; yield its port and its process."""
    for _ in range(10):
        port = _free_port()
        (folder / "sshd_config").write_text("\n".join([_CONFIGURATION.format(folder=folder, port=port), *options]))
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", folder / "sshd_config"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            if not _listens(folder, process):
                # Another process has taken the port since it was found free.
                continue
            yield port, process
            return
        finally:
            for number in [*descendants(process.pid), process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            process.wait(60)
    raise AssertionError((folder / "log").read_text())


def _listens(folder: Path, process: subprocess.Popen[bytes]) -> bool:
    """Wait until the server says that it listens; False if its port was taken."""
    limit = time.monotonic() + 60
    while "Server listening on" not in (said := (folder / "log").read_text()):
        if process.poll() is not None:
            assert "Address already in use" in said, said
            return False
        assert time.monotonic() < limit, "The SSH server does not listen."
        time.sleep(0.05)
    return True


def descendants(process: int) -> list[int]:
    """Return the processes below one, children first."""
    found, wanted = [], {process}
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    while wanted:
        wanted = {child for child, parent in parents.items() if parent in wanted}
        found += sorted(wanted)
    return found


def _name_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
