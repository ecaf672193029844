# SPDX-License-Identifier: Apache-2.0
"""A Python for 64-bit ARM with numpy, ONNX Runtime and ncnn, emulated on this machine. Times mean nothing."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

#: Where it is made, once.
FOLDER = Path(__file__).parents[1] / ".venv-arm64"

EMULATOR = "qemu-aarch64-static"

#: The newest ONNX Runtime that the emulator runs, and what it needs; older than what the tests have here.
_WHEELS = ("onnxruntime==1.20.1", "ncnn==1.0.20261020", "numpy<2.3")

_DEBIAN = ("python3-minimal", "libpython3-stdlib", "libgomp1", "libstdc++6")

#: Longest time for a download [s].
_PATIENCE = 120.0

#: The lists, packages and state of apt are kept apart from those of this machine.
_APT = """\
APT::Architecture "arm64";
APT::Architectures {{ "arm64"; }};
APT::Sandbox::User "root";
APT::Install-Recommends "false";
Acquire::Languages "none";
Acquire::Retries "1";
Acquire::http::Timeout "20";
Dir::State "{folder}/state";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
Dir::Log "{folder}";
"""

#: As a Raspberry Pi 4 has it. ONNX Runtime asks which processor it runs on, so there is an entry for each.
_PROCESSOR = """\
processor\t: {number}
BogoMIPS\t: 108.00
Features\t: fp asimd evtstrm crc32 cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd08
CPU revision\t: 3

"""

BOARD = "Raspberry Pi 4 Model B Rev 1.4"

#: Paths are looked up below the root first, then on this machine.
_PROGRAM = f"""\
#!/bin/sh
here=${{0%/bin/*}}
QEMU_CPU=cortex-a72 exec {EMULATOR} -L "$here/root" -E PYTHONHOME="$here/root/usr" -E PYTHONPATH="$here/$PACKAGES" \\
    "$here/root/usr/bin/python3" "$@"
"""


class UnavailableError(Exception):
    """Raised when the environment cannot be made here; the message is the reason."""


def make_arm_python(folder: Path = FOLDER) -> Path:
    """Make the environment, unless it was made before, and return its folder.

    ``bin/python`` has the packages, ``bin/bare`` has none. No root and no installation of foreign packages is needed.

    Raises
    ------
    UnavailableError
        If this machine has no emulator, no apt, or nothing could be downloaded.
    """
    if shutil.which(EMULATOR) is None:
        raise UnavailableError(f"needs {EMULATOR} (package qemu-user-static)")
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise UnavailableError("needs apt, to download packages for another processor")
    folder.mkdir(exist_ok=True)
    made, recipe = folder / "made", Path(__file__).read_text()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists() or made.read_text() != recipe:
            for name in ("made", "apt", "root", "wheels", "bin"):
                path = folder / name
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            _unpack_debian(folder)
            _unpack_wheels(folder)
            _write_programs(folder)
            made.write_text(recipe)
    return folder


def _unpack_debian(folder: Path) -> None:
    apt = folder / "apt"
    for name in ("state/lists/partial", "cache/archives/partial"):
        (apt / name).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "apt.conf").write_text(_APT.format(folder=apt))
    environment = {**os.environ, "APT_CONFIG": str(apt / "apt.conf")}
    _run("apt-get", "-qq", "update", environment=environment)
    _run("apt-get", "-qq", "--yes", "--download-only", "install", *_DEBIAN, environment=environment)
    for package in sorted((apt / "cache" / "archives").glob("*.deb")):
        _run("dpkg", "-x", str(package), str(folder / "root"))
    shutil.rmtree(apt)
    rows = [_PROCESSOR.format(number=number) for number in range(max(4, os.cpu_count() or 1))]
    device_tree = folder / "root" / "proc" / "device-tree"
    device_tree.mkdir(parents=True)
    (device_tree / "model").write_text(BOARD + "\0")
    (device_tree.parent / "cpuinfo").write_text("".join(rows))


def _unpack_wheels(folder: Path) -> None:
    version = (folder / "root" / "usr" / "bin" / "python3").resolve().name.removeprefix("python")
    platforms = [word for glibc in (17, 27, 28) for word in ("--platform", f"manylinux_2_{glibc}_aarch64")]
    _run(
        *(
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--no-compile",
        ),
        *("--target", str(folder / "wheels"), "--only-binary=:all:", "--python-version", version),
        *platforms,
        *_WHEELS,
    )


def _write_programs(folder: Path) -> None:
    (folder / "bin").mkdir()
    for name, packages in (("python", "wheels"), ("bare", "nothing")):
        program = folder / "bin" / name
        program.write_text(_PROGRAM.replace("$PACKAGES", packages))
        program.chmod(0o755)


def _run(*command: str, environment: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE, env=environment, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{command[0]} did not end within {_PATIENCE:g} s") from error
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).decode(errors="replace").splitlines()
        raise UnavailableError(f"{command[0]} failed: {lines[-1] if lines else done.returncode}")
