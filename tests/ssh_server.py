# SPDX-License-Identifier: Apache-2.0
"""An SSH server on the loopback address, with keys of its own, while it runs; and a user for it with its own Python."""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import pwd
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
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

#: The Python of a user: it notes every start, and has a temporary folder of its own, unless it is given one.
_PYTHON = """#!/bin/sh
echo "$$" >> {home}/starts
export TMPDIR="${{TMPDIR:-{home}/tmp}}"
exec {python} "$@"
"""


@dataclass(frozen=True)
class Account:
    """A user of the device.

    Parameters
    ----------
    name : str
        Its name.
    number : int
        Its number.
    home : Path
        Its folder.
    reason : str
        Why it is the user of the tests; empty for another user.
    entry : tuple of str
        The program, with its first arguments, that starts a server for it.
    """

    name: str
    number: int
    home: Path
    reason: str = ""
    entry: tuple[str, ...] = ()

    @property
    def python(self) -> str:
        """Python of the device; that of another user has nothing but the packages that it was made with."""
        return str(self.home / "python")

    @property
    def starts(self) -> Path:
        """File with a line for each start of that Python."""
        return self.home / "starts"

    def left(self) -> list[Path]:
        """Return its temporary files; those of another user wherever they are, and its processes."""
        found = list((self.home / "tmp").iterdir())
        for path in () if self.reason else (*Path("/tmp").iterdir(), *Path("/proc").glob("[0-9]*/cmdline")):
            with contextlib.suppress(OSError):
                # A process that has ended may still be listed, without its words.
                if path.lstat().st_uid == self.number and (path.name != "cmdline" or path.read_bytes()):
                    found.append(path)
        return found

    def assert_nothing_is_left(self) -> None:
        """Wait until no temporary file and no process is left."""
        limit = time.monotonic() + 120
        while self.left() and time.monotonic() < limit:
            time.sleep(0.05)
        assert not self.left()


@contextlib.contextmanager
def device_account(*packages: str) -> Iterator[Account]:
    """Make another user, whose Python has these packages alone; it takes root, and a Linux that lets root mount.

    The server has a mount namespace, where ``/etc/passwd`` is another file, the packages are in an environment, and the
    tests and the home of their user cannot be seen. Nothing of this is seen outside. Where it cannot be made, this is
    the user of the tests, with their Python.
    """
    # Other users do not reach the temporary folder of the tests.
    place = Path(tempfile.mkdtemp(prefix="nni_latency_device", dir="/tmp"))
    try:
        place.chmod(0o711)
        home = place / "home"
        try:
            account = _other_account(place, packages)
            python = account.home / "env" / "bin" / "python"
            number = str(account.number)
            user = ["setpriv", "--reuid", number, "--regid", number, "--clear-groups"]
            subprocess.run(
                [*account.entry, *user, python, "-c", ""], check=True, capture_output=True, text=True, timeout=60
            )
            for path in (account.home, account.home / "tmp"):
                os.chown(path, account.number, account.number)
        except (OSError, subprocess.SubprocessError, metadata.PackageNotFoundError) as error:
            lines = str(getattr(error, "stderr", "") or error).strip().splitlines()
            reason = f"another user cannot be made here: {lines[-1]}"
            account, python = Account(getpass.getuser(), os.geteuid(), home, reason), Path(sys.executable)
        Path(account.python).write_text(_PYTHON.format(home=account.home, python=python))
        Path(account.python).chmod(0o755)
        yield account
    finally:
        shutil.rmtree(place)


def _other_account(place: Path, packages: Sequence[str]) -> Account:
    """Return another user and how a program is started that knows it, be it possible or not."""
    name, number, home, base = "board", 60_001 + os.getpid() % 4_000, place / "home", place / "base"
    for folder in (base, home / "tmp"):
        folder.mkdir(parents=True)
    users = Path("/etc/passwd").read_text()
    (place / "passwd").write_text(f"{users.rstrip()}\n{name}:*:{number}:{number}::{home}:/bin/sh\n")
    venv.EnvBuilder(symlinks=True).create(home / "env")
    (site,) = home.glob("env/lib/python*/site-packages")
    bind, read_only = ("mount", "--bind"), ("mount", "-o", "bind,ro")
    steps = [(*bind, place / "passwd", "/etc/passwd"), (*read_only, sys.base_prefix, base)]
    for package in map(metadata.distribution, packages):
        for part in {file.parts[0] for file in package.files or () if ".." not in file.parts}:
            (site / part).mkdir()
            steps.append((*read_only, package.locate_file(part), site / part))
    # These are the tests and the home of root; the Python on which the environment stands may be below one of them.
    for hidden in (Path(__file__).parents[1], pwd.getpwuid(0).pw_dir):
        steps.append(("mount", "-t", "tmpfs", "-o", "mode=711", "none", hidden))
    steps += [("mkdir", "-p", sys.base_prefix), (*read_only, base, sys.base_prefix)]
    script = " && ".join(shlex.join(map(str, step)) for step in steps) + ' && exec "$@"'
    return Account(name, number, home, entry=("unshare", "--mount", "sh", "-c", script, "sh"))


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
    user : str
        Who logs in.
    port : int
        Where it listens.
    process : subprocess.Popen
        The server itself.
    """

    folder: Path
    user: str
    port: int
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        """User, host and port."""
        return f"{self.user}@127.0.0.1:{self.port}"

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
def running_ssh_server(*options: str, account: Account | None = None) -> Iterator[SshServer]:
    """Start a server with more lines of configuration, as the user of the tests; no file of the system changes.

    By default, this user logs in.
    """
    folder = Path(tempfile.mkdtemp(prefix="nni_latency_ssh", dir=account and account.home.parent))
    try:
        # The user who logs in reads ``keys``.
        folder.chmod(0o711)
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
        entry = account.entry if account else ()
        with _separation(), _running(folder, options, entry) as (port, process):
            server = SshServer(folder, account.name if account else getpass.getuser(), port, process)
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
def _running(
    folder: Path, options: Sequence[str], entry: Sequence[str]
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run the server until it is no longer needed; yield its port and its process."""
    for _ in range(10):
        port = _free_port()
        (folder / "sshd_config").write_text("\n".join([_CONFIGURATION.format(folder=folder, port=port), *options]))
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*entry, SSHD, "-D", "-e", "-f", folder / "sshd_config"],
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
