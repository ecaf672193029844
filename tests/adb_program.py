# SPDX-License-Identifier: Apache-2.0
"""An adb that reaches devices which are folders of this machine: run as a program, it is the program ``adb``.

It takes the commands that are used, prints what adb prints, and ends with the codes that adb ends with. The folder of
the program holds the devices: the file ``devices`` has a line with serial number and state for each, and a device runs
its programs as this machine does, with a temporary folder of its own. The file ``unplugged`` pulls the cable of all.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

_UNAUTHORIZED = """device unauthorized.
This adb server's $ADB_VENDOR_KEYS is not set
Try 'adb kill-server' if that seems wrong.
Otherwise check for a confirmation dialog on your device."""

_NO_PERMISSIONS = """insufficient permissions for device: user in plugdev group; are your udev rules wrong?
See [http://developer.android.com/tools/device.html] for more information"""


class Adb:
    """The program in a folder, and its devices.

    Parameters
    ----------
    folder : Path
        Where it is installed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, *, lost: int = 0) -> None:
        """Write the program; `lost` is the code with which it ends when a connection is lost: 255 since 2022."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / "adb").write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
            f"import adb_program\nsys.exit(adb_program.main({str(self.folder)!r}, {lost}, sys.argv[1:]))\n"
        )
        (self.folder / "adb").chmod(0o755)
        self.connect()

    def connect(self, **states: str) -> None:
        """Connect devices: states by serial number."""
        (self.folder / "devices").write_text("".join(f"{serial}\t{state}\n" for serial, state in states.items()))
        (self.folder / "unplugged").unlink(missing_ok=True)
        for serial in states:
            (self.folder / serial).mkdir(exist_ok=True)

    def unplug(self) -> None:
        """Pull the cables."""
        (self.folder / "devices").write_text("")
        (self.folder / "unplugged").touch()


def main(folder: str, lost: int, words: list[str]) -> int:
    """Run one command of adb."""
    root, serial = Path(folder), os.environ.get("ANDROID_SERIAL", "")
    if words[:1] == ["-s"]:
        serial, words = words[1], words[2:]
    devices = dict(line.split("\t") for line in (root / "devices").read_text().splitlines())
    if words == ["devices"]:
        listed = "".join(f"{name}\t{state}\n" for name, state in devices.items())
        sys.stdout.write(f"List of devices attached\n{listed}\n")
        return 0
    chosen = [name for name in devices if serial in ("", name)]
    error = _error(serial, [devices[name] for name in chosen])
    if error is not None:
        start = "error: " if words[0] == "shell" else "adb: error: failed to get feature set: "
        sys.stderr.write(f"{start}{error}\n")
        return 1
    command, *arguments = words
    if command == "shell":
        assert arguments[0] == "-T", "Without -T, a terminal might change bytes."
        return _shell(root, chosen[0], lost, " ".join(arguments[1:]))
    assert command in ("push", "pull"), words
    return _copy(command, *arguments)


def _error(serial: str, states: list[str]) -> str | None:
    if not states:
        return f"device '{serial}' not found" if serial else "no devices/emulators found"
    if len(states) > 1:
        return "more than one device/emulator"
    return {
        "unauthorized": _UNAUTHORIZED,
        "offline": "device offline",
        "no permissions": _NO_PERMISSIONS,
        "old": "device only supports allocating a pty",
        "no server": "cannot connect to daemon",
    }.get(states[0])


def _shell(root: Path, serial: str, lost: int, command: str) -> int:
    """Run a program in a shell, until it ends or the cable is pulled."""
    environment = {**os.environ, "TMPDIR": str(root / serial)}
    process = subprocess.Popen(
        ["sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    threading.Thread(target=_pass_on, args=(process,), daemon=True).start()
    # Programs of a device do not hold the pipes of adb: these close when adb ends, whatever goes on there.
    outputs = [
        threading.Thread(target=_print, args=pair, daemon=True) for pair in ((process.stdout, 1), (process.stderr, 2))
    ]
    for thread in outputs:
        thread.start()
    while process.poll() is None:
        if (root / "unplugged").exists():
            os.killpg(process.pid, signal.SIGHUP)
            os._exit(lost)
        time.sleep(0.002)
    for thread in outputs:
        thread.join(5)
    os._exit(process.returncode if process.returncode >= 0 else 128 - process.returncode)


def _print(pipe: IO[bytes], descriptor: int) -> None:
    try:
        while block := os.read(pipe.fileno(), 2**16):
            while block:
                block = block[os.write(descriptor, block) :]
    except OSError:
        return


def _pass_on(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    try:
        while block := os.read(0, 2**16):
            process.stdin.write(block)
            process.stdin.flush()
        process.stdin.close()
    except OSError:
        return


def _copy(command: str, source: str, target: str) -> int:
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        where = "stat remote object" if command == "pull" else "copy"
        sys.stderr.write(f"adb: error: failed to {where} '{source}' to '{target}': {error.strerror}\n")
        return 1
    sys.stdout.write(f"{source}: 1 file {command}ed, 0 skipped. 1.0 MB/s\n")
    return 0
