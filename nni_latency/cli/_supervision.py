# SPDX-License-Identifier: Apache-2.0
"""User code cannot take a command with it: the command runs in a process of its own, which this light one watches."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from nni_latency.cli._added import runs_networks

#: Built-in commands that run networks of the user.
COMMANDS = frozenset({"measure", "predict", "profile", "search"})

#: The variable with the number of the pipe to the process that watches.
_PIPE = "NNI_LATENCY_SUPERVISOR"

#: The pipe to the process that watches, in the process that is watched.
_to_supervisor: int | None = None

#: What is run in a process of its own. As in the command itself, files of the working directory hide no module.
_PROGRAM = [sys.executable, "-P", "-m", "nni_latency"]

#: Exit code of a command that was interrupted, as shells give it.
INTERRUPTED = 130

#: What Linux calls the signal that a process gets when its parent ends.
_PR_SET_PDEATHSIG = 1


def is_needed(arguments: Sequence[str]) -> bool:
    """Whether a command line is to be run in a process of its own."""
    command = next((item for item in arguments if not item.startswith("-")), None)
    return (
        sys.platform != "win32"
        and _PIPE not in os.environ
        and not {"-h", "--help", "--help-all"} & set(arguments)
        and (command in COMMANDS or runs_networks(command))
    )


def supervise(arguments: Sequence[str]) -> int:
    """Run a command line in a process of its own, and return its exit code.

    What ends that process other than by its own will, or keeps it for too long in code of the user, is said in one
    sentence; the exit code is then 2.
    """
    reading, writing = os.pipe()
    environment = {**os.environ, _PIPE: str(writing)}
    # A group of its own, so that a terminal's Ctrl-C reaches the command once, from here.
    with subprocess.Popen([*_PROGRAM, *arguments], pass_fds=[writing], env=environment, process_group=0) as process:
        os.close(writing)
        with _forwarding_signals(process):
            watch = _Watch(reading)
            try:
                watch.follow(process)
            finally:
                os.close(reading)
            code = process.wait()
    if code == -signal.SIGTERM:
        return 128 + signal.SIGTERM
    if code in (INTERRUPTED, -signal.SIGINT):
        return INTERRUPTED
    if watch.has_ended and code >= 0:
        return code
    sys.stderr.write(f"Error: {watch.explain(code)}\n")
    return 2


class _Watch:
    """What the process that runs the command says of itself."""

    def __init__(self, pipe: int) -> None:
        self.has_ended = False
        self._pipe = pipe
        self._doing, self._limit = "", 0.0
        self._deadline: float | None = None
        self._overdue = ""

    def follow(self, process: subprocess.Popen[Any]) -> None:
        """Listen until the process ends; kill it when user code has run for too long."""
        pending = b""
        while True:
            left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            if not select.select([self._pipe], [], [], left)[0]:
                self._overdue = self._doing
                process.kill()
                return
            got = os.read(self._pipe, 4096)
            if not got:
                return
            *lines, pending = (pending + got).split(b"\n")
            for line in lines:
                self._hear(json.loads(line))

    def _hear(self, message: dict[str, Any]) -> None:
        self.has_ended = self.has_ended or message["is"] == "ended"
        self._doing, self._limit = message.get("what", ""), message.get("limit", 0.0)
        self._deadline = time.monotonic() + self._limit if self._limit else None

    def explain(self, code: int) -> str:
        """Say in one sentence why the process ended."""
        what = self._doing or "the command"
        if self._overdue:
            return f"{what} was still running after {self._limit:g} s and was stopped. Allow more with --timeout."
        if code == -signal.SIGKILL:
            return f"{what} was killed, most likely because the memory of this machine was used up."
        if code < 0:
            return f"{what} crashed the process ({signal.Signals(-code).name})."
        return f"{what} ended the process with exit code {code}."


@contextlib.contextmanager
def _forwarding_signals(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Let the process decide what a signal means, as it would alone."""

    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def begin_supervised() -> None:
    """Get ready in the process that runs the command: it ends with its parent, and first when memory is short."""
    global _to_supervisor
    if _PIPE not in os.environ:
        return
    # Other processes are not to have it: the pipe would stay open as long as they run.
    _to_supervisor = int(os.environ.pop(_PIPE))
    os.set_inheritable(_to_supervisor, False)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def end_supervised() -> None:
    """Say that the command ends by its own will."""
    _tell({"is": "ended"})


@contextlib.contextmanager
def user_code(what: str, limit: float) -> Iterator[None]:
    """Mark code of the user, which may take at most `limit` [s] where the command is supervised."""
    _tell({"is": "begin", "what": what, "limit": limit})
    try:
        yield
    finally:
        _tell({"is": "over"})


def _tell(message: dict[str, Any]) -> None:
    if _to_supervisor is not None:
        with contextlib.suppress(OSError):
            os.write(_to_supervisor, json.dumps(message).encode() + b"\n")
