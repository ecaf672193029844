# SPDX-License-Identifier: Apache-2.0
"""The contract suite of connections to devices."""

from __future__ import annotations

import contextlib
import random
import selectors
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO

from nni_latency.devices import Connection, DeviceError
from nni_latency.testing._contracts import expect
from nni_latency.units import number_of

#: Words that a shell would change if it saw them.
_WORDS = ["", " ", "a b", "'", '"', "\\", "$(exit 3)", "`exit 3`", "$HOME", "*", "a\nb", "\n", "~", ";", "-n", "é", "#"]

#: Longest time that anything of the suite may take [s].
_LONGEST = 60.0

_DATA = random.Random(0).randbytes(1_000_000)


def check_connection(connection: Connection) -> None:
    """Check that a connection keeps the contract of `Connection`, on a device that is reached and has a POSIX shell.

    Parameters
    ----------
    connection : Connection
        Which is open afterwards. Nothing is left on the device.

    Raises
    ------
    AssertionError
        If the contract is broken; the message says how.
    """
    expect(isinstance(connection, Connection), f"{type(connection).__name__} must be a subclass of Connection.")
    connection.check_attributes(f"connection {type(connection).__name__!r}")
    _check_words(connection)
    _check_codes(connection)
    _check_streams(connection)
    _check_end_of_input(connection)
    _check_threads(connection)
    folder = connection.make_folder()
    try:
        _check_files(connection, folder)
        for name, begin, data in (("all", "", b""), ("none", "", _DATA), ("closed", "exec <&-; ", _DATA)):
            _check_timeout(connection, f"{folder}/{name}", begin, data)
    finally:
        connection.remove_folder(folder)
    expect(connection.run(["test", "-e", folder]).code == 1, "remove_folder must remove the folder.")


def _check_words(connection: Connection) -> None:
    script = 'for word; do printf "%s\\0" "$word"; done; echo error >&2'
    done = connection.run(["sh", "-c", script, "sh", *_WORDS])
    found = done.out.decode().split("\0")[:-1]
    expect(found == _WORDS, f"Arguments must arrive as they are. Got {found!r}.")
    expect(done.err.strip() == b"error", f"Errors must come apart from output. Got {done.err!r}.")


def _check_codes(connection: Connection) -> None:
    for code in (0, 1, 2, 7, 126, 200):
        found = connection.run(["sh", "-c", f"exit {code}"]).code
        expect(found == code, f"A program's exit code must be returned. Got {found} instead of {code}.")
    found = connection.run(["sh", "-c", "kill -KILL $$"]).code
    expect(found == 137, f"The exit code of a program that signal 9 ended must be 137. Got {found}.")
    found = connection.run(["no-program-of-that-name"]).code
    expect(found == 127, f"The exit code must be 127 where there is no such program. Got {found}.")
    for code in (0, 1, 7):
        sentence = connection.failure(code, b"error: the network has no input\n")
        expect(sentence is None, f"failure must return None if the program itself failed. Got {sentence!r}.")


def _check_streams(connection: Connection) -> None:
    """Check that bytes pass unchanged, both ways at once, and that small pieces are not held back."""
    done = connection.run(["cat"], data=_DATA)
    expect(done.out == _DATA, f"A million bytes must come back unchanged. Got {number_of(len(done.out), 'byte')}.")
    expect(connection.run(["cat"]).out == b"", "A program of run must reach the end of an empty input.")
    process = connection.start(["cat"])
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(3):
            piece = b"%d\n" % number
            process.stdin.write(piece)
            process.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                expect(bool(selector.select(_LONGEST)), "A few bytes must pass at once, and not wait for more.")
            expect(process.stdout.readline() == piece, "Bytes must come back in order.")
        writer = threading.Thread(target=_write, args=(process.stdin,), daemon=True)
        writer.start()
        expect(process.stdout.read(len(_DATA)) == _DATA, "Writing and reading must be possible at once.")
        writer.join(_LONGEST)
    finally:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired, OSError, ValueError):
            process.communicate(timeout=_LONGEST)


def _write(pipe: IO[bytes]) -> None:
    pipe.write(_DATA)
    pipe.flush()


def _check_end_of_input(connection: Connection) -> None:
    process = connection.start(["sh", "-c", "cat >/dev/null; echo ended; exit 5"])
    out, _ = process.communicate(b"x", timeout=_LONGEST)
    expect(out == b"ended\n", "A program must reach the end of its input when the pipe is closed.")
    expect(process.returncode == 5, f"A process of start must end with the program's code. Got {process.returncode}.")


def _check_threads(connection: Connection) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda number: connection.run(["echo", str(number)]).out, range(8)))
    expect(found == [b"%d\n" % number for number in range(8)], "Programs must run from several threads at once.")


def _check_files(connection: Connection, folder: str) -> None:
    path = f"{folder}/a file, 'quoted' $(exit 3)"
    for content in (_DATA, b"shorter", b""):
        connection.send(content, path)
        expect(connection.fetch(path) == content, "fetch must return what send wrote.")
    with tempfile.TemporaryDirectory() as here:
        file = Path(here) / "content"
        file.write_bytes(_DATA)
        connection.send(file, path)
    expect(connection.fetch(path) == _DATA, "send must take files of this machine.")
    names = connection.run(["ls", "-A", folder]).out.decode().splitlines()
    expect(len(names) == 1, f"Nothing must be left beside a file that was sent. Got {names}.")
    for place, act in {
        "send": lambda: connection.send(b"x", f"{folder}/missing/file"),
        "fetch": lambda: connection.fetch(f"{folder}/missing/file"),
    }.items():
        sentence = _error_of(act)
        expect(f"{folder}/missing/file" in sentence, f"{place} must raise DeviceError with the path. Got {sentence!r}.")
        expect(connection.description in sentence, f"{place} must name the device. Got {sentence!r}.")


def _check_timeout(connection: Connection, path: str, begin: str, data: bytes) -> None:
    """Check that a program is ended which takes too long, and takes none of its input or closes it."""
    script = f"{begin}echo $$ > '{path}'; exec sleep 600"
    # On a slow device it may be ended before it has begun.
    for timeout in (1, 4, 16):
        sentence = _error_of(partial(connection.run, ["sh", "-c", script], data=data, timeout=timeout))
        expected = f"did not end within {timeout} s"
        expect(expected in sentence, f"run must end programs that take too long. Got {sentence!r}.")
        if connection.run(["test", "-s", path]).code == 0:
            break
    number = connection.fetch(path).decode().strip()
    limit = time.monotonic() + _LONGEST
    while connection.run(["sh", "-c", f"kill -0 {int(number)}"]).code == 0:
        expect(time.monotonic() < limit, "A program that takes too long must be ended on the device, too.")
        time.sleep(0.1)


def _error_of(act: Callable[[], object]) -> str:
    try:
        act()
    except DeviceError as error:
        return str(error)
    return "nothing was raised"
