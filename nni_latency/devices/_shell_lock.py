"""`ShellLock`: a lock on a device, so that one process measures there at a time, by the program flock."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from nni_latency.devices._connection import Connection, DeviceError, end
from nni_latency.units import format_seconds

#: Writes a line once the lock is taken, and holds it until its input ends. What is locked is the folder of temporary
#: files, so that no file is left behind.
_SCRIPT = """folder="${TMPDIR:-/tmp}"; [ -d "$folder" ] || folder=/data/local/tmp
exec 9< "$folder" || exit 8
flock -n 9 || exit 9; echo taken; exec cat > /dev/null"""

#: Exit code of the script where another process has the lock.
_IS_TAKEN = 9

#: Pause between two attempts, and how long the device is waited for [s].
_PAUSE, _PATIENCE = 0.5, 600.0


class ShellLock:
    """A lock on a device. It is given back when the connection is lost.

    Parameters
    ----------
    connection : Connection
        How the device is reached.
    on_wait : callable
        Called with a sentence when another process has it.
    """

    def __init__(self, connection: Connection, on_wait: Callable[[str], None]) -> None:
        self._connection, self._on_wait = connection, on_wait
        self._holder: subprocess.Popen[bytes] | None = None

    def take(self) -> None:
        """Take it, and wait for it where another process has it.

        Raises
        ------
        DeviceError
            If the other process has it for long, or the connection is lost.
        """
        limit, is_told = time.monotonic() + _PATIENCE, False
        while not self._try():
            if time.monotonic() > limit:
                raise DeviceError(
                    f"Another process has measured on {self._connection.description} for the last "
                    f"{format_seconds(_PATIENCE)}. Try again when it has ended."
                )
            if not is_told:
                self._on_wait(f"Waiting for {self._connection.description}: another process measures there")
                is_told = True
            time.sleep(_PAUSE)

    def _try(self) -> bool:
        holder = self._connection.start(["sh", "-c", _SCRIPT])
        assert holder.stdout is not None and holder.stderr is not None, holder
        if holder.stdout.readline().strip() == b"taken":
            self._holder = holder
            return True
        err = holder.stderr.read()
        end(holder, _PAUSE)
        sentence = self._connection.failure(holder.returncode, err)
        if sentence is not None:
            raise DeviceError(sentence)
        # Where there is no such folder there is nothing to lock.
        return holder.returncode != _IS_TAKEN

    def give_back(self) -> None:
        """Give it back."""
        if self._holder is not None:
            end(self._holder, 2 * _PAUSE)
            self._holder = None
