# SPDX-License-Identifier: Apache-2.0
"""The environment with the Python that converts networks: litert-torch needs other versions than this package.

It is made once, on first use, in the user's cache. What is half-made is never used: the file that says that it is whole
is written last, and an environment without that file is made anew.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from nni_latency.devices import DeviceError, PythonConnection
from nni_latency.errors import MissingDependencyError, OutputError
from nni_latency.files import cache_folder, locked, write_atomically

#: Names a Python that has litert-torch already; then no environment is made.
PYTHON_VARIABLE = "NNI_LATENCY_LITERT_PYTHON"

#: What is installed besides torch.
_REQUIREMENT = "litert-torch>=0.10,<0.11"

#: How long making the environment may take, here or in another process [s].
_LONGEST = 3600.0

#: Written last.
_COMPLETE = "complete"

_REMEDY = (
    "It is installed once, and pip must reach a package index for that. Otherwise, name a Python that has litert-torch "
    f"in {PYTHON_VARIABLE}."
)


def own_python() -> Path:
    """Return the Python of the environment that converts networks; make it if there is none.

    Raises
    ------
    MissingDependencyError
        If it cannot be made.
    OutputError
        If the cache cannot be written.
    BusyError
        If another process is making it and does not end.
    """
    version = f"torch{torch_version()}-python{sys.version_info.major}.{sys.version_info.minor}"
    return _own(cache_folder() / "litert" / version)


def _own(folder: Path) -> Path:
    """Return the Python of our environment; make it if it is not complete."""
    complete = folder / _COMPLETE
    if not complete.is_file():
        try:
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"Cannot write {str(folder.parent)!r}: {error.strerror or error}.") from error
        doing = "making the environment that converts networks for LiteRT"
        with locked(folder.parent / f".{folder.name}.lock", doing, wait=_LONGEST, remedy=f"set {PYTHON_VARIABLE}"):
            if not complete.is_file():
                _make(folder)
    return _python_in(folder)


def _make(folder: Path) -> None:
    """Make the environment; without the last file it does not count."""
    sys.stderr.write(
        "Making the environment that converts networks for LiteRT, once: litert-torch with torch and jax, about 2 GB "
        f"in {folder}. This takes a few minutes.\n"
    )
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(_python_in(folder)), "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "--no-input", _REQUIREMENT, f"torch=={torch_version()}"])
    write_atomically(folder / _COMPLETE, "")


def _run(command: Sequence[str]) -> None:
    """Run a step of making the environment."""
    try:
        done = PythonConnection(sys.executable).run(command, timeout=_LONGEST)
    except DeviceError as error:
        raise MissingDependencyError(f"{_failure(str(error))} {_REMEDY}") from error
    if done.code:
        lines = [line for line in (done.err + done.out).decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["it printed nothing"]
        raise MissingDependencyError(f"{_failure(errors[-1].removeprefix('ERROR:').strip())} {_REMEDY}")


def _failure(reason: str) -> str:
    return f"The environment that converts networks for LiteRT could not be made: {reason.rstrip('.')}."


def _python_in(folder: Path) -> Path:
    return folder / "bin" / "python"


def torch_version() -> str:
    """Return the version of torch, without the part that says how it was built."""
    return str(torch.__version__).partition("+")[0]
