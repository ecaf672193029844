"""A bench in a worker process: a candidate that crashes, hangs or eats all memory takes nothing else with it."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from nni_latency.errors import LatencyError, MeasurementError
from nni_latency.measurement._bench import Bench, Build, CandidateError, LocalBench, Visit, WorkerDiedError
from nni_latency.measurement._protocol import Protocol
from nni_latency.units import format_seconds

if TYPE_CHECKING:
    from nni_latency.measurement.runtimes import Runtime

#: Longest time for a worker to start and import what it needs [s].
_START_TIMEOUT = 300.0

_COMMAND = "import sys; sys.path[:] = {path!r}; from nni_latency.measurement._isolation import serve; serve({fd})"


def open_bench(
    columns: Sequence[Sequence[Build]],
    input_shape: Sequence[int],
    runtime: Runtime,
    protocol: Protocol,
    *,
    calls: bool = False,
) -> Bench:
    """Return a bench in a worker process, where runtime and system allow it; otherwise one in this process."""
    if runtime.portable and os.name == "posix":
        return IsolatedBench(columns, input_shape, runtime, protocol, calls=calls)
    return LocalBench(columns, input_shape, runtime, protocol, calls=calls)


class IsolatedBench(Bench):
    """A bench in a worker process, which is started again when it dies.

    What makes the modules, and the runtime, reach it by cloudpickle, so they may be defined in a script or a notebook.
    The worker does not see Ctrl-C, ends with this process, and is the first that Linux kills when memory runs out.

    Parameters
    ----------
    columns, input_shape, runtime, protocol, calls
        As for `LocalBench`. The protocol's `timeout` is how long one command may take.
    """

    def __init__(
        self,
        columns: Sequence[Sequence[Build]],
        input_shape: Sequence[int],
        runtime: Runtime,
        protocol: Protocol,
        *,
        calls: bool = False,
    ) -> None:
        import cloudpickle

        try:
            self._payload: bytes = cloudpickle.dumps((columns, tuple(input_shape), runtime, protocol, calls))
        except Exception as error:  # a stranger's objects may refuse in any way
            raise MeasurementError(
                f"The candidates cannot be sent to a worker process ({type(error).__name__}: {error}). "
                "Define them at the top level of a module."
            ) from error
        self._timeout = protocol.timeout
        self._admitted: list[tuple[int, int]] = []
        self._worker: _Worker | None = None

    def __enter__(self) -> IsolatedBench:
        """Start the worker."""
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the worker."""
        self._stop()

    def admit(self, layer: int, choice: int) -> None:
        """Load a candidate and run it once; those of earlier layers come first."""
        self._call("admit", layer, choice)
        self._admitted.append((layer, choice))

    def visit(self, network: Sequence[int]) -> Visit:
        """Warm a network up and time it."""
        measured: Visit = self._call("visit", tuple(network))
        return measured

    def begin(self) -> None:
        """Get ready for `step`: back to the network's input."""
        self._call("begin")

    def step(self, layer: int, choice: int) -> None:
        """Run one candidate on what the step before returned."""
        self._call("step", layer, choice)

    def _call(self, method: str, *arguments: Any) -> Any:
        """Let the worker do something; start it again first if it has died."""
        if self._worker is None:
            self._start()
            for place in self._admitted:
                self._ask("admit", *place)
        return self._ask(method, *arguments)

    def _ask(self, method: str, *arguments: Any) -> Any:
        assert self._worker is not None
        try:
            kind, answer = self._worker.ask((method, arguments), self._timeout)
        except CandidateError:
            self._stop()
            raise
        if kind == "candidate":
            if "CUDA error" in answer:
                # Nothing works any more on a GPU's context after such an error.
                self._stop()
            raise CandidateError(answer)
        if kind == "error":
            raise answer
        return answer

    def _start(self) -> None:
        self._worker = _Worker(self._payload)

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.stop()
            self._worker = None


class _Worker:
    """The process, and the line to it."""

    def __init__(self, payload: bytes) -> None:
        mine, its = socket.socketpair()
        self._remarks = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop()
        with its:
            command = [sys.executable, "-c", _COMMAND.format(path=sys.path, fd=its.fileno())]
            self._process = subprocess.Popen(
                command,
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._remarks,
                stderr=self._remarks,
                start_new_session=True,
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
        columns, input_shape, runtime, protocol, calls = _unpack(line.recv())
        with LocalBench(columns, input_shape, runtime, protocol, calls=calls) as bench:
            line.send(("ok", None))
            while True:
                method, arguments = line.recv()
                line.send(_answer(bench, method, arguments))
    except (EOFError, ConnectionError):
        return
    except LatencyError as error:
        line.send(("error", error))


def _unpack(payload: bytes) -> Any:
    import cloudpickle

    try:
        return cloudpickle.loads(payload)
    except Exception as error:  # a stranger's module may fail in any way when it is imported
        raise MeasurementError(
            f"The candidates cannot be made in a worker process: {type(error).__name__}: {error}"
        ) from error


def _answer(bench: LocalBench, method: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        return "ok", getattr(bench, method)(*arguments)
    except CandidateError as error:
        return "candidate", str(error)
    except LatencyError as error:
        return "error", error


def _raise_oom_score() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
