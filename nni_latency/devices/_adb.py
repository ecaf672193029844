# SPDX-License-Identifier: Apache-2.0
"""`AdbConnection`: an Android device that is reached by this machine's adb."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nni_latency.devices._connection import MEASURE_BY_BINARY, SHORT, Connection, DeviceError, end, start_here
from nni_latency.errors import InvalidValueError, listed

#: Codes of the device's shell that mean that a program succeeded, or ended with a code that adb uses itself.
_SUCCEEDED, _ODD = 254, 253

#: Code of a process whose connection was lost.
_LOST = 255

#: Runs the program with its arguments. Older versions of adb end with 0 when the connection is lost, newer ones with
#: 255, so a program that ends so here ends with another code there.
_RUN = f'"$@"; c=$?; case $c in 0) exit {_SUCCEEDED} ;; {_SUCCEEDED} | {_LOST}) exit {_ODD} ;; esac; exit $c'


class AdbConnection(Connection):
    """An Android device, 7 or later, that is reached by this machine's adb: by cable or by network.

    Parameters
    ----------
    address : str, default=""
        Its serial number, as ``adb devices`` lists it. Without one, the only device, or the one that the variable
        ``ANDROID_SERIAL`` names.

    Raises
    ------
    InvalidValueError
        If the serial number cannot be one.

    Examples
    --------
    >>> AdbConnection("192.168.0.9:5555").description
    'adb:192.168.0.9:5555'
    """

    folder = "/data/local/tmp"
    advice = "Check the cable, and that the device is awake"

    def __init__(self, address: str = "") -> None:
        if address and re.fullmatch(r"(?!-)[ -~]+", address) is None:
            raise InvalidValueError(
                "A device 'adb:SERIAL' must have a serial number as 'adb devices' lists it, such as adb:0A041FDD4003. "
                f"Got {f'adb:{address}'!r}."
            )
        self.description = f"adb:{address}" if address else "adb"
        self._adb = ["adb", *(["-s", address] if address else [])]

    @property
    def python_advice(self) -> str:
        """What a user can do without Python: Android has none."""
        return MEASURE_BY_BINARY.capitalize()

    def start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a program on the device, without a terminal, so that its input and output are binary."""
        remote = shlex.join(["sh", "-c", _RUN, "sh", *command])
        return start_here(
            [*self._adb, "shell", "-T", remote], self.description, make=_AdbProcess, missing=_NOT_INSTALLED
        )

    def failure(self, code: int, err: bytes) -> str | None:
        """Explain what adb prints instead of running a program."""
        if code < 0:
            return f"The adb of this machine, which reaches {self.description}, ended by the signal {-code}."
        if code not in (1, _LOST):
            return None
        text = _own_lines(err)
        for pattern, sentence in _REASONS.items():
            if re.search(pattern, text):
                serials = list(self.devices()) if "{serials}" in sentence else []
                return sentence.format(
                    device=self.description, serials=listed(serials) or "none", first=(serials or ["SERIAL"])[0]
                )
        return self.lost if code == _LOST else None

    def send(self, content: bytes | Path, path: str, *, timeout: float = 3600.0) -> None:
        """Write a file on the device by ``adb push``; it appears under its name once it is whole."""
        with tempfile.TemporaryDirectory(prefix="nni_latency.") as folder:
            source = Path(content).absolute() if isinstance(content, Path) else Path(folder) / "content"
            if isinstance(content, bytes):
                source.write_bytes(content)
            try:
                self._copy(["push", str(source), f"{path}.part"], f"write {path!r}", timeout)
                self.check(["mv", f"{path}.part", path], f"write {path!r}")
            except DeviceError:
                with contextlib.suppress(DeviceError):
                    self.run(["rm", "-f", f"{path}.part"])
                raise

    def fetch(self, path: str, *, timeout: float = 3600.0) -> bytes:
        """Return the content of a file of the device by ``adb pull``."""
        with tempfile.TemporaryDirectory(prefix="nni_latency.") as folder:
            target = Path(folder) / "content"
            self._copy(["pull", path, str(target)], f"read {path!r}", timeout)
            return target.read_bytes()

    def devices(self) -> dict[str, str]:
        """Return the states of the devices of this machine by serial number, such as ``device`` or ``offline``."""
        process = start_here(["adb", "devices"], self.description, missing=_NOT_INSTALLED)
        try:
            out, _ = process.communicate(timeout=SHORT)
        except subprocess.TimeoutExpired:
            return {}
        finally:
            end(process)
        found = (line.split("\t", 1) for line in out.decode(errors="replace").splitlines() if "\t" in line)
        return {serial.strip(): state.strip() for serial, state in found}

    def _copy(self, command: Sequence[str], what: str, timeout: float) -> None:
        process = start_here([*self._adb, *command], self.description, missing=_NOT_INSTALLED)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise DeviceError(f"{self.description} cannot {what} within {timeout:g} s.") from error
        finally:
            end(process)
        if process.returncode:
            text = err if err.strip() else out
            sentence = self.failure(1, text)
            lines = [line for line in text.decode(errors="replace").splitlines() if re.search("error|failed", line)]
            reason = lines[-1].removeprefix("adb: ").removeprefix("error: ").strip() if lines else "adb gives no reason"
            raise DeviceError(sentence or f"{self.description} cannot {what}: {reason}.")


class _AdbProcess(subprocess.Popen[bytes]):
    """A process of ``adb shell``, with the exit code of the program in place of the one that `_RUN` made of it."""

    @property
    def returncode(self) -> int | None:
        """The exit code; 255 if the connection was lost."""
        return self._code

    @returncode.setter
    def returncode(self, code: int | None) -> None:
        self._code = code if code is None else {_SUCCEEDED: 0, 0: _LOST}.get(code, code)


def _own_lines(err: bytes) -> str:
    """Return the lines that adb itself prints, and not a program."""
    lines = err.decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if line.startswith(("error: ", "adb: ")))


#: What adb prints, and the sentence that it means; the first that is found counts.
_REASONS: dict[str, str] = {
    r"no devices(?:/emulators)? found": (
        "{device} cannot be reached: adb finds no device. Connect it by cable, switch on USB debugging in its "
        "developer options, and see that it is listed by: adb devices"
    ),
    r"more than one (?:device|emulator)": ("{device} may be any of several devices: {serials}. Name one: adb:{first}"),
    r"device unauthorized|still authorizing": (
        "{device} does not trust this machine yet. Unlock its screen and tap 'Allow' where it asks 'Allow USB "
        "debugging?'; if it does not ask, unplug it and connect it again."
    ),
    r"device offline|still connecting": (
        "{device} is offline: it is listed, but does not answer. Connect it again, or start it anew; if that does not "
        "help: adb kill-server"
    ),
    r"device '.*' not found": (
        "{device} cannot be reached: adb finds no device with that serial number. It finds: {serials}."
    ),
    r"no permissions|insufficient permissions": (
        "{device} may not be used by this user. On Linux, install rules for such devices, on Debian and Ubuntu: apt "
        "install android-sdk-platform-tools-common; then connect it again."
    ),
    r"cannot connect to daemon|failed to check server version|failed to start daemon": (
        "{device} cannot be reached: the server of adb does not start. Try: adb start-server"
    ),
    r"only supports allocating a pty": (
        "{device} cannot be used: Android 7 or later is needed, and it has an older one."
    ),
}

_NOT_INSTALLED = (
    "There is no program 'adb' on this machine, which reaches Android devices. Install it, on Debian and Ubuntu: "
    "apt install adb"
)
