# SPDX-License-Identifier: Apache-2.0
"""`ToolDevice`: a tool on a device, networks sent there once by content, and starts of the tool on them."""

from __future__ import annotations

import collections
import gzip
import math
import posixpath
import re
import signal
import struct
import subprocess
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from nni_latency.devices._connection import Completed, Connection, DeviceError, end
from nni_latency.devices._shell_facts import ShellFacts
from nni_latency.devices._shell_lock import ShellLock
from nni_latency.devices._tool import Start, Tool, Written
from nni_latency.devices._tool_network import ToolNetwork, compressed, with_repeats
from nni_latency.devices._waiting import Comeback
from nni_latency.errors import InvalidValueError
from nni_latency.measurement import CandidateError
from nni_latency.units import format_seconds

#: How long a device that was lost is waited for [s].
_PATIENCE = 600.0

#: What a start may take beyond its limit before the connection counts as lost [s].
_GRACE = 60.0

#: How long a program is waited for that removes a folder [s].
_LEAVE = 2.0

#: Longest time for the tool to print its help [s].
_PROBE = 60.0

#: Codes of a program that was ended because it took too long: that of timeout, and of a signal by a shell and here.
_KILLED = (124, 137, -9)

#: What a shell adds to the number of the signal that ended a program, and the line that it may print then.
_SIGNALLED = 128
_NAMES = "Aborted|Bus error|Floating point exception|Illegal instruction|Killed|Segmentation fault"
_NOTICE = re.compile(rf"sh: .*\b({_NAMES})\b.*|({_NAMES})( \(core dumped\))?")

#: Machine numbers of ELF files by instruction set; a processor of 64 bits may run those of 32.
_ELF = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
_RUNS_TOO = {"x86_64": ("i386",), "aarch64": ("arm",), "armv8l": ("arm",), "armv7l": ("arm",), "armv6l": ("arm",)}

_KIND = (
    'if [ -d "$0" ]; then echo folder; elif [ ! -e "$0" ]; then echo missing; elif [ ! -x "$0" ]; then echo locked; fi'
)

#: Runs words in an empty folder, the libraries beside the tool being found.
_RUN = """rm -rf "$0" && mkdir -p "$0" && cd "$0" || exit 125
LD_LIBRARY_PATH="$1${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"; export LD_LIBRARY_PATH
shift; exec "$@" """


#: Removes a folder when its input ends, which it does when this process or the connection is gone.
_JANITOR = """trap '' HUP; cat > /dev/null; rm -rf "$0" """


class ToolDevice:
    """A tool on a device. Not thread-safe.

    Parameters
    ----------
    connection : Connection
        How the device is reached.
    tool : Tool
        The tool.
    binary : str
        Its path on the device, or its name on the path of programs there.
    threads : int, default=1
        Threads that compute a network.
    precision : str, default="fp32"
        Numeric precision.
    cores : sequence of int, default=()
        Processors that compute; all by default.
    on_wait : callable
        Called with a sentence when the device is waited for.

    Raises
    ------
    InvalidValueError
        If the tool does not compute in the precision, or there are no such processors.
    DeviceError
        If the device cannot be reached, or cannot run the tool.
    """

    def __init__(
        self,
        connection: Connection,
        tool: Tool,
        binary: str,
        *,
        threads: int = 1,
        precision: str = "fp32",
        cores: Sequence[int] = (),
        on_wait: Callable[[str], None] = lambda _sentence: None,
    ) -> None:
        if precision not in tool.precisions:
            raise InvalidValueError(
                f"{tool.name} computes in {', '.join(tool.precisions)}. Got the precision {precision!r}. Take "
                f"{tool.precisions[0]}."
            )
        self.connection, self.tool, self.binary = connection, tool, binary
        self.threads, self.precision = threads, precision
        self.on_wait, self.patience = on_wait, _PATIENCE
        #: How long one start may take [s], its warm-up runs, and how long the timed ones may take together [s].
        self.timeout, self.warmups, self.longest = 600.0, 1, 10.0
        #: Bytes sent to the device.
        self.sent = 0
        self.known = ShellFacts(connection)
        self.cores = self._checked(cores)
        self._folders: list[str] = []
        self._janitors: list[subprocess.Popen[bytes]] = []
        self._there: set[str] = set()
        self._users: collections.Counter[str] = collections.Counter()
        #: Held while something is measured, where the device has flock.
        self.lock = ShellLock(connection, on_wait) if self.known.has("flock") else None
        self._companions = [Path(path) for path in tool.companions]
        weakref.finalize(self, _remove_all, connection, self._folders, self._janitors)
        self._check_binary()
        self.version = tool.version(self._probe())

    def _checked(self, cores: Sequence[int]) -> tuple[int, ...]:
        there = self.known.processors
        if cores and not set(cores) <= set(there):
            raise InvalidValueError(
                f"{self.connection.description} has the processors {', '.join(map(str, there))}. Got the cores "
                f"{', '.join(map(str, cores))}."
            )
        if cores and not self.known.has("taskset"):
            raise DeviceError(f"{self.connection.description} has no taskset to choose cores. Omit the option 'cores'.")
        return tuple(sorted(set(cores)))

    def _check_binary(self) -> None:
        where = self.connection.description
        if "/" not in self.binary:
            found = self.connection.run(["sh", "-c", 'command -v "$0"', self.binary]).out.decode().strip()
            if not found.startswith("/"):
                raise DeviceError(f"{where} has no program {self.binary!r} on its path. Give its whole path.")
            self.binary = found
        kind = self.connection.run(["sh", "-c", _KIND, self.binary]).out.decode().strip()
        if kind == "folder":
            raise DeviceError(f"{self.binary!r} on {where} is a folder. Give the path of {self.tool.name} in it.")
        if kind == "missing":
            raise DeviceError(f"{where} has no file {self.binary!r}. Copy {self.tool.name} there, or give its path.")
        if kind == "locked":
            raise DeviceError(f"{self.binary!r} on {where} is not executable. Run 'chmod +x' on it there.")

    def _probe(self) -> str:
        """Start the tool as it prints its help, and return that."""
        done = self.connection.run(self._words([self.binary, *self.tool.probe], _PROBE), timeout=_PROBE + _GRACE)
        text = (done.out + b"\n" + done.err).decode(errors="replace")
        built = self._built_for()
        if built and (done.code in (126, 127) or re.search("yntax error|xec format", text)):
            raise DeviceError(
                f"{self.connection.description} cannot run {self.binary!r}: it is built for {built}, and the device is "
                f"{self.known.machine}."
            )
        if done.code in (126, 127) or "CANNOT LINK EXECUTABLE" in text:
            raise DeviceError(f"{self.connection.description} cannot run {self.binary!r}: {_last_line(done)}.")
        return text

    def _built_for(self) -> str:
        """Return the instruction set that the tool is built for, if that is not one of the device."""
        head = self.connection.run(["head", "-c", "20", self.binary]).out
        if head[:4] != b"\x7fELF" or len(head) < 20:
            return ""
        (number,) = struct.unpack_from(">H" if head[5] == 2 else "<H", head, 18)
        name, machine = _ELF.get(number, f"machine {number}"), self.known.machine
        return "" if name == machine or name in _RUNS_TOO.get(machine, ()) or re.fullmatch("i.86", machine) else name

    def _words(self, command: Sequence[str], limit: float) -> list[str]:
        """Return a command that ends in time, on the cores that were chosen, in a folder of its own."""
        timed = ["timeout", "-s", "KILL", str(max(1, math.ceil(limit)))] if self.known.has("timeout") else []
        mask = sum(1 << core for core in self.cores)
        pinned = ["taskset", f"{mask:x}"] if mask else []
        return ["sh", "-c", _RUN, f"{self.folder}/out", posixpath.dirname(self.binary), *timed, *pinned, *command]

    @property
    def folder(self) -> str:
        """The temporary folder on the device, which is made when it is first needed."""
        if not self._folders:
            self._folders.append(self.connection.make_folder())
            self._janitors.append(self.connection.start(["sh", "-c", _JANITOR, self._folders[0]]))
        return self._folders[0]

    def load(
        self, files: Mapping[str, bytes], shapes: Sequence[tuple[int, ...]], weights: Iterable[NDArray[Any]] = ()
    ) -> ToolNetwork:
        """Return a network of the device, which is sent when it first runs.

        Parameters
        ----------
        files : mapping of str to bytes
            Contents of its files by name, the model first.
        shapes : sequence of tuple of int
            Shapes of its inputs.
        weights : iterable of ndarray
            Weights in it whose values do not matter: random numbers that repeat take their place.
        """
        given = list(weights)
        read = {name: with_repeats(data, given) for name, data in files.items() if name not in self.tool.unread}
        return ToolNetwork(self, read, shapes)

    def start(self, network: ToolNetwork, **wanted: Any) -> tuple[Start, Written]:
        """Start the tool on a network, and return what it wrote.

        Raises
        ------
        CandidateError
            If the tool fails or does not end in time.
        DeviceError
            If the device cannot be reached for long.
        """
        comeback, refusals = Comeback(self.on_wait, self.patience), 0
        while True:
            try:
                if self.lock is not None:
                    self.lock.renew()
                return self._start(network, **wanted)
            except DeviceError as error:
                # What fails again although the device can be reached, such as writing on a full disk, stays so.
                refusals += self._answers()
                if refusals > 1:
                    raise
                comeback.wait(error)
                # It may have been started again, and its temporary folders are gone.
                self.close()

    def _answers(self) -> bool:
        try:
            return self.connection.run(["true"]).code == 0
        except DeviceError:
            return False

    def _start(self, network: ToolNetwork, *, runs: int, with_layers: bool, warmups: int) -> tuple[Start, Written]:
        if any(janitor.poll() is not None for janitor in self._janitors):
            # The connection was lost since the last start, and the folder with it.
            self.close()
        is_first = network.name not in self._there
        if is_first:
            self._send(network)
        start = Start(
            self.binary,
            f"{self.folder}/{network.name}/{next(iter(network.files))}",
            f"{self.folder}/out",
            tuple(network.shapes),
            self.threads,
            self.precision,
            runs,
            warmups,
            with_layers,
            is_first,
        )
        limit, began = self.timeout + (_GRACE if self.known.has("timeout") else 0.0), time.monotonic()
        try:
            done = self.connection.run(self._words(self.tool.command(start), self.timeout), timeout=limit)
        except DeviceError as error:
            if time.monotonic() - began >= limit and self._answers():
                raise self._too_slow() from error
            raise
        if done.code == 125 and b"mkdir" in done.err:
            raise DeviceError(f"{self.connection.description} cannot make a folder: {_last_line(done)}.")
        if done.code in _KILLED and self.known.has("timeout") and time.monotonic() - began >= self.timeout:
            raise self._too_slow()
        if done.code:
            raise CandidateError(f"{self.tool.name} {_ended(done.code)}: {_last_line(done)}")
        self._there.add(network.name)
        files = {name: self._content(f"{start.folder}/{name}") for name in self.tool.outputs(start)}
        if start.is_first:
            network.first = files
        return start, Written(done.out.decode(errors="replace"), done.err.decode(errors="replace"), files)

    def _too_slow(self) -> CandidateError:
        return CandidateError(f"{self.tool.name} did not end within {format_seconds(self.timeout)}")

    def _content(self, beginning: str) -> bytes:
        """Return the content of the file whose name begins so; nothing where there is none."""
        return self.connection.run(["sh", "-c", 'cat "$0"* 2>/dev/null', beginning], timeout=self.timeout + _GRACE).out

    def _send(self, network: ToolNetwork) -> None:
        self._remove_unused()
        folder = f"{self.folder}/{network.name}"
        self.connection.check(["mkdir", "-p", folder], f"make the folder {folder!r}")
        for name, data in network.files.items():
            self._send_file(data, f"{folder}/{name}")
        for path in self._companions:
            self._send_file(path.read_bytes(), f"{folder}/{path.name}")

    def _send_file(self, data: bytes, path: str) -> None:
        packed = gzip.compress(data, 1) if self.known.has("gzip") else data
        self.sent += len(packed)
        if packed is data:
            self.connection.send(data, path)
            return
        self.connection.send(packed, f"{path}.gz")
        self.connection.check(["gzip", "-df", f"{path}.gz"], f"write {path!r}", timeout=3600.0)

    def weigh(self, size: float) -> float:
        """Estimate what a weight takes when it is sent, given the size of its numbers [byte]."""
        if self.tool.unread:
            return 0.0
        return compressed(size) if self.known.has("gzip") else size

    @property
    def beside(self) -> int:
        """What is sent beside every network [byte]."""
        return sum(path.stat().st_size for path in self._companions)

    def keep(self, name: str) -> None:
        """Count a user of a network."""
        self._users[name] += 1

    def release(self, name: str) -> None:
        """Count a user less; what nobody uses is removed before the next network is sent."""
        self._users[name] -= 1

    def _remove_unused(self) -> None:
        unused = [name for name, count in self._users.items() if count <= 0]
        gone = [f"{self._folders[0]}/{name}" for name in unused if name in self._there and self._folders]
        for name in unused:
            del self._users[name]
            self._there.discard(name)
        if gone:
            self.connection.run(["rm", "-rf", *gone])

    def close(self) -> None:
        """Remove the temporary folder; it is made again when it is needed."""
        self._there.clear()
        _remove_all(self.connection, self._folders, self._janitors)


def _ended(code: int) -> str:
    """Say how a program failed, by its exit code as shells count it."""
    try:
        return f"crashed ({signal.Signals(code - _SIGNALLED).name})"
    except ValueError:
        return f"failed with code {code}"


def _last_line(done: Completed) -> str:
    """Return the last line that names an error, or else the last one."""
    lines = [line.strip() for part in (done.err, done.out) for line in part.decode(errors="replace").splitlines()]
    lines = [line for line in lines if line and not (done.code > _SIGNALLED and _NOTICE.fullmatch(line))]
    telling = [line for line in lines if re.search(r"\b(error|fail|cannot|unable|invalid|exception)", line, re.I)]
    return (telling or lines or ["it printed nothing"])[-1][:300].rstrip(".")


def _remove_all(connection: Connection, folders: list[str], janitors: list[subprocess.Popen[bytes]]) -> None:
    while folders:
        connection.remove_folder(folders.pop())
    while janitors:
        end(janitors.pop(), _LEAVE)
