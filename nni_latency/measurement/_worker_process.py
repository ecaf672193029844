"""A process that does what it is asked: what it may use, the line to it, and its whole life."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from nni_latency.errors import LatencyError, MeasurementError
from nni_latency.measurement._bench import CandidateError, WorkerDiedError
from nni_latency.measurement._packing import pack, unpack
from nni_latency.units import format_seconds

#: Longest time for a worker to start and import what it needs [s].
_START_TIMEOUT = 300.0

_COMMAND = "import sys; sys.path[:] = {path!r}; from nni_latency.measurement._worker_process import serve; serve({fd})"


@dataclass(frozen=True)
class Limits:
    """What a worker process may use. Immutable.

    A process with limits works in a folder of its own, which is removed with it.

    Parameters
    ----------
    memory : int, optional
        Memory that it may allocate [byte].
    file_size : int, optional
        Size of a file that it may write [byte].
    open_files : int, optional
        Files and connections that it may have open.
    """

    memory: int | None = None
    file_size: int | None = None
    open_files: int | None = None

    def apply(self) -> None:
        """Bind this process to them for the rest of its life; nothing where the operating system has no such limits."""
        if sys.platform == "win32":
            return
        import resource

        limits = {
            resource.RLIMIT_DATA: self.memory,
            resource.RLIMIT_FSIZE: self.file_size,
            resource.RLIMIT_NOFILE: self.open_files,
            resource.RLIMIT_CORE: 0,
        }
        for kind, most in limits.items():
            if most is not None:
                _, hard = resource.getrlimit(kind)
                most = most if hard == resource.RLIM_INFINITY else min(most, hard)
                resource.setrlimit(kind, (most, most))


class WorkerProcess:
    """A process that does what it is asked, and the line to it.

    Parameters
    ----------
    payload : bytes
        By cloudpickle, what makes the context manager whose methods are asked for, and the `Limits` or None.
    private : bool, default=False
        Give it a folder of its own, where it works and has its temporary files.
    """

    def __init__(self, payload: bytes, *, private: bool = False) -> None:
        mine, its = socket.socketpair()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if private:
            self._folder = tempfile.TemporaryDirectory(prefix="nni_latency_", ignore_cleanup_errors=True)
        self._remarks = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop()
        with its:
            path = list(map(os.path.abspath, sys.path))
            command = [sys.executable, "-c", _COMMAND.format(path=path, fd=its.fileno())]
            folder = self._folder.name if self._folder is not None else None
            self._process = subprocess.Popen(
                command,
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._remarks,
                stderr=self._remarks,
                start_new_session=True,
                cwd=folder,
                env={**os.environ, "TMPDIR": folder} if folder else None,
            )
        self._line = Connection(mine.detach())
        try:
            kind, answer = self.ask(payload, _START_TIMEOUT)
        except CandidateError as error:
            said = self._last_output_line()
            self.stop()
            raise MeasurementError(f"The worker process that measures did not start: {error}. {said}") from error
        except BaseException:
            self.stop()
            raise
        if kind != "ok":
            self.stop()
            raise answer if kind == "error" else MeasurementError(answer)

    @classmethod
    def of(cls, make: Callable[[], Any], limits: Limits) -> WorkerProcess:
        """Start a process with a folder of its own and limits.

        Parameters
        ----------
        make : callable
            Makes the context manager whose methods are asked for.
        limits : Limits
            What it may use.
        """
        return cls(pack((make, limits), "What a worker process does"), private=True)

    def ask(self, question: Any, timeout: float) -> tuple[str, Any]:
        """Send a question and wait for the answer; `CandidateError` if the worker dies or takes too long."""
        try:
            self._line.send(question)
            if not self._line.poll(timeout):
                raise CandidateError(f"it did not end within {format_seconds(timeout)}")
            kind, answer = self._line.recv()
        except (EOFError, OSError) as error:
            raise WorkerDiedError(self._describe_exit()) from error
        return kind, answer

    def stop(self) -> None:
        """Kill it; it has nothing to lose."""
        self._line.close()
        self._process.kill()
        self._process.wait()
        self._remarks.close()
        if self._folder is not None:
            self._folder.cleanup()

    def _describe_exit(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        code = self._process.returncode
        if code is None:
            return "the line to its process broke"
        if code == -signal.SIGKILL:
            return "its process was killed, most likely because the memory ran out"
        if code < 0:
            return f"its process crashed ({signal.Signals(-code).name})"
        return f"its process ended with code {code}"

    def _last_output_line(self) -> str:
        """Return the last line that it wrote."""
        self._remarks.seek(0)
        lines = self._remarks.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


def serve(descriptor: int) -> None:
    """Do what comes over the line until it is closed: the whole life of a worker."""
    faulthandler.enable()
    _raise_oom_score()
    line = Connection(descriptor)
    try:
        make, limits = unpack(line.recv())
        if limits is not None:
            limits.apply()
        with make() as worker:
            line.send(("ok", None))
            while True:
                line.send(_answer(worker, *line.recv()))
    except (EOFError, ConnectionError):
        return
    except LatencyError as error:
        line.send(("error", error))


def _answer(worker: Any, method: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[str, Any]:
    try:
        if method == "admit":
            arguments = (unpack(arguments[0]),)
        return "ok", getattr(worker, method)(*arguments, **options)
    except CandidateError as error:
        return "candidate", str(error)
    except LatencyError as error:
        return "error", error


def _raise_oom_score() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
