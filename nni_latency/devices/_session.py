# SPDX-License-Identifier: Apache-2.0
"""`Session`: the line to the agent of a device, which is started, asked, and started again when it is lost."""

from __future__ import annotations

import collections
import contextlib
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nni_latency.devices import _agent
from nni_latency.devices._connection import Connection, DeviceError
from nni_latency.devices._line import GRACE, START, Line, LostError
from nni_latency.devices._waiting import Comeback, take_turn
from nni_latency.measurement import CandidateError, WorkerDiedError

#: How often a device may be lost while it runs one piece of work before that counts as the cause.
_MOST_LOSSES = 3

#: What is sent in one frame at most [byte].
_LARGEST_FRAME = 2**24


class Answer(NamedTuple):
    """What an agent answers: plain values, and blobs."""

    values: Mapping[str, Any]
    blobs: Sequence[bytes]


class Session:
    """The line to the agent of a device. Opened when it is first needed; not thread-safe.

    Parameters
    ----------
    connection : Connection
        How the device is reached.
    adapter : Path
        The file that is sent behind the agent.
    settings : mapping
        What the adapter is made with.
    on_wait : callable
        Called with a sentence when the device is waited for.
    patience : float, default=600.0
        How long a device that was lost is waited for [s].
    """

    def __init__(
        self,
        connection: Connection,
        adapter: Path,
        settings: Mapping[str, Any],
        on_wait: Callable[[str], None] = lambda _sentence: None,
        patience: float = 600.0,
    ) -> None:
        self.connection, self.on_wait, self.patience = connection, on_wait, patience
        self._adapter, self._settings = adapter, dict(settings)
        #: The line, if there is one. It is closed with the session at the latest.
        self._lines: list[Line] = []
        weakref.finalize(self, _close_all, self._lines)
        self._number = 0
        self._contents: dict[str, bytes] = {}
        self._users: collections.Counter[str] = collections.Counter()
        self._there: set[str] = set()
        self._released: list[str] = []
        self._puts: set[int] = set()
        self._is_locked = False
        #: Bytes sent to the device and received from it over the lines that were closed, and how many lines there were.
        self._sent = self.received = self.lines = 0
        #: How long one thing may take on the device [s].
        self.timeout = START
        #: What the agent and its adapter report of the device.
        self.hello: Mapping[str, Any] = {}
        self.opened: Mapping[str, Any] = {}

    @property
    def _line(self) -> Line | None:
        return self._lines[0] if self._lines else None

    @property
    def sent(self) -> int:
        """Bytes sent to the device over all lines."""
        return self._sent + (self._line.sent if self._line is not None else 0)

    def open(self) -> None:
        """Start the agent, unless it runs.

        Raises
        ------
        DeviceError
            If the device cannot be reached, or lacks what is needed there; the sentence says what to do.
        """
        if self._line is not None:
            return
        line = Line(self.connection)
        self._lines.append(line)
        self.lines += 1
        try:
            line.begin()
            self.hello = self._simple("hello").values["facts"]
            blob = self._adapter.read_bytes()
            opened = self._simple("open", [blob], name=self._adapter.name, settings=self._settings, timeout=START)
            known = self.opened.get("facts")
            if known is not None and known != opened.values["facts"]:
                raise DeviceError(
                    f"{self.connection.description} came back with another runtime: {dict(opened.values['facts'])} "
                    f"instead of {dict(known)}."
                )
            self.opened = opened.values
            if self._is_locked:
                self._lock()
        except BaseException:
            self._drop()
            raise

    def close(self) -> None:
        """End the agent; it removes its folder."""
        if self._line is not None:
            with contextlib.suppress(DeviceError, CandidateError):
                self._send({"do": "end"})
                self._line.wait_for_end()
        self._drop()
        self._is_locked = False

    def _drop(self) -> None:
        if self._line is not None:
            self._sent += self._line.sent
            self.received += self._line.received
            _close_all(self._lines)
        self._there.clear()
        self._puts.clear()

    def lock(self) -> None:
        """Take the device's lock, so that nothing else measures there meanwhile; waits and raises as `take_turn`."""
        self._is_locked = True
        self._again(self._lock)

    def unlock(self) -> None:
        """Give the lock back."""
        self._is_locked = False
        with contextlib.suppress(DeviceError):
            if self._line is not None:
                self._simple("lock", folders=[])

    def _lock(self) -> None:
        folders = list(self.connection.lock_folders)

        def take() -> bool:
            return bool(self._simple("lock", folders=folders).values["taken"])

        take_turn(self.connection, take, self.on_wait, self.patience)

    def renew(self) -> None:
        """Make the agent start another process for networks."""
        self._again(lambda: self._simple("renew"))

    def conditions(self) -> Mapping[str, Any]:
        """Return what the device is like at this moment."""
        found: Mapping[str, Any] = self._again(lambda: self._simple("conditions")).values["conditions"]
        return found

    def heat(self) -> Mapping[str, Any]:
        """Return how warm the device is, and whether it is slowed down."""
        found: Mapping[str, Any] = self._again(lambda: self._simple("heat")).values["heat"]
        return found

    def keep(self, content: bytes) -> str:
        """Keep a content until it is released as often, and return its name; it is sent when it is first needed."""
        name = _agent.name_of(content)
        self._contents[name] = content
        self._users[name] += 1
        return name

    def release(self, name: str) -> None:
        """Let go of a content, here and there."""
        self._users[name] -= 1
        if not self._users[name]:
            del self._users[name], self._contents[name]
            self._there.discard(name)
            self._released.append(name)

    def ask(self, what: str, *, needs: Sequence[str] = (), timeout: float | None = None, **fields: Any) -> Answer:
        """Ask the device for one thing.

        Parameters
        ----------
        what : str
            What the worker does.
        needs : sequence of str
            Names of contents that it needs there.
        timeout : float, optional
            How long it may take there [s]; by default `timeout`.
        **fields
            What it is asked with.

        Raises
        ------
        CandidateError
            If what was asked for fails there.
        WorkerDiedError
            If it crashed there.
        DeviceError
            If the device does not come back, or has no space left.
        """
        longest = self.timeout if timeout is None else timeout
        (answer,) = self.ask_all([{"do": what, "needs": list(needs), **fields}], longest)
        return answer

    def ask_all(self, pieces: Sequence[Mapping[str, Any]], timeout: float) -> Iterator[Answer]:
        """Ask the device for several things at once, and yield the answers as they come; raises as `ask`.

        The first that fails ends them all. A device that is lost is waited for, and asked for the rest.
        """
        done, losses = 0, 0
        while done < len(pieces):
            try:
                self.open()
                for answer in self._exchange(pieces[done:], timeout):
                    done, losses = done + 1, 0
                    yield answer
            except LostError as error:
                losses += 1
                if losses == _MOST_LOSSES:
                    raise WorkerDiedError(f"the device was lost {losses} times while it ran") from error
                self._reconnect(error)

    def _exchange(self, pieces: Sequence[Mapping[str, Any]], timeout: float) -> Iterator[Answer]:
        """Send what is needed and what is asked for, and yield the answers."""
        left, line = list(pieces), self._line
        while left:
            self._provide(dict.fromkeys(name for piece in left for name in piece["needs"]))
            number = self._send({"do": "visits", "visits": left, "timeout": timeout})
            try:
                while left:
                    answer = self._receive(number, timeout + START + GRACE)
                    if answer.values["kind"] == "lacking":
                        self._there.difference_update(answer.values["names"])
                        break
                    left.pop(0)
                    yield answer
            except GeneratorExit:
                # The rest is not wanted. The session may be closed, or have another line by now.
                if left and self._line is line:
                    with contextlib.suppress(DeviceError):
                        self._send({"do": "stop", "request": number})
                raise

    def _provide(self, names: Mapping[str, None]) -> None:
        """Send contents that are not there, without waiting for the answer."""
        blobs: list[bytes] = []
        for name in names:
            if name not in self._there:
                blobs.append(self._contents[name])
                self._there.add(name)
            if sum(map(len, blobs)) > _LARGEST_FRAME:
                self._puts.add(self._send({"do": "put"}, blobs))
                blobs = []
        if blobs:
            self._puts.add(self._send({"do": "put"}, blobs))

    def _simple(self, what: str, blobs: Sequence[bytes] = (), *, timeout: float = GRACE, **fields: Any) -> Answer:
        """Ask the agent itself, once."""
        return self._receive(self._send({"do": what, "timeout": timeout, **fields}, blobs), timeout + GRACE)

    def _send(self, header: Mapping[str, Any], blobs: Sequence[bytes] = ()) -> int:
        assert self._line is not None
        self._number += 1
        released, self._released = self._released, []
        self._line.send(_agent.pack({**header, "id": self._number, "release": released}, blobs))
        return self._number

    def _receive(self, number: int, timeout: float) -> Answer:
        """Return the next answer to a request; answers to earlier ones that were given up are passed over."""
        assert self._line is not None
        while True:
            header, blobs = self._line.receive(timeout)
            if header["id"] not in (number, *self._puts):
                continue
            self._puts.discard(header["id"])
            self._check(header)
            if header["id"] == number:
                return Answer(header, blobs)

    def _check(self, header: Mapping[str, Any]) -> None:
        kind, where = header["kind"], self.connection.description
        if kind in ("ok", "lacking"):
            return
        if kind == "failed":
            raise CandidateError(str(header["error"]))
        if kind == "died":
            raise WorkerDiedError(str(header["error"]))
        if kind == "absent":
            raise DeviceError(self._absent(str(header["module"]), str(header["error"])))
        if kind == "full":
            raise DeviceError(
                f"{where} has no space left in {header['folder']} ({header['error']}). Make room there, or name "
                "another folder by TMPDIR there."
            )
        raise DeviceError(f"{where} cannot do what was asked: {header['error']}.")

    def _absent(self, module: str, reason: str) -> str:
        """Say what a Python of the device lacks, and how to get it."""
        package, machine = module.partition(".")[0], self.hello.get("machine", "")
        python = self.connection.python
        imported = re.findall(r"^(?:import|from) (\w+)", self._adapter.read_text(encoding="utf-8"), re.MULTILINE)
        outside = [name for name in imported if name not in sys.stdlib_module_names]
        names = [name.replace("_", "-") for name in dict.fromkeys(["numpy", *outside])]
        return (
            f"{python!r} of {self.connection.description} (Python {self.hello.get('python', '?')}, {machine}) cannot "
            f"load {package!r} ({reason}). Name another Python by the runtime's option python=PATH, or "
            f"install it there: {install_command(python, names)}"
        )

    def _again(self, do: Callable[[], Any]) -> Any:
        """Do something that may be done again on a new line."""
        for attempt in range(_MOST_LOSSES):
            try:
                self.open()
                return do()
            except LostError as error:
                if attempt == _MOST_LOSSES - 1:
                    raise
                self._reconnect(error)
        raise AssertionError

    def _reconnect(self, error: DeviceError) -> None:
        """Reach a device again that was lost; at once, and then with growing pauses."""
        self._drop()
        if not self.hello:
            raise error
        comeback = Comeback(self.on_wait, self.patience)
        while True:
            try:
                self.open()
            except DeviceError as again:
                comeback.wait(again)
            else:
                return


def install_command(python: str, packages: Sequence[str]) -> str:
    """Return the command by which a Python of a device gets packages."""
    return f"{python} -m pip install {' '.join(packages)}"


def _close_all(lines: list[Line]) -> None:
    while lines:
        lines.pop().close()
