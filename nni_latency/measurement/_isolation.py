# SPDX-License-Identifier: Apache-2.0
"""Benches in worker processes: a candidate that crashes, hangs or runs out of memory affects nothing else."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from nni_latency.errors import InvalidValueError, LatencyError, MeasurementError
from nni_latency.measurement._bench import Bench, CandidateError, LocalBench, WorkerDiedError
from nni_latency.measurement._meter import Meter
from nni_latency.measurement._record import Visit
from nni_latency.measurement._subject import Chain, Subject, pack, pack_subject, unpack
from nni_latency.measurement._timing import Protocol
from nni_latency.platforms import Conditions, Platform
from nni_latency.units import format_seconds

if TYPE_CHECKING:
    from nni_latency.measurement.runtimes import Runtime

#: Longest time for a worker to start and import what it needs [s].
_START_TIMEOUT = 300.0

_COMMAND = "import sys; sys.path[:] = {path!r}; from nni_latency.measurement._isolation import serve; serve({fd})"


class Benches(ABC):
    """Factory of benches on one machine, which can be used repeatedly."""

    #: Whether every bench runs in a separate process.
    isolated: bool

    @property
    @abstractmethod
    def platform(self) -> Platform:
        """Platform of the measurements."""

    @abstractmethod
    def conditions(self) -> Conditions:
        """Return the conditions of the machine at this moment."""

    @abstractmethod
    def open(self, protocol: Protocol, *, calls: bool = False) -> Bench:
        """Return a new bench, which is a context manager; see `LocalBench`."""

    def expecting(self, sessions: Iterable[Sequence[Chain]]) -> contextlib.AbstractContextManager[None]:
        """Return a context in which a campaign measures these networks, each session on a bench.

        By default it does nothing. Benches on another machine report how much they send.
        """
        return contextlib.nullcontext()


class LocalBenches(Benches):
    """Benches of this machine, in worker processes if runtime and system support it.

    Parameters
    ----------
    runtime : Runtime
        Runtime that executes the subjects.
    meters : sequence of Meter, default=()
        Meters to read in addition to the clock.
    limits : Limits, optional
        Resource limits of the worker processes.

    Raises
    ------
    InvalidValueError
        If the runtime runs on another device: the round trip would be timed.
    """

    def __init__(self, runtime: Runtime, meters: Sequence[Meter] = (), limits: Limits | None = None) -> None:
        if not runtime.runs_here:
            raise InvalidValueError(
                f"LocalBenches measures on this machine, and the runtime {runtime.name!r} runs on another device. Take "
                "runtime.benches() instead."
            )
        self.runtime = runtime
        self.meters = tuple(meters)
        self.limits = limits
        self.isolated = runtime.portable and os.name == "posix"
        self._folder: Path | None = None

    @property
    def platform(self) -> Platform:
        """Platform of the measurements."""
        return self.runtime.platform

    def conditions(self) -> Conditions:
        """Return the conditions of the machine at this moment."""
        found = self.runtime.conditions()
        return replace(found, **_metered(self.meters)) if self.meters else found

    def open(self, protocol: Protocol, *, calls: bool = False) -> Bench:
        """Return a new bench in a worker process, or in this one."""
        if self.isolated:
            given: dict[str, Any] = {"calls": calls, "meters": self.meters, "limits": self.limits}
            return IsolatedBench(self.runtime, protocol, exports=self._exports(), **given)
        return LocalBench(self.runtime, protocol, calls=calls, meters=self.meters)

    def _exports(self) -> Path | None:
        """Return the folder of exports; None for processes with limits, which must not write what others read."""
        if not self.runtime.takes_onnx or self.limits is not None:
            return None
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="nni_latency_exports_"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder


class IsolatedBench(Bench):
    """A bench in a worker process, which is restarted if it dies.

    Subjects and the runtime are sent by cloudpickle, so they may be defined in a script or a notebook. The worker
    ignores Ctrl-C, ends with this process, and is the first that Linux kills when memory runs out.

    Parameters
    ----------
    runtime, protocol, calls, meters
        As for `LocalBench`. The protocol's `timeout` is how long one command may take.
    limits : Limits, optional
        Resource limits of the worker process.
    exports : Path, optional
        As for `LocalBench`.
    """

    def __init__(
        self,
        runtime: Runtime,
        protocol: Protocol,
        *,
        calls: bool = False,
        meters: Sequence[Meter] = (),
        limits: Limits | None = None,
        exports: Path | None = None,
    ) -> None:
        made = partial(LocalBench, runtime, protocol, calls=calls, meters=tuple(meters), exports=exports)
        self._payload = pack((made, limits), "The runtime")
        self._private = limits is not None
        self._timeout = protocol.timeout
        self._admitted: dict[str, bytes] = {}
        self._loaded: set[str] = set()
        self._worker: WorkerProcess | None = None

    def __enter__(self) -> IsolatedBench:
        """Start the worker."""
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the worker."""
        self._stop()

    def admit(self, subject: Subject) -> None:
        """Load a subject and run it once on its own inputs."""
        self.admit_packed(subject.key, pack_subject(subject))

    def admit_packed(self, key: str, packed: bytes) -> None:
        """Load a subject packed by `pack_subject`; it is not unpacked in this process."""
        self._admitted[key] = packed
        try:
            self._load([key])
        except CandidateError:
            del self._admitted[key]
            raise

    def visit(self, keys: Sequence[str], *, calls: bool = True) -> Visit:
        """Warm up a network and time it."""
        self._load(keys)
        measured: Visit = self._ask("visit", tuple(keys), calls=calls)
        return measured

    def begin(self, key: str) -> None:
        """Set the input of the next `step`: that of the network whose first subject has this key."""
        self._load([key])
        self._ask("begin", key)

    def step(self, key: str) -> None:
        """Run one subject on the output of the previous step."""
        self._load([key])
        self._ask("step", key)

    def _load(self, keys: Sequence[str]) -> None:
        """Load the subjects that the worker does not hold; a restarted worker holds none."""
        if self._worker is None:
            self._start()
        for key in keys:
            if key not in self._loaded:
                self._ask("admit_packed", self._admitted[key])
                self._loaded.add(key)

    def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        if self._worker is None:
            raise WorkerDiedError("its process died before")
        try:
            kind, answer = self._worker.ask((method, arguments, options), self._timeout)
        except CandidateError:
            self._stop()
            raise
        if kind == "candidate":
            if "CUDA error" in answer:
                # The GPU's context is unusable after such an error.
                self._stop()
            raise CandidateError(answer)
        if kind == "error":
            raise answer
        return answer

    def _start(self) -> None:
        self._worker, self._loaded = WorkerProcess(self._payload, private=self._private), set[str]()

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.stop()
            self._worker = None


def _metered(meters: Sequence[Meter]) -> dict[str, Any]:
    """Return meters, their assumptions and the idle power of the machine [W], as conditions."""
    idle = 0.0
    for meter in meters:
        if meter.metric == "energy":
            with meter.session():
                idle = meter.idle()
    return {
        "meter": "; ".join(meter.description for meter in meters),
        "meter_assumption": "; ".join(meter.assumption for meter in meters if meter.assumption) or None,
        "idle_power": idle or None,
    }


@dataclass(frozen=True)
class Limits:
    """Resource limits of a worker process. Immutable.

    A process with limits works in a temporary folder, which is removed with it.

    Parameters
    ----------
    memory : int, optional
        Largest memory that it may allocate [byte].
    file_size : int, optional
        Largest file that it may write [byte].
    open_files : int, optional
        Most files and connections that it may have open.
    """

    memory: int | None = None
    file_size: int | None = None
    open_files: int | None = None

    def apply(self) -> None:
        """Set the limits of this process for the rest of its life; does nothing on systems without such limits."""
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
    """A process that executes method calls, and the connection to it.

    Parameters
    ----------
    payload : bytes
        Factory of the context manager whose methods are called, and the `Limits` or None; pickled by cloudpickle.
    private : bool, default=False
        Whether it works in a private folder, which also holds its temporary files.
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
        """Start a process with a private folder and limits."""
        return cls(pack((make, limits), "What a worker process does"), private=True)

    def ask(self, question: Any, timeout: float) -> tuple[str, Any]:
        """Send a call and wait for its result; raise `CandidateError` if the worker dies or takes too long."""
        try:
            self._line.send(question)
            if not self._line.poll(timeout):
                raise CandidateError(f"it did not end within {format_seconds(timeout)}")
            kind, answer = self._line.recv()
        except (EOFError, OSError) as error:
            raise WorkerDiedError(self._describe_exit()) from error
        return kind, answer

    def stop(self) -> None:
        """Kill the process, which has no state to save."""
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
        """Return the last line of the output of the process."""
        self._remarks.seek(0)
        lines = self._remarks.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


def serve(descriptor: int) -> None:
    """Execute calls until the connection is closed: the main function of a worker."""
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
        return "ok", getattr(worker, method)(*arguments, **options)
    except CandidateError as error:
        return "candidate", str(error)
    except LatencyError as error:
        return "error", error


def _raise_oom_score() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
