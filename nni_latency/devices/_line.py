# SPDX-License-Identifier: Apache-2.0
"""`Line`: the pipes of an agent on a device, and why they broke."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

from nni_latency.devices import _agent
from nni_latency.devices._connection import Connection, DeviceError, Drained, end
from nni_latency.units import format_seconds

#: Longest time for the agent to start, and for an answer beyond what it may take itself [s].
START, GRACE = 120.0, 60.0


class LostError(DeviceError):
    """Raised when the line to a device broke; it may come back."""


class Line:
    """The pipes of an agent."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        # The agent starts its worker by the same word. An Android device has its temporary folders in another place.
        command = [connection.python, "-u", "-c", _agent.BOOTSTRAP, connection.python, connection.folder]
        self._process: subprocess.Popen[bytes] = connection.start(command)
        self._errors = Drained(self._process)
        self._frames = _agent.Frames(greeted=True)
        self._has_begun = False
        self.sent = self.received = 0
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._to, False)

    def begin(self) -> None:
        """Send the agent, and wait until it answers."""
        source = Path(_agent.__file__).read_bytes()
        self.send(len(source).to_bytes(8, "big") + source)
        limit = time.monotonic() + START
        while self._frames.greeting is not None:
            self._read(limit)
        self._has_begun = True

    def send(self, data: bytes) -> None:
        """Send bytes; what arrives meanwhile is read, so that neither side waits for the other."""
        view, limit = memoryview(data), time.monotonic() + GRACE
        while view:
            readable, writable, _ = select.select([self._from], [self._to], [], max(0.0, limit - time.monotonic()))
            if readable:
                self._read(limit)
            if writable:
                try:
                    count = os.write(self._to, view[: 2**16])
                except BlockingIOError:
                    continue
                except OSError as error:
                    raise self._lost() from error
                view = view[count:]
                self.sent += count
                # It counts from the last byte that was taken.
                limit = time.monotonic() + GRACE
            elif not readable:
                raise LostError(
                    f"{self._connection.description} took nothing for {format_seconds(GRACE)}: the line is broken."
                )

    def receive(self, timeout: float) -> tuple[dict[str, Any], list[bytes]]:
        """Return the next frame."""
        limit = time.monotonic() + timeout
        while True:
            try:
                frame = self._frames.next()
            except _agent.FrameError as error:
                raise LostError(
                    f"{self._connection.description} answers something else than the agent ({error})."
                ) from error
            if frame is not None:
                if not ("id" in frame[0] and "kind" in frame[0]):
                    raise LostError(f"{self._connection.description} answers something else than the agent.")
                return frame
            self._read(limit)

    def _read(self, limit: float) -> None:
        """Read what has arrived, and wait for it."""
        if not select.select([self._from], [], [], max(0.0, limit - time.monotonic()))[0]:
            raise LostError(f"{self._connection.description} does not answer: the line is broken.")
        data = os.read(self._from, 2**20)
        self.received += len(data)
        if not data:
            raise self._lost()
        try:
            self._frames.feed(data)
        except _agent.FrameError as error:
            raise DeviceError(
                f"{self._connection.description} does not answer as the agent does: {error}. Check that "
                f"{self._connection.python!r} is a Python."
            ) from error

    def _lost(self) -> DeviceError:
        """Say why the line broke: the connection, the Python there, or the agent."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        code, errors = self._process.poll(), self._errors.text()
        where, python = self._connection.description, self._connection.python
        if code is None:
            return LostError(f"The line to {where} broke.")
        sentence = self._connection.failure(code, errors)
        if sentence is not None:
            return LostError(sentence)
        lines = errors.decode(errors="replace").strip().splitlines()
        if self._has_begun:
            return LostError(f"The agent on {where} ended with code {code}{f' ({lines[-1]})' if lines else ''}.")
        if code in (126, 127) or (lines and "No such file or directory" in lines[-1]):
            return DeviceError(f"{where} has no Python {python!r}. {self._connection.python_advice}.")
        if lines and lines[-1].startswith("nni_latency needs Python"):
            return DeviceError(f"{where}: {lines[-1]} ({python}). Install a newer one there.")
        # A program that is no Python may repeat what it was given.
        why = lines[-1][:120] if lines else f"it ended with code {code}"
        return DeviceError(
            f"{python!r} on {where} cannot run the agent ({why}). Check that it is a Python 3.8 or later."
        )

    def wait_for_end(self) -> None:
        """Wait until the agent has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10.0)

    def close(self) -> None:
        """End it: it sees that its line is closed."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        end(self._process, patience=10.0)
