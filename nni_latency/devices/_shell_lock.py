# SPDX-License-Identifier: Apache-2.0
"""`ShellLock`: the lock of a device that has no Python, by the program flock; agents see it, and it sees theirs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from nni_latency.devices._connection import Connection, DeviceError, end
from nni_latency.devices._waiting import take_turn

#: Locks the first of the folders that can be opened, writes a line, and holds the lock until its input ends. It ends
#: where there is nothing to lock.
_SCRIPT = """for folder in "$@"; do
    if [ -d "$folder" ] && [ -r "$folder" ]; then
        exec 9< "$folder"
        flock -n 9
        case $? in 0) echo taken; exec cat > /dev/null ;; 1) exit 9 ;; esac
    fi
done"""

#: Exit code of the script where another process has the lock.
_IS_TAKEN = 9

#: How long the script is waited for when it has to end, and when it is about to end by itself [s].
_LEAVE, _END = 1.0, 60.0


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
        """Take it; waits and raises as `take_turn`."""
        take_turn(self._connection, self._try, self._on_wait)

    def renew(self) -> None:
        """Take it again where it was lost with the connection."""
        lost = self._holder
        if lost is not None and lost.poll() is not None:
            self.take()
            end(lost, _LEAVE)

    def _try(self) -> bool:
        holder = self._connection.start(["sh", "-c", _SCRIPT, "sh", *self._connection.lock_folders])
        assert holder.stdout is not None and holder.stderr is not None, holder
        if holder.stdout.readline().strip() == b"taken":
            self._holder = holder
            return True
        err = holder.stderr.read()
        # Its exit code is the answer: a script that was killed here would look like one that found nothing to lock.
        end(holder, _END)
        sentence = self._connection.failure(holder.returncode, err)
        if sentence is not None:
            raise DeviceError(sentence)
        return holder.returncode != _IS_TAKEN

    def give_back(self) -> None:
        """Give it back."""
        if self._holder is not None:
            end(self._holder, _LEAVE)
            self._holder = None
