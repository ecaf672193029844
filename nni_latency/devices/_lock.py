"""`locked`: the lock of a device, so that two users do not measure on it at once."""

from __future__ import annotations

import contextlib
import datetime
import getpass
import hashlib
import os
import selectors
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nni_latency.devices._connection import SHORT, Connection, DeviceError, end
from nni_latency.errors import BusyError

#: How long the process on the device may need to give the lock back [s].
_GRACE = 5.0

#: Shell script that holds the lock on the device until its input ends. Arguments: $0 the folder for the lock, $1 the
#: description of the holder, then processes to replace. Each contender first writes a file named after its process, and
#: then looks for files of other live processes: two never hold the lock at once. Of two that start together, the one
#: with the higher process number gives up. Files of dead processes are removed; as their names are unique, that cannot
#: remove the file of another contender.
_HOLD = """
alive() {
    if [ -r /proc/self/cmdline ]; then grep -q nni_latency.lock "/proc/$1/cmdline" 2>/dev/null
    else ps -p "$1" -o args= 2>/dev/null | grep -q nni_latency.lock; fi
}
others() {
    found=
    for file in "$folder"/*; do
        number=${file##*/}
        case $number in "$$" | *[!0-9]*) continue ;; esac
        if alive "$number" || ! rm -f "$file" 2>/dev/null; then found="$found $number"; fi
    done
    [ -n "$found" ]
}
lower() {
    for number in $found; do [ "$number" -gt "$$" ] || return 1; done
}
base=$0 who=$1; shift
[ -d "$base" ] && [ -w "$base" ] || base=${TMPDIR:-.}
folder=$base/nni_latency.lock
for number; do
    if alive "$number"; then kill -9 "$number" 2>/dev/null; fi
    rm -f "$folder/$number"
done
trap 'rm -f "$folder/$$"; rmdir "$folder" 2>/dev/null' EXIT
trap 'exit 1' HUP INT TERM PIPE
tries=0
until mkdir -m 1777 "$folder" 2>/dev/null
    (umask 022; printf '%s\\n' "$who" > "$folder/.$$" && mv "$folder/.$$" "$folder/$$") 2>/dev/null; do
    tries=$((tries + 1))
    [ $tries -lt 10 ] || { echo "cannot $folder"; exit 1; }
done
tries=0
while others; do
    tries=$((tries + 1))
    if [ $tries -gt 2 ] || ! lower; then
        for number in $found; do echo "busy $number $(cat "$folder/$number" 2>/dev/null)"; done
        exit 1
    fi
    sleep 1
done
echo held
while read -r line; do :; done
"""


#: What holds the locks of this process, by their names.
_HELD: dict[str, subprocess.Popen[bytes]] = {}


class DeviceLock:
    """The lock of a device, while it is held.

    Parameters
    ----------
    process : subprocess.Popen
        What holds it.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def held(self) -> bool:
        """Whether it is still held: it ends with the connection."""
        return self._process.poll() is None


@contextlib.contextmanager
def locked(connection: Connection) -> Iterator[DeviceLock]:
    """Hold the lock of a device, which all users of the device share.

    A process on the device holds it until its channel closes, so that the lock is released when this machine crashes.
    After a lost connection, the device may take hours to notice; a lock that belongs to a dead process of this machine,
    or to a lost connection of this process, is taken over at once.

    Parameters
    ----------
    connection : Connection
        The device.

    Raises
    ------
    BusyError
        If another user holds it; the message names the holder and the time.
    DeviceError
        If the device cannot be reached, or no lock can be kept there.

    Examples
    --------
    >>> import sys, tempfile
    >>> from nni_latency.devices import PythonConnection
    >>> connection = PythonConnection(sys.executable)
    >>> with tempfile.TemporaryDirectory() as connection.folder, locked(connection) as lock:
    ...     lock.held
    True
    """
    name = uuid.uuid4().hex
    process = _HELD[name] = _hold(connection, name)
    try:
        yield DeviceLock(process)
    finally:
        end(process, _GRACE)
        del _HELD[name]


def _hold(connection: Connection, name: str) -> subprocess.Popen[bytes]:
    replaced: list[str] = []
    while True:
        process = connection.start(["sh", "-c", _HOLD, connection.folder, _Holder.here(name).text(), *replaced])
        answer = ""
        try:
            answer = _first_line(process)
            if answer == "held":
                return process
        finally:
            if answer != "held":
                rest, err = _rest(process)
        holders = [_Holder.parse(line) for line in [answer, *rest] if line.startswith("busy ")]
        left = [holder.process for holder in holders if holder.has_ended() and holder.process not in replaced]
        if holders and len(left) == len(holders):
            replaced = left
            continue
        raise _error(connection, process, answer, holders, err)


def _error(
    connection: Connection, process: subprocess.Popen[bytes], answer: str, holders: list[_Holder], err: bytes
) -> Exception:
    if holders:
        holder = next((holder for holder in holders if not holder.has_ended()), holders[0])
        return BusyError(
            f"{connection.description} is in use: {holder.user} measures on it since "
            f"{holder.since.replace('T', ' ')} UTC (process {holder.process} there). Wait for that to end, or name "
            "another device."
        )
    sentence = connection.failure(process.returncode, err)
    if sentence is not None:
        return DeviceError(sentence)
    kind, _, folder = answer.partition(" ")
    if kind == "cannot":
        return DeviceError(
            f"{connection.description} cannot keep a lock in the folder {folder!r}: its disk is full, or this user may "
            "not write there. Make room, or remove the folder."
        )
    reason = err.decode(errors="replace").strip().splitlines()
    return DeviceError(f"{connection.description} cannot keep a lock: {reason[-1] if reason else 'no answer'}.")


@dataclass(frozen=True)
class _Holder:
    """The holder of a lock: a process of the device, and the process of the user's machine behind it. Immutable."""

    process: str
    machine: str
    client: str
    name: str
    since: str
    user: str

    @classmethod
    def here(cls, name: str) -> _Holder:
        """Describe this process."""
        try:
            user = getpass.getuser()
        except (OSError, KeyError):
            user = "another user"
        since = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M}"
        user = "_".join(f"{user}@{socket.gethostname()}".split())
        return cls("", _machine(), str(os.getpid()), name, since, user)

    @classmethod
    def parse(cls, line: str) -> _Holder:
        """Read a line of the device."""
        words = [*line.split()[1:], *[""] * 6][:6]
        unknown = ("", "", "", "", "an unknown time", "another user")
        return cls(*(word or other for word, other in zip(words, unknown, strict=True)))

    def text(self) -> str:
        """Describe it in one line."""
        return f"{self.machine} {self.client} {self.name} {self.since} {self.user}"

    def has_ended(self) -> bool:
        """Whether its process of this machine has ended, or is this one, which has lost that connection."""
        if self.machine != _machine() or not (self.client.isdigit() and self.process.isdigit()):
            return False
        if int(self.client) == os.getpid():
            holding = _HELD.get(self.name)
            return holding is None or holding.poll() is not None
        return not _runs(int(self.client))


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _machine() -> str:
    """Return what no other machine has, and this one only until it is started again."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(), str(Path("/proc/self/ns/pid").readlink())]
    return hashlib.sha256("\n".join([sys.platform, *parts]).encode()).hexdigest()[:16]


def _first_line(process: subprocess.Popen[bytes], patience: float = SHORT) -> str:
    """Read a line of a process; empty if it ends or takes too long."""
    assert process.stdout is not None
    limit, line = time.monotonic() + patience, b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n") and selector.select(max(0.0, limit - time.monotonic())):
            byte = os.read(process.stdout.fileno(), 1)
            if not byte:
                break
            line += byte
    return line.decode(errors="replace").strip()


def _rest(process: subprocess.Popen[bytes]) -> tuple[list[str], bytes]:
    """Read what a process still writes, and end it."""
    out = err = b""
    with contextlib.suppress(subprocess.TimeoutExpired, ValueError, OSError):
        out, err = process.communicate(timeout=_GRACE)
    end(process)
    return out.decode(errors="replace").splitlines(), err
