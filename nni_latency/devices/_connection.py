# SPDX-License-Identifier: Apache-2.0
"""`Connection`: how programs are run on a device, and files copied to it; and the connection to this machine."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar

from nni_latency.errors import InvalidValueError, MeasurementError, first_line
from nni_latency.hook_checks import TEXT, Check, Guard, PluggableContext, is_text
from nni_latency.units import format_seconds

#: Longest time for a short program on a device, such as one that removes a folder [s].
SHORT = 60.0

#: Time between two looks at a program that was stopped [s].
_POLL = 0.02

#: How long a program that takes too long may need to end on a device [s].
_GRACE = 5.0

#: Bytes of a file that are read and sent at once.
_BLOCK = 2**20

#: What the shell of a device runs for `Connection.run`: the program with the first $1 bytes of the standard input. The
#: rest of the input is a lifeline: when it ends, because this machine gave up, crashed or was cut off, the program is
#: ended. Its end cannot be read while the program leaves bytes before it. Until the program takes these or closes its
#: input, an empty line is written to the standard error every second, which fails once the connection is closed, and $2
#: seconds are counted. At its end the line $3 is written to the standard output.
_WITH_LIFELINE = """
n=$1 t=$2 last=$3; shift 3
exec 3<&0
trap '{ kill $!; sleep 1; kill -9 $!; } 2>/dev/null; exit 143' TERM HUP
watch='cat; kill "$0"'
probe='t=$1; while [ "$t" -gt 0 ] && sleep 1 >/dev/null && (echo); do t=$((t - 1)); done; kill "$0"'
{
    [ "$n" = 0 ] || {
        sh -c "$probe" $$ "$t" 3<&- >&2 2>/dev/null &
        head -c "$n" <&3
        kill $!
    }
    sh -c "$watch" $$ <&3 3<&- >/dev/null 2>&1 &
} | "$@" 3<&- &
exec 3<&-
wait $!; c=$?
echo "$last"
exit "$c"
"""

#: That line. A connection may give the exit code of a program, and be lost before all that it wrote has arrived.
_LAST = b"nni_latency: end of output\n"

#: Writes its standard input to the file $1, unless it is cut off before it has $2 bytes.
_WRITE = """
trap 'rm -f "$1.part"; exit 1' TERM HUP
cat > "$1.part" && [ "$(wc -c < "$1.part")" -eq "$2" ] && mv "$1.part" "$1" || { rm -f "$1.part"; exit 1; }
"""

#: Makes a folder in the first place where files can be written; Android may have none but the last.
_MAKE_FOLDER = """
set -- "${TMPDIR:-$0}"
for folder in "$1" "$0" /tmp /var/tmp /data/local/tmp "$1"; do [ -w "$folder" ] && break; done
exec mktemp -d "$folder/nni_latency.XXXXXX"
"""


#: What a user can do on a device whose Python cannot measure.
MEASURE_BY_BINARY = "measure with a benchmark binary, such as benchncnn"


class DeviceError(MeasurementError):
    """Raised when a device cannot be reached, or cannot do what is asked of it; the message is one sentence."""


@dataclass(frozen=True)
class Completed:
    """A program that has ended on a device. Immutable.

    Parameters
    ----------
    code : int
        Its exit code; 128 and the number of the signal that ended it, as shells count. 254 may stand for 255, which
        says in `ssh` and `adb` that the connection was lost.
    out, err : bytes
        What it wrote; in `err`, an empty line for every second in which it left some of its input.
    """

    code: int
    out: bytes
    err: bytes

    @property
    def reason(self) -> str:
        """The last line of its errors, or else of its output."""
        lines = (self.err.strip() or self.out.strip()).decode(errors="replace").splitlines()
        return lines[-1].strip() if lines else f"it ended with code {self.code}"


class Connection(PluggableContext, ABC):
    """Runs programs on a device and copies files to it and from it. A context manager; safe in several threads.

    Implement `start`, and `failure` where the connection itself may fail. A device has a POSIX shell.

    Attributes
    ----------
    description : str
        The device as a user writes it, such as ``ssh:pi@raspberrypi``, or the name that it has for the user.
    reached_as : str
        How the device is reached, such as ``ssh:pi@raspberrypi``, where `description` is a name; else empty.
    python : str
        The Python of the device.
    cores : tuple of int
        Processors of the device on which networks run; by default the last ones, as many as there are threads.
    folder : str
        Where temporary folders of the device are, unless its variable ``TMPDIR`` names another place.
    lock_folders : tuple of str
        The first of these folders of the device that can be opened is locked while something is measured there. It is
        the same for all users and temporary folders of the device, and exists without anything that is measured.
    advice : str
        What a user can do when the connection is lost; a sentence without its period.
    """

    _kind = "connection"
    _guards: ClassVar[Mapping[str, Guard]] = {
        "start": Guard(("a subprocess.Popen with pipes", lambda answer: isinstance(answer, subprocess.Popen))),
        "failure": Guard(("None or a sentence", lambda answer: answer is None or is_text(answer))),
    }
    _attributes: ClassVar[Mapping[str, Check]] = dict.fromkeys(("description", "python", "folder"), TEXT)

    description: str
    reached_as: str = ""
    python: str = "python3"
    cores: tuple[int, ...] = ()
    folder: str = "/tmp"
    lock_folders: tuple[str, ...] = ("/sys/devices/system/cpu", "/tmp", "/data/local/tmp")
    advice: str = "Check that the device has power and network"

    @property
    def python_advice(self) -> str:
        """What a user can do where there is no such Python; a sentence without its period."""
        is_usual = self.python == Connection.python
        remedy = "Install it by 'apt install python3 python3-venv'" if is_usual else "Correct 'python' of the device"
        return f"{remedy}, or {MEASURE_BY_BINARY}"

    @property
    def lost(self) -> str:
        """The sentence that says that the connection was lost."""
        return f"The connection to {self.description} was lost. {self.advice}; what was measured until then is kept."

    @abstractmethod
    def start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a program on the device.

        Parameters
        ----------
        command : sequence of str
            The program and its arguments. No shell interprets them.

        Returns
        -------
        subprocess.Popen
            A process of this machine whose standard input, output and error are those of the program: binary pipes.
            Writers flush the input. When the connection is lost, this process ends with a code that `failure`
            explains, and the program on the device reaches the end of its input. The program is not killed: one that
            runs for long must watch its input, or be run by `run`.

        Raises
        ------
        DeviceError
            If nothing can be started.
        """

    def failure(self, code: int, err: bytes) -> str | None:
        """Explain in one sentence why the connection failed, from the exit code and errors of a process of `start`.

        Returns
        -------
        str or None
            None if the program itself ended so.
        """
        return None

    def run(self, command: Sequence[str], *, data: bytes | Path = b"", timeout: float = SHORT) -> Completed:
        """Run a program on the device to its end.

        If it takes too long, or the connection is lost, the program is ended on the device as well.

        Parameters
        ----------
        command : sequence of str
            As for `start`.
        data : bytes or Path, default=b""
            Its standard input, or the file of this machine that holds it.
        timeout : float
            Longest time that it may take [s].

        Raises
        ------
        DeviceError
            If the connection fails, or the program takes longer.
        """
        length = data.stat().st_size if isinstance(data, Path) else len(data)
        # There it is ended after it is given up here.
        limit = math.ceil(timeout + _GRACE)
        settings = (str(length), str(limit), _LAST.decode().strip())
        process = self.start(["sh", "-c", _WITH_LIFELINE, "sh", *settings, *command])
        lifeline, process.stdin = process.stdin, None
        assert lifeline is not None
        feeder = threading.Thread(target=_feed, args=(lifeline, data), daemon=True)
        feeder.start()
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise DeviceError(
                f"{self.description}: {shlex.join(command)[:200]!r} did not end within {format_seconds(timeout)}."
            ) from error
        finally:
            if feeder.is_alive():
                # It may wait for a program that reads no more, and it has the pipe.
                feeder.join(_POLL)
                kill(process)
                feeder.join(_GRACE)
            process.stdin = None if feeder.is_alive() else lifeline
            end(process, _GRACE)
        sentence = self.failure(process.returncode, err)
        if sentence is not None:
            raise DeviceError(sentence)
        code = process.returncode
        out, mark, later = out.rpartition(_LAST)
        if code == 0 and not mark:
            raise DeviceError(self.lost)
        # What it started may go on to write.
        return Completed(code if code >= 0 else 128 - code, out + later, err)

    def check(
        self, command: Sequence[str], what: str, *, data: bytes | Path = b"", timeout: float = SHORT
    ) -> Completed:
        """Run a program that must succeed.

        Parameters
        ----------
        command, data, timeout
            As for `run`.
        what : str
            What cannot be done if it fails, such as ``make a folder``.

        Raises
        ------
        DeviceError
            As for `run`, and if it ends with another code than 0.
        """
        done = self.run(command, data=data, timeout=timeout)
        if done.code:
            raise DeviceError(f"{self.description} cannot {what}: {done.reason}.")
        return done

    def send(self, content: bytes | Path, path: str, *, timeout: float = 3600.0) -> None:
        """Write a file on the device; it appears under its name once it is whole.

        Raises
        ------
        DeviceError
            If it cannot be written, such as on a disk that is full.
        """
        length = content.stat().st_size if isinstance(content, Path) else len(content)
        command = ["sh", "-c", _WRITE, "sh", path, str(length)]
        self.check(command, f"write {path!r}", data=content, timeout=timeout)

    def fetch(self, path: str, *, timeout: float = 3600.0) -> bytes:
        """Return the content of a file of the device.

        Raises
        ------
        DeviceError
            If it cannot be read.
        """
        return self.check(["cat", path], f"read {path!r}", timeout=timeout).out

    def make_folder(self) -> str:
        """Make a temporary folder on the device and return its path. The caller removes it."""
        return self.check(["sh", "-c", _MAKE_FOLDER, self.folder], "make a temporary folder").out.decode().strip()

    def remove_folder(self, path: str) -> None:
        """Remove a folder of `make_folder`, as far as it can be reached."""
        with contextlib.suppress(DeviceError):
            self.run(["rm", "-rf", path])


class PythonConnection(Connection):
    """Another Python of this machine: an environment that cannot live with this one, or an emulated processor.

    Parameters
    ----------
    address : str
        Its path, as in ``python:/opt/other/bin/python``; of a folder with an environment, the Python in there.

    Raises
    ------
    InvalidValueError
        If there is no such program.

    Examples
    --------
    >>> import sys
    >>> connection = PythonConnection(sys.executable)
    >>> connection.run([connection.python, "-c", "print(6 * 7)"]).out.strip()
    b'42'
    """

    def __init__(self, address: str) -> None:
        path = Path(address).expanduser()
        if path.is_dir():
            path = path / "bin" / "python"
        # A virtual environment's Python is a link that must not be followed.
        found = shutil.which(os.path.abspath(path))  # noqa: PTH100
        if not address or found is None:
            raise InvalidValueError(
                f"A device 'python:PATH' must name a Python of this machine, such as python:/opt/other/bin/python. "
                f"Got {f'python:{address}'!r}, which is not a program."
            )
        self.description, self.python = f"python:{address}", found

    def start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a program of this machine, away from the keyboard and from the modules of this Python."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "PYTHONPATH")}
        return start_here(command, self.description, environment=kept)


def start_here(
    command: Sequence[str],
    description: str,
    *,
    make: type[subprocess.Popen[bytes]] = subprocess.Popen,
    missing: str = "",
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program of this machine with binary pipes, in a session of its own.

    Parameters
    ----------
    command : sequence of str
        The program and its arguments.
    description : str
        The device, for messages.
    make : type, default=subprocess.Popen
        Class of the process.
    missing : str, optional
        The message if this machine has no such program.
    environment : mapping of str to str, optional
        Its environment variables; by default those of this process.

    Raises
    ------
    DeviceError
        If it cannot be started.
    """
    try:
        return make(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            # Ctrl-C ends a campaign in order, and not the program under it.
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        if missing and isinstance(error, FileNotFoundError):
            raise DeviceError(missing) from error
        reason = getattr(error, "strerror", None) or first_line(error)
        raise DeviceError(f"{description} cannot run {command[0]!r}: {reason}.") from error


def end(process: subprocess.Popen[bytes], patience: float = 0.0) -> None:
    """Close the pipes of a process, wait for its end, and kill it if that takes longer than `patience` seconds."""
    if not patience:
        # Before its pipes are closed, which a thread that writes to one would delay.
        kill(process)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    limit = time.monotonic() + patience
    while process.poll() is None and time.monotonic() < limit:
        time.sleep(_POLL)
    kill(process)
    process.wait()


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process of `start_here` and what it started, unless it has ended."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()


def _feed(pipe: BinaryIO, data: bytes | Path) -> None:
    """Write to a pipe, as far as it is read, and leave it open."""
    with contextlib.suppress(OSError, ValueError):
        if isinstance(data, bytes):
            pipe.write(data)
        else:
            with data.open("rb") as file:
                shutil.copyfileobj(file, pipe, _BLOCK)
        pipe.flush()


class Drained:
    """Reads a pipe in a thread, so that a program never waits for it, and keeps the end of what was read.

    Parameters
    ----------
    process : subprocess.Popen
        Process of which the standard error is read.
    kept : int, default=65536
        Bytes that are kept.
    """

    def __init__(self, process: subprocess.Popen[bytes], kept: int = 2**16) -> None:
        self._pipe, self._kept, self._data = process.stderr, kept, b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._pipe is not None
        with contextlib.suppress(OSError, ValueError):
            while block := os.read(self._pipe.fileno(), 2**12):
                self._data = (self._data + block)[-self._kept :]

    def text(self, wait: float = 1.0) -> bytes:
        """Return what was read; waits for the end of the program."""
        self._thread.join(wait)
        return self._data
