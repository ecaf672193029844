# SPDX-License-Identifier: Apache-2.0
"""`SshConnection`: a device that is reached by the OpenSSH client of this machine."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nni_latency.devices._connection import Connection, DeviceError, start_here
from nni_latency.errors import InvalidValueError

#: Users and hosts that are passed to ssh. It cannot take them for options, and a shell would not interpret them.
_ADDRESS = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][\w.@+-]*)@)?"
    r"(?:(?P<name>[A-Za-z0-9_][\w.-]*)|\[(?P<number>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\])"
    r"(?::(?P<port>[0-9]{1,5}))?",
    re.ASCII,
)

#: How often ssh asks a device that is silent for an answer [s], and how many may be missing before it is lost.
_KEEP_ALIVE, _KEEP_ALIVES = 10, 3

#: How long authentication and jump hosts may take in all [s].
_OPENING = 90.0

#: How long the master connection stays open without a program, should this process be killed [s].
_IDLE = 60

#: Exit code of ssh when the connection fails.
_FAILED = 255

#: Longest name of a folder for the socket: addresses of sockets have 104 bytes on some systems, and ssh adds to them.
_LONGEST = 50

#: Options of programs: they share the master connection, and do not connect by themselves should it have ended.
_SHARED = ("-o", "ControlMaster=no", "-o", "ProxyCommand=false")

#: What the names of folders of sockets begin with; the number of the process follows that made it.
_PREFIX = "nni-ssh-"

#: What ssh prints where a connection ends as soon as it is open.
_ENDED = rb"Connection to \S+ closed by remote host|new control master|master hello exchange|client_loop: "

#: What ssh prints where the master connection did not take a program, so that it tried to connect by itself.
_ALONE = rb"exchange_identification: |UNKNOWN port"

#: What a shell must print to be one.
_GREETING = "nni_latency"

#: Runs the program with its arguments, as a child of the shell, so that a signal which ends it becomes an exit code.
#: The code of ssh itself is left to ssh: whether the master connection is open does not say who ended with it, because
#: one that was lost may still accept clients for a moment.
_RUN = f'"$@"; c=$?; [ $c != {_FAILED} ] || c={_FAILED - 1}; exit $c'


#: What ssh prints, and the sentence that it means; the first that is found counts. Names that begin with ``shell_`` are
#: quoted for a shell.
_REASONS: dict[str, str] = {
    r"REMOTE HOST IDENTIFICATION HAS CHANGED": (
        "The host key of {device} has changed since it was last used: either the device was installed anew, or another "
        "machine answers in its place. If it was installed anew, forget the old key: ssh-keygen -R {shell_known}"
    ),
    r"Host key verification failed": (
        "The host key of {device} is not known to this machine. Connect once by hand, compare the fingerprint that is "
        "shown with the device's, and answer yes: ssh {target}"
    ),
    r"Could not resolve hostname (?P<host>[^\s:]+)": (
        "{device} cannot be reached: there is no host {host!r}. Check the name, or write its address in numbers."
    ),
    r"Permissions \S+ for '(?P<key>[^']+)' are too open": (
        "{device} cannot be reached: other users may read the private key {key!r}, so ssh does not use it. Take that "
        "right away: chmod 600 {shell_key}"
    ),
    r"Permission denied \(|Too many authentication failures": (
        "{device} does not accept this machine's keys; passwords are never asked for. Install a key there: ssh-copy-id "
        "{target}"
    ),
    r"port (?P<port>\d+): Connection refused": (
        "{device} refuses connections at the port {port}. Start the SSH server there, on Debian and Ubuntu: systemctl "
        "start ssh; or name another port: ssh:USER@HOST:PORT"
    ),
    r"timed out|No route to host|Network is unreachable|Host is down": (
        "{device} does not answer. Check that the device is switched on and in the same network, and that no firewall "
        "is between."
    ),
    r"\s*(?P<line>.*(?:Bad configuration option|Bad owner or permissions|[Uu]nsupported option).*)": (
        "{device} cannot be reached: ssh does not accept its configuration: {line}"
    ),
}

#: The same for a connection that ended before it was open.
_CLOSED = {
    r"kex_exchange_identification|Connection (closed|reset) by|Broken pipe": (
        "{device} ended the connection before it was open: it has too many at the moment, or what listens there is no "
        "SSH server. To see more: ssh -v {target}"
    ),
}


class SshConnection(Connection):
    """A device reached by SSH, with the OpenSSH client, configuration, keys and host-key checks of this machine.

    All programs share one master connection. The first program opens it; after a loss, the next one opens it again.

    Parameters
    ----------
    address : str
        ``USER@HOST``, ``USER@HOST:PORT``, or a host of ``~/.ssh/config``; an IPv6 address in brackets.

    Attributes
    ----------
    patience : int
        How long a device may take to answer when it is connected to, in whole seconds [s].

    Raises
    ------
    InvalidValueError
        If the address is none.

    Examples
    --------
    >>> SshConnection("pi@raspberrypi:2222").description
    'ssh:pi@raspberrypi:2222'
    """

    patience: int = 10

    def __init__(self, address: str) -> None:
        match = _ADDRESS.fullmatch(address)
        port = match["port"] if match else None
        if match is None or (port is not None and not 0 < int(port) < 2**16):
            raise InvalidValueError(
                "A device 'ssh:USER@HOST[:PORT]' must name a user, a host and perhaps a port, such as "
                f"ssh:pi@raspberrypi or ssh:pi@192.168.0.7:2222; IPv6 addresses stand in brackets. "
                f"Got {f'ssh:{address}'!r}."
            )
        self.description = f"ssh:{address}"
        self._target = f"{match['user']}@" * bool(match["user"]) + (match["name"] or match["number"])
        self._host, self._port, self._user = match["name"] or match["number"], port, match["user"]
        self._opening = threading.Lock()
        self._folder: Path | None = None

    def start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a program on the device; opens the master connection if need be."""
        with self._opening:
            if not self._is_open():
                self._open()
        remote = shlex.join(["sh", "-c", _RUN, "sh", *command])
        return start_here(self._ssh(*_SHARED, "--", self._host, remote), self.description)

    def failure(self, code: int, err: bytes) -> str | None:
        """Explain the exit code 255, which is that of ssh: a program that ends so on the device ends with 254 here."""
        if code < 0:
            return f"The SSH client of this machine, which reaches {self.description}, ended by the signal {-code}."
        if code != _FAILED:
            return None
        if b"Session open refused" in err:
            return (
                f"{self.description} runs no more programs at once for one connection. Let the option MaxSessions in "
                "its /etc/ssh/sshd_config be 10, as it is unless it is set."
            )
        return self._explain(err) or self.lost

    def close(self) -> None:
        """End the master connection, and with it the programs that still run."""
        with self._opening:
            if self._folder is not None:
                self._end()
                self._folder = None

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process opens its own connection.
        return {name: value for name, value in vars(self).items() if name not in ("_opening", "_folder", "_end")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self._opening, self._folder = threading.Lock(), None

    # The master connection ----------------------------------------------------------------------------------------

    def _ssh(self, *options: str, path: Path | None = None) -> list[str]:
        fixed = {
            "BatchMode": "yes",
            "ConnectTimeout": self.patience,
            "ServerAliveInterval": _KEEP_ALIVE,
            "ServerAliveCountMax": _KEEP_ALIVES,
            "LogLevel": "ERROR",
            "ClearAllForwardings": "yes",
            "RemoteCommand": "none",
            "ControlPath": path or self._socket,
        }
        settings = [word for name, value in fixed.items() for word in ("-o", f"{name}={value}")]
        port = ["-p", self._port] if self._port else []
        user = ["-l", self._user] if self._user else []
        return ["ssh", "-T", "-a", "-x", *settings, *port, *user, *options]

    @property
    def _socket(self) -> Path:
        if self._folder is None or not self._folder.exists():
            usual = tempfile.gettempdir()
            odd = len(usual) > _LONGEST or re.fullmatch(r"[\w./-]+", usual, re.ASCII) is None
            place = Path("/tmp" if odd else usual)
            _remove_left_folders(place)
            self._folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=place))
            self._end = weakref.finalize(self, _end, os.getpid(), self._folder, self._host)
        return self._folder / "s"

    def _is_open(self) -> bool:
        if self._folder is None:
            return False
        return _listens(self._folder / "s")

    def _open(self) -> None:
        """Open the master connection, and see that there is a shell behind it."""
        self._socket.unlink(missing_ok=True)
        persist = ("-o", "ControlMaster=yes", "-o", f"ControlPersist={_IDLE}")
        code, _, err = self._call(self._ssh(*persist, "-N", "-f", "--", self._host))
        if code and self._explain(err) is None:
            err = self._jump_failure() or err
        if code and re.search(_ENDED, err):
            raise DeviceError(self.lost)
        if code:
            raise DeviceError(self._explain(err) or self._explain(err, _CLOSED) or self._unexplained(err))
        try:
            self._greet()
        except BaseException:
            _end_master(self._socket, self._host)
            raise

    def _jump_failure(self) -> bytes:
        """Return what the connection to a jump host prints, if there is one: a master connection does not show it."""
        _, settings, _ = self._call(self._ssh("-G", "--", self._host))
        if re.search(rb"^proxy(jump|command) (?!none$)", settings, re.MULTILINE) is None:
            return b""
        return self._call(self._ssh("--", self._host, "true", path=Path("none")))[2]

    def _greet(self) -> None:
        greeting = shlex.join(["sh", "-c", f"echo {_GREETING}"])
        code, out, err = self._call(self._ssh(*_SHARED, "--", self._host, greeting))
        text = out.decode(errors="replace").strip()
        if text == _GREETING:
            return
        if code == 0 and text.endswith(_GREETING):
            raise DeviceError(
                f"The shell of {self.description} prints {text[: -len(_GREETING)].strip()[:80]!r} whenever a program "
                "is started, which mixes with what programs print. Let its startup files, such as ~/.bashrc, print "
                "only in interactive shells."
            )
        said = (out + err).strip()
        if code == _FAILED and (not said or re.search(_ALONE, err) or not self._is_open()):
            raise DeviceError(self.lost)
        raise DeviceError(
            f"{self.description} is reached, but runs no programs: "
            f"{_last_line(err) or _last_line(out) or f'it ended with code {code}'}. A device needs a POSIX shell."
        )

    def _call(self, command: Sequence[str]) -> tuple[int, bytes, bytes]:
        """Run ssh with files for what it writes: a master that goes on in the background would keep pipes open."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    # No window asks for the password of a jump host, to which BatchMode does not apply.
                    env={**os.environ, "SSH_ASKPASS_REQUIRE": "never"},
                    start_new_session=True,
                )
            except OSError as error:
                raise DeviceError(
                    f"There is no program 'ssh' on this machine, which reaches {self.description}. Install OpenSSH's "
                    "client, on Debian and Ubuntu: apt install openssh-client"
                ) from error
            try:
                code = process.wait(_OPENING)
            except subprocess.TimeoutExpired as error:
                raise DeviceError(
                    f"{self.description} answered, but did not let this machine in within {_OPENING:g} s."
                ) from error
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            for file in (out, err):
                file.seek(0)
            return code, out.read(), err.read()

    # What ssh prints when it fails --------------------------------------------------------------------------------

    def _explain(self, err: bytes, reasons: Mapping[str, str] = _REASONS) -> str | None:
        text = err.decode(errors="replace")
        for pattern, sentence in reasons.items():
            match = re.search(pattern, text)
            if match is not None:
                # As it stands in files of known hosts.
                known = f"[{self._host}]:{self._port}" if self._port not in (None, "22") else self._host
                found = {name: part.strip() for name, part in match.groupdict().items()} | {"known": known}
                quoted = {f"shell_{name}": shlex.quote(part) for name, part in found.items()}
                return sentence.format(device=self.description, target=self._as_words, **found, **quoted)
        return None

    def _unexplained(self, err: bytes) -> str:
        reason = _last_line(err)
        if not reason:
            return self.lost
        return f"{self.description} cannot be reached: {reason}. To see more: ssh -v {self._as_words}"

    @property
    def _as_words(self) -> str:
        """The address as programs take it that a person may run."""
        return f"-p {self._port} {self._target}" if self._port else self._target


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1].strip().rstrip(".") if lines else ""


def _end(owner: int, folder: Path, host: str) -> None:
    """End the master connection of a folder and remove it, in the process that made it."""
    if os.getpid() == owner:
        _end_master(folder / "s", host)
        shutil.rmtree(folder, ignore_errors=True)


def _end_master(path: Path, host: str) -> None:
    if path.exists():
        command = ["ssh", "-o", f"ControlPath={path}", "-O", "exit", "--", host]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=10
            )


def _listens(path: Path) -> bool:
    """Whether a master connection is open at a socket."""
    with socket.socket(socket.AF_UNIX) as channel:
        return channel.connect_ex(str(path)) == 0


def _remove_left_folders(place: Path) -> None:
    """Remove the folders of killed processes whose master connections have ended."""
    for folder in place.glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        with contextlib.suppress(OSError, ValueError):
            if folder.stat().st_uid != os.getuid() or _listens(folder / "s"):
                continue
            try:
                os.kill(int(owner), 0)
            except ProcessLookupError:
                shutil.rmtree(folder, ignore_errors=True)
